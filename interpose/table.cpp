// Look-ups in the generated table. Hash tables with linear probing, sized at generation; no
// relocation per name.
#include "interpose/table.h"

#include <string.h>

// Where each entry's hook is, as its distance from the table itself; 0 = not hooked (generated).
extern "C" __attribute__((visibility("hidden"))) const int32_t sluice_hook_distances[];

namespace sluice::interpose {
namespace {

// Names begin with a page: reading across the end of one takes strcmp longer, so that what a
// look-up costs would hang on where the linker puts them.
#include "driver_table.gen.inc"

uint32_t name_hash(const char* text) {
  uint32_t value = 0x811C9DC5u;
  for (; *text != '\0'; ++text) {
    value = (value ^ static_cast<unsigned char>(*text)) * 0x01000193u;
  }
  return value;
}

template <size_t N>
int table_find(const uint16_t (&table)[N], const char* names, const uint16_t* offsets,
               const char* name) {
  static_assert((N & (N - 1)) == 0);
  for (size_t i = name_hash(name) & (N - 1); table[i] != 0; i = (i + 1) & (N - 1)) {
    const int index = table[i] - 1;
    if (strcmp(names + offsets[index], name) == 0) return index;
  }
  return -1;
}

// The entry points that share a base name.
struct Variants {
  int first;
  int size;
};
bool variants_find(const char* base, Variants* out) {
  const int found = table_find(kBaseHash, kBaseNames, kBaseNameOffsets, base);
  if (found < 0) return false;
  *out = Variants{kBaseFirst[found], kBaseSize[found]};
  return true;
}

// The variant that a driver of this table's version selects for a request; -1 when none is old
// enough.
int variants_select(const Variants& variants, int version, bool per_thread) {
  int best = -1;
  for (int i = variants.first; i < variants.first + variants.size; ++i) {
    if (kPerThread[i] == (per_thread ? 1 : 0) && kSince[i] <= version) best = i;
  }
  return best == -1 && per_thread ? variants_select(variants, version, false) : best;
}

}  // namespace

DriverTable driver;

int entry_find(const char* name) { return table_find(kSymbolHash, kNames, kNameOffsets, name); }

void* entry_hook(int entry) {
  const int32_t distance = sluice_hook_distances[entry];
  const char* base = reinterpret_cast<const char*>(sluice_hook_distances);
  return distance == 0 ? nullptr : const_cast<char*>(base + distance);
}
const char* entry_name(int entry) { return kNames + kNameOffsets[entry]; }

void* route_pointer(const char* base, void* real, int version, uint64_t flags, bool* known) {
  Variants variants;
  *known = variants_find(base, &variants);
  if (!*known) {
    *known = table_find(kPassedHash, kPassedNames, kPassedNameOffsets, base) >= 0;
    return real;
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const int selected = variants_select(variants, version, per_thread);
  int match = -1;
  for (int i = variants.first; i < variants.first + variants.size; ++i) {
    if (driver_pointers()[i] != real) continue;
    // Two names may share an address (aliases): the one that the request would select is the right
    // ABI.
    if (match == -1 || i == selected) match = i;
  }
  if (match == -1 && version <= CUDA_VERSION) match = selected;
  if (match == -1) *known = false;
  void* hook = match == -1 ? nullptr : entry_hook(match);
  return hook != nullptr ? hook : real;
}

}  // namespace sluice::interpose

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

// The member that a driver of this table's version selects for a request; -1 when none is old
// enough.
int family_select(const Family& family, int version, bool per_thread) {
  int best = -1;
  for (int i = family.first; i < family.first + family.size; ++i) {
    if (kPerThread[i] == (per_thread ? 1 : 0) && kSince[i] <= version) best = i;
  }
  return best == -1 && per_thread ? family_select(family, version, false) : best;
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

bool family_find(const char* base, Family* out) {
  const int family = table_find(kFamilyHash, kFamilyNames, kFamilyNameOffsets, base);
  if (family < 0) return false;
  *out = Family{kFamilyFirst[family], kFamilySize[family]};
  return true;
}

void* route_pointer(const char* base, void* real, int version, uint64_t flags, bool* known) {
  Family family;
  *known = family_find(base, &family);
  if (!*known) {
    *known = table_find(kPassedHash, kPassedNames, kPassedNameOffsets, base) >= 0;
    return real;
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const int selected = family_select(family, version, per_thread);
  int match = -1;
  for (int i = family.first; i < family.first + family.size; ++i) {
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

// cuGetProcAddress of the fake drivers, by NVIDIA's rules: the newest entry not newer than the
// version asked for; per-thread twins by flag, else the plain one.
#include <string.h>

#include <map>
#include <string_view>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/recording.h"

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE RecordedCalls fake_calls;
RecordedCalls fake_calls;
FAKE int fake_lookup_private;
int fake_lookup_private;
FAKE FakeLookup fake_lookups[kFakeLookupsMax];
FakeLookup fake_lookups[kFakeLookupsMax];
FAKE int fake_lookup_count;
int fake_lookup_count;

namespace {
/// A function that no plain look-up of the driver knows.
CUresult private_entry() { return CUDA_SUCCESS; }
}  // namespace

FAKE CUresult cuGetProcAddress_v2(const char* symbol, void** pointer, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* status) {
  static const std::multimap<std::string_view, const FakeEntry*> table = [] {
    std::multimap<std::string_view, const FakeEntry*> made;
    for (int i = 0; i < fake_entry_count; ++i) made.emplace(fake_entries[i].base, &fake_entries[i]);
    return made;
  }();
  if (const int index = __atomic_fetch_add(&fake_lookup_count, 1, __ATOMIC_RELAXED);
      index < kFakeLookupsMax) {
    FakeLookup& noted = fake_lookups[index];
    strncpy(noted.symbol, symbol, sizeof noted.symbol - 1);
    noted.version = version;
    noted.flags = flags;
  }
  *pointer = nullptr;
  const auto [first, last] = table.equal_range(symbol);
  bool known = first != last;
  const int wants = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  for (int pass = wants; pass >= 0 && *pointer == nullptr; --pass) {
    for (auto i = first; i != last; ++i) {
      if (i->second->per_thread == pass && i->second->since <= version)
        *pointer = i->second->function;
    }
  }
  if (strcmp(symbol, "cuFutureThing") == 0) {
    *pointer = reinterpret_cast<void*>(&cuInit);
    known = true;
  }
  if (*pointer != nullptr && fake_lookup_private != 0) {
    *pointer = reinterpret_cast<void*>(&private_entry);
  }
  if (status != nullptr) {
    *status = *pointer != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known             ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}
FAKE CUresult cuGetProcAddress(const char* symbol, void** pointer, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, pointer, version, flags, nullptr);
}

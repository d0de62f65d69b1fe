// The object the program loaded is asked first (by its SONAME, without loading), then the object it
// asked by an absolute path, and only then the loader's search path. A "real" function that turns
// out to be our own is refused: calling it would recurse for ever.
#include "interpose/resolve.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include "interpose/lookup.h"
#include "interpose/types.h"

namespace sluice::interpose {
namespace {

constexpr char kDriverName[] = "libcuda.so.1";
constexpr char kNvmlName[] = "libnvidia-ml.so.1";

uint32_t driver_state;  // 0 = not tried, 1 = resolved
uint32_t nvml_state;
Lock resolve_lock;

constexpr int kUnknownMax = 256;
uint32_t unknown_names[kUnknownMax];  // hashes; a collision loses one count, no more
uint32_t unknown_total;

void* library_open(const char* name, void* seen) {
  void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) handle = seen;
  if (handle == nullptr) handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  return handle;
}

void* real_find(void* library, const char* name) {
  void* found = real_dlsym(library, name);
  return found != nullptr && address_is_ours(found) ? nullptr : found;
}

// libnvidia-ml.so.1 from the directory that the driver was loaded from; nullptr without either.
void* nvml_beside_driver() {
  Dl_info driver_file;
  if (load_acquire(driver_state) != 1 ||
      dladdr(reinterpret_cast<void*>(driver.cuInit), &driver_file) == 0) {
    return nullptr;
  }
  const char* slash = strrchr(driver_file.dli_fname, '/');
  const size_t folder =
      slash == nullptr ? 0 : static_cast<size_t>(slash - driver_file.dli_fname) + 1;
  if (folder == 0 || folder + sizeof kNvmlName > PATH_MAX) return nullptr;
  // The program's thread may have no more than PTHREAD_STACK_MIN.
  auto* path = static_cast<char*>(pages_allocate(PATH_MAX));
  if (path == nullptr) return nullptr;
  memcpy(path, driver_file.dli_fname, folder);
  memcpy(path + folder, kNvmlName, sizeof kNvmlName);
  void* library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  pages_free(path, PATH_MAX);
  return library;
}

CUresult CUDAAPI no_driver() { return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED; }

}  // namespace

NvmlTable nvml;

bool resolve_driver() {
  if (SLUICE_LIKELY(load_acquire(driver_state) == 1)) return true;
  const SystemGuard guard;
  lookup_prepare();
  // Outside the lock: loading may run constructors that look names up.
  void* library = library_open(kDriverName, driver_handle_seen());
  const LockScope scope(resolve_lock);
  if (load_acquire(driver_state) == 1) return true;
  void** pointers = driver_pointers();
  bool found = false;
  for (int i = 0; i < kEntryCount; ++i) {
    void* real = library == nullptr ? nullptr : real_find(library, entry_name(i));
    found |= real != nullptr;
    // A function that this driver lacks: through our exports, and in our own calls, an error
    // instead of a jump to nowhere.
    pointers[i] = real != nullptr ? real : reinterpret_cast<void*>(&no_driver);
  }
  if (found) store_release(driver_state, 1u);
  return found;
}

bool resolve_nvml() {
  if (SLUICE_LIKELY(load_acquire(nvml_state) == 1)) return true;
  const SystemGuard guard;
  lookup_prepare();
  // Handles of devices belong to one library: the program's, if it has loaded one.
  void* library = dlopen(kNvmlName, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) library = nvml_beside_driver();
  if (library == nullptr) library = dlopen(kNvmlName, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return false;
  const LockScope scope(resolve_lock);
#define SLUICE_NVML_FIND(name) \
  nvml.name = reinterpret_cast<decltype(nvml.name)>(real_find(library, #name));
  SLUICE_NVML_FUNCTIONS(SLUICE_NVML_FIND)
#undef SLUICE_NVML_FIND
  store_release(nvml_state, 1u);
  return true;
}

void resolve_reset_after_fork() { resolve_lock.reset_after_fork(); }

bool library_has(bool is_nvml, const char* name, const char* version) {
  const uint32_t state = is_nvml ? load_acquire(nvml_state) : load_acquire(driver_state);
  void* seen = is_nvml ? nullptr : driver_handle_seen();
  if (version == nullptr && (state == 1 || seen != nullptr)) return true;
  void* handle = dlopen(is_nvml ? kNvmlName : kDriverName, RTLD_LAZY | RTLD_NOLOAD);
  void* asked = handle != nullptr ? handle : seen;
  const bool has =
      asked != nullptr && (version == nullptr || real_dlvsym(asked, name, version) != nullptr);
  if (handle != nullptr) dlclose(handle);
  return has;
}

void unknown_count(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  if (hash == 0) hash = 1;
  for (int i = 0; i < kUnknownMax; ++i) {
    uint32_t& slot = unknown_names[(hash + static_cast<uint32_t>(i)) % kUnknownMax];
    uint32_t expected = 0;
    if (load_relaxed(slot) == hash) return;
    if (load_relaxed(slot) == 0 &&
        __atomic_compare_exchange_n(&slot, &expected, hash, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
      __atomic_add_fetch(&unknown_total, 1, __ATOMIC_RELAXED);
      return;
    }
    if (expected == hash) return;
  }
}

unsigned unknown_seen() { return load_relaxed(unknown_total); }

}  // namespace sluice::interpose

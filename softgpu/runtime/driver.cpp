// Loading of the driver: see driver.h. Everything here is built on first use, because fat binaries
// register themselves from static constructors that may run before ours, and is never destroyed,
// because they unregister after our destructors would have run.
#include "softgpu/runtime/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace softgpu::runtime {
namespace {

thread_local bool t_per_thread_stream = false;
std::atomic<cudaError_t> g_start_error{cudaSuccess};

/// Stands in for an entry point that the driver does not have. Its arguments do not matter to the
/// calling convention.
CUresult entry_missing() { return CUDA_ERROR_NOT_SUPPORTED; }

template <class Function>
void store_entry(Function& slot, void* found) {
  static_assert(sizeof(slot) == sizeof(found));
  if (found == nullptr) {
    slot = reinterpret_cast<Function>(reinterpret_cast<void (*)()>(&entry_missing));
  } else {
    std::memcpy(&slot, &found, sizeof(slot));
  }
}

class Loaded {
 public:
  Loaded() {
    fill(legacy_, CU_GET_PROC_ADDRESS_DEFAULT);
    per_thread_ = legacy_;
    status_ = load();
    g_start_error.store(status_);
  }

  const Driver& table(bool per_thread) const { return per_thread ? per_thread_ : legacy_; }
  cudaError_t status() const { return status_; }
  int version() const { return version_; }

 private:
  cudaError_t load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return cudaErrorInsufficientDriver;
    void* found = dlsym(library, "cuGetProcAddress_v2");
    if (found == nullptr) return cudaErrorInsufficientDriver;
    std::memcpy(&lookup_, &found, sizeof(lookup_));
    // The empty name is no question but a test: the toolkit's stub library gives itself away here.
    void* nothing = nullptr;
    if (lookup_("", &nothing, 0, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) == CUDA_ERROR_STUB_LIBRARY) {
      return cudaErrorStubLibrary;
    }
    // The answer for 11.3 has another signature; only that it exists matters, as it does to
    // NVIDIA's runtime.
    void* before_12 = find("GetProcAddress", 11030, CU_GET_PROC_ADDRESS_DEFAULT);
    void* from_12 = find("GetProcAddress", 12000, CU_GET_PROC_ADDRESS_DEFAULT);
    if (before_12 == nullptr || from_12 == nullptr) return cudaErrorInsufficientDriver;
    std::memcpy(&lookup_, &from_12, sizeof(lookup_));
    fill(legacy_, CU_GET_PROC_ADDRESS_DEFAULT);
    per_thread_ = legacy_;
    fill_stream_entries(per_thread_);
    return initialize();
  }

  cudaError_t initialize() {
    if (legacy_.DriverGetVersion(&version_) != CUDA_SUCCESS) return cudaErrorInsufficientDriver;
    // Minor versions are compatible both ways; an older major version is not.
    if (version_ / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
    return static_cast<cudaError_t>(legacy_.Init(0));
  }

  void* find(const char* name, int version, cuuint64_t flags) const {
    if (lookup_ == nullptr) return nullptr;
    char symbol[96] = "cu";
    std::strncat(symbol, name, sizeof(symbol) - 3);
    void* found = nullptr;
    if (lookup_(symbol, &found, version, flags, nullptr) != CUDA_SUCCESS) return nullptr;
    return found;
  }

  void fill(Driver& table, cuuint64_t flags) const {
    table.GetProcAddress = nullptr;
    store_entry(table.GetProcAddress, find("GetProcAddress", 12000, flags));
#define ENTRY(name, version) store_entry(table.name, find(#name, version, flags));
#define STREAM_ENTRY(name, version) ENTRY(name, version)
#include "softgpu/runtime/driver_entries.inc"
#undef STREAM_ENTRY
#undef ENTRY
  }

  /// The forms for per-thread default streams came with CUDA 7.0, to functions older than that,
  /// too.
  static constexpr int per_thread_version(int version) { return version < 7000 ? 7000 : version; }

  void fill_stream_entries(Driver& table) const {
#define ENTRY(name, version)
#define STREAM_ENTRY(name, version)                                \
  store_entry(table.name, find(#name, per_thread_version(version), \
                               CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
#include "softgpu/runtime/driver_entries.inc"
#undef STREAM_ENTRY
#undef ENTRY
  }

  PFN_cuGetProcAddress_v12000 lookup_ = nullptr;
  Driver legacy_;
  Driver per_thread_;
  int version_ = 0;
  cudaError_t status_;
};

const Loaded& loaded() {
  static const Loaded* const once = new Loaded;
  return *once;
}

}  // namespace

const Driver& driver() { return loaded().table(t_per_thread_stream); }
cudaError_t driver_ready() { return loaded().status(); }
cudaError_t driver_start_error() { return g_start_error.load(); }
int driver_version() { return loaded().version(); }

PerThreadScope::PerThreadScope() : before_(t_per_thread_stream) { t_per_thread_stream = true; }
PerThreadScope::~PerThreadScope() { t_per_thread_stream = before_; }
bool per_thread_default_stream() { return t_per_thread_stream; }

}  // namespace softgpu::runtime

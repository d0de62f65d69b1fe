// Loads the driver; see driver.h.
#include "trainer/device/driver.h"

#include <dlfcn.h>

namespace sluice::train {
namespace {

// The ABI asked for: 12.0 has every call used here, and later drivers keep it.
constexpr int kAbiVersion = 12000;

template <class Function>
void function_find(decltype(&::cuGetProcAddress) lookup, const char* name, Function* out) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = lookup(name, &found, kAbiVersion, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  if (result != CUDA_SUCCESS || found == nullptr) {
    throw Failure(
        text_format("the CUDA driver has no %s (error %d); a driver of CUDA 12.0 or "
                    "later is needed",
                    name, static_cast<int>(result)));
  }
  *out = reinterpret_cast<Function>(found);
}

DriverTable driver_load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Failure(
        text_format("no CUDA driver: %s; install NVIDIA's driver, or use the software "
                    "GPU: put its directory (lib/softgpu) into LD_LIBRARY_PATH",
                    dlerror()));
  }
  const auto lookup =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (lookup == nullptr) {
    throw Failure(
        "libcuda.so.1 has no cuGetProcAddress_v2; a driver of CUDA 12.0 or later is needed");
  }
  DriverTable table;
#define SLUICE_DRIVER_FIND(name) function_find(lookup, #name, &table.name);
  SLUICE_DRIVER_CALLS(SLUICE_DRIVER_FIND)
#undef SLUICE_DRIVER_FIND
  table.stream_delay =
      reinterpret_cast<decltype(table.stream_delay)>(dlsym(library, "softgpuStreamDelay"));
  table.stream_go_on =
      reinterpret_cast<decltype(table.stream_go_on)>(dlsym(library, "softgpuStreamGoOn"));
  const CUresult result = table.cuInit(0);
  if (result != CUDA_SUCCESS) {
    const char* name = nullptr;
    table.cuGetErrorName(result, &name);
    throw DriverFailure(result, text_format("cuInit failed: %s; no usable GPU is visible to this "
                                            "process (CUDA_VISIBLE_DEVICES, permissions)",
                                            name ? name : "unknown error"));
  }
  return table;
}

}  // namespace

const DriverTable& driver() {
  static const DriverTable table = driver_load();
  return table;
}

bool driver_available(std::string* why_not) {
  try {
    driver();
    return true;
  } catch (const Failure& failure) {
    if (why_not != nullptr) *why_not = failure.what();
    return false;
  }
}

void driver_check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  driver().cuGetErrorName(result, &name);
  driver().cuGetErrorString(result, &text);
  throw DriverFailure(result, text_format("%s: %s (%s)", what, name ? name : "unknown error",
                                          text ? text : "no text"));
}

}  // namespace sluice::train

// The CUDA driver, found at run time: libcuda.so.1 by dlopen and its functions by cuGetProcAddress,
// as the CUDA runtime does. So the programs start (and can say what is missing) on machines without
// a driver, and nothing is linked.
#pragma once

#include <cuda.h>

#include <string>

#include "trainer/base/failure.h"

namespace sluice::train {

// Every driver function that the trainer's programs call. The name is stringised unexpanded and
// used expanded, so that cuMemAlloc asks for "cuMemAlloc" and has the type of the ABI that cuda.h
// chose.
// clang-format off
#define SLUICE_DRIVER_CALLS(X) \
  X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuDeviceGet) X(cuDeviceGetAttribute) \
  X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDevicePrimaryCtxRelease) \
  X(cuDevicePrimaryCtxRetain) X(cuDeviceTotalMem) X(cuDriverGetVersion) X(cuEventCreate) \
  X(cuEventDestroy) X(cuEventElapsedTime) X(cuEventRecord) X(cuEventSynchronize) \
  X(cuGetErrorName) X(cuGetErrorString) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) \
  X(cuInit) X(cuLaunchKernel) X(cuMemAlloc) X(cuMemAllocHost) X(cuMemFree) X(cuMemFreeHost) \
  X(cuMemGetInfo) X(cuMemHostAlloc) X(cuMemHostGetDevicePointer) X(cuMemcpyDtoDAsync) \
  X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync) X(cuMemsetD32Async) X(cuModuleGetFunction) \
  X(cuModuleLoadData) X(cuModuleUnload) X(cuStreamBeginCapture) X(cuStreamCreate) \
  X(cuStreamDestroy) X(cuStreamEndCapture) X(cuStreamSynchronize) X(cuStreamWaitEvent)
// clang-format on

struct DriverTable {
#define SLUICE_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  SLUICE_DRIVER_CALLS(SLUICE_DRIVER_MEMBER)
#undef SLUICE_DRIVER_MEMBER
  /// An extension of the software driver; null on hardware. Occupies the copy engine of a stream's
  /// device for `ns`.
  CUresult (*stream_delay)(CUstream stream, unsigned long long ns) = nullptr;
  /// Another one: where time is modelled, what the host has waited since the stream's work was done
  /// is not the device's.
  CUresult (*stream_go_on)(CUstream stream) = nullptr;
};

/// A failed driver call; `code` tells tests and exit codes apart.
class DriverFailure : public Failure {
 public:
  DriverFailure(CUresult result, const std::string& text) : Failure(text), code(result) {}
  CUresult code;
};

/// The table, loaded and initialised (cuInit) on first use. Throws Failure with the remedy where
/// there is no driver.
const DriverTable& driver();

/// True where driver() would work; no exception, for tests that skip.
bool driver_available(std::string* why_not);

/// Throws DriverFailure "what: CUDA_ERROR_NAME (text)".
void driver_check(CUresult result, const char* what);

}  // namespace sluice::train

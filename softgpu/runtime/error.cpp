// Errors: the last error of each thread, names and messages. Names and the messages of rare errors
// are generated from the enumeration in the toolkit's header; the messages that programs print and
// scripts compare are written out here.
#include <array>
#include <cstring>

#include "softgpu/runtime/call.h"

namespace softgpu::runtime {
namespace {

thread_local cudaError_t t_last_error = cudaSuccess;

struct ErrorText {
  int value;
  const char* name;
  const char* words;  // the name taken apart: good enough for what hardly anybody meets
};

constexpr ErrorText kErrors[] = {
#include "error_names.inc"  // generated
};

struct Message {
  cudaError_t error;
  const char* text;
};

constexpr Message kMessages[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInitializationError, "initialization error"},
    {cudaErrorCudartUnloading, "driver shutting down"},
    {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "invalid pitch argument"},
    {cudaErrorInvalidSymbol, "invalid device symbol"},
    {cudaErrorInvalidDevicePointer, "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
    {cudaErrorStubLibrary, "CUDA driver is a stub library"},
    {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorMissingConfiguration, "__global__ function call is not configured"},
    {cudaErrorInvalidDeviceFunction, "invalid device function"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorSoftwareValidityNotEstablished, "integrity checks failed"},
    {cudaErrorInvalidKernelImage, "device kernel image is invalid"},
    {cudaErrorDeviceUninitialized, "invalid device context"},
    {cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"},
    {cudaErrorUnsupportedLimit, "limit is not supported on this architecture"},
    {cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"},
    {cudaErrorInvalidPtx, "a PTX JIT compilation failed"},
    {cudaErrorUnsupportedPtxVersion,
     "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorFileNotFound, "file not found"},
    {cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
    {cudaErrorSymbolNotFound, "named symbol not found"},
    {cudaErrorNotReady, "device not ready"},
    {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "the launch timed out and was terminated"},
    {cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"},
    {cudaErrorSetOnActiveProcess, "cannot set while device is active in this process"},
    {cudaErrorContextIsDestroyed, "context is destroyed"},
    {cudaErrorAssert, "device-side assert triggered"},
    {cudaErrorHostMemoryAlreadyRegistered,
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"},
    {cudaErrorIllegalInstruction, "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "misaligned address"},
    {cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "invalid program counter"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"},
    {cudaErrorNotPermitted, "operation not permitted"},
    {cudaErrorNotSupported, "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureImplicit,
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorUnknown, "unknown error"},
};

constexpr const char* kUnrecognized = "unrecognized error code";

const ErrorText* find_error(cudaError_t error) {
  for (const ErrorText& known : kErrors) {
    if (known.value == static_cast<int>(error)) return &known;
  }
  return nullptr;
}

}  // namespace

cudaError_t record_error(cudaError_t error) {
  // "Not ready" is an answer (CUDA programming guide, "Error checking").
  if (error != cudaSuccess && error != cudaErrorNotReady) t_last_error = error;
  return error;
}

}  // namespace softgpu::runtime

using namespace softgpu::runtime;

cudaError_t CUDARTAPI cudaGetLastError(void) {
  const cudaError_t last = t_last_error;
  // A driver that could not be started cannot be forgotten: every call gives that error, this one
  // too.
  t_last_error = driver_start_error();
  return last;
}

cudaError_t CUDARTAPI cudaPeekAtLastError(void) { return t_last_error; }

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  const ErrorText* known = find_error(error);
  return known != nullptr ? known->name : kUnrecognized;
}

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  for (const Message& message : kMessages) {
    if (message.error == error) return message.text;
  }
  const ErrorText* known = find_error(error);
  return known != nullptr ? known->words : kUnrecognized;
}

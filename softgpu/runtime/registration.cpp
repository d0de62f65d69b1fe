// The calls that nvcc puts into every object file with device code: registration before main, and
// the stack of launch configurations behind <<<...>>>. Their signatures are those of
// crt/host_runtime.h and crt/device_functions.h.
#include <memory>

#include "softgpu/runtime/call.h"
#include "softgpu/runtime/registry.h"

using namespace softgpu::runtime;

namespace {

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
  CallConfiguration* below;
};

/// The launches that this thread evaluates arguments for, the innermost first. No object with a
/// destructor: destructors of the program's own thread_local objects launch kernels, too.
constinit thread_local CallConfiguration* t_innermost = nullptr;

Binary* to_binary(void** handle) { return reinterpret_cast<Binary*>(handle); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(Registry::get().add_binary(wrapper));
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void** handle) { Registry::get().remove_binary(to_binary(handle)); }

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Registry::get().add_function(to_binary(handle), host, name);
}

void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t size_bytes,
                       int, int) {
  Registry::get().add_variable(to_binary(handle), host, name, size_bytes);
}

void __cudaRegisterManagedVar(void** handle, void** host, char*, const char* name, int,
                              size_t size_bytes, int, int) {
  Registry::get().add_managed(to_binary(handle), host, name, size_bytes);
}

char __cudaInitModule(void** handle) {
  const cudaError_t error =
      in_context([&](const Driver&) { return Registry::get().prepare(to_binary(handle)); });
  return error == cudaSuccess ? 1 : 0;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st* stream) {
  t_innermost = new CallConfiguration{grid, block, shared_bytes, stream, t_innermost};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  if (t_innermost == nullptr) return record_error(cudaErrorMissingConfiguration);
  const std::unique_ptr<CallConfiguration> taken(t_innermost);
  t_innermost = taken->below;
  *grid = taken->grid;
  *block = taken->block;
  *shared_bytes = taken->shared_bytes;
  *static_cast<cudaStream_t*>(stream) = taken->stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  return in_context([&](const Driver&) { return Registry::get().find_kernel(host, kernel); });
}

}  // extern "C"
#pragma GCC visibility pop

// How an API function becomes driver calls: make the driver (and, where needed, a context) ready,
// run the body, translate the result and remember it as the thread's last error. Every public
// function goes through one of these.
#pragma once

#include "softgpu/runtime/context.h"
#include "softgpu/runtime/driver.h"

namespace softgpu::runtime {

/// CUresult and cudaError_t share their numbers (since CUDA 10.1); what differs by meaning is
/// translated where it happens.
inline cudaError_t to_error(CUresult result) { return static_cast<cudaError_t>(result); }
inline cudaError_t to_error(cudaError_t error) { return error; }

inline CUdeviceptr to_address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}
inline void* to_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
inline CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

/// Remembers `error` as this thread's last error unless it is success, and hands it on.
cudaError_t record_error(cudaError_t error);

/// Runs `body(driver)` once the driver is loaded; for functions that need no context.
template <class Body>
cudaError_t with_driver(Body&& body) {
  if (const cudaError_t ready = driver_ready(); ready != cudaSuccess) return record_error(ready);
  return record_error(to_error(body(driver())));
}

/// Runs `body(driver)` with a current context: the thread's own, or the primary context of its
/// device.
template <class Body>
cudaError_t in_context(Body&& body) {
  if (const cudaError_t ready = context_ready(); ready != cudaSuccess) return record_error(ready);
  return record_error(to_error(body(driver())));
}

}  // namespace softgpu::runtime

// What the rows about the runtime API share. They run in a program of their own, linked against
// libcudart.so.13 by its name only: the loader's path decides whose it is.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "tests/conformance/harness.h"

extern "C" {
// Host stubs of the kernels of kernels.cu; their addresses name the kernels.
void runtime_store(unsigned* data, unsigned value);
void runtime_scale(unsigned* data, unsigned count);
void runtime_count();
void runtime_wait(volatile unsigned* flag, unsigned* seen);
void runtime_bounded();
void runtime_trap();
}
extern const void* const runtime_counter_symbol;
extern const void* const runtime_table_symbol;
extern const void* const runtime_factor_symbol;
unsigned* runtime_managed_address();

namespace conformance {

/// The call must succeed for the row to have any meaning.
#define RUNS(call)                                                                            \
  do {                                                                                        \
    if (!::conformance::answered(call, cudaSuccess, #call, __FILE__, __LINE__, true)) return; \
  } while (false)

template <typename... Arguments>
const void* kernel_of(void (*stub)(Arguments...)) {
  return reinterpret_cast<const void*>(stub);
}

/// <<<grid, block, shared, stream>>> for code that nvcc does not see.
template <typename... Parameters, typename... Arguments>
cudaError_t run(void (*stub)(Parameters...), unsigned grid, unsigned block, cudaStream_t stream,
                Arguments... arguments) {
  void* list[] = {&arguments..., nullptr};
  return cudaLaunchKernel(kernel_of(stub), dim3(grid), dim3(block), list, 0, stream);
}

inline unsigned word_at(const void* device) {
  unsigned value = ~0U;
  EXPECT_EQ(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost), cudaSuccess);
  return value;
}

/// A word of device memory, zero at first.
class DeviceWord {
 public:
  DeviceWord() {
    EXPECT_EQ(cudaMalloc(&word_, 4), cudaSuccess);
    EXPECT_EQ(cudaMemset(word_, 0, 4), cudaSuccess);
  }
  ~DeviceWord() { cudaFree(word_); }
  DeviceWord(const DeviceWord&) = delete;
  DeviceWord& operator=(const DeviceWord&) = delete;
  unsigned* get() const { return static_cast<unsigned*>(word_); }
  unsigned value() const { return word_at(word_); }

 private:
  void* word_ = nullptr;
};

/// Holds a stream by a kernel that waits for a word of host memory; opens when it goes.
class Hold {
 public:
  Hold() {
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&flag_), 8, cudaHostAllocMapped), cudaSuccess);
    flag_[0] = 0;
    flag_[1] = 0;
    // Loading may wait for the device, so it happens before anything is held.
    cudaFuncAttributes attributes{};
    EXPECT_EQ(cudaFuncGetAttributes(&attributes, kernel_of(runtime_wait)), cudaSuccess);
    EXPECT_EQ(cudaFuncGetAttributes(&attributes, kernel_of(runtime_store)), cudaSuccess);
  }
  ~Hold() {
    open();
    cudaDeviceSynchronize();
    cudaFreeHost(flag_);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  cudaError_t close(cudaStream_t stream) {
    return run(runtime_wait, 1, 1, stream, flag_, flag_ + 1);
  }
  void open() { *static_cast<volatile unsigned*>(flag_) = 1; }

 private:
  unsigned* flag_ = nullptr;
};

inline cudaStream_t stream_make(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
  return stream;
}

/// Whether the primary context of device 0 exists; asked without making it.
inline bool primary_active() {
  unsigned flags = 0;
  int active = -1;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  return active == 1;
}

}  // namespace conformance

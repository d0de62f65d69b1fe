// Work that a row can hold and let go: what "pending" means must not depend on how fast a machine
// is. Everything that may synchronise by itself (allocation, loading a kernel) happens in the
// constructors, so that a row can close a gate afterwards without waiting for itself.
#pragma once

#include <chrono>
#include <thread>

#include "tests/conformance/harness.h"

namespace conformance {

/// A word of pinned memory that both sides see.
class Word {
 public:
  Word() {
    EXPECT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&host_), 64, CU_MEMHOSTALLOC_PORTABLE),
              CUDA_SUCCESS);
    for (int i = 0; i < 16; ++i) host_[i] = 0;
    EXPECT_EQ(cuMemHostGetDevicePointer(&device_, host_, 0), CUDA_SUCCESS);
  }
  ~Word() { cuMemFreeHost(host_); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

  unsigned value() const { return __atomic_load_n(host_, __ATOMIC_ACQUIRE); }
  unsigned long long value64() const {
    return __atomic_load_n(reinterpret_cast<unsigned long long*>(host_), __ATOMIC_ACQUIRE);
  }
  void set(unsigned value) { __atomic_store_n(host_, value, __ATOMIC_RELEASE); }
  void set64(unsigned long long value) {
    __atomic_store_n(reinterpret_cast<unsigned long long*>(host_), value, __ATOMIC_RELEASE);
  }
  CUdeviceptr device() const { return device_; }

 private:
  unsigned* host_ = nullptr;
  CUdeviceptr device_ = 0;
};

/// Holds streams until it is opened; opens when the row ends, however it ends.
class Gate {
 public:
  Gate() = default;
  ~Gate() {
    open();
    cuCtxSynchronize();
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// What is submitted to `stream` from now on waits for open().
  CUresult hold(CUstream stream) {
    return cuStreamWaitValue32(stream, word_.device(), 1, CU_STREAM_WAIT_VALUE_EQ);
  }
  void open() { word_.set(1); }

 private:
  Word word_;
};

/// The kernel `store`, loaded and run once, so that a later launch waits for nothing.
class Store {
 public:
  Store() : function_(kernel("store")) {
    EXPECT_EQ((*this)(word_, 1, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  /// A kernel that writes `value` to `word`.
  CUresult operator()(const Word& word, unsigned value, CUstream stream) const {
    CUdeviceptr address = word.device();
    return launch(function_, 1, 1, {&address, &value}, stream);
  }
  CUfunction function() const { return function_; }

 private:
  Word word_;
  CUfunction function_;
};

/// Asks about a stream that must be held: not at once, when nothing could have run yet.
inline CUresult query_later(CUstream stream) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return cuStreamQuery(stream);
}

inline CUstream stream_new(unsigned flags = CU_STREAM_NON_BLOCKING, int priority = 0) {
  CUstream stream = nullptr;
  EXPECT_EQ(cuStreamCreateWithPriority(&stream, flags, priority), CUDA_SUCCESS);
  return stream;
}

inline CUevent event_new(unsigned flags = CU_EVENT_DISABLE_TIMING) {
  CUevent event = nullptr;
  EXPECT_EQ(cuEventCreate(&event, flags), CUDA_SUCCESS);
  return event;
}

}  // namespace conformance

// What the rows about copies and arrays share: memory of each kind, and someone who opens a gate
// while a row waits.
#pragma once

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/conformance/gate.h"

namespace conformance {

using Bytes = std::vector<unsigned char>;

inline Bytes bytes_counted(std::size_t n, unsigned char from = 0) {
  Bytes bytes(n);
  std::iota(bytes.begin(), bytes.end(), from);
  return bytes;
}

inline CUdeviceptr device_new(std::size_t bytes) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
  return p;
}

inline CUdeviceptr device_new(const Bytes& contents) {
  const CUdeviceptr p = device_new(contents.size());
  EXPECT_EQ(cuMemcpyHtoD(p, contents.data(), contents.size()), CUDA_SUCCESS);
  return p;
}

inline unsigned char* pinned_new(std::size_t bytes) {
  void* p = nullptr;
  EXPECT_EQ(cuMemHostAlloc(&p, bytes, 0), CUDA_SUCCESS);
  std::memset(p, 0, bytes);
  return static_cast<unsigned char*>(p);
}

inline Bytes contents(CUdeviceptr p, std::size_t bytes) {
  Bytes back(bytes, 0xee);
  EXPECT_EQ(cuMemcpyDtoH(back.data(), p, bytes), CUDA_SUCCESS);
  return back;
}

inline CUdeviceptr address_of(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

/// Opens the gate from another thread after a while; opened() tells whether it has.
class Opener {
 public:
  explicit Opener(Gate& gate)
      : thread_([this, &gate] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          opened_ = true;
          gate.open();
        }) {}
  ~Opener() { thread_.join(); }
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;
  bool opened() const { return opened_; }

 private:
  std::atomic<bool> opened_{false};
  std::thread thread_;
};

}  // namespace conformance

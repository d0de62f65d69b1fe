// What every test of the PTX interpreter needs: a Memory and a Host on the heap, and launches in
// one line. PTX is written in the tests, or compiled from kernels.cu by the build.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "softgpu/ptx/machine.h"

namespace softgpu::ptx::test {

class HeapMemory : public Memory {
 public:
  void* allocate(std::size_t bytes, std::size_t align) override {
    if (bytes > limit_bytes) return nullptr;
    void* p = std::aligned_alloc(align, (bytes + align - 1) / align * align);
    std::memset(p, 0, bytes);
    ++live;
    return p;
  }
  void release(void* p) override {
    std::free(p);
    --live;
  }
  std::size_t limit_bytes = SIZE_MAX;
  int live = 0;
};

class TestHost : public Host {
 public:
  bool charge(std::uint64_t warp_instructions) override {
    charged += warp_instructions;
    ++charges;
    std::uint64_t seen = largest;
    while (warp_instructions > seen && !largest.compare_exchange_weak(seen, warp_instructions)) {
    }
    return charged < limit;
  }
  std::uint64_t globaltimer_ns() override { return 1000 + charged; }
  std::uint64_t clock_hz() override { return 1000000000; }
  void print(std::string_view text) override {
    const std::lock_guard lock(mutex);
    printed += text;
  }
  void* heap_allocate(std::size_t bytes) override { return std::malloc(bytes); }
  void heap_free(void* p) override { std::free(p); }
  const Image* image(std::uint64_t handle) override {
    const auto found = images.find(handle);
    return found == images.end() ? nullptr : &found->second;
  }

  std::unordered_map<std::uint64_t, Image> images;
  std::atomic<std::uint64_t> charged{0}, charges{0}, largest{0};
  std::uint64_t limit = UINT64_MAX;
  std::mutex mutex;
  std::string printed;
};

/// Kernel parameters, each at its natural alignment.
class Arguments {
 public:
  template <class T>
  Arguments& add(T value) {
    bytes_.resize((bytes_.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T));
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  const std::byte* data() const { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

class PtxTest : public ::testing::Test {
 protected:
  void load(const std::string& ptx) {
    loaded_ = module_load(ptx, memory_);
    ASSERT_EQ(loaded_.status, LoadStatus::kOk) << loaded_.log;
    ASSERT_EQ(loaded_.log, "");
  }
  const Kernel& kernel(const std::string& name) {
    const Kernel* found = module_kernel(*loaded_.module, name);
    EXPECT_NE(found, nullptr) << name;
    return *found;
  }
  Outcome run(const std::string& name, Dim3 grid, Dim3 block, const Arguments& arguments) {
    launch_.grid = grid;
    launch_.block = block;
    launch_.params = arguments.data();
    return launch_run(kernel(name), launch_, host_);
  }
  void run_good(const std::string& name, Dim3 grid, Dim3 block, const Arguments& arguments) {
    const Outcome outcome = run(name, grid, block, arguments);
    ASSERT_EQ(outcome.fault, Fault::kNone) << outcome.fault_text;
    EXPECT_EQ(outcome.warp_instructions, host_.charged.load());
  }

  HeapMemory memory_;
  TestHost host_;
  Launch launch_;
  LoadResult loaded_;
};

inline std::string ptx_module(const std::string& body) {
  return ".version 9.0\n.target sm_80\n.address_size 64\n" + body;
}

}  // namespace softgpu::ptx::test

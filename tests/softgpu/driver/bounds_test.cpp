// What kernels meet just outside an allocation: a margin that is mapped, as neighbours are on
// hardware, and with exact bounds a fault.
#include <string>
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace softgpu_test {
namespace {

constexpr std::size_t kPage = 4096;            // of the host
constexpr std::size_t kDevicePage = 2 * kMiB;  // of the device

/// peek(p, from) stores the word at `from` to `p`; poke(p) stores 7 there.
constexpr char kTouch[] = R"(
.version 9.0
.target sm_75
.address_size 64
.visible .entry peek(.param .u64 p, .param .u64 from)
{
  .reg .b32 %r<2>;
  .reg .b64 %d<3>;
  ld.param.u64 %d1, [p];
  ld.param.u64 %d2, [from];
  ld.global.u32 %r1, [%d2];
  st.global.u32 [%d1], %r1;
  ret;
}
.visible .entry poke(.param .u64 p)
{
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  ld.param.u64 %d1, [p];
  mov.u32 %r1, 7;
  st.global.u32 [%d1], %r1;
  ret;
}
)";

class Touch {
 public:
  Touch() {
    CUmodule module = nullptr;
    EXPECT_CU(cuModuleLoadData(&module, kTouch));
    EXPECT_CU(cuModuleGetFunction(&peek_, module, "peek"));
    EXPECT_CU(cuModuleGetFunction(&poke_, module, "poke"));
    EXPECT_CU(cuMemAlloc(&word_, 4));
  }
  /// What the context says when a kernel has read there.
  CUresult read(CUdeviceptr from) {
    void* arguments[] = {&word_, &from};
    return run(peek_, arguments);
  }
  CUresult write(CUdeviceptr to) {
    void* arguments[] = {&to};
    return run(poke_, arguments);
  }

 private:
  static CUresult run(CUfunction function, void** arguments) {
    const CUresult launched =
        cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
    return launched == CUDA_SUCCESS ? cuCtxSynchronize() : launched;
  }
  CUfunction peek_ = nullptr, poke_ = nullptr;
  CUdeviceptr word_ = 0;
};

CUdeviceptr allocated(std::size_t bytes) {
  CUdeviceptr p = 0;
  EXPECT_CU(cuMemAlloc(&p, bytes));
  return p;
}

std::size_t memory_free() {
  std::size_t left = 0, total = 0;
  EXPECT_CU(cuMemGetInfo(&left, &total));
  return left;
}

class Bounds : public Driver {};

TEST_F(Bounds, KernelsReadAPageBeforeAndBehind) {
  WithContext([](CUcontext) {
    Touch touch;
    for (const std::size_t bytes : {std::size_t{256}, kPage, 3 * kPage + 4, 2 * kDevicePage}) {
      const CUdeviceptr p = allocated(bytes);
      for (const CUdeviceptr at :
           {p - 4, p - kPage, p - kDevicePage, p + (bytes + 3) / 4 * 4,
            p + (bytes + kPage - 1) / kPage * kPage, p + bytes / 4 * 4 + kDevicePage - 4})
        EXPECT_EQ(touch.read(at), CUDA_SUCCESS) << bytes << " bytes, at " << at - p;
    }
  });
}

TEST_F(Bounds, WhatIsWrittenThereReachesNoAllocation) {
  WithContext([](CUcontext) {
    Touch touch;
    constexpr std::size_t kBytes = 2 * kPage;
    std::vector<CUdeviceptr> buffers;
    for (int k = 0; k < 4; ++k) {
      buffers.push_back(allocated(kBytes));
      ASSERT_CU(cuMemsetD8(buffers.back(), 0, kBytes));
    }
    for (const CUdeviceptr p : buffers) {
      for (const CUdeviceptr at : {p - 4, p - kPage, p + kBytes, p + kBytes + kPage})
        EXPECT_EQ(touch.write(at), CUDA_SUCCESS);
    }
    std::vector<unsigned char> bytes(kBytes);
    for (const CUdeviceptr p : buffers) {
      ASSERT_CU(cuMemcpyDtoH(bytes.data(), p, kBytes));
      EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, 0));
    }
  });
}

TEST_F(Bounds, MarginsCostNothingAndCopiesStayOut) {
  WithContext([](CUcontext) {
    constexpr std::size_t kBytes = 5 * kPage;
    const std::size_t before = memory_free();
    const CUdeviceptr p = allocated(kBytes);
    EXPECT_EQ(before - memory_free(), kBytes);
    unsigned word = 0;
    EXPECT_EQ(cuMemcpyDtoH(&word, p + kBytes, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyDtoH(&word, p - 4, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemsetD8(p + kBytes, 1, 1), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuMemFree(p));
    EXPECT_EQ(memory_free(), before);
  });
}

TEST_F(Bounds, VariablesAndPooledMemoryHaveMarginsToo) {
  WithContext([](CUcontext) {
    Touch touch;
    CUmodule module = nullptr;
    CUdeviceptr variable = 0, pooled = 0;
    std::size_t bytes = 0;
    ASSERT_CU(cuModuleLoadData(&module, kKernels));
    ASSERT_CU(cuModuleGetGlobal(&variable, &bytes, module, "counter"));
    ASSERT_CU(cuMemAllocAsync(&pooled, kPage, nullptr));
    for (const CUdeviceptr p : {variable, pooled}) {
      EXPECT_EQ(touch.read(p - kPage), CUDA_SUCCESS);
      EXPECT_EQ(touch.read(p + 2 * kPage), CUDA_SUCCESS);
    }
  });
}

TEST_F(Bounds, WhatIsFreedTakesItsMarginsAlong) {
  for (const std::ptrdiff_t off : {-4, 0, static_cast<int>(kPage)}) {
    WithContext([off](CUcontext) {
      Touch touch;
      const CUdeviceptr p = allocated(kPage);
      EXPECT_EQ(touch.read(p + static_cast<CUdeviceptr>(off)), CUDA_SUCCESS);
      ASSERT_CU(cuMemFree(p));
      EXPECT_EQ(touch.read(p + static_cast<CUdeviceptr>(off)), CUDA_ERROR_ILLEGAL_ADDRESS) << off;
    });
  }
}

class ExactBounds : public Driver {
 protected:
  ExactBounds() { setenv("SOFTGPU_BOUNDS", "1", 1); }
  ~ExactBounds() override { unsetenv("SOFTGPU_BOUNDS"); }
};

TEST_F(ExactBounds, TheNextPageFaults) {
  constexpr std::size_t kBytes = 2 * kPage;
  for (const std::ptrdiff_t off : {std::ptrdiff_t{-4}, -static_cast<std::ptrdiff_t>(kPage),
                                   static_cast<std::ptrdiff_t>(kBytes),
                                   static_cast<std::ptrdiff_t>(kBytes + kDevicePage - 4)}) {
    for (const bool writes : {false, true}) {
      WithContext([off, writes](CUcontext) {
        Touch touch;
        // Neighbours on both sides: it is not chance that nothing is mapped there.
        std::vector<CUdeviceptr> buffers;
        for (int k = 0; k < 3; ++k) buffers.push_back(allocated(kBytes));
        EXPECT_EQ(touch.read(buffers[1]), CUDA_SUCCESS);
        EXPECT_EQ(touch.write(buffers[1] + kBytes - 4), CUDA_SUCCESS);
        const CUdeviceptr at = buffers[1] + static_cast<CUdeviceptr>(off);
        EXPECT_EQ(writes ? touch.write(at) : touch.read(at), CUDA_ERROR_ILLEGAL_ADDRESS) << off;
      });
    }
  }
}

TEST_F(ExactBounds, AllocationsWorkAndAreChargedAsBefore) {
  WithContext([](CUcontext) {
    const std::size_t before = memory_free();
    constexpr unsigned kWords = 3 * kPage / 4 + 1;
    CUdeviceptr p = allocated(4 * kWords);
    EXPECT_EQ(before - memory_free(), 4 * kWords);
    ASSERT_CU(cuMemsetD32(p, 41, kWords));
    unsigned count = kWords;
    void* arguments[] = {&p, &count};
    ASSERT_CU(cuLaunchKernel(Driver::function("add_one"), kWords / 128 + 1, 1, 1, 128, 1, 1, 0,
                             nullptr, arguments, nullptr));
    std::vector<unsigned> words(kWords);
    ASSERT_CU(cuMemcpyDtoH(words.data(), p, 4 * kWords));
    EXPECT_EQ(words, std::vector<unsigned>(kWords, 42));
  });
}

TEST_F(ExactBounds, AreOnOrOff) {
  setenv("SOFTGPU_BOUNDS", "maybe", 1);
  ::testing::internal::CaptureStderr();
  InChild([] { EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE); });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("SOFTGPU_BOUNDS: \"maybe\" is no value"), std::string::npos) << said;
}

}  // namespace
}  // namespace softgpu_test

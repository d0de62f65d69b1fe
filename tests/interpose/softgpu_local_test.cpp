// Local memory of kernels: the first launch of a deep kernel, or the first node that names it, asks
// the quota before the driver has taken anything. Judged by the most that the device ever held.
#include <string>

#include "tests/interpose/softgpu_first_uses.h"

namespace {

using namespace sluice::test;

// Each thread of the kernel has so much local memory.
std::string deep_text(size_t bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry store(.param .u64 p0)\n{\n"
         "  .local .align 8 .b8 room[" +
         std::to_string(bytes) +
         "];\n  .reg .b32 %r<2>;\n  mov.u32 %r1, 3;\n  st.local.u32 [room], %r1;\n  ret;\n}\n";
}

size_t stack_limit() {
  size_t bytes = 0;
  EXPECT_EQ(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  return bytes;
}

class SoftGpuLocalTest : public SoftGpuFirstUsesTest {
 protected:
  explicit SoftGpuLocalTest(bool listed = true) : SoftGpuFirstUsesTest(listed, deep_text(8)) {}
  void SetUp() override {
    SoftGpuFirstUsesTest::SetUp();
    own_ = held();
    limit_ = stack_limit();
  }
  // A deep kernel, of a library or of a module.
  Given given(size_t bytes, bool of_library) {
    Given g{nullptr, nullptr, out_, context, other_};
    if (of_library) {
      CUkernel kernel = nullptr;
      EXPECT_EQ(cuLibraryLoadData(&g.library, deep_text(bytes).c_str(), nullptr, nullptr, 0,
                                  nullptr, nullptr, 0),
                CUDA_SUCCESS);
      EXPECT_EQ(cuLibraryGetKernel(&kernel, g.library, "store"), CUDA_SUCCESS);
      g.kernel = reinterpret_cast<CUfunction>(kernel);
    } else {
      CUmodule module = nullptr;
      EXPECT_EQ(cuModuleLoadData(&module, deep_text(bytes).c_str()), CUDA_SUCCESS);
      EXPECT_EQ(cuModuleGetFunction(&g.kernel, module, "store"), CUDA_SUCCESS);
    }
    return g;
  }
  // Kernels of modules are not named by the context that a node tells.
  template <class Check>
  void each_launch(Check check) {
    for (const bool of_library : {false, true}) {
      for (const FirstUse& way : kFirstUses) {
        if (way.uses != Uses::kLaunches) continue;
        const std::string name = way.name;
        if (!of_library && name == "a node of a kernel in a context") continue;
        check(way, of_library, name + (of_library ? " of a library" : " of a module"));
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limit_), CUDA_SUCCESS);
      }
    }
  }
  void each_launch_is_refused();
  void each_launch_fits();

  static constexpr size_t kFits = 1536, kTooMuch = 4096;
  uint64_t own_ = 0;
  size_t limit_ = 0;
};

class SoftGpuLocalEstimatedTest : public SoftGpuLocalTest {
 protected:
  SoftGpuLocalEstimatedTest() : SoftGpuLocalTest(false) {}
};

void SoftGpuLocalTest::each_launch_is_refused() {
  each_launch([this](const FirstUse& way, bool of_library, const std::string& name) {
    const Given g = given(kTooMuch, of_library);
    testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(way.use(g), CUDA_ERROR_OUT_OF_MEMORY) << name;
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(launch_of(other_, out_), CUDA_SUCCESS) << name;
    EXPECT_EQ(stack_limit(), limit_) << name;
    EXPECT_LE(device_peak(), options.quota) << name;
    EXPECT_EQ(held(), own_) << name;
    agrees(name.c_str());
  });
}
TEST_F(SoftGpuLocalTest, WhatDoesNotFitIsRefusedWhateverCallLaunchesIt) {
  each_launch_is_refused();
}
TEST_F(SoftGpuLocalEstimatedTest, WhatDoesNotFitIsRefusedWhateverCallLaunchesIt) {
  each_launch_is_refused();
}

void SoftGpuLocalTest::each_launch_fits() {
  each_launch([this](const FirstUse& way, bool of_library, const std::string& name) {
    const Given g = given(kFits, of_library);
    EXPECT_EQ(held(), own_) << "charged before its launch: " << name;
    EXPECT_EQ(way.use(g), CUDA_SUCCESS) << name;
    EXPECT_GE(stack_limit(), kFits) << name;
    EXPECT_GT(held(), own_) << name;
    agrees(name.c_str());
    const uint64_t held_then = held();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(launch_of(g.kernel, out_), CUDA_SUCCESS) << name;
    EXPECT_EQ(held(), held_then) << name;
  });
  EXPECT_LE(device_peak(), options.quota);
}
TEST_F(SoftGpuLocalTest, WhatFitsIsLaunchedAndCharged) { each_launch_fits(); }
TEST_F(SoftGpuLocalEstimatedTest, WhatFitsIsLaunchedAndCharged) { each_launch_fits(); }

// A function that was only listed tells nothing before it is loaded.
TEST_F(SoftGpuLocalTest, FunctionsThatWereListedAreAskedForToo) {
  CUmodule module = nullptr;
  CUfunction functions[1] = {};
  ASSERT_EQ(cuModuleLoadData(&module, deep_text(kTooMuch).c_str()), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleEnumerateFunctions(functions, 1, module), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(functions[0], out_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(launch_of(other_, out_), CUDA_SUCCESS);
  EXPECT_LE(device_peak(), options.quota);
  agrees("refused");
}

TEST_F(SoftGpuLocalTest, EachContextIsAskedFor) {
  const Given g = given(kFits, true);
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuMemAlloc(&rest, options.quota - held()), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(g.kernel, rest), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), options.quota);
  ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(g.kernel, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  agrees("one context has it");
  const uint64_t one = held();
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(g.kernel, out_), CUDA_SUCCESS);
  EXPECT_GT(held(), one);
  agrees("both contexts have it");
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
}

// A program may set the limit down; the next launch takes the memory anew.
TEST_F(SoftGpuLocalTest, ALowerLimitIsAskedForAgain) {
  const Given g = given(kFits, false);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(launch_of(g.kernel, out_), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limit_), CUDA_SUCCESS);
  EXPECT_EQ(held(), own_);
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuMemAlloc(&rest, options.quota - held()), CUDA_SUCCESS);
  EXPECT_EQ(launch_of(g.kernel, out_), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), options.quota);
  agrees("refused");
}

}  // namespace

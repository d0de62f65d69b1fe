// Tests over the software GPU that launch: a kernel that takes as long as it is told to.
#pragma once

#include "tests/interpose/softgpu_fixture.h"

namespace sluice::test {

// Counts to n in one thread per block and stores the count.
inline constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r2, 0;
LOOP:
  add.s32 %r2, %r2, 1;
  setp.lt.s32 %p1, %r2, %r1;
  @%p1 bra LOOP;
  st.global.u32 [%rd2], %r2;
  ret;
}
)";

class SoftGpuLaunchTest : public SoftGpuTest {
 protected:
  using SoftGpuTest::SoftGpuTest;
  void kernel_load() {
    CUmodule module;
    ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&result, 4), CUDA_SUCCESS);
  }
  CUresult launch(unsigned n, CUstream stream = nullptr, CUdeviceptr out = 0) {
    if (out == 0) out = result;
    void* parameters[] = {&out, &n};
    return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
  }
  CUfunction spin = nullptr;
  CUdeviceptr result = 0;
};

}  // namespace sluice::test

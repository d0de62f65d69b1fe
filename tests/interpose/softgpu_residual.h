// What the tests share of what no driver call tells: the fixture, and kernels whose load or launch
// takes memory.
#pragma once

#include "tests/interpose/softgpu_fixture.h"
#include "tests/interpose/softgpu_modules.h"

namespace sluice::test {

class SoftGpuResidualTest : public SoftGpuTest {
 protected:
  using SoftGpuTest::SoftGpuTest;
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  void holds(size_t bytes, const char* when) {
    EXPECT_EQ(held(), kContext + bytes) << when;
    agrees(when);
  }
};

// A kernel that allocates: the device's heap is taken when it is loaded.
inline constexpr char kPrinter[] = R"(
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf(.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
.global .align 1 .b8 text[3] = {104, 10, 0};
.visible .entry k()
{
  .reg .b64 %rd<3>;
  mov.u64 %rd1, text;
  cvta.global.u64 %rd1, %rd1;
  mov.u64 %rd2, 0;
  {
    .param .b64 param0;
    st.param.b64 [param0], %rd1;
    .param .b64 param1;
    st.param.b64 [param1], %rd2;
    .param .b32 retval0;
    call (retval0), vprintf, (param0, param1);
  }
  ret;
}
)";

inline constexpr char kHeapUser[] = R"(
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 func_retval0) malloc(.param .b64 malloc_param_0);
.visible .entry k(.param .u64 p0)
{
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p0];
  cvta.to.global.u64 %rd2, %rd1;
  {
    .param .b64 param0;
    st.param.b64 [param0], 16;
    .param .b64 retval0;
    call (retval0), malloc, (param0);
    ld.param.b64 %rd3, [retval0];
  }
  st.global.u64 [%rd2], %rd3;
  ret;
}
)";

// Its threads need more local memory than a stack has by default.
inline constexpr char kStackUser[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry deep(.param .u64 p0)
{
  .local .align 8 .b8 room[1536];
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [p0];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, 3;
  st.local.u32 [room], %r1;
  ld.local.u32 %r1, [room];
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

inline CUresult launch_of(CUfunction function, CUdeviceptr out) {
  void* parameters[] = {&out};
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
}

}  // namespace sluice::test

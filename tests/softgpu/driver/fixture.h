// A process with one context on a software GPU of its own. One process has one driver state, so
// each test of this fixture runs in a child: InChild() forks, runs the body there and passes its
// failures on.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/softgpu/temporary.h"

namespace softgpu_test {

#define ASSERT_CU(call) ASSERT_EQ(call, CUDA_SUCCESS) << #call
#define EXPECT_CU(call) EXPECT_EQ(call, CUDA_SUCCESS) << #call

inline constexpr std::size_t kMiB = 1 << 20;

/// Bytes of the device that are taken, as this process's current context sees them.
inline std::size_t used() {
  std::size_t free = 0, total = 0;
  EXPECT_CU(cuMemGetInfo(&free, &total));
  return total - free;
}

/// Of a piece of virtual memory that may be exported.
inline CUmemAllocationProp piece_prop() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

inline constexpr char kKernels[] = R"(
.version 9.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter;
.visible .entry add_one(.param .u64 p, .param .u32 n)
{
  .reg .pred %q<2>;
  .reg .b32 %r<8>;
  .reg .b64 %d<6>;
  ld.param.u64 %d1, [p];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %q1, %r5, %r1;
  @%q1 bra DONE;
  cvta.to.global.u64 %d2, %d1;
  mul.wide.u32 %d3, %r5, 4;
  add.s64 %d4, %d2, %d3;
  ld.global.u32 %r6, [%d4];
  add.s32 %r7, %r6, 1;
  st.global.u32 [%d4], %r7;
DONE:
  ret;
}
.visible .entry spin(.param .u32 n)
{
  .reg .pred %q<2>;
  .reg .b32 %r<4>;
  ld.param.u32 %r1, [n];
  mov.u32 %r2, 0;
LOOP:
  add.s32 %r2, %r2, 1;
  setp.ne.u32 %q1, %r2, %r1;
  @%q1 bra LOOP;
  ret;
}
.visible .entry write_null()
{
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  mov.u64 %d1, 64;
  mov.u32 %r1, 1;
  st.global.u32 [%d1], %r1;
  ret;
}
)";

/// Runs `body` in a child process; its failed expectations become the parent's.
inline void InChild(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(stdout);
    std::fflush(stderr);
    std::exit(::testing::Test::HasFailure() ? 1 : 0);  // through the driver's exit, as programs do
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

class Driver : public ::testing::Test {
 protected:
  Driver()
      : devices({{"SOFTGPU_PACING", "0"},
                 {"SOFTGPU_MEMORY", "256MiB"},
                 {"SOFTGPU_CONTEXT", "32MiB"},
                 {"SOFTGPU_COUNT", "1"},
                 {"SOFTGPU_RATE", "40e6"}}) {}
  ~Driver() override {
    for (const char* name :
         {"SOFTGPU_PACING", "SOFTGPU_COUNT", "SOFTGPU_RATE", "CUDA_VISIBLE_DEVICES"})
      unsetenv(name);
  }
  /// The body's context, current to it.
  void WithContext(const std::function<void(CUcontext)>& body) {
    InChild([&] {
      ASSERT_CU(cuInit(0));
      CUcontext context = nullptr;
      ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
      body(context);
    });
  }
  static CUfunction function(const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    EXPECT_CU(cuModuleLoadData(&module, kKernels));
    EXPECT_CU(cuModuleGetFunction(&function, module, name));
    return function;
  }
  TemporaryDevices devices;
};

}  // namespace softgpu_test

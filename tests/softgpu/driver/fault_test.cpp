// Kernels that go wrong: which error the context keeps, that it keeps it, and that the process and
// its other contexts go on.
#include <cstdio>
#include <string>

#include "tests/softgpu/driver/fixture.h"

namespace softgpu_test {
namespace {

/// Kernels f(p) with %d = p and a few registers.
std::string faulty(const std::string& body, const std::string& before = "") {
  return ".version 9.0\n.target sm_80\n.address_size 64\n" + before +
         ".visible .entry f(.param .u64 p)\n{\n.reg .pred %q<4>; .reg .b32 %r<8>; .reg .b64 "
         "%d<8>;\nld.param.u64 %d0, [p]; mov.u32 %r0, %tid.x;\n" +
         body + "\nret;\n}\n";
}

const std::string kAssertion =
    ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param "
    ".b64 s);\n.global .align 1 .b8 text[5] = {120, 32, 62, 32, 0};\n";
const std::string kAssert =
    "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; mov.u64 %d1, "
    "text; "
    "cvta.global.u64 %d1, %d1; st.param.b64 [a], %d1; st.param.b64 [b], %d1; st.param.b32 [c], 7; "
    "st.param.b64 [d], %d1; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }";
const std::string kRecursion =
    ".visible .func deeper()\n{\n.local .align 8 .b8 room[256]; call.uni deeper; ret;\n}\n";

struct FaultCase {
  const char* name;
  std::string ptx;
  CUresult error;
};

std::ostream& operator<<(std::ostream& out, const FaultCase& c) { return out << c.name; }

std::vector<FaultCase> fault_cases() {
  return {
      {"IllegalAddress", faulty("mov.u64 %d1, 4096; st.global.u32 [%d1], %r0;"),
       CUDA_ERROR_ILLEGAL_ADDRESS},
      {"FarBehindTheAllocation",
       faulty("mov.u64 %d2, 1099511627776; add.s64 %d1, %d0, %d2; ld.global.u32 %r1, [%d1]; "
              "st.global.u32 [%d0], %r1;"),
       CUDA_ERROR_ILLEGAL_ADDRESS},
      {"SharedOutOfBounds", faulty("mov.u32 %r1, 1000000; st.shared.u32 [%r1], %r0;"),
       CUDA_ERROR_ILLEGAL_ADDRESS},
      {"Misaligned", faulty("add.s64 %d1, %d0, 1; st.global.u32 [%d1], %r0;"),
       CUDA_ERROR_MISALIGNED_ADDRESS},
      {"MisalignedVector",
       faulty("add.s64 %d1, %d0, 8; ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%d1];"),
       CUDA_ERROR_MISALIGNED_ADDRESS},
      {"Trap", faulty("trap;"), CUDA_ERROR_LAUNCH_FAILED},
      {"Assertion", faulty(kAssert, kAssertion), CUDA_ERROR_ASSERT},
      {"StackOverflow", faulty("call.uni deeper;", kRecursion), CUDA_ERROR_HARDWARE_STACK_ERROR},
      {"AtomicOnLocalMemory",
       faulty(
           ".local .align 4 .b8 a[4]; mov.u64 %d1, a; cvta.local.u64 %d1, %d1; atom.add.u32 %r1, "
           "[%d1], 1;"),
       CUDA_ERROR_INVALID_ADDRESS_SPACE},
      {"NoFunctionThere", faulty("P: .callprototype ()_ ();\nmov.u64 %d1, 1234; call %d1, (), P;"),
       CUDA_ERROR_INVALID_PC},
      {"ThreadsThatNeverMeet", faulty("bar.sync 1, 64;"), CUDA_ERROR_LAUNCH_FAILED},
  };
}

CUfunction loaded(const std::string& ptx) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_CU(cuModuleLoadData(&module, ptx.c_str()));
  EXPECT_CU(cuModuleGetFunction(&function, module, "f"));
  return function;
}

CUresult launch_and_wait(CUfunction function, CUdeviceptr p) {
  void* arguments[] = {&p};
  if (const CUresult error =
          cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr);
      error != CUDA_SUCCESS)
    return error;
  return cuCtxSynchronize();
}

class Faults : public Driver, public ::testing::WithParamInterface<FaultCase> {};

TEST_P(Faults, PoisonTheContextAndNothingElse) {
  const FaultCase& c = GetParam();
  WithContext([&](CUcontext poisoned) {
    CUcontext other = nullptr;
    CUdeviceptr there = 0, p = 0;
    unsigned value = 0;
    ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
    ASSERT_CU(cuMemAlloc(&there, 256));
    ASSERT_CU(cuCtxSetCurrent(poisoned));
    ASSERT_CU(cuMemAlloc(&p, 256));
    EXPECT_EQ(launch_and_wait(loaded(c.ptx), p), c.error);
    // It stays, whatever is asked for.
    EXPECT_EQ(cuCtxSynchronize(), c.error);
    EXPECT_EQ(cuMemcpyDtoH(&value, p, 4), c.error);
    EXPECT_EQ(cuMemAlloc(&p, 256), c.error);
    // The other context works, and so does a new one.
    ASSERT_CU(cuCtxSetCurrent(other));
    EXPECT_EQ(launch_and_wait(loaded(faulty("st.global.u32 [%d0], 5;")), there), CUDA_SUCCESS);
    EXPECT_CU(cuMemcpyDtoH(&value, there, 4));
    EXPECT_EQ(value, 5u);
    cuCtxDestroy(poisoned);
    CUcontext fresh = nullptr;
    ASSERT_CU(cuCtxCreate(&fresh, nullptr, 0, 0));
    ASSERT_CU(cuMemAlloc(&p, 256));
    EXPECT_EQ(launch_and_wait(loaded(faulty("st.global.u32 [%d0], 6;")), p), CUDA_SUCCESS);
  });
}

INSTANTIATE_TEST_SUITE_P(Kernel, Faults, ::testing::ValuesIn(fault_cases()),
                         [](const auto& given) { return std::string(given.param.name); });

/// Kernels that cannot run: the instruction is the kernel's, or of a function that it calls.
std::vector<std::string> unsupported() {
  const std::string sparse =
      "{ .reg .f32 %f<4>; mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, "
      "{%r1,%r2}, {%r3,%r4}, {%f0,%f1,%f2,%f3}, %r5, 0x0; }";
  const std::string before =
      ".visible .entry plain(.param .u64 p)\n{\n.reg .b64 %d<2>;\n"
      "ld.param.u64 %d0, [p]; st.global.u32 [%d0], 5;\nret;\n}\n";
  const std::string calls = ".visible .func inner()\n{\n.reg .b32 %r<8>;\n" + sparse +
                            "\nret;\n}\n.visible .func outer()\n{\ncall.uni inner;\nret;\n}\n";
  return {faulty(sparse, before), faulty("call.uni outer;", before + calls)};
}

TEST_F(Driver, AKernelThatCannotRunIsRefusedAndNothingElse) {
  for (const std::string& text : unsupported()) {
    WithContext([&](CUcontext) {
      CUdeviceptr p = 0;
      unsigned value = 0;
      CUmodule module = nullptr;
      CUfunction function = nullptr, plain = nullptr;
      ASSERT_CU(cuMemAlloc(&p, 256));
      ASSERT_CU(cuModuleLoadData(&module, text.c_str()));
      ASSERT_CU(cuModuleGetFunction(&function, module, "f"));
      ASSERT_CU(cuModuleGetFunction(&plain, module, "plain"));
      EXPECT_EQ(launch_and_wait(function, p), CUDA_ERROR_NOT_SUPPORTED);
      EXPECT_CU(cuCtxSynchronize());
      EXPECT_CU(launch_and_wait(plain, p));
      EXPECT_CU(cuMemcpyDtoH(&value, p, 4));
      EXPECT_EQ(value, 5u);
    });
  }
}

TEST_F(Driver, AKernelThatIsNotExecutedMayHaveAnyInstruction) {
  setenv("SOFTGPU_TIMED", "f=10us/skip", 1);
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc(&p, 256));
    EXPECT_CU(launch_and_wait(loaded(unsupported().front()), p));
  });
  unsetenv("SOFTGPU_TIMED");
}

}  // namespace
}  // namespace softgpu_test

// What a program that checks nothing still gets to see: one line on stderr about the first module
// that is refused or kernel that faults.
#include <fcntl.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/softgpu/driver/fixture.h"

namespace {

constexpr char kBroken[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry unfinished()
{
  .reg .b32 %r<2>;
  add.u32 %r1, %r1
}
)";

class Trouble : public softgpu_test::Driver {
 protected:
  ~Trouble() override { unsetenv("SOFTGPU_LOG"); }
  /// What a process with a context that runs `body` writes to stderr.
  std::string said(const std::function<void()>& body) {
    const std::string path = devices.path() + "/stderr";
    WithContext([&](CUcontext) {
      const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      ASSERT_GE(dup2(file, STDERR_FILENO), 0);
      body();
    });
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void refused() {
    CUmodule module = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module, kBroken), CUDA_ERROR_INVALID_PTX);
  }
  static void faults() {
    const CUfunction write = function("write_null");
    ASSERT_CU(cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  }
};

std::ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(Trouble, ARefusedModuleIsSaidOnce) {
  const std::string text = said([] {
    refused();
    refused();
    faults();
  });
  EXPECT_EQ(lines(text), 1) << text;
  EXPECT_EQ(text.rfind("softgpu: module of kernel unfinished not loaded: line 9: ", 0), 0U) << text;
  expect_in(text, "; the call returns CUDA_ERROR_INVALID_PTX; ");
  expect_in(text, "SOFTGPU_LOG=1");
}

TEST_F(Trouble, AFaultedKernelIsSaid) {
  const std::string text = said(faults);
  EXPECT_EQ(lines(text), 1) << text;
  EXPECT_EQ(text.rfind("softgpu: kernel fault: ", 0), 0U) << text;
  expect_in(text, "write_null");
  expect_in(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

constexpr char kSparse[] = R"(
.version 7.1
.target sm_80
.address_size 64
.visible .entry plain() { ret; }
.visible .entry sparse()
{
  .reg .b32 %r<5>;
  .reg .f32 %f<4>;
  mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r1,%r2}, {%r3,%r4},
    {%f0,%f1,%f2,%f3}, %r0, 0x0;
  ret;
}
)";

TEST_F(Trouble, AKernelThatCannotRunIsSaid) {
  const std::string text = said([] {
    CUmodule module = nullptr;
    CUfunction sparse = nullptr;
    ASSERT_CU(cuModuleLoadData(&module, kSparse));
    ASSERT_CU(cuModuleGetFunction(&sparse, module, "sparse"));
    for (int k = 0; k < 2; ++k)
      EXPECT_EQ(cuLaunchKernel(sparse, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr),
                CUDA_ERROR_NOT_SUPPORTED);
  });
  EXPECT_EQ(lines(text), 1) << text;
  EXPECT_EQ(text.rfind("softgpu: kernel not launched: sparse line 10: mma.sp.sync.aligned.", 0), 0U)
      << text;
  expect_in(text, "the call returns CUDA_ERROR_NOT_SUPPORTED");
}

TEST_F(Trouble, ARefusedLinkIsSaid) {
  const std::string text = said([] {
    CUlinkState link = nullptr;
    char code[] =
        "\x7f"
        "ELF";
    ASSERT_CU(cuLinkCreate(0, nullptr, nullptr, &link));
    EXPECT_EQ(
        cuLinkAddData(link, CU_JIT_INPUT_OBJECT, code, sizeof code, "part.o", 0, nullptr, nullptr),
        CUDA_ERROR_NOT_SUPPORTED);
  });
  EXPECT_EQ(lines(text), 1) << text;
  expect_in(text, "softgpu: texts not linked: input 'part.o'");
}

TEST_F(Trouble, TheLogTellsOfEachOrOfNone) {
  const auto both = [] {
    refused();
    faults();
  };
  setenv("SOFTGPU_LOG", "1", 1);
  EXPECT_EQ(lines(said(both)), 2);
  setenv("SOFTGPU_LOG", "0", 1);
  EXPECT_EQ(said(both), "");
}

TEST_F(Trouble, NothingIsSaidWhenAllIsWell) {
  EXPECT_EQ(said([] { (void)function("add_one"); }), "");
}

}  // namespace

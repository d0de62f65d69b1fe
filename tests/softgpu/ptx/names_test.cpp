// Names that stand for several registers or variables: "%r<4>", vectors and their elements.
#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

using u32 = std::uint32_t;

/// Runs `body` in one thread; %o points to the words that it gives back.
class NamesTest : public PtxTest {
 protected:
  std::vector<u32> words(const std::string& body, const std::string& before = "") {
    load(text(body, before));
    std::vector<u32> out(8, 0);
    run_good("k", {1, 1, 1}, {1, 1, 1}, Arguments().add(out.data()));
    return out;
  }
  static std::string text(const std::string& body, const std::string& before = "") {
    return ptx_module(before +
                      ".visible .entry k(.param .u64 out)\n{\n.reg .b64 %o;\n"
                      "ld.param.u64 %o, [out];\n" +
                      body + "\nret;\n}\n");
  }
  static std::string refusal(const std::string& body) {
    HeapMemory memory;
    const LoadResult result = module_load(text(body), memory);
    EXPECT_NE(result.status, LoadStatus::kOk);
    return result.log;
  }
};

TEST_F(NamesTest, VariablesDeclaredTogether) {
  const std::string add =
      ".func (.param .u32 sum) add(.param .u32 a, .param .u32 b)\n{\n.reg .u32 %x<3>;\n"
      "ld.param.u32 %x0, [a]; ld.param.u32 %x1, [b]; add.u32 %x2, %x0, %x1;\n"
      "st.param.u32 [sum], %x2; ret;\n}\n";
  const auto out = words(
      ".reg .u32 %r1;\n{\n.param .u32 %P<3>;\n.shared .align 4 .u32 %S<2>;\n"
      "st.param.u32 [%P0], 40; st.param.u32 [%P1], 2;\n"
      "call (%P2), add, (%P0, %P1);\nld.param.u32 %r1, [%P2];\n"
      "st.shared.u32 [%S0], %r1; st.shared.u32 [%S1], 7;\n"
      "ld.shared.u32 %r1, [%S0]; st.global.u32 [%o], %r1;\n"
      "ld.shared.u32 %r1, [%S1]; st.global.u32 [%o+4], %r1;\n}\n",
      add);
  EXPECT_EQ(out[0], 42u);
  EXPECT_EQ(out[1], 7u);
}

TEST_F(NamesTest, OnlyThoseThatWereDeclared) {
  EXPECT_NE(refusal(".shared .u32 S<2>;\nst.shared.u32 [S2], 1;").find("S2"), std::string::npos);
  EXPECT_NE(refusal(".reg .u32 %r<2>;\nmov.u32 %r2, 1;"), "");
  EXPECT_NE(refusal(".shared .u32 S<-1>;").find("count"), std::string::npos);
}

TEST_F(NamesTest, VectorRegisters) {
  const auto out = words(
      ".reg .v2 .u32 %v; .reg .v4 .u32 %w; .reg .v2 .u32 %a<3>;\n"
      "mov.v2.u32 %v, {5, 6};\nst.global.v2.u32 [%o], %v;\n"
      "mov.u32 %a1.x, %v.y; add.u32 %a1.y, %v.x, %v.g;\n"
      "mov.v4.u32 %w, {1, 2, 3, 4}; mov.u32 %w.b, %a1.y; mov.u32 %w.w, %a1.r;\n"
      "mov.v2.u32 %a2, %v; st.global.v4.u32 [%o+16], %w;\n"
      "st.global.u32 [%o+8], %a2.y;\n");
  EXPECT_EQ(out, (std::vector<u32>{5, 6, 6, 0, 1, 2, 11, 6}));
}

TEST_F(NamesTest, VectorsAreNoRegistersOfOneElement) {
  const std::string vector = ".reg .v2 .u32 %v; .reg .u32 %r;\n";
  EXPECT_NE(refusal(vector + "add.u32 %r, %v, 1;"), "");
  EXPECT_NE(refusal(vector + "mov.u32 %r, %v.z;"), "");
  EXPECT_NE(refusal(vector + "mov.v2.u32 %v, %r;"), "");
  EXPECT_NE(refusal(vector + "mov.v2.u32 %v, {%v.y, %v.x};").find("exchanges"), std::string::npos);
}

TEST_F(NamesTest, WhyAFunctionCannotBeCalledByItsAddress) {
  HeapMemory memory;
  const LoadResult result =
      module_load(text(".reg .u64 %f; mov.u64 %f, bad;\nP: .callprototype _ ();\ncall %f, (), P;",
                       ".visible .func bad()\n{\nwgmma.fence;\nret;\n}\n"),
                  memory);
  ASSERT_EQ(result.status, LoadStatus::kOk) << result.log;
  std::vector<u32> out(8, 0);
  Arguments arguments;
  arguments.add(out.data());
  Launch launch;
  launch.params = arguments.data();
  const Outcome outcome = launch_run(*module_kernel(*result.module, "k"), launch, host_);
  EXPECT_EQ(outcome.fault, Fault::kIllegalInstruction);
  EXPECT_NE(outcome.fault_text.find("wgmma.fence: unknown instruction"), std::string::npos)
      << outcome.fault_text;
}

}  // namespace
}  // namespace softgpu::ptx::test

// What the loader says about bad text, and what it makes of declarations.
#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

std::string log_of(const std::string& ptx, LoadStatus expected) {
  HeapMemory memory;
  const LoadResult result = module_load(ptx, memory);
  EXPECT_EQ(result.status, expected) << result.log;
  EXPECT_EQ(result.module, nullptr);
  EXPECT_EQ(memory.live, 0);
  return result.log;
}

TEST(Text, ErrorsNameTheLine) {
  EXPECT_EQ(log_of("int main() {}", LoadStatus::kInvalidPtx).substr(0, 7), "line 1:");
  EXPECT_EQ(
      log_of(ptx_module(".visible .entry k()\n{\nadd.s32 %r1, %r2\n}\n"), LoadStatus::kInvalidPtx)
          .substr(0, 7),
      "line 7:");
  EXPECT_EQ(log_of(ptx_module(".visible .entry k()\n{\n@%q bra L;\n}\n"), LoadStatus::kInvalidPtx),
            "line 6: unknown predicate '%q'");
  EXPECT_EQ(log_of(ptx_module(".global .u32 a = b;\n"), LoadStatus::kInvalidPtx),
            "line 4: initialiser names the unknown 'b'");
  EXPECT_EQ(log_of(ptx_module("/* open"), LoadStatus::kInvalidPtx),
            "line 4: comment is never closed");
  EXPECT_EQ(log_of(ptx_module(".visible .entry k()\n{"), LoadStatus::kInvalidPtx).substr(0, 7),
            "line 5:");
}

TEST(Text, DirectivesMayTouch) {
  HeapMemory memory;
  const LoadResult result = module_load(
      ptx_module(
          ".visible .entry k()\n{\n{.reg.b16 a, b;\n.reg.b32 c;\nmov.b32 {a, b}, c;}\nret;\n}\n"),
      memory);
  EXPECT_EQ(result.status, LoadStatus::kOk) << result.log;
  EXPECT_EQ(result.log, "");
}

TEST(Text, UnknownInstructionsAreNamed) {
  EXPECT_EQ(
      log_of(
          ptx_module(".visible .entry k()\n{\n.reg .b32 %r<3>;\nmultimem.red %r1, %r2;\nret;\n}\n"),
          LoadStatus::kUnsupported),
      "k line 7: multimem.red: unknown instruction");
  EXPECT_EQ(
      log_of(ptx_module(
                 ".visible .entry k()\n{\n.reg .b32 %r<3>;\nadd.sat.u32 %r1, %r1, %r2;\nret;\n}\n"),
             LoadStatus::kUnsupported),
      "k line 7: add.sat.u32: this form of the instruction is not supported");
  EXPECT_EQ(log_of(ptx_module(".visible .entry k()\n{\ncall.uni nowhere;\nret;\n}\n"),
                   LoadStatus::kUnsupported),
            "k line 6: call.uni: function 'nowhere' is not defined in this module");
}

TEST(Text, WhatOfTexturesIsNotSupportedIsRefused) {
  const auto fetch = [](const std::string& instruction) {
    return log_of(
        ptx_module(".visible .entry k()\n{\n.reg .b32 %r<9>; .reg .pred %p;\n.reg .b64 %t;\n" +
                   instruction + "\nret;\n}\n"),
        LoadStatus::kUnsupported);
  };
  const std::string to = "tex.2d.v4.u32.s32 {%r1, %r2, %r3, %r4}";
  const std::string refused = "k line 8: tex.2d.v4.u32.s32: ";
  EXPECT_EQ(fetch(to + ", [%t, %t, {%r5, %r6}];"),
            refused + "samplers apart from their texture are not supported");
  EXPECT_EQ(fetch(to + ", [picture, {%r5, %r6}];"),
            refused + "only texture and surface objects are supported");
  EXPECT_EQ(fetch(to + ", [%t, {%r5, %r6}], {%r7, %r8};"),
            refused + "offsets and comparisons of depth are not supported");
  EXPECT_EQ(fetch(to + "|%p, [%t, {%r5, %r6}];"),
            refused + "a predicate of residency is not supported");
  EXPECT_EQ(fetch(to + ", [%t, {%r5}];"), refused + "wrong number of coordinates");
  EXPECT_EQ(fetch(to + ", [%t];"), refused + "expected coordinates");
  EXPECT_EQ(fetch("tex.grad.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%t, {%r5, %r6}], {%r1, %r2}, "
                  "{%r3, %r4};"),
            "k line 8: tex.grad.2d.v4.u32.f32: this form of the instruction is not supported");
  EXPECT_EQ(fetch("sust.p.2d.b32.clamp [%t, {%r5, %r6}], %r1;"),
            "k line 8: sust.p.2d.b32.clamp: this form of the instruction is not supported");
  EXPECT_EQ(fetch("ld.global.u32 %r1, [%t, {%r5, %r6}];"),
            "k line 8: ld.global.u32: this form of the instruction is not supported");
}

/// `format` for each register %r from `first` to `last`, its number in the place of '#'.
std::string each_register(int first, int last, const std::string& format) {
  std::string text;
  for (int number = first; number <= last; ++number) {
    for (const char c : format) text += c == '#' ? std::to_string(number) : std::string(1, c);
  }
  return text;
}

std::uint32_t registers_of(const std::string& body) {
  HeapMemory memory;
  const LoadResult result = module_load(
      ptx_module(
          ".visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<400>; .reg .pred %p;\n.reg .b64 "
          "%d<2>;\nld.param.u64 %d1, [p];\n" +
          body + "\nret;\n}\n"),
      memory);
  EXPECT_EQ(result.status, LoadStatus::kOk) << result.log;
  return kernel_info(*module_kernel(*result.module, "k")).registers;
}

TEST(Text, RegistersAreEstimatedByWhatIsThereAtOnce) {
  const std::string load = "ld.global.u32 %r#, [%d1];\n", store = "st.global.u32 [%d1], %r#;\n";
  // One after the other: the fewest that a kernel has. Half of the names would be 202.
  EXPECT_EQ(registers_of(each_register(1, 300, load + store)), 16u);
  // A hundred at once, and four of the assembler's own; the address is a parameter, which is read
  // where it lies.
  EXPECT_EQ(registers_of(each_register(1, 100, load) + each_register(1, 100, store)), 104u);
  // More than there are.
  EXPECT_EQ(registers_of(each_register(1, 300, load) + each_register(1, 300, store)), 255u);
  // What is never read is there for no longer than its load.
  EXPECT_EQ(registers_of(each_register(1, 300, load) + each_register(1, 20, store)), 25u);
  // What was there before a loop and is read in it is there to its end.
  EXPECT_EQ(registers_of(each_register(1, 50, load) + "LOOP:\n" + each_register(1, 50, store) +
                         each_register(51, 100, load) + each_register(51, 100, store) +
                         "setp.ne.u32 %p, %r100, 0;\n@%p bra LOOP;"),
            104u);
}

TEST(Text, OneBadKernelDoesNotStopTheOthers) {
  HeapMemory memory;
  const LoadResult result = module_load(
      ptx_module(".visible .entry bad()\n{\nwgmma.fence;\n}\n.visible .entry good()\n{\nret;\n}\n"),
      memory);
  ASSERT_EQ(result.status, LoadStatus::kOk);
  EXPECT_EQ(result.log, "bad line 6: wgmma.fence: unknown instruction");
  TestHost host;
  Launch launch;
  EXPECT_EQ(launch_run(*module_kernel(*result.module, "good"), launch, host).fault, Fault::kNone);
  const Outcome bad = launch_run(*module_kernel(*result.module, "bad"), launch, host);
  EXPECT_EQ(bad.fault, Fault::kIllegalInstruction);
  EXPECT_EQ(bad.fault_text, result.log);
}

TEST(Text, NoDeviceMemoryForVariables) {
  HeapMemory memory;
  memory.limit_bytes = 100;
  EXPECT_EQ(module_load(ptx_module(".global .b8 a[4096];\n"), memory).status,
            LoadStatus::kNoMemory);
  EXPECT_EQ(memory.live, 0);
}

TEST(Text, VariablesAndKernelInfo) {
  HeapMemory memory;
  const LoadResult result = module_load(
      ptx_module(".global .align 4 .u32 a[3] = {1, 2, 0x30};\n.const .align 8 .b64 p[2] = "
                 "{generic(a), a+4};\n.global .align 4 .f32 x = 0f40490FDB;\n"
                 ".visible .entry k(.param .u8 a0, .param .u64 .ptr .global .align 16 a1, .param "
                 ".align 16 .b8 a2[20], .param .u32 a3)\n.maxntid 128, 2, 1\n"
                 "{\n.shared .align 16 .b8 s[100]; .local .align 8 .b8 l[40]; .reg .b64 %d<3>; "
                 "mov.u64 %d1, s; mov.u64 %d2, l; ret;\n}\n"),
      memory);
  ASSERT_EQ(result.status, LoadStatus::kOk) << result.log;
  const auto& variables = module_variables(*result.module);
  ASSERT_EQ(variables.size(), 3u);
  const auto* a = reinterpret_cast<const std::uint32_t*>(variables[0].address);
  EXPECT_EQ(a[2], 0x30u);
  EXPECT_TRUE(variables[1].constant);
  EXPECT_EQ(reinterpret_cast<const std::uint64_t*>(variables[1].address)[1],
            variables[0].address + 4);
  const KernelInfo& info = kernel_info(*module_kernel(*result.module, "k"));
  ASSERT_EQ(info.params.size(), 4u);
  EXPECT_EQ(info.params[1].offset, 8u);
  EXPECT_EQ(info.params[2].offset, 16u);
  EXPECT_EQ(info.params[3].offset, 36u);
  EXPECT_EQ(info.param_bytes, 40u);
  EXPECT_EQ(info.shared_bytes, 100u);
  EXPECT_EQ(info.local_bytes, 48u);
  EXPECT_EQ(info.threads_max, 256u);
  EXPECT_EQ(info.ptx_version, 90u);
  EXPECT_EQ(info.target, 80u);
}

TEST(Text, PlainPtxAndNonsenseAsImages) {
  std::string error;
  const std::string ptx = ptx_module("");
  const auto images = fatbin_images(ptx.c_str(), &error);
  ASSERT_EQ(images.size(), 1u);
  EXPECT_EQ(images[0].target, 80u);
  EXPECT_TRUE(fatbin_images("hello, world", &error).empty());
  EXPECT_EQ(error, "neither a fat binary nor PTX text");
  EXPECT_TRUE(fatbin_images("\177ELF....", &error).empty());
  EXPECT_EQ(error.substr(0, 12), "machine code");
}

}  // namespace
}  // namespace softgpu::ptx::test

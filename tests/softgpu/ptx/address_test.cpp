// Addresses that loads and stores make themselves from an index: every kernel runs as it is, and
// with guards that keep the decoder from it; results, faults and cost have to be the same.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <numeric>

#include "softgpu/ptx/run/cta.h"
#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kThreads = 64;
constexpr u32 kWords = 1 << 17;

/// k(in, out, shift): %i = tid + shift. `@G` in the body is the place of a guard that is always
/// true.
std::string kernel_text(std::string body, bool guarded) {
  for (std::size_t at; (at = body.find("@G ")) != std::string::npos;)
    body.replace(at, 3, guarded ? "@%yes " : "");
  return ptx_module(
      ".visible .entry k(.param .u64 in, .param .u64 out, .param .u32 shift)\n{\n"
      ".reg .pred %p<4>; .reg .pred %yes; .reg .b32 %r<16>; .reg .b64 %d<16>; .reg .b32 %i; "
      ".reg .b32 %t; .reg .b32 %s; .reg .b64 %a; .reg .b64 %b; .reg .b64 %ga; .reg .b64 %gb;\n"
      "ld.param.u64 %a, [in]; ld.param.u64 %b, [out]; ld.param.u32 %s, [shift];\n"
      "cvta.to.global.u64 %ga, %a; cvta.to.global.u64 %gb, %b;\n"
      "setp.eq.u32 %yes, %t, %t; mov.u32 %t, %tid.x; add.s32 %i, %t, %s;\n" +
      body + "\nret;\n}\n");
}

class AddressTest : public PtxTest {
 protected:
  struct Result {
    std::vector<u32> in, out;
    Outcome outcome;
    std::size_t instructions = 0;
  };

  Result run_once(const std::string& body, bool guarded, u32 shift, std::size_t in_offset) {
    Result result;
    result.in.resize(kWords);
    result.out.assign(kWords, 0);
    std::iota(result.in.begin(), result.in.end(), 0x01020304u);
    load(kernel_text(body, guarded));
    result.instructions = kernel("k").program.codes.begin()->second->insts.size();
    result.outcome = run("k", {1, 1, 1}, {kThreads, 1, 1},
                         Arguments()
                             .add(reinterpret_cast<u64>(result.in.data()) + in_offset)
                             .add(result.out.data())
                             .add(shift));
    return result;
  }

  /// `gone`: how many statements the decoder does without.
  void same(const std::string& body, std::size_t gone, u32 shift = 0, std::size_t in_offset = 0) {
    SCOPED_TRACE(body);
    const Result plain = run_once(body, true, shift, in_offset);
    const Result folded = run_once(body, false, shift, in_offset);
    EXPECT_EQ(plain.instructions - folded.instructions, gone);
    EXPECT_EQ(folded.outcome.fault, Fault::kNone) << folded.outcome.fault_text;
    EXPECT_EQ(plain.outcome.fault, Fault::kNone) << plain.outcome.fault_text;
    EXPECT_EQ(folded.outcome.warp_instructions, plain.outcome.warp_instructions);
    EXPECT_EQ(folded.in, plain.in);
    EXPECT_EQ(folded.out, plain.out);
    EXPECT_NE(folded.out, std::vector<u32>(kWords, 0)) << "the kernel writes nothing";
  }
};

const char* const kStoreByThread =
    "mul.wide.u32 %d14, %t, 4; add.s64 %d15, %gb, %d14; st.global.u32 [%d15], ";

TEST_F(AddressTest, AnElement) {
  const std::string store = kStoreByThread;
  // The store's two statements go away in both kernels; of the load's two none, with the guard.
  same("@G mul.wide.s32 %d1, %i, 4; @G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2+8];\n" +
           store + "%r1;",
       2);
  same("@G mul.wide.u32 %d1, 4, %i; @G add.u64 %d2, %d1, %ga; ld.u32 %r1, [%d2+-4];\n" + store +
           "%r1;",
       2, 7);
  same(
      "@G cvt.s64.s32 %d3, %i; @G shl.b64 %d1, %d3, 2; @G add.s64 %d2, %ga, %d1; "
      "ld.global.u32 %r1, [%d2];\n" +
          store + "%r1;",
      3);
  same(
      "@G cvt.u64.u32 %d3, %i; @G shl.b64 %d1, %d3, 0; @G add.s64 %d2, %ga, %d1; "
      "ld.global.u8 %r1, [%d2];\n" +
          store + "%r1;",
      3);
}

TEST_F(AddressTest, NegativeIndices) {
  same("@G mul.wide.s32 %d1, %i, 4; @G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2];\n" +
           std::string(kStoreByThread) + "%r1;",
       2, static_cast<u32>(-40), 160);
}

TEST_F(AddressTest, EveryPatternOfIndices) {
  for (const char* const index :
       {"mul.lo.u32 %r2, %t, 2;", "sub.u32 %r2, 63, %t;", "mov.u32 %r2, %s;",
        "mul.lo.u32 %r2, %t, %t; and.b32 %r2, %r2, 1023;", "and.b32 %r2, %t, 16;",
        "min.u32 %r2, %t, 20;", "and.b32 %r2, %t, 15;", "xor.b32 %r2, %t, 1;",
        "mul.lo.u32 %r2, %t, 0;"}) {
    for (const int scale : {1, 2, 3, 4, 8, 12, 255}) {
      const int bytes = scale % 4 == 0 ? 4 : scale % 2 == 0 ? 2 : 1;
      const std::string type = "u" + std::to_string(8 * bytes);
      same(std::string(index) + "@G mul.wide.u32 %d1, %r2, " + std::to_string(scale) +
               "; @G add.s64 %d2, %ga, %d1; ld.global." + type + " %r1, [%d2];\n" + kStoreByThread +
               "%r1;",
           2, 5);
    }
  }
}

TEST_F(AddressTest, ARowOfATable) {
  // in[row * 100 + i], the row's start in 64 bits: uniform, but known only to the block.
  const std::string start =
      "mov.u32 %r2, %ntid.x; mul.lo.u32 %r3, %r2, 3; cvt.u64.u32 %d4, %r3; add.s64 %d6, %ga, 64; ";
  const std::string element =
      "@G cvt.s64.s32 %d3, %i; @G add.s64 %d5, %d3, %d4; @G shl.b64 %d1, %d5, 2; ";
  same(start + element + "@G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2+4];\n" +
           kStoreByThread + "%r1;",
       4, static_cast<u32>(-9));
  same(start + element + "@G add.s64 %d2, %d6, %d1; ld.global.v2.u16 {%r1, %r4}, [%d2+4];\n" +
           kStoreByThread + "%r4;",
       4, 3);
  same(start + element +
           "@G add.s64 %d2, %d6, %d1; setp.gt.u32 %p1, %t, 40; mov.u32 %r1, 9; "
           "@%p1 ld.global.u32 %r1, [%d2];\n" +
           kStoreByThread + "%r1;",
       4, 3);
  // Two tables with one index: the product goes with the last of the sums.
  same(start + element +
           "@G add.s64 %d2, %d6, %d1; @G add.s64 %d7, %gb, %d1; "
           "ld.global.u32 %r1, [%d2]; st.global.u32 [%d7], %r1;",
       5, 11);
  same(start +
           "mul.lo.u32 %r5, %t, 7; @G cvt.u64.u32 %d3, %r5; @G add.u64 %d5, %d4, %d3; "
           "@G shl.b64 %d1, %d5, 2; @G add.s64 %d2, %gb, %d1; red.global.add.u32 [%d2], %t;",
       4);
  // Vectors of four have no place for the start, and a start that differs is none.
  same(start +
           "@G cvt.u64.u32 %d3, %i; @G add.s64 %d5, %d3, %d4; @G shl.b64 %d1, %d5, 4; "
           "@G add.s64 %d2, %ga, %d1; ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%d2];\n" +
           kStoreByThread + "%r8;",
       0);
  same("cvt.u64.u32 %d4, %t; " + element + "@G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2];\n" +
           kStoreByThread + "%r1;",
       0);
  // Written twice: the second time in a branch that some lanes take.
  same(start + "setp.gt.u32 %p1, %t, 20; @%p1 add.u64 %d4, %d4, 5; " + element +
           "@G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2];\n" + kStoreByThread + "%r1;",
       0);
}

TEST_F(AddressTest, Stores) {
  for (const char* const index : {"%t", "%r2", "%r3"}) {
    same(std::string("mul.lo.u32 %r2, %t, 3; xor.b32 %r3, %t, 5; @G mul.wide.s32 %d1, ") + index +
             ", 4; @G add.s64 %d2, %gb, %d1; st.global.u32 [%d2+16], %t; st.global.u16 [%d2+1024], "
             "%t;",
         2);
  }
}

TEST_F(AddressTest, Vectors) {
  same(
      "@G mul.wide.s32 %d1, %t, 16; @G add.s64 %d2, %ga, %d1; @G add.s64 %d3, %gb, %d1; "
      "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d2]; st.global.v4.u32 [%d3], {%r4, %r1, %r3, "
      "%r2};",
      3);
  same(
      "@G mul.wide.s32 %d1, %t, 4; @G add.s64 %d2, %ga, %d1; @G add.s64 %d3, %gb, %d1; "
      "ld.global.v2.u16 {%r1, %r2}, [%d2]; st.global.v2.u16 [%d3], {%r2, %r1};",
      3);
  same(
      "and.b32 %r9, %t, 3; @G mul.wide.s32 %d1, %r9, 48; @G add.s64 %d2, %ga, %d1; "
      "ld.global.v2.u64 {%d5, %d6}, [%d2+16];\nmul.wide.u32 %d7, %t, 16; add.s64 %d8, %gb, %d7; "
      "st.global.v2.u64 [%d8], {%d6, %d5};",
      2);
}

TEST_F(AddressTest, SomeLanes) {
  // A guard on the access itself, and a branch that part of a warp takes.
  same(
      "and.b32 %r2, %t, 5; setp.eq.u32 %p1, %r2, 4; mov.u32 %r1, 77; @G mul.wide.s32 %d1, %t, 4; "
      "@G add.s64 %d2, %ga, %d1; @%p1 ld.global.u32 %r1, [%d2];\n" +
          std::string(kStoreByThread) + "%r1;",
      2);
  same(
      "setp.gt.u32 %p1, %t, 10; @%p1 bra L;\n@G mul.wide.s32 %d1, %t, 4; @G add.s64 %d2, %gb, "
      "%d1; st.global.u32 [%d2], %t;\nL:",
      2);
}

TEST_F(AddressTest, Atomics) {
  for (const char* const index : {"%t", "%r2", "%r3"}) {
    const std::string start = "shr.u32 %r2, %t, 3; mul.lo.u32 %r3, %t, 5; @G mul.wide.s32 %d1, ";
    same(start + index + ", 4; @G add.s64 %d2, %gb, %d1; red.global.add.u32 [%d2+64], %t;", 2);
    same(start + index + ", 4; @G add.s64 %d2, %ga, %d1; atom.global.max.u32 %r1, [%d2], %t;\n" +
             kStoreByThread + "%r1;",
         2);
  }
}

TEST_F(AddressTest, LoopsAndRegistersThatAreWrittenAgain) {
  const std::string sum =
      "mov.u32 %r1, 0; mov.u32 %r2, %t;\nL: @G mul.wide.s32 %d1, %r2, 4; @G add.s64 %d2, %ga, "
      "%d1; ld.global.u32 %r3, [%d2]; add.u32 %r1, %r1, %r3; add.u32 %r2, %r2, 9; "
      "setp.lt.u32 %p1, %r2, 300; @%p1 bra L;\n";
  same(sum + kStoreByThread + "%r1;", 2);
  // The index changes between product and access: nothing may be folded.
  same(
      "@G mul.wide.s32 %d1, %t, 4; @G add.s64 %d2, %ga, %d1; mov.u32 %r5, %t; add.u32 %t, %t, 3; "
      "ld.global.u32 %r3, [%d2]; mov.u32 %t, %r5;\n" +
          std::string(kStoreByThread) + "%r3;",
      0);
  // The load itself writes the index.
  same(
      "mov.u32 %r3, %tid.x; add.u32 %r3, %r3, 1; @G mul.wide.s32 %d1, %r3, 4; @G add.s64 %d2, "
      "%ga, %d1; ld.global.u32 %r3, [%d2];\n" +
          std::string(kStoreByThread) + "%r3;",
      0);
  // It writes a register whose place the index might have had.
  same(
      "add.u32 %r4, %t, 1; @G mul.wide.s32 %d1, %r4, 4; @G add.s64 %d2, %ga, %d1; add.u32 %r6, "
      "%t, 2; add.u32 %r7, %t, 3; ld.global.u32 %r8, [%d2]; add.u32 %r8, %r8, %r6; add.u32 %r8, "
      "%r8, %r7;\n" +
          std::string(kStoreByThread) + "%r8;",
      2);
}

TEST_F(AddressTest, WhatTheFirstStatementsComputeHoldsEverywhere) {
  const std::string start = "@G mul.wide.s32 %d1, %i, 4; @G add.s64 %d2, %ga, %d1; ";
  // The whole address in front, accesses behind branches and in a loop.
  same(start +
           "mov.u32 %r1, 0; mov.u32 %r2, %t;\nL: ld.global.u32 %r3, [%d2]; add.u32 %r1, %r1, "
           "%r3; add.u32 %r2, %r2, 30; setp.lt.u32 %p1, %r2, 100; @%p1 bra L;\n"
           "setp.gt.u32 %p2, %t, 40; @%p2 bra M;\nld.global.u32 %r4, [%d2+4]; add.u32 %r1, "
           "%r1, %r4;\nM:\n" +
           kStoreByThread + "%r1;",
       2, 3);
  // Only the product, or the conversion, in front. In front of a label something has to be left
  // that the product counts with.
  same("@G mul.wide.s32 %d1, %i, 4;\nL: @G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2];\n" +
           std::string(kStoreByThread) + "%r1;",
       1, 3);
  same(
      "@G cvt.s64.s32 %d3, %i; setp.gt.u32 %p1, %t, 40; mov.u32 %r1, 5; @%p1 bra L;\n"
      "@G shl.b64 %d1, %d3, 2; @G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2];\nL:\n" +
          std::string(kStoreByThread) + "%r1;",
      3, 3);
  // The index is written again behind the first label.
  same(start +
           "\nL: ld.global.u32 %r1, [%d2]; add.u32 %i, %i, 7; setp.lt.u32 %p1, %i, 90; @%p1 "
           "bra L;\n" +
           kStoreByThread + "%r1;",
       0, 3);
  // In a loop the index of this turn stands beside the product of the last one.
  same(
      "mov.u32 %r2, %t; mov.u64 %d1, 0; mov.u32 %r1, 0;\nL: add.u32 %r4, %r2, 1; @G add.s64 %d2, "
      "%ga, %d1; ld.global.u32 %r3, [%d2]; add.u32 %r1, %r1, %r3; @G mul.wide.u32 %d1, %r4, 4; "
      "add.u32 %r2, %r2, 9; setp.lt.u32 %p1, %r2, 200; @%p1 bra L;\n" +
          std::string(kStoreByThread) + "%r1;",
      0);
}

TEST_F(AddressTest, WhatIsUsedOtherwiseStays) {
  // The sum is stored: both statements stay.
  same(
      "@G mul.wide.s32 %d1, %t, 4; @G add.s64 %d2, %gb, %d1; st.global.u32 [%d2], %t; "
      "sub.s64 %d3, %d2, %gb; st.global.u32 [%d2+1024], %t; cvt.u32.u64 %r1, %d3;\n" +
          std::string(kStoreByThread) + "%r1;",
      0);
  // The product is: only the sum goes.
  same(
      "@G mul.wide.s32 %d1, %t, 4; @G add.s64 %d2, %gb, %d1; st.global.u32 [%d2+1024], %t; "
      "cvt.u32.u64 %r1, %d1;\n" +
          std::string(kStoreByThread) + "%r1;",
      1);
  // An access behind a label, neither at the beginning.
  same("K: @G mul.wide.s32 %d1, %t, 4; @G add.s64 %d2, %ga, %d1;\nL: ld.global.u32 %r1, [%d2];\n" +
           std::string(kStoreByThread) + "%r1;",
       0);
  // Narrow elements in wide registers.
  same(
      "@G mul.wide.s32 %d1, %t, 4; @G add.s64 %d2, %ga, %d1; ld.global.s32 %d5, [%d2]; "
      "cvt.u32.u64 %r1, %d5; @G add.s64 %d6, %gb, %d1; st.global.u32 [%d6+1024], %d5;\n" +
          std::string(kStoreByThread) + "%r1;",
      0);
  // Shared memory has addresses of its own.
  same(
      ".shared .align 4 .b8 words[256]; mov.u64 %d3, words; @G mul.wide.s32 %d1, %t, 4; @G add.s64 "
      "%d2, %d3, %d1; st.shared.u32 [%d2], "
      "%t; ld.shared.u32 %r1, [%d2];\n" +
          std::string(kStoreByThread) + "%r1;",
      0);
}

TEST_F(AddressTest, IndicesThatWrapAround) {
  // Four gigabytes of addresses around `middle`: signed indices reach all of them.
  constexpr std::size_t kHalf = std::size_t{1} << 31;
  void* range = mmap(nullptr, 2 * kHalf, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) GTEST_SKIP() << "no four gigabytes of addresses here";
  u8* const first = static_cast<u8*>(range);
  for (u32 k = 0; k < 64; ++k) {
    first[k] = static_cast<u8>(100 + k);
    first[2 * kHalf - 1 - k] = static_cast<u8>(200 - k);
  }
  const auto read = [&](const char* type, u8* base, u32 shift, bool guarded) {
    std::vector<u32> out(kThreads, 0);
    load(kernel_text(std::string("@G mul.wide.") + type +
                         " %d1, %i, 1; @G add.s64 %d2, %ga, %d1; ld.global.u8 %r1, [%d2];\n" +
                         kStoreByThread + "%r1;",
                     guarded));
    const Outcome outcome =
        run("k", {1, 1, 1}, {kThreads, 1, 1}, Arguments().add(base).add(out.data()).add(shift));
    EXPECT_EQ(outcome.fault, Fault::kNone) << outcome.fault_text;
    return out;
  };
  for (const u32 before : {5u, 16u, 21u, 33u}) {
    const auto high = read("s32", first + kHalf, (1u << 31) - before, false);
    EXPECT_EQ(high, read("s32", first + kHalf, (1u << 31) - before, true));
    EXPECT_EQ(high[before - 1], 200u);
    EXPECT_EQ(high[before], 100u);
    const auto over = read("u32", first, 0 - before, false);
    EXPECT_EQ(over, read("u32", first, 0 - before, true));
    EXPECT_EQ(over[before - 1], 200u);
    EXPECT_EQ(over[before], 100u);
  }
  munmap(range, 2 * kHalf);
}

TEST_F(AddressTest, FaultsNameTheAddress) {
  const std::string body =
      "@G mul.wide.s32 %d1, %i, 4; @G add.s64 %d2, %ga, %d1; ld.global.u32 %r1, [%d2];\n" +
      std::string(kStoreByThread) + "%r1;";
  for (const std::size_t offset : {std::size_t{2}, std::size_t{0} - (std::size_t{1} << 62)}) {
    const Result plain = run_once(body, true, 3, offset), folded = run_once(body, false, 3, offset);
    EXPECT_EQ(folded.outcome.fault, offset == 2 ? Fault::kMisaligned : Fault::kIllegalAddress);
    EXPECT_EQ(plain.outcome.fault, folded.outcome.fault);
    EXPECT_EQ(folded.outcome.warp_instructions, plain.outcome.warp_instructions);
    EXPECT_THAT(folded.outcome.fault_text, ::testing::HasSubstr("PTX line"));
  }
}

}  // namespace
}  // namespace softgpu::ptx::test

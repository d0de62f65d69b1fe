// Rows for which the interpreter has a shorter way: their results are those of the long one, on
// every instruction set this processor runs.
#include <bit>
#include <functional>
#include <numeric>
#include <set>

#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;

class FastPathTest : public PtxTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void load_for_isa(const std::string& body) {
    ::setenv("SOFTGPU_ISA", GetParam(), 1);
    load(ptx_module(body));
    ::unsetenv("SOFTGPU_ISA");
  }
};

// Division of 64 bits goes through double where a whole warp fits into it.

struct Pair {
  u64 a, b;
};

/// Dividends around k * b and around 2^53, where a quotient rounds the wrong way if it ever does.
std::vector<Pair> pairs_near_whole_quotients(bool is_signed) {
  constexpr u64 kLimit = u64{1} << 53;
  const auto is_below = [&](u64 x) { return is_signed ? x + kLimit < 2 * kLimit : x < kLimit; };
  std::vector<Pair> pairs;
  const u64 divisors[] = {0,       1,      2,          3,          7,          10,
                          1000,    kLimit, kLimit - 1, kLimit / 2, kLimit / 3, (1u << 27) + 1,
                          94906267};
  for (const u64 divisor : divisors) {
    const u64 most = divisor == 0 ? kLimit : kLimit / divisor;
    for (const u64 quotient : {u64{0}, u64{1}, u64{2}, most / 2, most - 1, most}) {
      for (const s64 offset : {-2, -1, 0, 1, 2}) {
        for (const int signs : {0, 1, 2, 3}) {
          const u64 x = quotient * divisor + static_cast<u64>(offset);
          const Pair pair{(signs & 1) != 0 ? 0 - x : x, (signs & 2) != 0 ? 0 - divisor : divisor};
          if (is_below(pair.a) && is_below(pair.b)) pairs.push_back(pair);
        }
      }
    }
  }
  pairs.resize(pairs.size() / 32 * 32);
  // Just too large for it, in all lanes: odd numbers above 2^53, positive and negative.
  for (u64 k = 0; k < 32; ++k) pairs.push_back({kLimit + 2 * k + 1, 1});
  for (u64 k = 0; k < 32; ++k) pairs.push_back({0 - (kLimit + 2 * k + 1), is_signed ? ~u64{0} : 1});
  return pairs;
}

u64 quotient_of(bool is_signed, Pair p) {
  if (p.b == 0) return ~u64{0};
  if (!is_signed) return p.a / p.b;
  return p.b == ~u64{0} ? 0 - p.a : static_cast<u64>(static_cast<s64>(p.a) / static_cast<s64>(p.b));
}

/// out[thread] = a[thread] op b[thread], but for threads of which the low bits are 5 when
/// `partial`.
std::string division_text(const std::string& op, bool partial) {
  return ".visible .entry k(.param .u64 out, .param .u64 pairs)\n{\n.reg .pred %p; .reg .b32 "
         "%r<9>; .reg .b64 %d<9>;\n"
         "ld.param.u64 %d0, [out]; ld.param.u64 %d1, [pairs]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, "
         "%ntid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r0, %r1, %r2; mul.wide.u32 %d2, %r3, 8; "
         "add.s64 %d0, %d0, %d2; add.s64 %d1, %d1, %d2; add.s64 %d1, %d1, %d2;\n"
         "ld.global.u64 %d3, [%d1]; ld.global.u64 %d4, [%d1+8]; mov.u64 %d5, 77;\n" +
         std::string(partial ? "and.b32 %r4, %r2, 7; setp.eq.u32 %p, %r4, 5; @%p bra L;\n" : "") +
         op + " %d5, %d3, %d4;\nL: st.global.u64 [%d0], %d5;\nret;\n}\n";
}

TEST_P(FastPathTest, DivisionThroughDoubleIsExact) {
  for (const char* const op : {"div.u64", "div.s64", "rem.u64", "rem.s64"}) {
    const bool is_signed = std::string(op).find('s') != std::string::npos;
    std::vector<Pair> pairs = pairs_near_whole_quotients(is_signed);
    // One dividend too large for it: its warp takes the long way.
    pairs[40] = {u64{3} << 60, 7};
    for (const bool partial : {false, true}) {
      load_for_isa(division_text(op, partial));
      std::vector<u64> out(pairs.size());
      host_.charged = 0;
      run_good("k", {static_cast<u32>(pairs.size() / 32), 1, 1}, {32, 1, 1},
               Arguments().add(out.data()).add(pairs.data()));
      for (std::size_t k = 0; k < pairs.size(); ++k) {
        const Pair& p = pairs[k];
        const u64 quotient = quotient_of(is_signed, p);
        const u64 rest = p.b == 0 ? p.a : p.a - quotient * p.b;
        const u64 want = partial && k % 8 == 5 ? 77 : op[0] == 'd' ? quotient : rest;
        ASSERT_EQ(out[k], want) << op << ' ' << static_cast<s64>(p.a) << ' '
                                << static_cast<s64>(p.b);
      }
    }
  }
}

// The lanes of a warp that all update one cell do it in their order, at one instant.

struct Update {
  const char* text;  // with D, ADDR, A, B
  u64 start;
  std::function<u64(u64 old, u64 a)> next;
};

float real(u64 bits) { return std::bit_cast<float>(static_cast<u32>(bits)); }
u64 cut(u64 x) { return x & 0xffffffff; }

std::vector<Update> updates_of_words() {
  return {
      {"atom.global.add.u32 D, ADDR, A;", 5, [](u64 o, u64 a) { return cut(o + a); }},
      {"atom.global.min.u32 D, ADDR, A;", 900, [](u64 o, u64 a) { return std::min(o, a); }},
      {"atom.global.max.s32 D, ADDR, A;", 20, [](u64 o, u64 a) { return std::max(o, a); }},
      {"atom.global.and.b32 D, ADDR, A;", ~0u, [](u64 o, u64 a) { return o & a; }},
      {"atom.global.or.b32 D, ADDR, A;", 0, [](u64 o, u64 a) { return o | a; }},
      {"atom.global.xor.b32 D, ADDR, A;", 9, [](u64 o, u64 a) { return o ^ a; }},
      {"atom.global.exch.b32 D, ADDR, A;", 9, [](u64, u64 a) { return a; }},
      {"atom.global.inc.u32 D, ADDR, 20;", 3, [](u64 o, u64) { return o >= 20 ? 0 : o + 1; }},
      {"atom.global.dec.u32 D, ADDR, 20;", 3,
       [](u64 o, u64) { return o == 0 || o > 20 ? 20 : o - 1; }},
      // Lane a finds a: each hands over to the next.
      {"add.u32 B, A, 7; atom.global.cas.b32 D, ADDR, A, B;", 8,
       [](u64 o, u64 a) { return o == a ? a + 7 : o; }},
      {"cvt.rn.f32.u32 A, A; atom.global.add.f32 D, ADDR, A;", 0x3f800000,
       [](u64 o, u64 a) { return u64{std::bit_cast<u32>(real(o) + static_cast<float>(a))}; }},
      // Operand and result in one register.
      {"mov.u32 D, A; atom.global.add.u32 D, ADDR, D;", 5, [](u64 o, u64 a) { return cut(o + a); }},
      {"mov.u32 D, A; atom.add.u32 D, ADDR, D;", 5, [](u64 o, u64 a) { return cut(o + a); }},
  };
}

/// The cell is the first word; out[1 + lane] is what the lane found. A of a lane is 7 * lane + 1.
std::string update_text(const std::string& update, bool partial) {
  std::string text = update;
  const std::pair<std::string, std::string> names[] = {
      {"ADDR", "[%d0]"}, {" D,", " %r4,"}, {"D;", "%r4;"},  {" A,", " %r5,"},
      {" B,", " %r6,"},  {" A;", " %r5;"}, {" B;", " %r6;"}};
  for (const auto& [from, to] : names) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  }
  return ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p; .reg .b32 %r<9>; .reg .b64 "
         "%d<10>;\n"
         "ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.s64 %d1, "
         "%d1, %d0; mad.lo.u32 %r5, %r0, 7, 1; mov.u32 %r4, 77;\n" +
         std::string(partial ? "and.b32 %r1, %r0, 3; setp.eq.u32 %p, %r1, 2; @%p bra L;\n" : "") +
         text + "\nL: st.global.u32 [%d1+4], %r4;\nret;\n}\n";
}

TEST_P(FastPathTest, LanesOfOneCellUpdateItInTheirOrder) {
  for (const Update& update : updates_of_words()) {
    for (const bool partial : {false, true}) {
      load_for_isa(update_text(update.text, partial));
      std::vector<u32> out(64, 0);
      out[0] = static_cast<u32>(update.start);
      host_.charged = 0;
      run_good("k", {1, 1, 1}, {32, 1, 1}, Arguments().add(out.data()));
      u64 cell = update.start;
      for (u32 lane = 0; lane < 32; ++lane) {
        const bool skipped = partial && lane % 4 == 2;
        ASSERT_EQ(out[1 + lane], skipped ? 77 : static_cast<u32>(cell)) << update.text << lane;
        if (!skipped) cell = update.next(cell, 7 * lane + 1);
      }
      ASSERT_EQ(out[0], static_cast<u32>(cell)) << update.text;
    }
  }
}

/// f64 and 64-bit integers: one number for all lanes of all blocks, on several threads.
TEST_P(FastPathTest, BlocksOnSeveralThreadsLoseNoUpdateOfOneCell) {
  constexpr u32 kBlocks = 64, kThreads = 96;
  load_for_isa(
      ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<10>; "
      ".reg .f64 %f<3>;\n"
      "ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, "
      "96, %r0; mul.wide.u32 %d1, %r2, 8; add.s64 %d1, %d1, %d0;\n"
      "atom.global.add.u64 %d2, [%d0], 1; red.global.add.f64 [%d0+8], 0d3FF0000000000000; "
      "st.global.u64 [%d1+16], %d2;\nret;\n}\n");
  std::vector<u64> out(2 + kBlocks * kThreads, 0);
  run_good("k", {kBlocks, 1, 1}, {kThreads, 1, 1}, Arguments().add(out.data()));
  EXPECT_EQ(out[0], u64{kBlocks * kThreads});
  EXPECT_EQ(std::bit_cast<double>(out[1]), kBlocks * kThreads);
  const std::set<u64> numbers(out.begin() + 2, out.end());
  EXPECT_EQ(numbers.size(), kBlocks * kThreads);
  EXPECT_EQ(*numbers.rbegin(), kBlocks * kThreads - 1);
}

INSTANTIATE_TEST_SUITE_P(Isas, FastPathTest, ::testing::Values("base", "avx2", "avx512"));

}  // namespace
}  // namespace softgpu::ptx::test

// Divergence, barriers, atomics, calls, faults and charging, on PTX written here.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "softgpu/ptx/run/pool.h"
#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

/// A kernel k(out) with %t = tid.x, %o = &out[global thread] (4 bytes) and a few registers.
std::string kernel_text(const std::string& body, const std::string& before = "") {
  return ptx_module(
      before +
      ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p<8>; .reg .b32 %r<32>; .reg .f32 %f<8>; "
      ".reg .b64 %d<16>; .reg .b32 %t; .reg .b64 %o; .reg .b64 %base;\n"
      "ld.param.u64 %base, [out]; mov.u32 %t, %tid.x; mov.u32 %r30, %ctaid.x; mov.u32 %r31, "
      "%ntid.x;\n"
      "mad.lo.s32 %r30, %r30, %r31, %t; mul.wide.u32 %o, %r30, 4; add.s64 %o, %base, %o;\n" +
      body + "\nret;\n}\n");
}

class FlowTest : public PtxTest {
 protected:
  std::vector<u32> run_k(const std::string& ptx, u32 grid, u32 block) {
    load(ptx);
    std::vector<u32> out(std::size_t{grid} * block + 64, 0);
    run_good("k", {grid, 1, 1}, {block, 1, 1}, Arguments().add(out.data()));
    out.resize(std::size_t{grid} * block);
    return out;
  }
  Outcome fault_of(const std::string& body, u32 block = 32) {
    load(kernel_text(body));
    out_.assign(1024, 0);
    return run("k", {1, 1, 1}, {block, 1, 1}, Arguments().add(out_.data()));
  }
  std::vector<u32> out_;
};

TEST_F(FlowTest, LanesThatLoopDifferentlyMeetAgain) {
  const auto out = run_k(kernel_text("mov.u32 %r1, 0; mov.u32 %r2, 0;\nL: add.u32 %r2, %r2, %r1; "
                                     "add.u32 %r1, %r1, 1; setp.le.u32 %p1, %r1, %t; @%p1 bra L;\n"
                                     "activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 mov.u32 "
                                     "%r2, 0; st.global.u32 [%o], %r2;"),
                         2, 64);
  for (u32 k = 0; k < 128; ++k) EXPECT_EQ(out[k], (k % 64) * (k % 64 + 1) / 2) << k;
}

TEST_F(FlowTest, BranchTableAndNestedIf) {
  const auto out = run_k(
      kernel_text("and.b32 %r1, %t, 3;\nT: .branchtargets A, B, C, D;\nbrx.idx %r1, T;\n"
                  "A: mov.u32 %r2, 10; bra E;\nB: setp.gt.u32 %p1, %t, 15; @%p1 bra B2; mov.u32 "
                  "%r2, 20; bra E;\nB2: mov.u32 %r2, 21; bra E;\n"
                  "C: mov.u32 %r2, 30; bra E;\nD: mov.u32 %r2, 40;\nE: st.global.u32 [%o], %r2;"),
      1, 32);
  for (u32 k = 0; k < 32; ++k)
    EXPECT_EQ(out[k], k % 4 == 0   ? 10u
                      : k % 4 == 1 ? (k > 15 ? 21u : 20u)
                      : k % 4 == 2 ? 30u
                                   : 40u);
}

TEST_F(FlowTest, BarrierMakesSharedMemoryVisibleToOtherWarps) {
  const auto out = run_k(kernel_text("shl.b32 %r1, %t, 2; mov.u32 %r2, s; add.u32 %r3, %r2, %r1; "
                                     "st.shared.u32 [%r3], %t; bar.sync 0;\n"
                                     "xor.b32 %r4, %r1, 1020; add.u32 %r4, %r4, %r2; ld.shared.u32 "
                                     "%r5, [%r4]; st.global.u32 [%o], %r5;",
                                     ".shared .align 4 .b8 s[1024];\n"),
                         3, 256);
  for (u32 k = 0; k < 768; ++k) EXPECT_EQ(out[k], 255 - k % 256);
}

TEST_F(FlowTest, BlocksThatWaitForEachOtherEnd) {
  // More of them than threads run launches, all on the device at a time.
  const u32 blocks = std::min(4 * pool_width() + 3, 16 * 32u);
  load(ptx_module(
      ".visible .global .align 4 .u32 arrived;\n"
      ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p1; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"
      "ld.param.u64 %d1, [out]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %d2, %r1, 4; "
      "add.s64 %d1, %d1, %d2;\nmov.u32 %r2, %nctaid.x; mov.u32 %r3, 0;\n"
      "NEXT: add.u32 %r3, %r3, %r2; atom.global.add.u32 %r4, [arrived], 1;\n"
      "WAIT: ld.volatile.global.u32 %r5, [arrived]; setp.lt.u32 %p1, %r5, %r3; @%p1 bra WAIT;\n"
      "mul.lo.u32 %r6, %r2, 3; setp.lt.u32 %p1, %r3, %r6; @%p1 bra NEXT;\n"
      "st.global.u32 [%d1], %r5; ret;\n}\n"));
  std::vector<u32> out(blocks, 0);
  run_good("k", {blocks, 1, 1}, {1, 1, 1}, Arguments().add(out.data()));
  for (u32 k = 0; k < blocks; ++k) EXPECT_EQ(out[k], 3 * blocks) << k;
}

TEST_F(FlowTest, BarrierReductionAndExitedThreads) {
  const auto out = run_k(
      kernel_text("setp.ge.u32 %p1, %t, 90; @%p1 bra OUT; rem.u32 %r1, %t, 3; setp.eq.u32 %p2, "
                  "%r1, 0; bar.red.popc.u32 %r2, 0, %p2; st.global.u32 [%o], %r2;\nOUT:"),
      1, 128);
  for (u32 k = 0; k < 128; ++k) EXPECT_EQ(out[k], k < 90 ? 30u : 0u);
}

TEST_F(FlowTest, NamedBarriersWithCounts) {
  const auto out = run_k(
      kernel_text(
          "setp.ge.u32 %p1, %t, 64; @%p1 bra HI; st.shared.u32 [s], 7; bar.arrive 1, 128; bra "
          "END;\nHI: bar.sync 1, 128; ld.shared.u32 %r1, [s]; st.global.u32 [%o], %r1;\nEND:",
          ".shared .align 4 .b8 s[4];\n"),
      1, 128);
  for (u32 k = 64; k < 128; ++k) EXPECT_EQ(out[k], 7u);
}

TEST_F(FlowTest, SpinLockInsideOneWarpEnds) {
  const auto out = run_k(
      kernel_text(
          "L: atom.shared.cas.b32 %r1, [lock], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra "
          "L;\nld.volatile.shared.u32 %r2, [sum]; add.u32 %r2, %r2, 1; st.volatile.shared.u32 "
          "[sum], %r2; membar.cta; atom.shared.exch.b32 %r3, [lock], 0;\n"
          "bar.sync 0; ld.shared.u32 %r4, [sum]; st.global.u32 [%o], %r4;",
          ".shared .align 4 .b8 lock[4];\n.shared .align 4 .b8 sum[4];\n"),
      1, 64);
  EXPECT_EQ(out[0], 64u);
}

TEST_F(FlowTest, AtomicsCountEveryLaneOfEveryBlock) {
  const auto out = run_k(
      kernel_text(
          "atom.global.add.u32 %r1, [%base], 1; red.global.max.u32 [%base+4], %r30; "
          "red.global.add.f32 [%base+8], 0f3F800000; atom.global.inc.u32 %r2, [%base+12], 99;"),
      64, 128);
  EXPECT_EQ(out[0], 8192u);
  EXPECT_EQ(out[1], 8191u);
  EXPECT_EQ(out[2], 0x46000000u);
  EXPECT_EQ(out[3], 8192u % 100);
}

TEST_F(FlowTest, ShufflesVotesAndMatches) {
  const auto out = run_k(
      kernel_text(
          "shfl.sync.bfly.b32 %r1, %t, 5, 31, -1; shfl.sync.up.b32 %r2|%p1, %t, 3, 0, -1; selp.b32 "
          "%r3, 100, 0, %p1; shfl.sync.idx.b32 %r4, %t, 2, 0x181f, -1;\n"
          "setp.lt.u32 %p2, %t, 8; vote.sync.ballot.b32 %r5, %p2, -1; shr.u32 %r6, %t, 3; "
          "match.any.sync.b32 %r7, %r6, -1; popc.b32 %r7, %r7; redux.sync.add.u32 %r8, %t, -1;\n"
          "mad.lo.u32 %r9, %r1, 1000, %r2; add.u32 %r9, %r9, %r3; mad.lo.u32 %r9, %r4, 100000, "
          "%r9; add.u32 %r9, %r9, %r5; add.u32 %r9, %r9, %r7; add.u32 %r9, %r9, %r8; st.global.u32 "
          "[%o], %r9;"),
      1, 32);
  for (u32 k = 0; k < 32; ++k) {
    const u32 up = k >= 3 ? k - 3 : k;
    EXPECT_EQ(out[k],
              (k ^ 5) * 1000 + up + (k >= 3 ? 100 : 0) + ((k & 24) | 2) * 100000 + 255 + 8 + 496)
        << k;
  }
}

TEST_F(FlowTest, SyncInstructionsWaitForTheLanesTheyName) {
  // The upper half comes later, by a longer way.
  const auto out =
      run_k(kernel_text(
                "setp.ge.u32 %p1, %t, 16; setp.lt.u32 %p2, %t, 20; mov.u32 %r1, 0; @%p1 bra LATE;\n"
                "V: vote.sync.ballot.b32 %r2, %p2, -1; shfl.sync.bfly.b32 %r3, %t, 16, 31, -1; "
                "redux.sync.add.u32 %r4, %t, -1; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; "
                "st.global.u32 [%o], %r2; ret;\n"
                "LATE: add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 9; @%p3 bra LATE; bra V;"),
            1, 32);
  for (u32 k = 0; k < 32; ++k) EXPECT_EQ(out[k], 0xfffffu + (k ^ 16) + 496) << k;
}

TEST_F(FlowTest, TilesOfAWarpVoteEachForItself) {
  const auto out = run_k(
      kernel_text(
          "and.b32 %r1, %t, 24; mov.u32 %r2, 255; shl.b32 %r2, %r2, %r1; and.b32 %r3, %t, 1; "
          "setp.ne.u32 %p1, %r3, 0; vote.sync.ballot.b32 %r4, %p1, %r2; shr.u32 %r4, %r4, %r1; "
          "redux.sync.add.u32 %r5, %t, %r2; setp.lt.u32 %p2, %t, 8; vote.sync.all.pred %p3, "
          "%p2, %r2; selp.u32 %r6, 100000, 0, %p3; mad.lo.u32 %r5, %r5, 1000, %r4; add.u32 "
          "%r5, %r5, %r6; st.global.u32 [%o], %r5;"),
      1, 32);
  for (u32 k = 0; k < 32; ++k) {
    const u32 sum = 8 * (k & 24) + 28;
    EXPECT_EQ(out[k], sum * 1000 + 0xaa + (k < 8 ? 100000 : 0)) << k;
  }
}

TEST_F(FlowTest, SyncInstructionsGoOnWithoutExitedLanes) {
  const auto out = run_k(kernel_text("setp.ge.u32 %p1, %t, 9; @%p1 exit; setp.ge.u32 %p2, %t, 0; "
                                     "vote.sync.ballot.b32 %r2, %p2, -1; st.global.u32 [%o], %r2;"),
                         1, 32);
  for (u32 k = 0; k < 32; ++k) EXPECT_EQ(out[k], k < 9 ? 511u : 0u);
}

TEST_F(FlowTest, NamedLanesAtAnotherInstructionDoNotHang) {
  const auto out = run_k(
      kernel_text("setp.ge.u32 %p1, %t, 16; @%p1 bra HI; redux.sync.add.u32 %r1, %t, -1; bra END;\n"
                  "HI: redux.sync.max.u32 %r1, %t, -1;\nEND: bar.warp.sync -1; mov.u32 %r2, 7; "
                  "st.global.u32 [%o], %r2;"),
      1, 32);
  for (u32 k = 0; k < 32; ++k) EXPECT_EQ(out[k], 7u);
}

TEST_F(FlowTest, NamedLanesThatNeverComeAreADeadlock) {
  for (const char* text :
       {"setp.ge.u32 %p1, %t, 16; @%p1 bra HI; vote.sync.ballot.b32 %r1, %p1, -1; bra END;\nHI: "
        "bar.sync 1, 64;\nEND:",
        "setp.ge.u32 %p1, %t, 16; @%p1 bra HI; bar.warp.sync -1; bra END;\nHI: bar.sync 1, "
        "64;\nEND:"}) {
    const Outcome stuck = fault_of(text);
    EXPECT_EQ(stuck.fault, Fault::kTrap);
    EXPECT_NE(stuck.fault_text.find("deadlock"), std::string::npos) << stuck.fault_text;
  }
}

TEST_F(FlowTest, RecursionReturnsPerLane) {
  const auto out = run_k(
      kernel_text("{ .param .b32 a; .param .b32 v; st.param.b32 [a], %t; call.uni (v), fib, (a); "
                  "ld.param.b32 %r1, [v]; } st.global.u32 [%o], %r1;",
                  ".visible .func (.param .b32 v) fib(.param .b32 n)\n{\n.reg .b32 %r<6>; .reg "
                  ".pred %p;\nld.param.u32 %r0, [n]; setp.lt.u32 %p, %r0, 2; @%p bra BASE;\n"
                  "{ .param .b32 a; .param .b32 q; sub.u32 %r1, %r0, 1; st.param.b32 [a], %r1; "
                  "call.uni (q), fib, (a); ld.param.b32 %r2, [q]; }\n"
                  "{ .param .b32 a; .param .b32 q; sub.u32 %r1, %r0, 2; st.param.b32 [a], %r1; "
                  "call.uni (q), fib, (a); ld.param.b32 %r3, [q]; }\n"
                  "add.u32 %r4, %r2, %r3; st.param.b32 [v], %r4; ret;\nBASE: st.param.b32 [v], "
                  "%r0; ret;\n}\n"),
      1, 16);
  u32 a = 0, b = 1;
  for (u32 k = 0; k < 16; ++k) {
    EXPECT_EQ(out[k], a) << k;
    b = std::exchange(a, b) + b;
  }
}

TEST_F(FlowTest, CostIsExactAndRepeats) {
  load(
      kernel_text("mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10; @%p1 bra L; "
                  "st.global.u32 [%o], %r1;"));
  std::vector<u32> out(4096);
  const Arguments arguments = Arguments().add(out.data());
  const u64 first = run("k", {16, 1, 1}, {256, 1, 1}, arguments).warp_instructions;
  // Per warp: mov (the other copies of parameters and special registers cost nothing), mad,
  // mul.wide, add, the mov of the loop variable, 10 x 3 in the loop, st, ret.
  EXPECT_EQ(first, 16u * 8 * (5 + 30 + 2));
  EXPECT_EQ(run("k", {16, 1, 1}, {256, 1, 1}, arguments).warp_instructions, first);
}

TEST_F(FlowTest, EndlessLoopIsChargedInSmallPiecesAndAborted) {
  load(kernel_text("L: bra L;"));
  host_.limit = 1000000;
  std::vector<u32> out(64);
  const Outcome outcome = run("k", {64, 1, 1}, {64, 1, 1}, Arguments().add(out.data()));
  EXPECT_EQ(outcome.fault, Fault::kAborted);
  EXPECT_LE(host_.largest.load(), kChargeEvery);
  EXPECT_GE(host_.charges.load(), 1000000 / kChargeEvery);
  EXPECT_LT(host_.charged.load(), 1000000 + 64 * kChargeEvery);
  EXPECT_EQ(outcome.warp_instructions, host_.charged.load());
}

TEST_F(FlowTest, NullPointerIsAnIllegalAddress) {
  const Outcome outcome = fault_of("mov.u64 %d1, 0; st.global.u32 [%d1+16], %t;");
  EXPECT_EQ(outcome.fault, Fault::kIllegalAddress);
  EXPECT_EQ(outcome.fault_address, 16u);
  EXPECT_NE(outcome.fault_text.find("kernel k, block (0,0,0)"), std::string::npos)
      << outcome.fault_text;
}

TEST_F(FlowTest, UnmappedMemoryIsAnIllegalAddressAndTheNextLaunchWorks) {
  char* page =
      static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  load(kernel_text("ld.global.u32 %r1, [%o]; st.global.u32 [%o], %r1;"));
  const Outcome bad = run("k", {1, 1, 1}, {32, 1, 1}, Arguments().add(page));
  EXPECT_EQ(bad.fault, Fault::kIllegalAddress);
  EXPECT_EQ(bad.fault_address, reinterpret_cast<u64>(page));
  std::vector<u32> out(32);
  EXPECT_EQ(run("k", {1, 1, 1}, {32, 1, 1}, Arguments().add(out.data())).fault, Fault::kNone);
  munmap(page, 4096);
}

TEST_F(FlowTest, MisalignedAddress) {
  EXPECT_EQ(fault_of("add.s64 %d1, %base, 2; ld.global.u32 %r1, [%d1];").fault, Fault::kMisaligned);
}
TEST_F(FlowTest, SharedOutOfBounds) {
  const Outcome outcome = fault_of("mov.u32 %r1, 65536; st.shared.u32 [%r1], %t;");
  EXPECT_EQ(outcome.fault, Fault::kIllegalAddress);
  EXPECT_EQ(outcome.fault_address, 65536u);
}
// Lanes in falling order, one of which (the 21st) goes astray: the address is that lane's.
TEST_F(FlowTest, OneLaneOfScatteredLoadsAstray) {
  const std::string shared =
      ".shared .align 4 .b8 tile[128]; sub.s32 %r2, 31, %t; shl.b32 %r2, %r2, 2; mov.u32 %r3, "
      "tile; "
      "add.u32 %r3, %r3, %r2; setp.eq.u32 %p1, %t, 20; ";
  EXPECT_EQ(fault_of(shared + "ld.shared.u32 %r1, [%r3];").fault, Fault::kNone);
  const Outcome outside = fault_of(shared + "@%p1 mov.u32 %r3, 70000; ld.shared.u32 %r1, [%r3];");
  EXPECT_EQ(outside.fault, Fault::kIllegalAddress);
  EXPECT_EQ(outside.fault_address, 70000u);
  const Outcome odd = fault_of(shared + "@%p1 add.u32 %r3, %r3, 1; ld.shared.u32 %r1, [%r3];");
  EXPECT_EQ(odd.fault, Fault::kMisaligned);
  EXPECT_EQ(odd.fault_address % 4, 1u);
  const std::string global =
      "sub.s32 %r2, 31, %t; mul.wide.s32 %d1, %r2, 4; add.s64 %d1, %base, %d1; "
      "setp.eq.u32 %p1, %t, 20; ";
  EXPECT_EQ(fault_of(global + "ld.global.u32 %r1, [%d1];").fault, Fault::kNone);
  const Outcome wild = fault_of(global + "@%p1 mov.u64 %d1, 48; ld.global.u32 %r1, [%d1];");
  EXPECT_EQ(wild.fault, Fault::kIllegalAddress);
  EXPECT_EQ(wild.fault_address, 48u);
  EXPECT_EQ(fault_of(global + "@%p1 add.s64 %d1, %d1, 2; ld.global.u32 %r1, [%d1];").fault,
            Fault::kMisaligned);
}

TEST_F(FlowTest, LocalOutOfBounds) {
  EXPECT_EQ(fault_of(".local .align 4 .b8 a[16]; mov.u64 %d1, a; add.s64 %d1, %d1, 100000; "
                     "st.local.u32 [%d1], %t;")
                .fault,
            Fault::kIllegalAddress);
}
TEST_F(FlowTest, TrapAndDeadlock) {
  EXPECT_EQ(fault_of("trap;").fault, Fault::kTrap);
  const Outcome stuck = fault_of("bar.sync 1, 64;");
  EXPECT_EQ(stuck.fault, Fault::kTrap);
  EXPECT_NE(stuck.fault_text.find("deadlock"), std::string::npos);
}
TEST_F(FlowTest, EndlessRecursionOverflowsTheStack) {
  load(kernel_text("call.uni f;",
                   ".visible .func f()\n{\n.local .align 8 .b8 a[64]; call.uni f; ret;\n}\n"));
  std::vector<u32> out(32);
  EXPECT_EQ(run("k", {1, 1, 1}, {32, 1, 1}, Arguments().add(out.data())).fault,
            Fault::kStackOverflow);
}

TEST_F(FlowTest, FaultOutsideALaunchKillsAsBefore) {
  fault_of("trap;");  // installs the handler
  EXPECT_EXIT({ *reinterpret_cast<volatile int*>(std::uintptr_t{4096}) = 1; },
              ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(FlowTest, ForkedChildLaunchesWithAPoolOfItsOwn) {
  load(
      kernel_text("mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra "
                  "L; st.global.u32 [%o], %r1;"));
  std::vector<u32> out(256 * 64);
  const Arguments arguments = Arguments().add(out.data());
  ASSERT_EQ(run("k", {256, 1, 1}, {64, 1, 1}, arguments).fault, Fault::kNone);
  const pid_t child = fork();
  if (child == 0) {
    std::fill(out.begin(), out.end(), 0);
    const bool good =
        run("k", {256, 1, 1}, {64, 1, 1}, arguments).fault == Fault::kNone && out.back() == 1000;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FlowTest, LaunchesOfSeveralThreadsShareThePoolAndFaultAlone) {
  load(
      kernel_text("mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 500; @%p1 bra L; "
                  "st.global.u32 [%o], %r1;"));
  const Kernel& k = kernel("k");
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&, n] {
      std::vector<u32> out(128 * 64);
      const Arguments arguments = Arguments().add(n == 3 ? static_cast<u32*>(nullptr) : out.data());
      TestHost host;
      Launch launch;
      launch.grid.x = 128;
      launch.block.x = 64;
      launch.params = arguments.data();
      const Outcome outcome = launch_run(k, launch, host);
      if (outcome.fault == (n == 3 ? Fault::kIllegalAddress : Fault::kNone) &&
          (n == 3 || out.back() == 500))
        ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

}  // namespace
}  // namespace softgpu::ptx::test

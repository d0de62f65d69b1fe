// How far a warp of a block may get ahead of the others: programs rely on warps that start together
// and leave a barrier together. Expected are the values that a GPU gives; see turns.cu.
#include <fstream>
#include <iterator>
#include <numeric>

#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

using Words = std::vector<int>;

class TurnsTest : public PtxTest {
 protected:
  void SetUp() override {
    std::ifstream in(FATBIN_DIR "/ptx_test_turns.fatbin", std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    ASSERT_FALSE(bytes.empty());
    std::string error;
    const auto images = fatbin_images(bytes.data(), &error);
    ASSERT_EQ(images.size(), 1u) << error;
    load(images[0].text);
  }

  static std::size_t at(int k) { return static_cast<std::size_t>(k); }
  static Words values(int count, int factor) {
    Words list(at(count));
    for (int k = 0; k < count; ++k) list[at(k)] = k * factor % 97 + 1;
    return list;
  }
  static int sum_of(const Words& list, int first, int count) {
    return std::accumulate(list.begin() + first, list.begin() + first + count, 0);
  }
};

constexpr int kBlocks = 3;

TEST_F(TurnsTest, BlockSumUsedTwice) {
  for (const int block : {64, 256, 1024}) {
    const Words in = values(kBlocks * block, 31);
    Words out(in.size());
    run_good("sum_twice", {kBlocks, 1, 1}, {static_cast<unsigned>(block), 1, 1},
             Arguments().add(in.data()).add(out.data()));
    host_.charged = 0;
    for (int k = 0; k < kBlocks * block; ++k) {
      const int sum = sum_of(in, k / block * block, block);
      ASSERT_EQ(out[at(k)], sum * (sum & 7) + sum) << k << " of blocks of " << block;
    }
  }
}

TEST_F(TurnsTest, FirstWarpSumUsedTwice) {
  for (const int block : {64, 256, 1024}) {
    const Words in = values(kBlocks * block, 31);
    Words out(2 * kBlocks);
    run_good("first_warp_twice", {kBlocks, 1, 1}, {static_cast<unsigned>(block), 1, 1},
             Arguments().add(in.data()).add(out.data()));
    host_.charged = 0;
    for (int b = 0; b < kBlocks; ++b) {
      const auto begin = in.begin() + b * block;
      EXPECT_EQ(out[at(2 * b)], sum_of(in, b * block, block)) << block;
      EXPECT_EQ(out[at(2 * b + 1)], std::inner_product(begin, begin + block, begin, 0)) << block;
    }
  }
}

TEST_F(TurnsTest, CellClearedForTheNextRound) {
  const Words in = values(256, 5);
  Words out(256);
  const int rounds = 5;
  run_good("cleared_for_the_next", {1, 1, 1}, {256, 1, 1},
           Arguments().add(in.data()).add(out.data()).add(rounds));
  int all = 0;
  for (int r = 0; r < rounds; ++r) all = all * 3 + sum_of(in, 0, 256) + 256 * r;
  EXPECT_EQ(out, Words(256, all));
}

TEST_F(TurnsTest, ScanWithoutItsSecondBarrier) {
  for (const int block : {64, 256, 1024}) {
    const Words in = values(block, 13);
    Words out(in.size()), want(in.size());
    launch_.dynamic_shared_bytes = static_cast<unsigned>(block) * 4;
    run_good("scan_one_barrier", {1, 1, 1}, {static_cast<unsigned>(block), 1, 1},
             Arguments().add(in.data()).add(out.data()));
    host_.charged = 0;
    std::partial_sum(in.begin(), in.end(), want.begin());
    EXPECT_EQ(out, want) << block;
  }
}

TEST_F(TurnsTest, TilesWithoutTheirSecondBarrier) {
  const int n = 64;
  const Words a = values(n * n, 7), b = values(n * n, 11);
  Words c(a.size()), want(a.size());
  run_good("tiles_one_barrier", {n / 16, n / 16, 1}, {16, 16, 1},
           Arguments().add(a.data()).add(b.data()).add(c.data()).add(n));
  for (int row = 0; row < n; ++row) {
    for (int k = 0; k < n; ++k) {
      for (int column = 0; column < n; ++column)
        want[at(row * n + column)] += a[at(row * n + k)] * b[at(k * n + column)];
    }
  }
  EXPECT_EQ(c, want);
}

TEST_F(TurnsTest, RowsOfThreadsThatDoTheSame) {
  const int n = 100;
  const Words a = values(n * n, 7), y = values(n, 11);
  Words x = values(n, 3), want = x;
  run_good("rows_of_threads_alike", {4, 1, 1}, {32, 8, 1},
           Arguments().add(n).add(a.data()).add(x.data()).add(y.data()));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) want[at(i)] += a[at(i * n + j)] * y[at(j)];
  }
  EXPECT_EQ(x, want);
}

TEST_F(TurnsTest, BarriersThatCount) {
  const int block = 256;
  const Words in = values(block, 29);
  Words out(in.size());
  run_good("counted_twice", {1, 1, 1}, {block, 1, 1}, Arguments().add(in.data()).add(out.data()));
  int all = 0;
  for (int bit = 0; bit < 8; ++bit) {
    const auto set = [bit](int v) { return (v >> bit & 1) != 0; };
    const auto count = std::count_if(in.begin(), in.end(), set);
    all = all * 5 + in[at(bit * 37 % block)] + static_cast<int>(count);
  }
  EXPECT_EQ(out, Words(block, all));
}

/// What four rounds of sums over `count` threads from `first` on leave in each of them.
Words rounds_of_sums(const Words& in, int first, int count) {
  Words v(in.begin() + first, in.begin() + first + count);
  for (int round = 0; round < 4; ++round) {
    const int sum = std::accumulate(v.begin(), v.end(), 0);
    for (int k = 0; k < count; ++k)
      v[static_cast<std::size_t>(k)] = sum % 1021 + in[static_cast<std::size_t>(first + k)];
  }
  return v;
}

TEST_F(TurnsTest, HalvesAtBarriersOfTheirOwn) {
  const Words in = values(512, 17);
  Words out(in.size());
  run_good("half_sums", {1, 1, 1}, {512, 1, 1}, Arguments().add(in.data()).add(out.data()));
  Words want = rounds_of_sums(in, 0, 256);
  const Words upper = rounds_of_sums(in, 256, 256);
  want.insert(want.end(), upper.begin(), upper.end());
  EXPECT_EQ(out, want);
}

TEST_F(TurnsTest, PhasesOfAnMbarrier) {
  const Words in = values(256, 17);
  Words out(in.size());
  run_good("sums_by_phase", {1, 1, 1}, {256, 1, 1}, Arguments().add(in.data()).add(out.data()));
  EXPECT_EQ(out, rounds_of_sums(in, 0, 256));
}

TEST_F(TurnsTest, ThreadsThatEndLetTheOthersGo) {
  const Words in = values(256, 17);
  Words out(in.size());
  run_good("leaves_last", {1, 1, 1}, {256, 1, 1}, Arguments().add(in.data()).add(out.data()));
  EXPECT_EQ(Words(out.begin() + 32, out.end()), Words(224, in[0]));
}

TEST_F(TurnsTest, LastBlockAddsUp) {
  const int blocks = 37, block = 128;
  const Words in = values(blocks * block, 31);
  Words parts(at(blocks));
  int out = 0;
  for (int round = 0; round < 2; ++round) {
    run_good("last_block", {blocks, 1, 1}, {block, 1, 1},
             Arguments().add(in.data()).add(parts.data()).add(&out));
    host_.charged = 0;
    EXPECT_EQ(out, sum_of(in, 0, blocks * block));
  }
}

TEST_F(TurnsTest, WarpsThatWatchFlags) {
  const int rounds = 20;
  const Words in = values(32, 17);
  Words out(at(32 * rounds));
  run_good("hand_over", {1, 1, 1}, {96, 1, 1},
           Arguments().add(in.data()).add(out.data()).add(rounds));
  for (int k = 0; k < 32 * rounds; ++k)
    ASSERT_EQ(out[at(k)], in[at(31 - k % 32)] * (k / 32 + 1)) << k;
}

TEST_F(TurnsTest, WarpsWithDifferentTasks) {
  const int rounds = 9, warps = 6;
  const Words in = values(32, 17);
  Words out(32 * warps), want(32 * warps);
  run_good("specialised", {1, 1, 1}, {32 * warps, 1, 1},
           Arguments().add(in.data()).add(out.data()).add(rounds));
  for (int k = 32; k < 32 * warps; ++k) {
    for (int r = 0; r < rounds; ++r)
      want[at(k)] = want[at(k)] * 3 + in[at((k % 32) ^ (k / 32))] + r;
  }
  EXPECT_EQ(out, want);
}

}  // namespace
}  // namespace softgpu::ptx::test

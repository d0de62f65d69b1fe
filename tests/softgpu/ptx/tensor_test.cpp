// The kernels of tensor.cu against references on the host.
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/softgpu/ptx/forms_values.h"
#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

class TensorTest : public PtxTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    std::ifstream in(std::string(FATBIN_DIR) + "/" + GetParam() + ".fatbin", std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    ASSERT_FALSE(bytes.empty());
    std::string error;
    const auto images = fatbin_images(bytes.data(), &error);
    ASSERT_EQ(images.size(), 1u) << error;
    load(images[0].text);
  }

  /// Numbers that the format has, between -1 and 1.
  static std::vector<u16> matrix(std::size_t count, const Format& format, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<u16> values(count);
    for (u16& value : values) {
      const double x = static_cast<double>(static_cast<s32>(random())) * 0x1p-31;
      value = static_cast<u16>(rounded(Quad(x), 0, format, Rounding::kNearest));
    }
    return values;
  }

  template <class T, class Sum>
  void expect_whole_product(const char* kernel, int least);

  /// c = scale * a * b with b by columns; within what adding n products in f32 may cost.
  static void expect_product(const std::vector<u16>& a, const std::vector<u16>& b,
                             const std::vector<float>& c, std::size_t n, const Format& format,
                             double scale) {
    std::vector<double> x(n * n), y(n * n);
    for (std::size_t k = 0; k < n * n; ++k) {
      x[k] = static_cast<double>(number(a[k], format));
      y[k] = static_cast<double>(number(b[k], format));
    }
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t s = 0; s < n; ++s) {
        double want = 0, size = 0;
        for (std::size_t k = 0; k < n; ++k) {
          want += x[r * n + k] * y[s * n + k];
          size += std::fabs(x[r * n + k] * y[s * n + k]);
        }
        ASSERT_NEAR(c[r * n + s], scale * want, scale * size * 0x1p-21) << r << "," << s;
      }
    }
  }
};

TEST_P(TensorTest, WmmaMultiplies) {
  const std::size_t n = 64;
  for (const bool half : {true, false}) {
    const Format& format = half ? kF16 : kBf16;
    const auto a = matrix(n * n, format, 1), b = matrix(n * n, format, 2);
    std::vector<float> c(n * n);
    host_.charged = 0;
    run_good(half ? "wmma_half" : "wmma_bfloat", {4, 1, 1}, {128, 1, 1},
             Arguments().add(a.data()).add(b.data()).add(c.data()).add(static_cast<int>(n)));
    expect_product(a, b, c, n, format, 2);
  }
}

/// Runs a kernel on matrices of small whole numbers, whose product is exact in every type.
template <class T, class Sum>
void TensorTest::expect_whole_product(const char* kernel, int least) {
  const std::size_t n = 64;
  std::mt19937 random(7);
  std::vector<T> a(n * n), b(n * n);
  for (std::vector<T>* values : {&a, &b}) {
    for (T& value : *values) value = static_cast<T>(least + static_cast<int>(random() % 256));
  }
  std::vector<Sum> c(n * n);
  host_.charged = 0;
  run_good(kernel, {16, 1, 1}, {128, 1, 1},
           Arguments().add(a.data()).add(b.data()).add(c.data()).add(static_cast<int>(n)));
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t s = 0; s < n; ++s) {
      s64 want = 0;
      for (std::size_t k = 0; k < n; ++k)
        want += static_cast<s64>(a[r * n + k]) * static_cast<s64>(b[s * n + k]);
      ASSERT_EQ(static_cast<s64>(c[r * n + s]), want) << kernel << " " << r << "," << s;
    }
  }
}

TEST_P(TensorTest, WmmaMultipliesBytesTf32AndDoubles) {
  expect_whole_product<signed char, int>("wmma_signed", -128);
  expect_whole_product<unsigned char, int>("wmma_unsigned", 0);
  expect_whole_product<float, float>("wmma_tf32", -128);
  expect_whole_product<double, double>("wmma_double", -128);
}

TEST_P(TensorTest, MmaWithAsynchronousCopiesMultiplies) {
  const std::size_t n = 128;
  const auto a = matrix(n * n, kBf16, 3), b = matrix(n * n, kBf16, 4);
  std::vector<float> c(n * n);
  run_good("mma_pipelined", {2, 2, 1}, {128, 1, 1},
           Arguments().add(a.data()).add(b.data()).add(c.data()).add(static_cast<int>(n)));
  expect_product(a, b, c, n, kBf16, 1);
}

TEST_P(TensorTest, BarrierObjectsAndGroupCopies) {
  if (module_kernel(*loaded_.module, "barriers") == nullptr) GTEST_SKIP() << "bulk copies";
  const int rounds = 5;
  alignas(16) int in[rounds * 128];
  int want[128] = {}, out[128] = {};
  for (int k = 0; k < rounds * 128; ++k) {
    in[k] = k * 7 % 31;
    want[127 - k % 128] += in[k];
  }
  run_good("barriers", {1, 1, 1}, {128, 1, 1}, Arguments().add(in).add(out).add(rounds));
  for (int k = 0; k < 128; ++k) EXPECT_EQ(out[k], want[k]) << k;
}

TEST_P(TensorTest, GroupsOfManyShapes) {
  std::vector<int> out(128 * 8);
  run_good("groups", {1, 1, 1}, {128, 1, 1}, Arguments().add(out.data()));
  for (int t = 0; t < 128; ++t) {
    const int* mine = out.data() + t * 8;
    const int warp = t / 32 * 32, tile = t / 8 * 8;
    EXPECT_EQ(mine[0], t < 64 ? 63 * 32 : 63 * 32 + 64 * 64) << t;
    EXPECT_EQ(mine[1], tile + 7) << t;
    int scan = 0, thirds = 0, some = 0, rank = 0, labeled = 0, first = -1;
    for (int k = tile; k < tile + 8; ++k) {
      if (k <= t) scan += k;
      thirds += k % 3 == 0;
    }
    for (int k = warp; k < warp + 32; ++k) {
      some += k % 5 < 2;
      rank += k % 5 < 2 && k < t;
      if (k % 3 != t % 3) continue;
      labeled += k;
      if (first < 0) first = k;
    }
    EXPECT_EQ(mine[2], scan) << t;
    EXPECT_EQ(mine[3], (tile == 0) + 2 * (t < 64) + 4 * thirds) << t;
    EXPECT_EQ(mine[4], t % 5 < 2 ? some * 1000 + rank : 0) << t;
    EXPECT_EQ(mine[5], t % 5 < 2 ? some : 0) << t;
    EXPECT_EQ(mine[6], labeled) << t;
    EXPECT_EQ(mine[7], first) << t;
  }
}

TEST_P(TensorTest, ReductionsOfWarpsAndBlocks) {
  std::vector<int> in(64), out(64 * 12);
  for (int k = 0; k < 64; ++k) in[static_cast<std::size_t>(k)] = k * 37 % 101 - 50;
  run_good("reductions", {1, 1, 1}, {64, 1, 1}, Arguments().add(in.data()).add(out.data()));
  int positive = 0;
  for (const int x : in) positive += x > 0;
  for (std::size_t t = 0; t < 64; ++t) {
    int sum = 0, least = in[t], most = in[t];
    u32 top = 0, all = ~0u, any = 0, odd = 0, same = 0;
    for (std::size_t l = 0; l < 32; ++l) {
      const int x = in[t / 32 * 32 + l];
      const u32 u = static_cast<u32>(x);
      sum += x;
      least = std::min(least, x);
      most = std::max(most, x);
      top = std::max(top, u);
      all &= u;
      any |= u;
      odd ^= u;
      if (x % 4 == in[t] % 4) same |= 1u << l;
    }
    const u32 want[] = {static_cast<u32>(sum),
                        static_cast<u32>(least),
                        static_cast<u32>(most),
                        top,
                        all,
                        any,
                        odd,
                        static_cast<u32>(positive),
                        1,
                        1,
                        same};
    for (std::size_t k = 0; k < std::size(want); ++k) {
      const u32 got = static_cast<u32>(out[t * 12 + k]);
      EXPECT_EQ(k == 8 || k == 9 ? u32{got != 0} : got, want[k]) << t << " " << k;
    }
  }
}

double packed_result(int k, double x, double y) {
  const double sum = x * y + y;
  const double values[] = {x + y,
                           x - y,
                           x * y,
                           x * y + x,
                           std::min(x, y),
                           std::max(x, y),
                           std::clamp(x + y, 0.0, 1.0),
                           std::max(sum, 0.0),
                           -x,
                           std::fabs(x),
                           x > y ? 1.0 : 0.0,
                           x / y,
                           x,
                           std::sqrt(std::fabs(x))};
  return values[k];
}

TEST_P(TensorTest, PackedHalves) {
  const int n = 64, results = 14;
  for (const bool half : {true, false}) {
    const Format& format = half ? kF16 : kBf16;
    const auto a = matrix(2 * n, format, 5), b = matrix(2 * n, format, 6);
    std::vector<u16> out(static_cast<std::size_t>(2 * n * results));
    host_.charged = 0;
    run_good(half ? "packed_halves" : "packed_bfloats", {1, 1, 1}, {n, 1, 1},
             Arguments().add(a.data()).add(b.data()).add(out.data()).add(n));
    for (int k = 0; k < results; ++k) {
      for (std::size_t i = 0; i < 2 * n; ++i) {
        const double x = static_cast<double>(number(a[i], format));
        const double y = static_cast<double>(number(b[i], format));
        const double want = packed_result(k, x, y);
        const u16 exact = static_cast<u16>(rounded(Quad(want), 0, format, Rounding::kNearest));
        const u16 got = out[static_cast<std::size_t>(2 * n * k) + i];
        // Quotients and roots are made of approximations: within a unit of the last place.
        if (k == 11 || k == 13) {
          ASSERT_NEAR(static_cast<double>(number(got, format)), want,
                      std::fabs(want) * (half ? 0x1p-10 : 0x1p-7))
              << k << " " << x << " " << y;
        } else {
          ASSERT_EQ(got, exact) << k << " " << x << " " << y;
        }
      }
    }
  }
}

TEST_P(TensorTest, AtomicsOnHalves) {
  u32 pair = 0, bpair = 0;
  u16 one[2] = {};
  run_good("half_atomics", {2, 1, 1}, {32, 1, 1}, Arguments().add(&pair).add(&bpair).add(one));
  EXPECT_EQ(pair, 0x50005400u);   // 32 and 64
  EXPECT_EQ(bpair, 0x43004280u);  // 128 and 64
  EXPECT_EQ(one[0], 0x4c00u);     // 16
}

INSTANTIATE_TEST_SUITE_P(Nvcc, TensorTest,
                         ::testing::Values("ptx_test_tensor80", "ptx_test_tensor90"));

}  // namespace
}  // namespace softgpu::ptx::test

// Kernels that nvcc compiled, against references on the host: plain, LZ4 and zstd fat binaries,
// debug and fast-math code.
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/softgpu/ptx/harness.h"

namespace softgpu::ptx::test {
namespace {

std::vector<char> file_bytes(const std::string& name) {
  std::ifstream in(std::string(FATBIN_DIR) + "/" + name + ".fatbin", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class KernelsTest : public PtxTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    const std::vector<char> bytes = file_bytes(GetParam());
    ASSERT_FALSE(bytes.empty());
    std::string error;
    const auto images = fatbin_images(bytes.data(), &error);
    ASSERT_EQ(images.size(), 1u) << error;
    load(images[0].text);
  }
};

TEST_P(KernelsTest, Reduction) {
  std::vector<float> in(10000);
  float want = 0, out = 0;
  for (std::size_t k = 0; k < in.size(); ++k) want += in[k] = static_cast<float>(k % 17);
  launch_.dynamic_shared_bytes = 128 * 4;
  run_good("reduce", {6, 1, 1}, {128, 1, 1}, Arguments().add(in.data()).add(&out).add(10000));
  EXPECT_EQ(out, want);
}

TEST_P(KernelsTest, Softmax) {
  const int rows = 5, columns = 100;
  std::vector<float> in(500), out(500);
  for (int k = 0; k < 500; ++k)
    in[static_cast<std::size_t>(k)] = std::sin(static_cast<float>(k)) * 4;
  run_good("softmax", {rows, 1, 1}, {32, 1, 1},
           Arguments().add(in.data()).add(out.data()).add(columns));
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c)
      sum += std::exp(static_cast<double>(in[r * columns + c]));
    for (std::size_t c = 0; c < columns; ++c) {
      const double want = std::exp(static_cast<double>(in[r * columns + c])) / sum;
      EXPECT_NEAR(out[r * columns + c], want, 2e-6 * want + 1e-9);
    }
  }
}

TEST_P(KernelsTest, RecursionAndFunctionPointers) {
  std::vector<int> out(32);
  run_good("recursion", {1, 1, 1}, {16, 1, 1}, Arguments().add(out.data()));
  for (int k = 0; k < 16; ++k) EXPECT_EQ(out[static_cast<std::size_t>(k)], 2 * k + 3);
  host_.charged = 0;
  run_good("pointers", {1, 1, 1}, {32, 1, 1}, Arguments().add(out.data()));
  for (int k = 0; k < 32; ++k)
    EXPECT_EQ(out[static_cast<std::size_t>(k)], k % 3 == 0 ? 2 * k : k % 3 == 1 ? k * k : -k);
}

TEST_P(KernelsTest, PrintSwitchHeapLocal) {
  run_good("print", {1, 1, 1}, {64, 1, 1}, Arguments().add(42));
  EXPECT_EQ(host_.printed, "x=42  1.50 text z 1099511627776 %\n");
  std::vector<int> out(64);
  host_.charged = 0;
  run_good("switches", {1, 1, 1}, {64, 1, 1}, Arguments().add(out.data()));
  for (int k = 0; k < 64; ++k) {
    const unsigned x = static_cast<unsigned>(k);
    const int want[] = {5, k * 3, -1, __builtin_popcount(x), 99, k == 0 ? 32 : __builtin_clz(x),
                        99};
    EXPECT_EQ(out[x], want[k % 7]);
  }
  host_.charged = 0;
  run_good("heap", {1, 1, 1}, {64, 1, 1}, Arguments().add(out.data()));
  for (int k = 0; k < 64; ++k) EXPECT_EQ(out[static_cast<std::size_t>(k)], 120 * k);
  host_.charged = 0;
  run_good("local_array", {1, 1, 1}, {32, 1, 1}, Arguments().add(out.data()).add(32));
  for (int t = 0; t < 32; ++t) {
    int a[32], sum = 0;
    for (int k = 0; k < 32; ++k) a[(k * 7 + t) % 32] = k;
    for (int k = 0; k < 32; ++k) sum += a[k] * (k + 1);
    EXPECT_EQ(out[static_cast<std::size_t>(t)], sum);
  }
}

TEST_P(KernelsTest, CooperativeGroups) {
  const int n = 6 * 64;
  std::vector<int> data(2 * n, 0);
  for (int k = 0; k < n; ++k) data[static_cast<std::size_t>(k)] = k;
  launch_.cooperative = true;
  run_good("grid_sync", {6, 1, 1}, {64, 1, 1}, Arguments().add(data.data()).add(10));
  for (int k = 0; k < n; ++k) EXPECT_EQ(data[static_cast<std::size_t>(k)], (k + 10) % n + 10);
  launch_.cooperative = false;
  host_.charged = 0;
  std::vector<int> out(8);
  run_good("tiles", {1, 1, 1}, {64, 1, 1}, Arguments().add(out.data()));
  for (int k = 0; k < 8; ++k) EXPECT_EQ(out[static_cast<std::size_t>(k)], 64 * k + 28);
}

TEST_P(KernelsTest, CubScanAndHalves) {
  std::vector<int> in(128), out(128);
  int total = 0, want = 0;
  for (int k = 0; k < 128; ++k) in[static_cast<std::size_t>(k)] = k * k % 23;
  run_good("scan", {1, 1, 1}, {128, 1, 1}, Arguments().add(in.data()).add(out.data()).add(&total));
  for (std::size_t k = 0; k < 128; ++k) EXPECT_EQ(out[k], want += in[k]);
  EXPECT_EQ(total, want);
  host_.charged = 0;
  std::vector<float> x(32), y(64);
  for (std::size_t k = 0; k < 32; ++k) x[k] = static_cast<float>(k) * 0.25f;
  run_good("halves", {1, 1, 1}, {32, 1, 1}, Arguments().add(x.data()).add(y.data()));
  for (std::size_t k = 0; k < 32; ++k) {
    EXPECT_EQ(y[k], x[k] / 2);
    EXPECT_EQ(y[32 + k], x[k]);
  }
}

TEST_P(KernelsTest, DivisionOf128Bits) {
  constexpr std::size_t kPairs = 256;
  std::mt19937_64 random(1);
  const auto number = [&](unsigned words) {
    const __uint128_t low = random() >> random() % 64;
    return words == 1 ? low : low << 64 | random();
  };
  std::vector<__uint128_t> in(2 * kPairs), out(4 * kPairs);
  for (std::size_t k = 0; k < kPairs; ++k) {
    in[2 * k] = number(k % 5 == 0 ? 1 : 2);
    in[2 * k + 1] = number(k % 2 == 0 ? 1 : 2) | 1;
    if (k % 3 == 0) in[2 * k] = -in[2 * k];
    if (k % 7 == 0) in[2 * k + 1] = -in[2 * k + 1];
  }
  in[0] = 100;
  in[1] = 7;
  run_good("divide", {1, 1, 1}, {kPairs, 1, 1}, Arguments().add(in.data()).add(out.data()));
  for (std::size_t k = 0; k < kPairs; ++k) {
    const __uint128_t a = in[2 * k], b = in[2 * k + 1];
    const auto signed_a = static_cast<__int128_t>(a), signed_b = static_cast<__int128_t>(b);
    EXPECT_TRUE(out[4 * k] == a / b && out[4 * k + 1] == a % b) << "unsigned, pair " << k;
    EXPECT_TRUE(static_cast<__int128_t>(out[4 * k + 2]) == signed_a / signed_b &&
                static_cast<__int128_t>(out[4 * k + 3]) == signed_a % signed_b)
        << "signed, pair " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Nvcc, KernelsTest,
                         ::testing::Values("ptx_test_none", "ptx_test_speed", "ptx_test_size",
                                           "ptx_test_debug", "ptx_test_fast"));

TEST(Fatbin, MachineCodeOnlyIsExplained) {
  const std::vector<char> bytes = file_bytes("ptx_test_sass");
  std::string error;
  EXPECT_TRUE(fatbin_images(bytes.data(), &error).empty());
  EXPECT_EQ(error,
            "only machine code for sm_75: a software GPU runs PTX; build with -arch=compute_75 (or "
            "any -gencode with code=compute_XX)");
}

TEST(Fatbin, WrappersOfBothVersions) {
  const std::vector<char> bytes = file_bytes("ptx_test_none");
  struct {
    std::uint32_t magic, version;
    const void* data;
    const void* const* extra;
  } wrapper{0x466243B1, 1, bytes.data(), nullptr};
  EXPECT_EQ(fatbin_images(&wrapper, nullptr).size(), 1u);
  const void* regions[] = {bytes.data(), bytes.data(), nullptr};
  wrapper = {0x466243B1, 2, nullptr, regions};
  EXPECT_EQ(fatbin_images(&wrapper, nullptr).size(), 2u);
}

TEST(Fatbin, DamageNeverCrashes) {
  for (const char* name : {"ptx_test_speed", "ptx_test_size"}) {
    const std::vector<char> whole = file_bytes(name);
    // Past the headers the payload may be anything; sizes in the headers are covered one byte at a
    // time.
    for (std::size_t at = 16; at < whole.size(); at += at < 256 ? 1 : 997) {
      std::vector<char> bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
      std::string error;
      fatbin_images(bytes.data(), &error);
    }
  }
}

}  // namespace
}  // namespace softgpu::ptx::test

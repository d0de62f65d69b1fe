// Tests that launch kernels: skipped, with the reason, where there is no driver; failed where the
// build has the software GPU and it does not come up (SLUICE_TEST_DRIVER=required). Each test
// program gets device segments of its own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/base/random.h"
#include "trainer/device/device.h"

namespace sluice::tests {

/// A directory for one test program, removed at its end; SOFTGPU_DIR points into it.
class PrivateSegments : public testing::Environment {
 public:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(path_.data()), nullptr);
    setenv("SOFTGPU_DIR", (path_ + "/softgpu").c_str(), 1);
    // What a killed program leaves behind goes with the test.
    setenv("TMPDIR", path_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline PrivateSegments* const kSegments =
    static_cast<PrivateSegments*>(testing::AddGlobalTestEnvironment(new PrivateSegments));

/// Skips (or fails) the running test when no driver answers.
#define SLUICE_NEEDS_DRIVER()                                                           \
  do {                                                                                  \
    std::string why_not;                                                                \
    if (!::sluice::train::driver_available(&why_not)) {                                 \
      if (getenv("SLUICE_TEST_DRIVER") != nullptr) FAIL() << why_not;                   \
      GTEST_SKIP() << "needs a driver, and the softgpu room is not built: " << why_not; \
    }                                                                                   \
  } while (false)

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    SLUICE_NEEDS_DRIVER();
    device_.emplace(0);
    stream_.emplace(*device_);
  }
  train::Stream& stream() { return *stream_; }

 private:
  std::optional<train::Device> device_;
  std::optional<train::Stream> stream_;
};

using Floats = std::vector<float>;

inline Floats floats_draw(std::size_t count, std::uint64_t seed, double low = -1, double high = 1) {
  train::Random random(seed, count);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(low + (high - low) * random.uniform());
  return values;
}

inline std::vector<double> doubles_of(const Floats& values) {
  return {values.begin(), values.end()};
}

/// Device memory with these contents.
template <class T>
class OnDevice {
 public:
  OnDevice(train::Stream& stream, const std::vector<T>& values)
      : stream_(stream), array_(values.size()) {
    stream_.upload(array_.at(), values.data(), array_.bytes());
    stream_.synchronize();
  }
  CUdeviceptr at() const { return array_.at(); }
  std::vector<T> values() {
    std::vector<T> out(array_.size());
    stream_.download(out.data(), array_.at(), array_.bytes());
    stream_.synchronize();
    return out;
  }

 private:
  train::Stream& stream_;
  train::DeviceArray<T> array_;
};

/// Every |got - expected| <= absolute + relative |expected|; reports the worst offender.
inline testing::AssertionResult close_to(const Floats& got, const std::vector<double>& expected,
                                         double relative, double absolute) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
    const double excess = error / (absolute + relative * std::fabs(expected[i]));
    // The negated comparison also catches NaN.
    if (!(excess <= worst)) {
      worst = excess;
      where = i;
    }
  }
  if (worst <= 1) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "element " << where << " is " << got[where] << ", not "
                                     << expected[where] << " (" << worst << " x the tolerance)";
}

}  // namespace sluice::tests

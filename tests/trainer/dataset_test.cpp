// The data sets: what the real one must look like, what is refused, and that the synthetic one is
// what it says.
#include "trainer/data/dataset.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <filesystem>

#include "tests/trainer/process.h"
#include "trainer/base/failure.h"

namespace sluice::tests {
namespace {

class DatasetTest : public testing::Test {
 protected:
  void file_write(const std::string& name, std::vector<unsigned char> header, std::size_t bytes,
                  unsigned char fill) {
    header.insert(header.end(), bytes, fill);
    gzFile file = gzopen(scratch_.file(name).c_str(), "wb");
    gzwrite(file, header.data(), static_cast<unsigned>(header.size()));
    gzclose(file);
  }
  /// A set of `images` images of side x side pixels and `labels` labels, all of class `label`.
  void set_write(const std::string& stem, unsigned char images, unsigned char side,
                 unsigned char labels, unsigned char label) {
    file_write(stem + "-images-idx3-ubyte.gz",
               {0, 0, 8, 3, 0, 0, 0, images, 0, 0, 0, side, 0, 0, 0, side},
               static_cast<std::size_t>(images) * side * side, 7);
    file_write(stem + "-labels-idx1-ubyte.gz", {0, 0, 8, 1, 0, 0, 0, labels}, labels, label);
  }
  std::string complaint() {
    try {
      train::fashion_read(directory(), 0);
      return "";
    } catch (const train::Failure& failure) {
      return failure.what();
    }
  }
  std::string directory() const { return scratch_.file("."); }

  ScratchDirectory scratch_;
};

TEST_F(DatasetTest, ReadsAWholeDirectory) {
  set_write("train", 5, 28, 5, 9);
  set_write("t10k", 3, 28, 3, 0);
  const train::Dataset data = train::fashion_read(directory(), 2);
  EXPECT_EQ(data.train.size(), 2u);
  EXPECT_EQ(data.test.size(), 3u);
  EXPECT_EQ(data.train.image(1).size(), 784u);
  EXPECT_EQ(data.train.labels[0], 9);
}

TEST_F(DatasetTest, RefusesWhatDoesNotFitTogether) {
  EXPECT_NE(complaint().find("dataset-fashion-mnist"), std::string::npos);
  set_write("train", 5, 28, 4, 1);
  EXPECT_NE(complaint().find("5 images but"), std::string::npos);
  set_write("train", 5, 28, 5, 10);
  EXPECT_NE(complaint().find("a label 10"), std::string::npos);
  set_write("train", 5, 14, 5, 1);
  EXPECT_NE(complaint().find("14x14"), std::string::npos);
}

TEST(FashionMnist, AsPackagedByDebian) {
  if (!std::filesystem::exists(train::kFashionDirectory)) {
    GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  }
  const train::Dataset data = train::fashion_read(train::kFashionDirectory, 0);
  EXPECT_EQ(data.train.size(), 60000u);
  EXPECT_EQ(data.test.size(), 10000u);
  std::array<int, train::kClassCount> counts{};
  for (const std::uint8_t label : data.train.labels) ++counts[label];
  for (const int count : counts) EXPECT_EQ(count, 6000);
  double sum = 0;
  for (const std::uint8_t pixel : data.train.pixels) sum += train::pixel_value(pixel);
  EXPECT_NEAR(sum / static_cast<double>(data.train.pixels.size()), 0.0, 1e-3);
}

TEST(Synthetic, IsAFunctionOfTheSeedWithAllClassesAndNoTestImageTrainedOn) {
  const train::Dataset one = train::synthetic_draw(3, 500, 100);
  const train::Dataset again = train::synthetic_draw(3, 500, 100);
  const train::Dataset other = train::synthetic_draw(4, 500, 100);
  EXPECT_EQ(one.train.pixels, again.train.pixels);
  EXPECT_EQ(one.test.labels, again.test.labels);
  EXPECT_NE(one.train.pixels, other.train.pixels);
  std::array<int, train::kClassCount> counts{};
  for (const std::uint8_t label : one.train.labels) ++counts[label];
  for (const int count : counts) EXPECT_GT(count, 20);
  const auto first = one.test.image(0);
  for (std::uint32_t i = 0; i < one.train.size(); ++i) {
    EXPECT_FALSE(std::equal(first.begin(), first.end(), one.train.image(i).begin()));
  }
}

}  // namespace
}  // namespace sluice::tests

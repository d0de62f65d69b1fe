// The IDX reader takes whole files, gzip or plain, and says what is wrong with every other.
#include "trainer/data/idx.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "tests/trainer/process.h"
#include "trainer/base/failure.h"

namespace sluice::tests {
namespace {

using Bytes = std::vector<unsigned char>;

class IdxTest : public testing::Test {
 protected:
  std::string plain(const Bytes& bytes) const {
    const std::string path = scratch_.file("plain");
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  std::string zipped(const Bytes& bytes) const {
    const std::string path = scratch_.file("zipped.gz");
    gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    gzclose(file);
    return path;
  }
  /// What reading says; empty when it succeeds.
  static std::string complaint(const std::string& path, std::uint32_t dimensions) {
    try {
      train::idx_read(path, dimensions, 0);
      return "";
    } catch (const train::Failure& failure) {
      return failure.what();
    }
  }

  ScratchDirectory scratch_;
  // Two images of 2x3.
  const Bytes good_ = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,  0,  0,
                       0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
};

TEST_F(IdxTest, ReadsPlainAndCompressedFiles) {
  for (const std::string& path : {plain(good_), zipped(good_)}) {
    const train::IdxArray array = train::idx_read(path, 3, 0);
    EXPECT_EQ(array.extents, (std::vector<std::uint32_t>{2, 2, 3}));
    ASSERT_EQ(array.bytes.size(), 12u);
    EXPECT_EQ(array.bytes.front(), 1);
    EXPECT_EQ(array.bytes.back(), 12);
  }
}

TEST_F(IdxTest, ReadsOnlyTheFirstWhenAskedTo) {
  const train::IdxArray array = train::idx_read(zipped(good_), 3, 1);
  EXPECT_EQ(array.extents[0], 1u);
  EXPECT_EQ(array.bytes.size(), 6u);
}

TEST_F(IdxTest, RefusesTruncatedFiles) {
  for (std::size_t size = 0; size < good_.size(); ++size) {
    const Bytes cut(good_.begin(), good_.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(complaint(plain(cut), 3).find("it ends inside"), std::string::npos) << size;
  }
}

TEST_F(IdxTest, RefusesATruncatedGzipStream) {
  Bytes large = {0, 0, 8, 1, 0, 1, 0, 0};
  std::uint32_t state = 1;
  for (int i = 0; i < 65536; ++i) {
    state = state * 1664525 + 1013904223;
    large.push_back(static_cast<unsigned char>(state >> 24));
  }
  const std::string path = zipped(large);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const std::string text = complaint(path, 1);
  EXPECT_NE(text.find(path), std::string::npos);
  EXPECT_NE(text.find("not a whole IDX file"), std::string::npos) << text;
}

TEST_F(IdxTest, RefusesGarbage) {
  EXPECT_NE(complaint(plain({'P', 'K', 3, 4, 0, 0, 0, 0}), 3).find("begins with 50 4b"),
            std::string::npos);
  EXPECT_NE(complaint(plain({0, 0, 0x0d, 1, 0, 0, 0, 1}), 1).find("type 0x0d"), std::string::npos);
  EXPECT_NE(complaint(plain(good_), 1).find("3 dimensions where 1"), std::string::npos);
  EXPECT_NE(complaint(plain({0, 0, 8, 1, 0, 0, 0, 0}), 1).find("extent 0 is zero"),
            std::string::npos);
  EXPECT_NE(
      complaint(plain({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}), 3)
          .find("impossibly large"),
      std::string::npos);
  Bytes longer = good_;
  longer.push_back(0);
  EXPECT_NE(complaint(plain(longer), 3).find("goes on after"), std::string::npos);
}

TEST_F(IdxTest, NamesAMissingFile) {
  const std::string text = complaint(scratch_.file("nowhere"), 1);
  EXPECT_NE(text.find("nowhere: No such file"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::tests

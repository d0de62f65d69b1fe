// See idx.h. Trusts no length in the file: extents are bounded before anything is allocated, and
// what is read is checked against them.
#include "trainer/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>

#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

// Far above any data set of this format; a larger product is a damaged header, not data.
constexpr std::uint64_t kBytesMax = std::uint64_t{4} << 30;
constexpr unsigned kReadBytesMax = 1u << 20;
constexpr std::uint8_t kTypeUnsignedByte = 0x08;

struct GzClose {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, GzClose>;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) throw errno_failure("opening " + path);
  }

  void read(std::uint8_t* to, std::uint64_t bytes, const char* what) {
    while (bytes > 0) {
      const auto chunk = static_cast<unsigned>(std::min<std::uint64_t>(bytes, kReadBytesMax));
      const int got = gzread(file_.get(), to, chunk);
      if (got < 0) fail(zlib_text());
      if (got == 0) fail(std::string("it ends inside ") + what);
      to += got;
      bytes -= static_cast<std::uint64_t>(got);
    }
  }
  void expect_end() {
    std::uint8_t extra = 0;
    const int got = gzread(file_.get(), &extra, 1);
    if (got < 0) fail(zlib_text());
    if (got > 0) fail("it goes on after the data that its header announces");
  }
  [[noreturn]] void fail(const std::string& why) {
    throw Failure(path_ + " is not a whole IDX file: " + why + "; fetch it again");
  }

 private:
  std::string zlib_text() {
    int code = 0;
    return gzerror(file_.get(), &code);
  }

  std::string path_;
  GzHandle file_;
};

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return static_cast<std::uint32_t>(bytes[0]) << 24 | static_cast<std::uint32_t>(bytes[1]) << 16 |
         static_cast<std::uint32_t>(bytes[2]) << 8 | bytes[3];
}

}  // namespace

IdxArray idx_read(const std::string& path, std::uint32_t dimensions, std::uint32_t outer_max) {
  Reader reader(path);
  std::array<std::uint8_t, 4> magic{};
  reader.read(magic.data(), magic.size(), "the magic number");
  if (magic[0] != 0 || magic[1] != 0) {
    reader.fail(
        text_format("it begins with %02x %02x, not with two zero bytes", magic[0], magic[1]));
  }
  if (magic[2] != kTypeUnsignedByte) {
    reader.fail(text_format("its elements have type 0x%02x, not unsigned bytes (0x08)", magic[2]));
  }
  if (magic[3] != dimensions) {
    reader.fail(text_format("it has %u dimensions where %u are expected", magic[3], dimensions));
  }
  IdxArray array;
  std::uint64_t inner = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    std::array<std::uint8_t, 4> extent{};
    reader.read(extent.data(), extent.size(), "its extents");
    array.extents.push_back(big_endian(extent.data()));
    if (array.extents.back() == 0) reader.fail(text_format("extent %u is zero", i));
    if (i > 0) inner *= array.extents.back();
    if (inner * array.extents.front() > kBytesMax) reader.fail("its extents are impossibly large");
  }
  const bool cut = outer_max != 0 && outer_max < array.extents[0];
  if (cut) array.extents[0] = outer_max;
  array.bytes.resize(inner * array.extents[0]);
  reader.read(array.bytes.data(), array.bytes.size(), "its data");
  if (!cut) reader.expect_end();
  return array;
}

}  // namespace sluice::train

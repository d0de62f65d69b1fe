// See weights.h.
#include "trainer/model/weights.h"

#include <zlib.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "trainer/data/dataset.h"

namespace sluice::train {
namespace {

constexpr char kMagic[8] = {'S', 'L', 'U', 'W', 'G', 'T', '0', '1'};

std::uint32_t checksum(const std::string& bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

void append(std::string& out, const void* data, std::size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

class Cursor {
 public:
  Cursor(const std::string& path, const std::string& bytes) : path_(path), bytes_(bytes) {}

  void take(void* to, std::size_t count) {
    if (bytes_.size() - at_ < count) fail("it ends too early");
    std::memcpy(to, bytes_.data() + at_, count);
    at_ += count;
  }
  std::uint32_t take_u32() {
    std::uint32_t value = 0;
    take(&value, sizeof value);
    return value;
  }
  std::size_t left() const { return bytes_.size() - at_; }
  [[noreturn]] void fail(const char* why) const {
    throw Failure(path_ + " is not a file of weights: " + why +
                  "; write one with sluice-train --save");
  }

 private:
  const std::string& path_;
  const std::string& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

void weights_save(const std::string& path, const MlpShape& shape, std::span<const float> values) {
  std::string bytes(kMagic, sizeof kMagic);
  const auto count = static_cast<std::uint32_t>(shape.widths.size());
  append(bytes, &count, sizeof count);
  for (const int width : shape.widths) append(bytes, &width, sizeof width);
  append(bytes, values.data(), values.size_bytes());
  const std::uint32_t sum = checksum(bytes);
  append(bytes, &sum, sizeof sum);

  const std::string temporary = path + ".part";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const Failure failure = errno_failure("writing the weights to " + path);
    std::remove(temporary.c_str());
    throw failure;
  }
}

Weights weights_load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw errno_failure("reading the weights from " + path);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Cursor cursor(path, bytes);
  char magic[sizeof kMagic];
  cursor.take(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    cursor.fail("its first bytes are not SLUWGT01");
  const std::uint32_t count = cursor.take_u32();
  if (count < 3 || count > kHiddenLayersMax + 2)
    cursor.fail("its number of layers is out of range");
  std::vector<int> widths;
  for (std::uint32_t i = 0; i < count; ++i) widths.push_back(static_cast<int>(cursor.take_u32()));
  if (widths.front() != kImagePixels || widths.back() != kClassCount) {
    cursor.fail("it is for other images or classes");
  }
  Weights weights;
  weights.shape = mlp_shape({widths.begin() + 1, widths.end() - 1});
  weights.values.resize(weights.shape.parameter_count());
  cursor.take(weights.values.data(), weights.values.size() * sizeof(float));
  const std::uint32_t sum = cursor.take_u32();
  if (cursor.left() != 0) cursor.fail("it goes on after its end");
  bytes.resize(bytes.size() - sizeof sum);
  if (sum != checksum(bytes)) cursor.fail("its checksum does not fit");
  return weights;
}

}  // namespace sluice::train

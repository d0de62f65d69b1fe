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

constexpr char kMagic[8] = {'S', 'L', 'U', 'W', 'G', 'T', '0', '2'};

std::uint32_t checksum(const std::string& bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

void append(std::string& out, const void* data, std::size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

using Numbers = std::vector<int>;
constexpr std::uint32_t kNumbersMax = 64;  // of a list; no shape comes near

// What a shape is in a file, and back. Going back uses the functions that check a shape from the
// command line, so a file says nothing that could not have been asked for.
std::vector<Numbers> lists_of(const MlpShape& shape) { return {shape.widths}; }
std::vector<Numbers> lists_of(const CnnShape& shape) { return {shape.filters, shape.hidden}; }
std::vector<Numbers> lists_of(const GptShape& shape) {
  return {{shape.vocabulary, shape.context, shape.width, shape.layers, shape.heads}};
}

ModelShape shape_of(std::uint32_t kind, const std::vector<Numbers>& lists) {
  if (kind == 0 && lists.size() == 1 && lists[0].size() > 2) {
    const Numbers& widths = lists[0];
    if (widths.front() != kImagePixels || widths.back() != kClassCount) {
      throw Failure("it is for other images or classes");
    }
    return mlp_shape({widths.begin() + 1, widths.end() - 1});
  }
  if (kind == 1 && lists.size() == 2) return cnn_shape(lists[0], lists[1]);
  if (kind == 2 && lists.size() == 1 && lists[0].size() == 5) {
    const Numbers& n = lists[0];
    return gpt_shape({n[0], n[1], n[2], n[3], n[4]});
  }
  throw Failure(text_format("its model is of kind %u with %zu lists", kind, lists.size()));
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
  std::uint32_t take_count(const char* what) {
    const std::uint32_t count = take_u32();
    if (count > kNumbersMax) fail(text_format("its count of %s is out of range", what));
    return count;
  }
  std::size_t left() const { return bytes_.size() - at_; }
  [[noreturn]] void fail(const std::string& why) const {
    throw Failure(path_ + " is not a file of weights: " + why +
                  "; write one with sluice-train --save");
  }
  ModelShape take_shape() {
    const std::uint32_t kind = take_u32();
    std::vector<Numbers> lists(take_count("lists"));
    for (Numbers& list : lists) {
      list.resize(take_count("numbers of a list"));
      take(list.data(), list.size() * sizeof(int));
    }
    try {
      return shape_of(kind, lists);
    } catch (const Failure& failure) {
      fail(failure.what());
    }
  }

 private:
  const std::string& path_;
  const std::string& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

void weights_save(const std::string& path, const ModelShape& shape, std::span<const float> values) {
  std::string bytes(kMagic, sizeof kMagic);
  const auto append_u32 = [&](std::size_t value) {
    const auto narrow = static_cast<std::uint32_t>(value);
    append(bytes, &narrow, sizeof narrow);
  };
  const auto lists = std::visit([](const auto& one) { return lists_of(one); }, shape.any());
  append_u32(shape.any().index());
  append_u32(lists.size());
  for (const Numbers& list : lists) {
    append_u32(list.size());
    append(bytes, list.data(), list.size() * sizeof(int));
  }
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
    cursor.fail("its first bytes are not SLUWGT02");
  Weights weights{cursor.take_shape(), {}};
  const std::size_t count = weights.shape.parameter_count();
  if (cursor.left() < count * sizeof(float)) cursor.fail("it ends too early");
  weights.values.resize(count);
  cursor.take(weights.values.data(), weights.values.size() * sizeof(float));
  const std::uint32_t sum = cursor.take_u32();
  if (cursor.left() != 0) cursor.fail("it goes on after its end");
  bytes.resize(bytes.size() - sizeof sum);
  if (sum != checksum(bytes)) cursor.fail("its checksum does not fit");
  return weights;
}

}  // namespace sluice::train

// See shard.h. No number of a file is believed before it is bounded: sizes are checked against the
// file's length before anything is read by them.
#include "trainer/data/shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr char kShardMagic[8] = {'S', 'L', 'U', 'S', 'H', 'D', '0', '1'};
constexpr char kIndexMagic[8] = {'S', 'L', 'U', 'I', 'D', 'X', '0', '1'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kNameMax = 256;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t split;
  std::uint32_t number;
  std::uint32_t shards;
  std::uint32_t count;
  std::uint32_t image_bytes;
  std::uint32_t payload_checksum;
  std::uint32_t header_checksum;  // of all before it
};
static_assert(sizeof(Header) == 40);

std::uint32_t checksum(const void* data, std::size_t bytes, std::uint32_t before = 0) {
  return static_cast<std::uint32_t>(crc32_z(before, static_cast<const Bytef*>(data), bytes));
}

std::uint32_t header_checksum(const Header& header) {
  return checksum(&header, offsetof(Header, header_checksum));
}

std::string shard_path(const std::string& directory, Split split, std::uint32_t number,
                       std::size_t shards) {
  return text_format("%s/%s-%05u-of-%05zu.slu", directory.c_str(),
                     split == Split::kTrain ? "train" : "test", number, shards);
}

/// A file that takes its name once all of it is on disk.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), part_(path + ".part") {
    fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) throw errno_failure("writing " + part_);
  }
  ~NewFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(part_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t put = ::write(fd_, at, bytes);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) throw errno_failure("writing " + part_);
      at += put;
      bytes -= static_cast<std::size_t>(put);
    }
  }
  void commit() {
    if (fsync(fd_) != 0 || rename(part_.c_str(), path_.c_str()) != 0)
      throw errno_failure("writing " + path_);
    close(std::exchange(fd_, -1));
  }

 private:
  std::string path_;
  std::string part_;
  int fd_ = -1;
};

ShardIndex::Entry shard_write(const std::string& directory, const ImageSet& set, Split split,
                              std::uint32_t number, std::uint32_t shards) {
  const std::uint64_t all = set.size();
  const auto from = static_cast<std::uint32_t>(all * number / shards);
  const auto to = static_cast<std::uint32_t>(all * (number + 1) / shards);
  const auto pixels =
      std::span(set.pixels)
          .subspan(std::size_t{from} * kImagePixels, std::size_t{to - from} * kImagePixels);
  const auto labels = std::span(set.labels).subspan(from, to - from);
  Header header{};
  std::memcpy(header.magic, kShardMagic, sizeof kShardMagic);
  header.version = kVersion;
  header.split = static_cast<std::uint32_t>(split);
  header.number = number;
  header.shards = shards;
  header.count = to - from;
  header.image_bytes = kImagePixels;
  header.payload_checksum =
      checksum(labels.data(), labels.size(), checksum(pixels.data(), pixels.size()));
  header.header_checksum = header_checksum(header);
  NewFile file(shard_path(directory, split, number, shards));
  file.write(&header, sizeof header);
  file.write(pixels.data(), pixels.size());
  file.write(labels.data(), labels.size());
  file.commit();
  return {header.count, header.payload_checksum};
}

void put_u32(std::string& out, std::size_t value) {
  const auto word = static_cast<std::uint32_t>(value);
  out.append(reinterpret_cast<const char*>(&word), sizeof word);
}

void index_write(const std::string& directory, const ShardIndex& index) {
  std::string bytes(kIndexMagic, sizeof kIndexMagic);
  put_u32(bytes, kVersion);
  put_u32(bytes, kImagePixels);
  for (const Split split : {Split::kTrain, Split::kTest}) {
    put_u32(bytes, index.entries(split).size());
    for (const ShardIndex::Entry& entry : index.entries(split)) {
      put_u32(bytes, entry.count);
      put_u32(bytes, entry.checksum);
    }
  }
  put_u32(bytes, index.name.size());
  bytes += index.name;
  put_u32(bytes, checksum(bytes.data(), bytes.size()));
  NewFile file(directory + "/" + kIndexFile);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

/// Takes an index apart; whatever does not fit is refused.
class IndexReader {
 public:
  IndexReader(const std::string& path, const std::string& bytes) : path_(path), bytes_(bytes) {}

  ShardIndex read() {
    if (bytes_.size() < sizeof kIndexMagic + sizeof(std::uint32_t)) refuse("it ends too early");
    if (std::memcmp(bytes_.data(), kIndexMagic, sizeof kIndexMagic) != 0)
      refuse("its first bytes are not SLUIDX01");
    end_ = bytes_.size() - sizeof(std::uint32_t);
    std::uint32_t sum = 0;
    std::memcpy(&sum, bytes_.data() + end_, sizeof sum);
    if (sum != checksum(bytes_.data(), end_)) refuse("its checksum does not fit");
    if (const std::uint32_t version = take(); version != kVersion)
      refuse(text_format("it has version %u; this program reads %u", version, kVersion));
    if (take() != kImagePixels) refuse("it is for other images");
    ShardIndex index;
    index.train = entries();
    index.test = entries();
    const std::uint32_t length = take();
    if (length > kNameMax || end_ - at_ != length) refuse("its length does not fit");
    index.name = bytes_.substr(at_, length);
    return index;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Failure(path_ + " is not an index of shards: " + why +
                  "; write the directory again with sluice-train pack");
  }
  std::uint32_t take() {
    std::uint32_t value = 0;
    if (end_ - at_ < sizeof value) refuse("it ends too early");
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::vector<ShardIndex::Entry> entries() {
    const std::uint32_t count = take();
    if (count == 0 || count > kShardsMax) refuse("its number of shards is out of range");
    std::vector<ShardIndex::Entry> out;
    std::uint64_t images = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t length = take();
      if (length == 0) refuse("a shard of it is empty");
      out.push_back({length, take()});
      images += length;
    }
    if (images > INT32_MAX) refuse("its number of images is out of range");
    return out;
  }

  const std::string& path_;
  const std::string& bytes_;
  std::size_t at_ = sizeof kIndexMagic;
  std::size_t end_ = 0;
};

}  // namespace

void shards_write(const std::string& directory, const Dataset& data, std::uint32_t shards) {
  if (shards == 0 || shards > kShardsMax || shards > data.train.size()) {
    throw Failure(text_format("%u shards of %u training images; 1 to %u are possible", shards,
                              data.train.size(), std::min(kShardsMax, data.train.size())));
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw Failure("making the directory " + directory + ": " + error.message());
  // What an index tells of must not change under it.
  std::filesystem::remove(directory + "/" + kIndexFile, error);
  ShardIndex index;
  index.name = data.name;
  for (std::uint32_t number = 0; number < shards; ++number) {
    index.train.push_back(shard_write(directory, data.train, Split::kTrain, number, shards));
  }
  index.test.push_back(shard_write(directory, data.test, Split::kTest, 0, 1));
  index_write(directory, index);
}

ShardIndex index_read(const std::string& directory) {
  const std::string path = directory + "/" + kIndexFile;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Failure("no shards in " + directory + " (no " + kIndexFile +
                  "); write them with sluice-train pack --out " + directory);
  }
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return IndexReader(path, bytes).read();
}

Shard::Shard(const std::string& directory, const ShardIndex& index, Split split,
             std::uint32_t number, ShardCheck how)
    : path_(shard_path(directory, split, number, index.entries(split).size())),
      count_(index.entries(split).at(number).count) {
  map(sizeof(Header) + std::size_t{count_} * (kImagePixels + 1));
  try {
    check(index, split, number, how);
  } catch (...) {
    munmap(const_cast<std::uint8_t*>(bytes_), size_);
    throw;
  }
}

Shard::~Shard() {
  if (bytes_ != nullptr) munmap(const_cast<std::uint8_t*>(bytes_), size_);
}

Shard::Shard(Shard&& other) noexcept
    : path_(std::move(other.path_)),
      count_(other.count_),
      bytes_(std::exchange(other.bytes_, nullptr)),
      size_(other.size_) {}

std::span<const std::uint8_t> Shard::pixels() const {
  return {bytes_ + sizeof(Header), std::size_t{count_} * kImagePixels};
}

std::span<const std::uint8_t> Shard::labels() const {
  return {bytes_ + sizeof(Header) + std::size_t{count_} * kImagePixels, count_};
}

void Shard::refuse(const std::string& why) const {
  throw Failure(path_ + " is not the shard that its index tells of: " + why +
                "; write the directory again with sluice-train pack");
}

void Shard::map(std::size_t expected) {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw errno_failure("opening the shard " + path_);
  struct stat status {};
  const bool known = fstat(fd, &status) == 0;
  size_ = known ? static_cast<std::size_t>(status.st_size) : 0;
  void* memory = MAP_FAILED;
  if (size_ == expected) memory = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (size_ != expected)
    refuse(text_format("it has %zu bytes where %zu are expected", size_, expected));
  errno = error;
  if (memory == MAP_FAILED) throw errno_failure("mapping the shard " + path_);
  bytes_ = static_cast<const std::uint8_t*>(memory);
}

void Shard::check(const ShardIndex& index, Split split, std::uint32_t number,
                  ShardCheck how) const {
  Header header;
  std::memcpy(&header, bytes_, sizeof header);
  const std::vector<ShardIndex::Entry>& entries = index.entries(split);
  if (std::memcmp(header.magic, kShardMagic, sizeof kShardMagic) != 0)
    refuse("its first bytes are not SLUSHD01");
  if (header.version != kVersion)
    refuse(text_format("it has version %u; this program reads %u", header.version, kVersion));
  if (header.header_checksum != header_checksum(header))
    refuse("its header's checksum does not fit");
  if (header.split != static_cast<std::uint32_t>(split) || header.number != number ||
      header.shards != entries.size() || header.count != count_ ||
      header.image_bytes != kImagePixels || header.payload_checksum != entries[number].checksum) {
    refuse("it belongs to another set");
  }
  if (how == ShardCheck::kShape) return;
  if (checksum(bytes_ + sizeof header, size_ - sizeof header) != header.payload_checksum)
    refuse("its checksum does not fit");
  for (const std::uint8_t label : labels()) {
    if (label >= kClassCount)
      refuse(text_format("it has a label %u; labels are 0 to %d", label, kClassCount - 1));
  }
}

void shards_verify(const std::string& directory) {
  const ShardIndex index = index_read(directory);
  for (const Split split : {Split::kTrain, Split::kTest}) {
    for (std::uint32_t number = 0; number < index.entries(split).size(); ++number) {
      const Shard shard(directory, index, split, number, ShardCheck::kWhole);
    }
  }
}

}  // namespace sluice::train

// Fat binaries: what nvcc puts into an executable and what cuModuleLoadData is handed. A wrapper
// names regions; a region is a row of entries, each PTX text (perhaps compressed) or machine code,
// which is of no use here.
//
// The wrapper is declared in the toolkit's fatbinary_section.h; the entry header was observed (docs
// of the software GPU).
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "softgpu/ptx/image/lz4.h"
#include "softgpu/ptx/machine.h"

namespace softgpu::ptx {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kWrapperMagic = 0x466243B1;
constexpr u32 kRegionMagic = 0xBA55ED50;
constexpr u64 kFlagLz4 = 0x2000;
constexpr u64 kFlagZstd = 0x8000;
constexpr u16 kEntryPtx = 1;
/// PTX of a whole library is some 10 MB; more than this is a damaged header.
constexpr u64 kTextMax = u64{1} << 30;
constexpr std::size_t kRegionsMax = 4096;

struct Wrapper {
  u32 magic;
  u32 version;
  const void* data;
  const void* const* extra;  // version 2: regions, NULL-terminated
};

struct RegionHeader {
  u32 magic;
  u16 version;
  u16 header_bytes;
  u64 bytes;  // of the entries
};

struct EntryHeader {
  u16 kind;
  u16 version;
  u32 header_bytes;
  u64 padded_bytes;
  u32 compressed_bytes;
  u32 options_offset;
  u16 minor;
  u16 major;
  u32 arch;
  u32 name_offset;
  u32 name_bytes;
  u64 flags;
  u64 reserved;
  u64 plain_bytes;
};
static_assert(sizeof(EntryHeader) == 64);

template <class T>
T read(const u8* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

class FatbinReader {
 public:
  std::vector<PtxImage> images;
  std::string machine_code;  // "sm_75, sm_90"
  std::string damage;

  void region(const u8* p) {
    const RegionHeader header = read<RegionHeader>(p);
    if (header.magic != kRegionMagic || header.header_bytes < sizeof(RegionHeader)) {
      damage = "a region of the fat binary has no header";
      return;
    }
    const u8* at = p + header.header_bytes;
    u64 left = header.bytes;
    while (left >= sizeof(EntryHeader) && damage.empty()) {
      const EntryHeader entry = read<EntryHeader>(at);
      if (entry.header_bytes < sizeof(EntryHeader) || entry.header_bytes > left ||
          entry.padded_bytes > left - entry.header_bytes) {
        damage = "an entry of the fat binary is longer than its region";
        return;
      }
      use(entry, at + entry.header_bytes);
      at += entry.header_bytes + entry.padded_bytes;
      left -= entry.header_bytes + entry.padded_bytes;
    }
  }

 private:
  void use(const EntryHeader& entry, const u8* payload) {
    if (entry.kind != kEntryPtx) {
      if (!machine_code.empty()) machine_code += ", ";
      machine_code += "sm_" + std::to_string(entry.arch);
      return;
    }
    PtxImage image;
    image.target = entry.arch;
    if (!unpack(entry, payload, image.text)) return;
    image.text.resize(std::min(image.text.size(), image.text.find('\0')));
    images.push_back(std::move(image));
  }

  bool unpack(const EntryHeader& entry, const u8* payload, std::string& text) {
    const bool packed = (entry.flags & (kFlagLz4 | kFlagZstd)) != 0;
    if (!packed) {
      text.assign(reinterpret_cast<const char*>(payload), entry.padded_bytes);
      return true;
    }
    if (entry.compressed_bytes > entry.padded_bytes || entry.plain_bytes > kTextMax) {
      damage = "a compressed entry of the fat binary gives impossible sizes";
      return false;
    }
    const bool good =
        (entry.flags & kFlagZstd) != 0
            ? unpack_zstd(payload, entry.compressed_bytes, entry.plain_bytes, text)
            : lz4_block_decode(payload, entry.compressed_bytes, entry.plain_bytes, text);
    if (!good) damage = "compressed PTX in the fat binary does not decompress";
    return good;
  }

  static bool unpack_zstd(const u8* payload, std::size_t bytes, u64 plain, std::string& text) {
    text.resize(plain);
    const std::size_t made = ZSTD_decompress(text.data(), text.size(), payload, bytes);
    if (ZSTD_isError(made) != 0) return false;
    text.resize(made);
    return true;
  }
};

void read_wrapper(const Wrapper& wrapper, FatbinReader& reader) {
  if (wrapper.data != nullptr) reader.region(static_cast<const u8*>(wrapper.data));
  if (wrapper.version < 2 || wrapper.extra == nullptr) return;
  for (std::size_t k = 0; k < kRegionsMax && wrapper.extra[k] != nullptr; ++k) {
    if (wrapper.extra[k] != wrapper.data) reader.region(static_cast<const u8*>(wrapper.extra[k]));
  }
}

bool starts_like_ptx(const char* text) {
  for (; *text != '\0'; ++text) {
    if (std::strchr(" \t\r\n", *text) != nullptr) continue;
    return *text == '/' || *text == '.';
  }
  return false;
}

u32 target_of(std::string_view text) {
  const std::size_t at = text.find("sm_");
  u32 target = 0;
  for (std::size_t k = at + 3;
       at != text.npos && k < text.size() && text[k] >= '0' && text[k] <= '9'; ++k) {
    target = target * 10 + static_cast<u32>(text[k] - '0');
  }
  return target;
}

std::string explain(const FatbinReader& reader) {
  if (!reader.damage.empty()) return reader.damage;
  if (reader.machine_code.empty()) return "the fat binary is empty";
  return "only machine code for " + reader.machine_code +
         ": a software GPU runs PTX; build with -arch=compute_75 (or any -gencode with "
         "code=compute_XX)";
}

}  // namespace

std::vector<PtxImage> fatbin_images(const void* image, std::string* error) {
  FatbinReader reader;
  std::string trouble;
  const u32 magic = read<u32>(static_cast<const u8*>(image));
  if (magic == kWrapperMagic) {
    read_wrapper(read<Wrapper>(static_cast<const u8*>(image)), reader);
  } else if (magic == kRegionMagic) {
    reader.region(static_cast<const u8*>(image));
  } else if (std::memcmp(image, "\177ELF", 4) == 0) {
    trouble =
        "machine code (a cubin): a software GPU runs PTX; build with -arch=compute_75 -ptx or "
        "-fatbin";
  } else if (starts_like_ptx(static_cast<const char*>(image))) {
    PtxImage text;
    text.text = static_cast<const char*>(image);
    text.target = target_of(text.text);
    reader.images.push_back(std::move(text));
  } else {
    trouble = "neither a fat binary nor PTX text";
  }
  std::stable_sort(reader.images.begin(), reader.images.end(),
                   [](const PtxImage& a, const PtxImage& b) { return a.target > b.target; });
  if (reader.images.empty() && error != nullptr)
    *error = trouble.empty() ? explain(reader) : trouble;
  return std::move(reader.images);
}

}  // namespace softgpu::ptx

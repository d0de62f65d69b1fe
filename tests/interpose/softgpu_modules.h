// Modules for tests over the software GPU that take as much memory as they are told to.
#pragma once

#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

namespace sluice::test {

// A module with a variable of so many bytes and a kernel that writes a word.
inline std::string module_text(size_t variable_bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 room[" +
         std::to_string(variable_bytes) + R"(];
.visible .entry store(.param .u64 out)
{
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], 7;
  ret;
}
)";
}

// PTX for devices of one compute capability and later.
struct FatbinEntry {
  uint32_t target;
  std::string text;
};

// A fat binary with these entries.
inline std::vector<unsigned char> fatbin_of(const std::vector<FatbinEntry>& entries) {
  constexpr size_t kRegionHeader = 16, kEntryHeader = 64;
  std::vector<unsigned char> image(kRegionHeader);
  for (const FatbinEntry& entry : entries) {
    const size_t at = image.size(), bytes = (entry.text.size() + 8) / 8 * 8;
    image.resize(at + kEntryHeader + bytes);
    const uint32_t header = kEntryHeader;
    const uint16_t ptx = 1;
    const uint64_t entry_bytes = bytes;
    memcpy(&image[at], &ptx, 2);
    memcpy(&image[at + 4], &header, 4);
    memcpy(&image[at + 8], &entry_bytes, 8);
    memcpy(&image[at + 28], &entry.target, 4);
    memcpy(&image[at + kEntryHeader], entry.text.data(), entry.text.size());
  }
  const uint32_t magic = 0xBA55ED50;
  const uint16_t version = 1, header = kRegionHeader;
  const uint64_t region_bytes = image.size() - kRegionHeader;
  memcpy(image.data(), &magic, 4);
  memcpy(image.data() + 4, &version, 2);
  memcpy(image.data() + 6, &header, 2);
  memcpy(image.data() + 8, &region_bytes, 8);
  return image;
}

// The module of module_text() in an image that does not tell its size: for other devices it has
// another one, without variables.
inline std::vector<unsigned char> unsized_image(size_t variable_bytes) {
  constexpr uint32_t kLaterDevices = 999;
  return fatbin_of({{70, module_text(variable_bytes)},
                    {kLaterDevices, ".version 7.0\n.target sm_70\n.address_size 64\n"}});
}

}  // namespace sluice::test

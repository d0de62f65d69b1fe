// What images of modules say of the memory that their variables take: cubins and fat binaries that
// are put together here, and PTX texts.
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "interpose/memory/image_size.h"

namespace sluice::interpose {
namespace {

uint64_t of_text(const std::string& text) { return image_bytes_least(text.c_str()); }

TEST(ImageSizeTest, VariablesOfPtx) {
  const struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {
      {".global .b8 room[4096];", 4096},
      {".visible .global .align 4 .b8 a[10];\n.const .align 8 .f64 b;", 18},
      {".global .u32 a, b[3];", 16},
      {".global .align 16 .v4 .f32 a[2][3];", 96},
      {".global .b8 a[4] = {1, 2, 3, 4}; .weak .global .u64 b;", 12},
      {".global .f16x2 a; .global .bf16 b; .common .global .b128 c;", 22},
      {".const[1] .u32 a[2];", 8},
      {".global .b8 a[0x10];", 16},
      {".extern .global .b8 a[64];", 0},
      {".extern .func f (.param .b32 p);\n.global .u32 a;", 4},
      {".global .attribute(.managed) .align 4 .b8 a[64];", 0},
      {".global .texref t; .global .surfref s;", 0},
      {".global .b8 a[];  .global .b8 b[] = {1, 2};", 0},
      {".global .b8 a[2 * 8];", 0},
      {"// .global .b8 a[8];\n/* .global .b8 b[8]; */ .global .u32 c;", 4},
      {".file 1 \"; .global .b8 a[8];\"\n.global .u32 c;", 4},
      {".entry k(.param .u64 .ptr .global .align 4 p) { .reg .b32 %r<2>; ld.global.u32 %r1, [p]; }"
       ".global .u32 c;",
       4},
      {".section .debug_info { .b8 1, 2, 3 }\n.global .u32 c;", 4},
      {".global .b8 a[18446744073709551615]; .global .b8 b[16];", 0},
      {".global .u64 a[18446744073709551615];", 0},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(of_text(std::string(".version 8.0\n.target sm_80\n.address_size 64\n") + c.text),
              c.bytes)
        << c.text;
  }
}

struct Variables {
  uint64_t globals = 0, initialised = 0, constants = 0, managed = 0;
};

// A cubin with these sections, and one symbol of managed memory in ".nv.global".
std::vector<unsigned char> cubin(const Variables& variables) {
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> sections(1);
  const auto section = [&](const char* name, uint32_t type, uint64_t flags, uint64_t bytes) {
    Elf64_Shdr header{};
    header.sh_name = static_cast<Elf64_Word>(names.size());
    header.sh_type = type;
    header.sh_flags = flags;
    header.sh_size = bytes;
    names += name;
    names += '\0';
    sections.push_back(header);
  };
  section(".nv.global", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, variables.globals);
  section(".nv.global.init", SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, variables.initialised);
  section(".nv.constant3", SHT_PROGBITS, SHF_ALLOC, variables.constants);
  section(".nv.constant0.kernel", SHT_PROGBITS, SHF_ALLOC, 1 << 20);
  section(".text.kernel", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 1 << 20);
  section(".debug_frame", SHT_PROGBITS, 0, 1 << 20);
  section(".symtab", SHT_SYMTAB, 0, 2 * sizeof(Elf64_Sym));
  section(".shstrtab", SHT_STRTAB, 0, 0);
  Elf64_Sym symbols[2]{};
  symbols[1].st_shndx = 1;
  symbols[1].st_size = variables.managed;
  symbols[1].st_other = 4;
  Elf64_Ehdr header{};
  memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<Elf64_Half>(sections.size());
  header.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  header.e_shoff = sizeof header;
  const size_t symbols_at = sizeof header + sections.size() * sizeof(Elf64_Shdr);
  sections[sections.size() - 2].sh_offset = symbols_at;
  sections[sections.size() - 2].sh_entsize = sizeof(Elf64_Sym);
  sections.back().sh_offset = symbols_at + sizeof symbols;
  sections.back().sh_size = names.size();
  names.resize(names.size() + 64);  // names are read as longer ones are
  std::vector<unsigned char> image(sections.back().sh_offset + names.size());
  memcpy(image.data(), &header, sizeof header);
  memcpy(image.data() + sizeof header, sections.data(), sections.size() * sizeof(Elf64_Shdr));
  memcpy(image.data() + symbols_at, symbols, sizeof symbols);
  memcpy(image.data() + sections.back().sh_offset, names.data(), names.size());
  return image;
}

TEST(ImageSizeTest, VariablesOfACubinWithoutItsCode) {
  EXPECT_EQ(image_bytes_least(cubin({.globals = uint64_t{3} << 30}).data()), uint64_t{3} << 30);
  EXPECT_EQ(image_bytes_least(cubin({.globals = 100, .initialised = 20, .constants = 3}).data()),
            123u);
  EXPECT_EQ(image_bytes_least(cubin({.globals = 100, .managed = 60}).data()), 40u);
}

struct Entry {
  uint16_t kind;
  uint64_t flags;
  std::vector<unsigned char> payload;
};

std::vector<unsigned char> fatbin(const std::vector<Entry>& entries) {
  std::vector<unsigned char> image(16);
  for (const Entry& entry : entries) {
    unsigned char header[64] = {};
    const uint32_t header_bytes = sizeof header;
    const uint64_t bytes = (entry.payload.size() + 7) / 8 * 8;
    memcpy(header, &entry.kind, 2);
    memcpy(header + 4, &header_bytes, 4);
    memcpy(header + 8, &bytes, 8);
    memcpy(header + 40, &entry.flags, 8);
    image.insert(image.end(), header, header + sizeof header);
    image.insert(image.end(), entry.payload.begin(), entry.payload.end());
    image.resize(image.size() + bytes - entry.payload.size());
  }
  const uint32_t magic = 0xBA55ED50;
  const uint16_t version = 1, header_bytes = 16;
  const uint64_t bytes = image.size() - 16;
  memcpy(image.data(), &magic, 4);
  memcpy(image.data() + 4, &version, 2);
  memcpy(image.data() + 6, &header_bytes, 2);
  memcpy(image.data() + 8, &bytes, 8);
  return image;
}

std::vector<unsigned char> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST(ImageSizeTest, AFatBinaryCountsWithItsSmallestEntry) {
  const Entry machine{2, 0, cubin({.globals = 4096})};
  const Entry text{1, 0, bytes_of(".version 8.0\n.global .b8 a[1024];\n")};
  const Entry packed{1, 0x2000, bytes_of("....")};
  EXPECT_EQ(image_bytes_least(fatbin({machine}).data()), 4096u);
  EXPECT_EQ(image_bytes_least(fatbin({machine, text}).data()), 1024u);
  EXPECT_EQ(image_bytes_least(fatbin({machine, packed}).data()), 0u) << "it may be the one";
  EXPECT_EQ(image_bytes_least(fatbin({}).data()), 0u);
}

TEST(ImageSizeTest, AFatBinaryBehindItsWrapper) {
  const std::vector<unsigned char> region = fatbin({{2, 0, cubin({.globals = 4096})}});
  struct {
    uint32_t magic = 0x466243B1, version = 1;
    const void* data;
    const void* extra = nullptr;
  } wrapper{.data = region.data()};
  EXPECT_EQ(image_bytes_least(&wrapper), 4096u);
  wrapper.version = 2;
  EXPECT_EQ(image_bytes_least(&wrapper), 0u) << "the driver links what it names";
}

TEST(ImageSizeTest, Files) {
  const std::string path = testing::TempDir() + "image_size_test." + std::to_string(getpid());
  const auto written = [&](const std::vector<unsigned char>& image) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(image.data()),
               static_cast<std::streamsize>(image.size()));
    return image_file_bytes_least(path.c_str());
  };
  EXPECT_EQ(written(cubin({.globals = 4096})), 4096u);
  EXPECT_EQ(written(bytes_of(".version 8.0\n.global .b8 a[1024];\n")), 1024u);
  EXPECT_EQ(written(fatbin({{2, 0, cubin({.globals = 4096})}})), 4096u);
  EXPECT_EQ(written({}), 0u);
  unlink(path.c_str());
  EXPECT_EQ(image_file_bytes_least(path.c_str()), 0u);
  EXPECT_EQ(image_file_bytes_least("/"), 0u);
  EXPECT_EQ(image_file_bytes_least(nullptr), 0u);
}

// Each image ends right before a page that cannot be read.
TEST(ImageSizeTest, DamagedImagesAreReadWithoutAFault) {
  constexpr size_t kRoom = 1 << 16;
  auto* const pages = static_cast<unsigned char*>(
      mmap(nullptr, kRoom + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + kRoom, 4096, PROT_NONE), 0);
  const std::vector<unsigned char> images[] = {cubin({.globals = 4096}),
                                               fatbin({{2, 0, cubin({.globals = 4096})}}),
                                               bytes_of(".version 8.0\n.global .b8 a[1024];")};
  for (const auto& image : images) {
    for (size_t bytes = 4; bytes < image.size(); bytes += 3) {
      memcpy(pages + kRoom - bytes, image.data(), bytes);
      (void)image_bytes_least(pages + kRoom - bytes);
    }
    // Any word may be wrong.
    for (size_t at = 4; at + 4 <= image.size(); at += 4) {
      memcpy(pages + kRoom - image.size(), image.data(), image.size());
      memset(pages + kRoom - image.size() + at, 0xff, 4);
      (void)image_bytes_least(pages + kRoom - image.size());
    }
  }
  EXPECT_EQ(image_bytes_least(nullptr), 0u);
  munmap(pages, kRoom + 4096);
}

}  // namespace
}  // namespace sluice::interpose

// See image_size.h. The wrapper of a fat binary is declared in the toolkit's fatbinary_section.h;
// the headers of its entries, and what cubins say of managed variables, were observed.
#include "interpose/memory/image_size.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interpose/memory/ptx_variables.h"
#include "interpose/types.h"

namespace sluice::interpose {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kRegionMagic = 0xBA55ED50;
constexpr uint64_t kCompressed = 0x2000 | 0x8000;  // LZ4, zstd
constexpr uint16_t kEntryPtx = 1, kEntryElf = 2;
constexpr uint32_t kEntriesMax = 4096;  // of a fat binary: more than there are architectures
constexpr size_t kPieceBytes = 4096;    // read at a time: no more than is surely mapped together

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* extra;  // version 2: regions that the driver links
};
struct RegionHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // of the entries
};
struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t padded_bytes;
  uint32_t others[6];
  uint64_t flags;
};

// An image, or a part of one from `at` on. Memory is read through the kernel: where a damaged image
// says that there is more than there is, that is an error and no fault.
struct Bytes {
  const unsigned char* memory;  // nullptr = of the file
  int file;
  uint64_t at;

  Bytes from(uint64_t offset) const { return {memory, file, at + offset}; }
  bool read(uint64_t offset, void* to, size_t bytes) const {
    if (memory == nullptr) {
      return pread(file, to, bytes, static_cast<off_t>(at + offset)) == static_cast<ssize_t>(bytes);
    }
    iovec here{to, bytes};
    iovec there{const_cast<unsigned char*>(memory) + at + offset, bytes};
    return syscall(SYS_process_vm_readv, getpid(), &here, 1, &there, 1, 0) ==
           static_cast<long>(bytes);
  }
  // Up to the end of a page of memory, or of the file; 0 = there is no more.
  size_t read_piece(uint64_t offset, char* to) const {
    if (memory == nullptr) {
      const ssize_t bytes = pread(file, to, kPieceBytes, static_cast<off_t>(at + offset));
      return bytes > 0 ? static_cast<size_t>(bytes) : 0;
    }
    const auto address = reinterpret_cast<uintptr_t>(memory) + at + offset;
    const size_t bytes = kPieceBytes - address % kPieceBytes;
    return read(offset, to, bytes) ? bytes : 0;
  }
};

// Calls `use` with each of `count` structures from `offset` on. False: they cannot be read.
template <class T, class Use>
bool each_of(const Bytes& bytes, uint64_t offset, uint64_t count, Use use) {
  constexpr uint64_t kTogether = 32;
  T some[kTogether];
  for (uint64_t i = 0; i < count; i += kTogether) {
    const uint64_t now = count - i < kTogether ? count - i : kTogether;
    if (!bytes.read(offset + i * sizeof(T), some, now * sizeof(T))) return false;
    for (uint64_t k = 0; k < now; ++k) use(i + k, some[k]);
  }
  return true;
}

// Whether a section has variables of the whole module: ".nv.global", ".nv.global.init",
// ".nv.constant3". Those of one kernel have its name behind theirs and come with its code.
bool has_variables(const char* name) {
  constexpr char kGlobal[] = ".nv.global", kConstant[] = ".nv.constant";
  if (strncmp(name, kGlobal, sizeof kGlobal - 1) == 0) {
    const char* rest = name + sizeof kGlobal - 1;
    return *rest == '\0' || strcmp(rest, ".init") == 0;
  }
  if (strncmp(name, kConstant, sizeof kConstant - 1) != 0) return false;
  const char* rest = name + sizeof kConstant - 1;
  while (*rest >= '0' && *rest <= '9') ++rest;
  return *rest == '\0';
}

struct Sections {
  static constexpr int kMost = 16;  // there are two of globals and at most some of constants
  uint64_t index[kMost];
  int count;
  uint64_t bytes;
  Elf64_Shdr symbols;  // sh_type 0 = none
};

bool sections_read(const Bytes& elf, const Elf64_Ehdr& header, Sections* out) {
  Elf64_Shdr names{};
  const uint64_t names_at = header.e_shoff + uint64_t{header.e_shstrndx} * sizeof(Elf64_Shdr);
  if (!elf.read(names_at, &names, sizeof names)) return false;
  bool good = true;
  const bool read = each_of<Elf64_Shdr>(
      elf, header.e_shoff, header.e_shnum, [&](uint64_t i, const Elf64_Shdr& section) {
        if (section.sh_type == SHT_SYMTAB) out->symbols = section;
        const bool is_data = section.sh_type == SHT_NOBITS || section.sh_type == SHT_PROGBITS;
        if (!is_data || (section.sh_flags & SHF_ALLOC) == 0 ||
            (section.sh_flags & SHF_EXECINSTR) != 0)
          return;
        char name[24] = {};
        if (!elf.read(names.sh_offset + section.sh_name, name, sizeof name - 1) ||
            !has_variables(name))
          return;
        good &= out->count < Sections::kMost &&
                !__builtin_add_overflow(out->bytes, section.sh_size, &out->bytes);
        if (good) out->index[out->count++] = i;
      });
  return read && good;
}

uint64_t elf_bytes_least(const Bytes& elf) {
  Elf64_Ehdr header{};
  if (!elf.read(0, &header, sizeof header) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr))
    return 0;
  Sections sections{};
  if (!sections_read(elf, header, &sections)) return 0;
  uint64_t managed = 0;
  // The bits above those of the visibility say, among other things, that a variable is managed.
  constexpr unsigned char kOther = 0xfc;
  const Elf64_Shdr& symbols = sections.symbols;
  if (symbols.sh_type != SHT_SYMTAB || symbols.sh_entsize != sizeof(Elf64_Sym)) return 0;
  const bool read = each_of<Elf64_Sym>(elf, symbols.sh_offset, symbols.sh_size / sizeof(Elf64_Sym),
                                       [&](uint64_t, const Elf64_Sym& symbol) {
                                         if ((symbol.st_other & kOther) == 0) return;
                                         for (int i = 0; i < sections.count; ++i) {
                                           if (symbol.st_shndx == sections.index[i])
                                             managed += symbol.st_size;
                                         }
                                       });
  return read && managed < sections.bytes ? sections.bytes - managed : 0;
}

uint64_t ptx_bytes_least(const Bytes& text, uint64_t bytes_max) {
  PtxVariables variables;
  char piece[kPieceBytes];
  for (uint64_t offset = 0; offset < bytes_max;) {
    const uint64_t got = text.read_piece(offset, piece);
    if (got == 0) break;
    for (uint64_t i = 0; i < got && offset + i < bytes_max; ++i) {
      if (piece[i] == '\0') return variables.bytes();
      variables.feed(piece[i]);
    }
    offset += got;
  }
  return variables.bytes();
}

uint64_t entry_bytes_least(const EntryHeader& entry, const Bytes& payload) {
  if ((entry.flags & kCompressed) != 0) return 0;
  if (entry.kind == kEntryElf) return elf_bytes_least(payload);
  return entry.kind == kEntryPtx ? ptx_bytes_least(payload, entry.padded_bytes) : 0;
}

uint64_t region_bytes_least(const Bytes& region) {
  RegionHeader header{};
  if (!region.read(0, &header, sizeof header) || header.magic != kRegionMagic) return 0;
  uint64_t least = UINT64_MAX, at = header.header_bytes, end = 0;
  if (__builtin_add_overflow(at, header.bytes, &end)) return 0;
  for (uint32_t i = 0; i < kEntriesMax && at + sizeof(EntryHeader) <= end; ++i) {
    EntryHeader entry{};
    if (!region.read(at, &entry, sizeof entry) || entry.header_bytes < sizeof entry ||
        entry.padded_bytes > end - at)
      return 0;
    const uint64_t bytes = entry_bytes_least(entry, region.from(at + entry.header_bytes));
    if (bytes < least) least = bytes;
    at += entry.header_bytes + entry.padded_bytes;
  }
  return least == UINT64_MAX ? 0 : least;
}

uint64_t bytes_least(const Bytes& image) {
  uint32_t magic = 0;
  if (!image.read(0, &magic, sizeof magic)) return 0;
  if (magic == kRegionMagic) return region_bytes_least(image);
  if (memcmp(&magic, ELFMAG, SELFMAG) == 0) return elf_bytes_least(image);
  Wrapper wrapper{};
  if (magic == kWrapperMagic) {
    const bool one = image.memory != nullptr && image.read(0, &wrapper, sizeof wrapper) &&
                     wrapper.version < 2 && wrapper.data != nullptr;
    if (!one) return 0;
    return region_bytes_least({static_cast<const unsigned char*>(wrapper.data), -1, 0});
  }
  const auto first = static_cast<char>(magic & 0xff);
  const bool is_text = first == '.' || first == '/' || first == ' ' || first == '\t' ||
                       first == '\n' || first == '\r';
  return is_text ? ptx_bytes_least(image, UINT64_MAX) : 0;
}

}  // namespace

uint64_t image_bytes_least(const void* image) {
  if (image == nullptr) return 0;
  const SystemGuard guard;
  return bytes_least({static_cast<const unsigned char*>(image), -1, 0});
}

uint64_t image_file_bytes_least(const char* path) {
  if (path == nullptr) return 0;
  const SystemGuard guard;
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return 0;
  struct stat status {};
  // Reading anything else, such as a pipe, would take it from the driver.
  const bool plain = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const uint64_t bytes = plain ? bytes_least({nullptr, file, 0}) : 0;
  close(file);
  return bytes;
}

}  // namespace sluice::interpose

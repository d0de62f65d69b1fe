// A small reader of ELF files: interpreter, needed libraries, a few symbols, and the strings that
// give a CUDA runtime away. Every offset comes from the file and may be nonsense.
#include "broker/cli/elf.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace sluice::cli {
namespace {

constexpr std::size_t kScriptLineMax = 255;  // the kernel looks at no more (BINPRM_BUF_SIZE)
constexpr std::size_t kSymbolsMax = 1u << 20;
// A file may be of any size and its headers may say anything, so all that is read is bounded.
constexpr std::size_t kTextMax = 4096;
constexpr std::uint64_t kDynamicMax = 1u << 13;

template <class T>
std::optional<T> at(std::string_view bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

std::string text_at(std::string_view bytes, std::uint64_t offset) {
  if (offset >= bytes.size()) return "";
  const std::string_view text = bytes.substr(offset, kTextMax);
  return std::string(text.data(), strnlen(text.data(), text.size()));
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) out.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

struct Segments {
  std::vector<Elf64_Phdr> list;
  std::optional<std::uint64_t> file_offset(std::uint64_t address) const {
    for (const Elf64_Phdr& p : list) {
      if (p.p_type == PT_LOAD && address >= p.p_vaddr && address - p.p_vaddr < p.p_filesz) {
        return address - p.p_vaddr + p.p_offset;
      }
    }
    return std::nullopt;
  }
};

Segments segments_read(std::string_view bytes, const Elf64_Ehdr& header, bool* cut_off) {
  Segments segments;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto p = at<Elf64_Phdr>(bytes, header.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
    const bool loaded = p && (p->p_type == PT_LOAD || p->p_type == PT_INTERP);
    if (!p || (loaded && (p->p_offset > bytes.size() || p->p_filesz > bytes.size() - p->p_offset)))
      *cut_off = true;
    if (p) segments.list.push_back(*p);
  }
  return segments;
}

void dynamic_read(std::string_view bytes, const Segments& segments, const Elf64_Phdr& dynamic,
                  ElfFacts* facts) {
  std::vector<std::uint64_t> names;
  std::optional<std::uint64_t> rpath;
  std::optional<std::uint64_t> runpath;
  std::uint64_t strings = 0;
  const std::uint64_t count = std::min(dynamic.p_filesz / sizeof(Elf64_Dyn), kDynamicMax);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto entry = at<Elf64_Dyn>(bytes, dynamic.p_offset + i * sizeof(Elf64_Dyn));
    if (!entry || entry->d_tag == DT_NULL) break;
    if (entry->d_tag == DT_NEEDED) names.push_back(entry->d_un.d_val);
    if (entry->d_tag == DT_RPATH) rpath = entry->d_un.d_val;
    if (entry->d_tag == DT_RUNPATH) runpath = entry->d_un.d_val;
    if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
  }
  const auto base = segments.file_offset(strings);
  if (!base) return;
  for (const std::uint64_t name : names) facts->needed.push_back(text_at(bytes, *base + name));
  if (rpath) facts->rpath = split(text_at(bytes, *base + *rpath));
  if (runpath) facts->runpath = split(text_at(bytes, *base + *runpath));
}

void symbols_read(std::string_view bytes, const Elf64_Ehdr& header, ElfFacts* facts) {
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto table =
        at<Elf64_Shdr>(bytes, header.e_shoff + std::uint64_t{i} * sizeof(Elf64_Shdr));
    if (!table || table->sh_type != SHT_DYNSYM) continue;
    const auto strings =
        at<Elf64_Shdr>(bytes, header.e_shoff + std::uint64_t{table->sh_link} * sizeof(Elf64_Shdr));
    if (!strings) return;
    const std::uint64_t count =
        std::min<std::uint64_t>(table->sh_size / sizeof(Elf64_Sym), kSymbolsMax);
    for (std::uint64_t n = 0; n < count; ++n) {
      const auto symbol = at<Elf64_Sym>(bytes, table->sh_offset + n * sizeof(Elf64_Sym));
      if (!symbol) return;
      const std::string name = text_at(bytes, strings->sh_offset + symbol->st_name);
      const bool defined = symbol->st_shndx != SHN_UNDEF;
      if (defined && (name == "cuInit" || name == "cuLaunchKernel")) facts->defines_driver = true;
      if (!defined && name == "dlmopen") facts->imports_dlmopen = true;
    }
    return;
  }
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool mentions(std::string_view bytes, std::string_view text) {
  return bytes.find(text) != std::string_view::npos;
}

void script_read(std::string_view bytes, ElfFacts* facts) {
  constexpr std::string_view kBlanks = " \t";
  facts->script = true;
  std::string_view line = bytes.substr(2, kScriptLineMax);
  line = line.substr(0, line.find('\n'));
  facts->script_crlf = !line.empty() && line.back() == '\r';
  const std::size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return;
  line.remove_prefix(begin);
  line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
  const std::size_t end = line.find_first_of(kBlanks);
  facts->script_interpreter = line.substr(0, end);
  if (end == std::string_view::npos) return;
  line.remove_prefix(end);
  facts->script_argument = line.substr(line.find_first_not_of(kBlanks));
}

}  // namespace

ElfFacts elf_read(std::string_view bytes) {
  ElfFacts facts;
  if (starts_with(bytes, "#!")) {
    script_read(bytes, &facts);
    return facts;
  }
  // Class and machine are at the same place in both classes.
  const auto header = at<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return facts;
  facts.elf = true;
  facts.is_64bit = header->e_ident[EI_CLASS] == ELFCLASS64;
  facts.machine = header->e_machine;
  if (header->e_ident[EI_DATA] != ELFDATA2LSB) {
    facts.machine = static_cast<std::uint16_t>(facts.machine << 8 | facts.machine >> 8);
    return facts;
  }
  if (!facts.is_64bit) return facts;
  const Segments segments = segments_read(bytes, *header, &facts.cut_off);
  const Elf64_Phdr* dynamic = nullptr;  // the last one, as the loader has it
  for (const Elf64_Phdr& p : segments.list) {
    if (p.p_type == PT_INTERP) {
      facts.dynamic = true;
      facts.interpreter = text_at(bytes, p.p_offset);
    }
    if (p.p_type == PT_DYNAMIC) dynamic = &p;
  }
  if (dynamic != nullptr) dynamic_read(bytes, segments, *dynamic, &facts);
  symbols_read(bytes, *header, &facts);
  return facts;
}

void elf_mentions_read(std::string_view bytes, ElfFacts* facts) {
  facts->names_driver |= mentions(bytes, "libcuda.so.1");
  facts->has_runtime_names |=
      mentions(bytes, "cudaGetDeviceCount") || mentions(bytes, "cudaErrorInitializationError");
  facts->nvidia_runtime |= mentions(bytes, "cudart.shm.");
  facts->names_preload |= mentions(bytes, "LD_PRELOAD");
}

std::string machine_name(const ElfFacts& facts) {
  switch (facts.machine) {
    case EM_X86_64:
      return facts.is_64bit ? "x86-64" : "x32";
    case EM_386:
      return "32-bit x86";
    case EM_AARCH64:
      return "aarch64";
    case EM_ARM:
      return "32-bit ARM";
    case EM_PPC64:
      return "ppc64";
    case EM_RISCV:
      return "RISC-V";
    default:
      return "machine type " + std::to_string(facts.machine);
  }
}

}  // namespace sluice::cli

// A small reader of ELF files: interpreter, needed libraries, and the strings that give a CUDA
// runtime away.
#include "broker/cli/elf.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "broker/cli/paths.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kBytesMax = 512u << 20;
constexpr int kInterpretersMax = 4;  // as the kernel's limit on scripts that are run by scripts

template <class T>
std::optional<T> at(const std::string& bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

std::string text_at(const std::string& bytes, std::uint64_t offset) {
  if (offset >= bytes.size()) return "";
  return std::string(bytes.data() + offset, strnlen(bytes.data() + offset, bytes.size() - offset));
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

Segments segments_read(const std::string& bytes, const Elf64_Ehdr& header) {
  Segments segments;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto p = at<Elf64_Phdr>(bytes, header.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
    if (p) segments.list.push_back(*p);
  }
  return segments;
}

void needed_read(const std::string& bytes, const Segments& segments, const Elf64_Phdr& dynamic,
                 ElfFacts* facts) {
  std::vector<std::uint64_t> names;
  std::uint64_t strings = 0;
  for (std::uint64_t at_byte = 0; at_byte + sizeof(Elf64_Dyn) <= dynamic.p_filesz;
       at_byte += sizeof(Elf64_Dyn)) {
    const auto entry = at<Elf64_Dyn>(bytes, dynamic.p_offset + at_byte);
    if (!entry || entry->d_tag == DT_NULL) break;
    if (entry->d_tag == DT_NEEDED) names.push_back(entry->d_un.d_val);
    if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
  }
  const auto base = segments.file_offset(strings);
  if (!base) return;
  for (const std::uint64_t name : names) facts->needed.push_back(text_at(bytes, *base + name));
}

bool starts_with(const std::string& text, const char* prefix) {
  return text.compare(0, std::strlen(prefix), prefix) == 0;
}

std::string file_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.size() > kBytesMax) bytes.resize(kBytesMax);
  return bytes;
}

// ld.so ignores LD_PRELOAD for programs that gain privileges.
bool gains_privileges(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) < 0) return false;
  const bool set_id = ((status.st_mode & S_ISUID) != 0 && status.st_uid != geteuid()) ||
                      ((status.st_mode & S_ISGID) != 0 && status.st_gid != getegid());
  return set_id || getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

CudaRoute route_of(const ElfFacts& facts) {
  for (const std::string& library : facts.needed) {
    if (starts_with(library, "libcudart.so")) return CudaRoute::kSharedRuntime;
  }
  for (const std::string& library : facts.needed) {
    if (starts_with(library, "libcuda.so")) return CudaRoute::kDriver;
  }
  if (facts.names_driver)
    return facts.has_runtime_names ? CudaRoute::kStaticRuntime : CudaRoute::kDriver;
  return CudaRoute::kNone;
}

const char* route_text(CudaRoute route) {
  switch (route) {
    case CudaRoute::kSharedRuntime:
      return "uses the shared CUDA runtime";
    case CudaRoute::kStaticRuntime:
      return "carries a static CUDA runtime (fine on a GPU; for software GPUs build it with nvcc "
             "-cudart shared)";
    case CudaRoute::kDriver:
      return "uses the CUDA driver directly";
    case CudaRoute::kNone:
      break;
  }
  return "shows no use of CUDA of its own (it may load it later, as python does)";
}

}  // namespace

ElfFacts elf_read(const std::string& bytes) {
  ElfFacts facts;
  if (starts_with(bytes, "#!")) {
    const std::size_t begin = bytes.find_first_not_of(" \t", 2);
    if (begin != std::string::npos) {
      facts.script_interpreter = bytes.substr(begin, bytes.find_first_of(" \t\n", begin) - begin);
    }
    return facts;
  }
  const auto header = at<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64) {
    return facts;
  }
  facts.elf = true;
  const Segments segments = segments_read(bytes, *header);
  for (const Elf64_Phdr& p : segments.list) {
    if (p.p_type == PT_INTERP) facts.dynamic = true;
    if (p.p_type == PT_DYNAMIC) needed_read(bytes, segments, p, &facts);
  }
  facts.names_driver = bytes.find("libcuda.so.1") != std::string::npos;
  facts.has_runtime_names = bytes.find("cudaGetDeviceCount") != std::string::npos ||
                            bytes.find("cudaErrorInitializationError") != std::string::npos;
  return facts;
}

ProgramReach program_reach(const std::string& path) {
  ProgramReach reach;
  std::string file = path;
  ElfFacts facts = elf_read(file_read(file));
  for (int i = 0; i < kInterpretersMax && !facts.script_interpreter.empty(); ++i) {
    file = facts.script_interpreter;
    facts = elf_read(file_read(file));
  }
  reach.route = route_of(facts);
  if (!facts.elf) {
    reach.finding =
        path + " is neither a 64-bit ELF file nor a script; nothing can be said about it";
    return reach;
  }
  if (gains_privileges(file)) {
    reach.hookable = false;
    reach.warning =
        file +
        " gains privileges when it starts (setuid or file capabilities), so the loader ignores the "
        "shim and no limit reaches it; run it as the user that owns it, or without the bit";
  } else if (!facts.dynamic) {
    reach.hookable = false;
    reach.warning = file +
                    " is statically linked, so the shim cannot be loaded into it and no limit "
                    "reaches it (programs "
                    "that it starts are reached); link it dynamically";
  }
  reach.finding =
      reach.hookable ? file + " can be shared: it " + route_text(reach.route) : reach.warning;
  return reach;
}

}  // namespace sluice::cli

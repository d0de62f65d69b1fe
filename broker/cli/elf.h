// What an ELF file or a script says about itself. Pure: bytes in, facts out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

struct ElfFacts {
  bool elf = false;
  bool is_64bit = false;
  std::uint16_t machine = 0;  // EM_*
  std::string interpreter;    // ld.so; empty = static
  bool dynamic = false;       // has an interpreter: ld.so and so LD_PRELOAD act on it
  std::vector<std::string> needed;
  std::vector<std::string> rpath;    // DT_RPATH, split at colons
  std::vector<std::string> runpath;  // DT_RUNPATH
  bool names_driver = false;       // mentions libcuda.so.1 somewhere, as a static CUDA runtime does
  bool has_runtime_names = false;  // mentions entry points of the CUDA runtime
  bool nvidia_runtime = false;     // carries NVIDIA's CUDA runtime: mentions its shared memory
  bool names_preload = false;      // mentions LD_PRELOAD
  bool defines_driver = false;     // exports functions of the CUDA driver
  bool imports_dlmopen = false;
  bool cut_off = false;            // its headers describe more bytes than the file has
  bool script = false;             // "#!..."
  std::string script_interpreter;  // the first word behind it
  std::string script_argument;     // the rest of the line
  bool script_crlf = false;        // the line ends in CR LF: the kernel takes the CR for text
};

/// All but the mentions.
ElfFacts elf_read(std::string_view bytes);
/// Adds what a part of the file mentions to what begins with `names_`, and to has_runtime_names.
void elf_mentions_read(std::string_view bytes, ElfFacts* facts);
/// "aarch64", "32-bit x86", ...
std::string machine_name(const ElfFacts& facts);

}  // namespace sluice::cli

// Asks a real driver what the shim is built on, and prints the answers as JSON on stdout. It loads
// the driver as programs do (dlopen, dlsym, cuGetProcAddress) and must not be linked with anything
// of CUDA's or of ours.
//
//   lookup    is the pointer by cuGetProcAddress(base, since, flags) the one that dlsym gives, for
//   every entry point?
//             Which names share an address, and which does only one of the two ways know?
//   exports   what the driver exports beyond the list
//   capture   which calls a capturing stream bears, where the manuals leave it open
//   (probe_capture.cpp)
//   integrity which changed answers NVIDIA's runtime accepts (probe_children.cpp)
//   overhead  what a wrapper adds to a launch, what a pair of events costs (probe_children.cpp)
//   kernel    are BTF and the tracepoints there that a BPF program could use?
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu/probe.h"

namespace {

using probe::function_named;

struct Entry {
  const char* symbol;
  const char* base;
  int since;
  cuuint64_t flags;
};

constexpr Entry kEntries[] = {
#include "entrypoint_table.inc"
};

// Interoperation names that runtimes ask for although the toolkit's stub does not export them.
constexpr const char* kInterop[] = {"cuGLGetDevices_v2",          "cuGraphicsGLRegisterBuffer",
                                    "cuEGLStreamConsumerConnect", "cuGraphicsEGLRegisterImage",
                                    "cuVDPAUGetDevice",           "cudbgGetAPI"};

using Lookup = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

std::string json_list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) out += (out.size() > 1 ? ", " : "") + ("\"" + item + "\"");
  return out + "]";
}

struct LookupAnswer {
  std::vector<std::string> same;
  std::vector<std::string> different;
  std::vector<std::string> only_dlsym;
  std::vector<std::string> only_lookup;
  std::vector<std::string> neither;
  std::vector<std::string> aliases;
};

LookupAnswer compare_lookups(void* library, Lookup lookup) {
  LookupAnswer answer;
  std::map<void*, std::vector<std::string>> by_address;
  for (const Entry& entry : kEntries) {
    void* direct = dlsym(library, entry.symbol);
    void* asked = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    if (lookup(entry.base, &asked, entry.since, entry.flags, &status) != CUDA_SUCCESS)
      asked = nullptr;
    if (direct != nullptr) by_address[direct].push_back(entry.symbol);
    if (direct == nullptr && asked == nullptr) {
      answer.neither.push_back(entry.symbol);
    } else if (asked == nullptr) {
      answer.only_dlsym.push_back(entry.symbol);
    } else if (direct == nullptr) {
      answer.only_lookup.push_back(entry.symbol);
    } else {
      (direct == asked ? answer.same : answer.different).push_back(entry.symbol);
    }
  }
  for (const auto& [address, names] : by_address) {
    std::string group;
    for (const std::string& name : names) group += (group.empty() ? "" : " = ") + name;
    if (names.size() > 1) answer.aliases.push_back(group);
  }
  return answer;
}

/// The names a loaded library defines, from the dynamic symbol table of its file.
std::set<std::string> exported_names(void* library) {
  link_map* loaded = nullptr;
  std::set<std::string> names;
  if (dlinfo(library, RTLD_DI_LINKMAP, &loaded) != 0) return names;
  std::ifstream file(loaded->l_name, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  Elf64_Ehdr header;
  if (bytes.size() < sizeof(header)) return names;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (header.e_shoff + sections.size() * sizeof(Elf64_Shdr) > bytes.size()) return names;
  std::memcpy(sections.data(), bytes.data() + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= sections.size()) continue;
    const Elf64_Shdr& strings = sections[section.sh_link];
    for (size_t offset = 0; offset + sizeof(Elf64_Sym) <= section.sh_size;
         offset += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, bytes.data() + section.sh_offset + offset, sizeof(symbol));
      if (symbol.st_shndx == SHN_UNDEF) continue;
      names.insert(bytes.data() + strings.sh_offset + symbol.st_name);
    }
  }
  return names;
}

std::vector<std::string> exports_beyond_list(void* library) {
  std::set<std::string> names = exported_names(library);
  for (const Entry& entry : kEntries) names.erase(entry.symbol);
  return {names.begin(), names.end()};
}

bool tracepoint_present(const std::string& event) {
  for (const char* root : {"/sys/kernel/tracing/events/", "/sys/kernel/debug/tracing/events/"}) {
    if (access((root + event).c_str(), F_OK) == 0) return true;
  }
  return false;
}

const char* word(bool value) { return value ? "true" : "false"; }

void print_lookup(const LookupAnswer& answer) {
  std::printf("  \"lookup\": {\"asked\": %zu, \"same\": %zu,\n", std::size(kEntries),
              answer.same.size());
  std::printf("    \"different\": %s,\n", json_list(answer.different).c_str());
  std::printf("    \"only_dlsym\": %s,\n", json_list(answer.only_dlsym).c_str());
  std::printf("    \"only_lookup\": %s,\n", json_list(answer.only_lookup).c_str());
  std::printf("    \"neither\": %s,\n", json_list(answer.neither).c_str());
  std::printf("    \"aliases\": %s},\n", json_list(answer.aliases).c_str());
}

void print_exports(void* library) {
  std::printf("  \"exports\": {\"beyond_list\": %s,\n    \"interop\": {",
              json_list(exports_beyond_list(library)).c_str());
  const char* separator = "";
  for (const char* name : kInterop) {
    std::printf("%s\"%s\": %s", separator, name, word(dlsym(library, name) != nullptr));
    separator = ", ";
  }
  std::printf("}},\n");
}

void print_kernel() {
  std::printf(
      "  \"kernel\": {\"btf\": %s, \"tracing_readable\": %s, \"sched_switch\": %s, "
      "\"nvidia_dev_xid\": %s}\n",
      word(access("/sys/kernel/btf/vmlinux", R_OK) == 0), word(tracepoint_present("sched")),
      word(tracepoint_present("sched/sched_switch")),
      word(tracepoint_present("nvidia/nvidia_dev_xid")));
}

}  // namespace

int main(int argc, char** argv) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "probe_driver: %s\n", dlerror());
    return 77;
  }
  if (argc == 3 && std::strcmp(argv[1], "--capture") == 0) {
    return probe::capture_probe(library, argv[2]);
  }
  const auto lookup = function_named<Lookup>(library, "cuGetProcAddress_v2");
  const auto get_version = function_named<CUresult (*)(int*)>(library, "cuDriverGetVersion");
  if (lookup == nullptr || get_version == nullptr) {
    std::fprintf(stderr,
                 "probe_driver: the driver has no cuGetProcAddress_v2; it is older than CUDA 12\n");
    return 1;
  }
  int version = 0;
  get_version(&version);
  std::printf("{\n  \"driver_version\": %d,\n", version);
  print_lookup(compare_lookups(library, lookup));
  print_exports(library);
  std::fflush(stdout);
  probe::captures_print();
  probe::integrity_print();
  probe::overhead_print();
  print_kernel();
  std::printf("}\n");
  return 0;
}

#include "exporter/bpf/loading.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sluice::exporter {
namespace {

int libbpf_quiet(libbpf_print_level, const char*, va_list) { return 0; }

/// The kernel numbers processes as the outermost PID namespace does; elsewhere the broker's numbers
/// mean others.
bool in_host_namespace() {
  constexpr ino_t kHostPidNamespace = 0xEFFFFFFC;  // PROC_PID_INIT_INO, linux/proc_ns.h
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 && status.st_ino == kHostPidNamespace;
}

}  // namespace

bool bpf_possible(std::string* reason) {
  libbpf_set_print(libbpf_quiet);
  if (access("/sys/kernel/btf/vmlinux", R_OK) != 0) {
    *reason =
        "this kernel has no type information (/sys/kernel/btf/vmlinux); it needs "
        "CONFIG_DEBUG_INFO_BTF";
    return false;
  }
  if (!in_host_namespace()) {
    *reason =
        "not in the host's PID namespace, whose numbers the kernel uses; run the exporter on the "
        "host";
    return false;
  }
  return true;
}

std::string bpf_failure(const char* step, int error) {
  // EACCES is what the verifier says of programs that it does not like.
  if (error == EPERM) {
    return "no permission to load BPF programs; run as root or grant CAP_BPF and CAP_PERFMON";
  }
  return std::string("the kernel refused to ") + step + " the BPF programs: " + strerror(error);
}

}  // namespace sluice::exporter

// Stands in for thread_watch_bpf.cpp in a build without clang, bpftool or libbpf.
#include "exporter/idle/thread_watch.h"

namespace sluice::exporter {

std::unique_ptr<ThreadWatch> thread_watch_bpf(std::string* reason) {
  *reason = "built without BPF; install clang, bpftool and libbpf-dev and build again";
  return nullptr;
}

}  // namespace sluice::exporter

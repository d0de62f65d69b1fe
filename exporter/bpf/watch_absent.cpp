// Stands in for watch.cpp in a build without clang, bpftool or libbpf.
#include "exporter/bpf/watch.h"

namespace sluice::exporter {

bool watch_built() { return false; }

std::unique_ptr<Watch> watch_open(std::string* reason) {
  *reason = "built without BPF; install clang, bpftool and libbpf-dev and build again";
  return nullptr;
}

}  // namespace sluice::exporter

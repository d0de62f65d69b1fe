// Stands in for sight.cpp in a build without clang, bpftool or libbpf.
#include "exporter/bpf/sight.h"

namespace sluice::exporter {

std::unique_ptr<Sight> sight_open(const SightSetup&, std::string* reason) {
  *reason = "built without BPF; install clang, bpftool and libbpf-dev and build again";
  return nullptr;
}

}  // namespace sluice::exporter

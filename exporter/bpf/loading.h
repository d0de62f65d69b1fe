// What every loader of BPF programs asks first, and how it says why it cannot.
#pragma once

#include <string>

namespace sluice::exporter {

/// Whether this kernel and this place could run BPF programs that read its structures; else
/// `reason` says why not and what to do. Silences libbpf, whose lines are for developers.
bool bpf_possible(std::string* reason);

/// One sentence for a step (open, load, attach) that failed with `error`, an errno.
std::string bpf_failure(const char* step, int error);

}  // namespace sluice::exporter

// What the broker cannot do without and a kernel may lack: an old one, one that answers in a real
// one's place, or a filter for system calls of a container. Asked once, before anything is begun,
// so that a person is told what is missing and not each client that something failed.
#pragma once

#include <string>

namespace sluice::daemon {

/// What is missing, why the broker needs it and what to do, in a sentence for people; empty = all
/// is there.
std::string kernel_lacks();

}  // namespace sluice::daemon

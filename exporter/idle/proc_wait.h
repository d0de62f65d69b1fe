// What a sleeping thread waits for, from /proc alone: the same rules as exporter/bpf/threads.bpf.c,
// by what an observer may read. With the rights of a debugger: its system call and what the
// descriptors in it are. Without: the name of the kernel function in which it sleeps.
#pragma once

#include <string>

#include "exporter/idle/thread_watch.h"

namespace sluice::exporter {

/// For a thread in state `letter` (S, D, T, t, I). A thread that has woken meanwhile is kOther.
WaitKind wait_read(std::uint32_t process, std::uint32_t thread, char letter);

/// Whether more than names can be read of it: this process has a debugger's rights.
bool wait_can_be_read(std::uint32_t process);

/// Of a descriptor of the process; kOther where it is gone or may not be seen.
WaitKind wait_of_descriptor(std::uint32_t process, std::uint32_t fd);

/// By the name of a kernel function; `letter` decides where it says nothing.
WaitKind wait_of_function(const std::string& name, char letter);

}  // namespace sluice::exporter

// The processes of the machine, as sluice-watch needs them: who they are, and to end one of them
// and never a stranger with its number.
#pragma once

#include <optional>
#include <set>

#include "exporter/bypass/judge.h"

namespace sluice::exporter {

/// What it is; nothing where it is gone. Only process, uid, program and file are filled.
std::optional<Seen> process_describe(const ProcessName& process);
/// Whether the file that it runs is, as this process sees the file system, one of `paths` or in a
/// folder of them, and no other user could have put it there: file and folders are root's or this
/// process's user's, and others cannot write to them. Never in another user namespace: there a
/// process may mount over any path, and name any file as its program.
bool program_is_exempt(const Seen& seen, const std::vector<std::string>& paths);
/// Sends SIGTERM or SIGKILL; 0 or an errno, ESRCH where it has ended.
int process_signal(const ProcessName& process, int signal);
/// Whether one of `above` is among its parent and theirs.
bool process_descends(std::uint32_t pid, const std::set<std::uint32_t>& above);

/// The numbers of the driver's devices that computing needs (nvidia-uvm), from the kernel's list of
/// character devices; empty without a driver. Monitors and displays do not open them.
std::vector<std::uint32_t> driver_majors(const std::string& devices);
/// Where the loader finds libcuda.so.1; empty where it does not. Looked for in a child process, so
/// that the driver is not loaded into this one.
std::string driver_find();

}  // namespace sluice::exporter

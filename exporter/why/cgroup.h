// What the control groups of a process hold it back from: CPU time by their limits (cpu.max), and
// how long its tasks waited for CPUs and for host memory (pressure stall information). Version 2,
// and of version 1 the limits. Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::exporter {

/// Sums since the groups were made; nothing where the kernel does not tell.
struct CgroupLook {
  std::optional<std::uint64_t> throttled_ns;  // by a limit of its group or of one above
  std::optional<std::uint64_t> cpu_wait_ns;   // in which some task of the group waited
  std::optional<std::uint64_t> memory_wait_ns;
};

/// `root` stands before /proc and /sys/fs/cgroup; empty but in tests.
CgroupLook cgroup_look(std::uint32_t process, const std::string& root = {});
/// What has come to it since; nothing where one of the two does not tell.
CgroupLook cgroup_since(const CgroupLook& before, const CgroupLook& now);

}  // namespace sluice::exporter

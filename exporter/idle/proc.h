// Processes and threads as /proc shows them. What is gone or may not be read is absent, never an
// error: threads end at any time. Formats: proc(5), Documentation/scheduler/sched-stats.rst.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice::exporter {

/// One look at a thread.
struct ThreadLook {
  std::uint64_t at_ns = 0;  // CLOCK_MONOTONIC, just before
  char letter = 0;          // its state: R S D T t Z X I
  // Since its start: time on a CPU (up to a tick old while it runs), time that it could have run
  // and did not (of waits that have ended), and how often it came onto a CPU.
  std::uint64_t run_ns = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t turns = 0;
};

/// A whole file of /proc, at most `max` bytes; empty where there is none.
std::string proc_file(const std::string& path, std::size_t max = 4096);
/// The entries of a folder that are numbers: processes of /proc, threads of /proc/PID/task.
std::vector<std::uint32_t> proc_numbers(const std::string& folder);
std::string proc_thread_path(std::uint32_t process, std::uint32_t thread);

/// False where the thread is gone, or a zombie.
bool thread_look(std::uint32_t process, std::uint32_t thread, ThreadLook& look);
/// How often it went to sleep by itself.
std::uint64_t thread_sleeps(std::uint32_t process, std::uint32_t thread);

/// The state of a thread; '\0' where the process has none of that number.
char thread_letter(std::uint32_t process, std::uint32_t thread);
/// Field 22 of proc(5)'s stat, from the text of that file; 0 where there is none.
std::uint64_t start_ticks_read(const std::string& stat);
/// 0 where no such process lives.
std::uint64_t start_ticks_of(std::uint32_t pid);
/// Of a time that the kernel keeps in nanoseconds.
std::uint64_t start_ticks_of_ns(std::uint64_t started_ns);

/// 0 where the process is gone, or has none.
std::uint32_t process_parent(std::uint32_t process);
/// The parent of every process that has one.
std::map<std::uint32_t, std::uint32_t> processes_parents();
/// Every process that descends from one of `roots`, with the nearest of them; the roots not.
std::map<std::uint32_t, std::uint32_t> processes_descended(const std::vector<std::uint32_t>& roots);

}  // namespace sluice::exporter

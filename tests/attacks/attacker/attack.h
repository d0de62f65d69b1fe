// What the parts of the attacker share. The attacker is an unmodified program of the driver API: it
// takes memory in a named way, in a named shape of processes, after a named trick, or launches
// kernels in a named pattern. It knows nothing of Sluice; what it achieves is read from the
// device's own account. See main.cpp for the command line.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace attacks {

constexpr std::size_t kMiB = 1 << 20;

/// The command line.
struct Options {
  std::string way = "alloc";
  std::string shape = "one";
  std::string trick;     // empty: none
  std::string launches;  // a pattern of launches; empty: memory is attacked
  std::vector<std::size_t> sizes{2 * kMiB};
  unsigned seed = 1;
  int device = 0;
  int left = 4;     // generations of an exec chain that are still to come
  int kernels = 0;  // launches after which a pattern ends; 0: none
  std::string program;
  std::vector<std::string> words;  // the command line itself, for the next generation
};
extern Options options;

/// One way to take memory. `take` tries once, keeps what it gets, and returns the driver's answer.
struct Way {
  const char* name;
  CUresult (*take)(std::size_t bytes);
};
/// Ways by family; each list ends with a null name.
extern const Way kPlainWays[];
extern const Way kStreamWays[];
extern const Way kOtherWays[];
extern const Way kHandedWays[];
const Way* way_find(const std::string& name);

/// Makes the primary context of the chosen device current on this thread.
CUresult gpu_open();

/// Runs the named trick once: calls in an order that could confuse an account. False: no such name.
bool trick_play(const std::string& name);
/// Starts `work` in every process of the named shape. False: no such name.
bool shape_run(const std::string& name, const std::function<void()>& work);
/// Launches for ever, or until `options.kernels`. False: no such name.
bool launches_run(const std::string& name);

/// Forks the partner of the ways that hand memory on, before the first call of the driver.
void partner_start();
/// Prints one line on standard output by one write.
void tell(const std::string& line);
/// Starts a process that shares this one's address space and sleeps until it is killed: what this
/// one has on the device stays there when it dies.
void keeper_start();
/// Sleeps until the process is killed.
[[noreturn]] void park();

/// A module's text with a variable of so many bytes and a kernel of every name that the runner
/// gives a time.
std::string module_text(std::size_t variable_bytes);

}  // namespace attacks

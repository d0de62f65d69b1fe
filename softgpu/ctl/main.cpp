// softgpu-ctl: what an administrator of software GPUs asks and does: which are there, what has each
// process been given, other settings, faults, start over, how fast is this host. Works on the
// device segments; never a client of a device.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "softgpu/ctl/calibrate.h"
#include "softgpu/ctl/control.h"
#include "softgpu/ctl/options.h"
#include "softgpu/ctl/report.h"
#include "softgpu/device/directory.h"

namespace softgpu::ctl {
namespace {

int reset(const Options& options) {
  std::vector<device::Device> devices;
  std::string error;
  // What cannot be read is of another version: nobody of ours can use it.
  for (device::Segment* segment : device::directory_look(options.directory, error))
    devices.emplace_back(segment);
  std::uint32_t users = 0;
  for (device::Device& device : devices) users += device.users();
  if (users > 0)
    return fail("not reset: " + std::to_string(users) + " living processes use the GPUs of " +
                options.directory + "; end them first (`softgpu-ctl accounts`)");
  return device::directory_remove(options.directory, error) ? 0 : fail(error);
}

int calibrate(const Options& options) {
  HostRates rates;
  std::string error;
  if (!host_measure(&rates, &error)) return fail(error);
  std::printf(options.json
                  ? "{\"warp_instructions_per_s_per_core\": %.0f, \"copy_bytes_per_s\": %.0f}\n"
                  : "warp instructions per second and core: %.4g\ncopied bytes per second: %.4g\n",
              rates.warp_instructions_per_s_per_core, rates.copy_bytes_per_s);
  return 0;
}

struct Command {
  const char* name;
  int (*run)(const Options&);
  const char* summary;
  const char* usage;
  Accepted accepted;
};

constexpr std::size_t kAnyWords = SIZE_MAX;

const Command kCommands[] = {
    {"list",
     list,
     "the GPUs, their settings, the processes on them, memory and use",
     "list [--gpu N] [--json]\n",
     {0, {"gpu", "json"}}},
    {"accounts",
     accounts,
     "device time and memory of every process, also of those that have ended",
     "accounts [--gpu N] [--json]\n",
     {0, {"gpu", "json"}}},
    {"set",
     set,
     "changes settings while the GPUs work",
     "set [--gpu N] [--profile FILE] KEY=VALUE...\n"
     "set [--gpu N] --pid PID weight=W\n"
     "  rate=R        warp instructions per second\n"
     "  copy_rate=R   bytes per second and direction\n"
     "  slice_us=T    time slice between processes\n"
     "  switch_us=T   device time lost when another process's turn begins\n"
     "  launch_us=T   what every kernel takes at least\n"
     "  pacing=0|1    0: nobody waits for modelled time\n"
     "  timed=RULES   kernels of given time: gemm*=2ms,attn*=500us/skip; empty: none\n"
     "  weight=W      slices of the process are W times as long (0.01 to 100)\n"
     "Without --gpu: of all GPUs. A profile holds the same keys, one `key = value` a line.\n",
     {kAnyWords, {"gpu", "profile", "pid"}}},
    {"inject",
     inject,
     "makes something go wrong",
     "inject allocation [--after N] [--times N] [--pid PID] [--gpu N]\n"
     "                      the N-th request for device memory from now on fails, and so do the\n"
     "                      next ones, as many as --times says (1)\n"
     "inject slow-copy --factor F [--pid PID] [--gpu N]\n"
     "                      copies take F times as long\n"
     "inject hang [--pid PID] [--gpu N]\n"
     "                      kernels do not end, the running ones included, until `clear`\n"
     "inject xid NUMBER [--pid PID] [--gpu N]\n"
     "                      an Xid event; contexts of the process, else of all processes, fail\n"
     "                      with the error that belongs to it (63, 64 and 92 only inform)\n"
     "inject lost [--gpu N] the GPU falls off the bus (Xid 79), until `clear`\n"
     "Without --pid: all processes. Prints the number of the fault.\n",
     {2, {"gpu", "pid", "after", "times", "factor"}}},
    {"faults",
     faults,
     "the faults that are set",
     "faults [--gpu N] [--json]\n",
     {0, {"gpu", "json"}}},
    {"clear",
     clear,
     "removes a fault, or all of them and brings a lost GPU back",
     "clear [ID] [--gpu N]\n",
     {1, {"gpu"}}},
    {"reset",
     reset,
     "removes the GPUs, so that the next process makes new ones; refused while processes use them",
     "reset\n",
     {0, {}}},
    {"calibrate",
     calibrate,
     "measures how fast this host executes and copies",
     "calibrate [--json]\n",
     {0, {"json"}}},
};

void help_print(std::FILE* out) {
  std::fputs("usage: softgpu-ctl COMMAND [--dir DIR] ...\n       softgpu-ctl --version\n", out);
  for (const Command& command : kCommands)
    std::fprintf(out, "  %-10s %s\n", command.name, command.summary);
  std::fputs(
      "`softgpu-ctl COMMAND --help` says more. DIR is SOFTGPU_DIR or /dev/shm/softgpu-<uid> unless "
      "given.\n",
      out);
}

int run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version")
    return std::printf("softgpu-ctl %s\n", SOFTGPU_VERSION) < 0;
  Options options;
  std::string error;
  const bool read = options_read(argc, argv, options, error);
  if (read && (options.command == "help" || (options.help && options.command.empty()))) {
    help_print(stdout);
    return 0;
  }
  const Command* command =
      std::find_if(std::begin(kCommands), std::end(kCommands),
                   [&](const Command& c) { return options.command == c.name; });
  if (read && command == std::end(kCommands))
    error = options.command.empty() ? "a command is missing"
                                    : "unknown command \"" + options.command + "\"";
  if (!error.empty()) {
    const int status = fail(error, 2);
    help_print(stderr);
    return status;
  }
  if (!options.help)
    return options_accept(options, command->accepted, error) ? command->run(options)
                                                             : fail(error, 2);
  std::printf("softgpu-ctl %s: %s\n%s", command->name, command->summary, command->usage);
  return 0;
}

/// An answer that is not written is none.
int finish(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return fail(std::string("cannot write the answer: ") + std::strerror(errno));
}

}  // namespace
}  // namespace softgpu::ctl

int main(int argc, char** argv) { return softgpu::ctl::finish(softgpu::ctl::run(argc, argv)); }

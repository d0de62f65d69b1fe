// The command line of sluice-watch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::exporter {

struct BypassOptions {
  std::optional<std::string> socket;
  std::optional<std::string> config;
  std::optional<std::uint32_t> device_major;
  bool help = false;
};

std::optional<BypassOptions> bypass_options_parse(const std::vector<std::string>& arguments,
                                                  std::string* error);

inline constexpr char kBypassUsage[] =
    "usage: sluice-watch [--socket PATH] [--config FILE] [--device-major N]\n"
    "\n"
    "Finds programs that use a GPU without Sluice: by their calls of the driver library, by what\n"
    "they open, call and hold of the driver's device, and by NVML's list of processes, each\n"
    "compared with the broker's list. What it does about them is [bypass] policy of the\n"
    "configuration: count, report, stop.\n"
    "\n"
    "  --socket PATH     the broker's socket; default $SLUICE_SOCKET, else, with another "
    "configuration\n"
    "                    than the system's, the one in it, else /run/sluice/sluiced.sock\n"
    "  --config FILE     the configuration; default /etc/sluice/sluice.toml where it exists\n"
    "  --device-major N  takes character devices of this number for GPUs, beside nvidia-uvm's\n"
    "  --help, --version print this, or the version, and exit\n"
    "\n"
    "Runs as root, which BPF and stopping need; as somebody else it counts and reports what NVML\n"
    "lists and its own user's programs hold. Ends at SIGTERM.\n";

}  // namespace sluice::exporter

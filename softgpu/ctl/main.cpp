// softgpu-ctl: what an administrator of software GPUs asks: which are there, what has each process
// been given, start over, how fast is this host. Reads the device segments; never a client of a
// device.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "softgpu/ctl/calibrate.h"
#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"

namespace {

using namespace softgpu::device;

struct Options {
  std::string command;
  std::string directory = settings_directory();
  bool json = false;
};

constexpr char kHelp[] =
    "usage: softgpu-ctl COMMAND [--json] [--dir DIR]\n"
    "  list       the software GPUs of the directory and their settings\n"
    "  accounts   device time and memory of every process, also of those that have ended\n"
    "  reset      removes the GPUs, so that the next process makes new ones; refused while "
    "processes use them\n"
    "  calibrate  measures how fast this host executes and copies\n"
    "DIR is SOFTGPU_DIR or /dev/shm/softgpu-<uid> unless given.\n";

std::string json_text(const char* text) {
  std::string out = "\"";
  for (const char* at = text; *at != '\0'; ++at) {
    if (*at == '"' || *at == '\\') out += '\\';
    if (static_cast<unsigned char>(*at) >= 0x20) out += *at;
  }
  return out + "\"";
}

bool devices_look(const Options& options, std::vector<Device>& devices) {
  std::string error;
  for (Segment* segment : directory_look(options.directory, error)) devices.emplace_back(segment);
  if (!error.empty()) std::fprintf(stderr, "softgpu-ctl: %s\n", error.c_str());
  return error.empty();
}

void account_json(const Snapshot::Process& process, bool first) {
  const Account& a = process.account;
  std::printf(
      "%s\n      {\"pid\": %d, \"start_ticks\": %llu, \"name\": %s, \"alive\": %s, \"busy_ns\": "
      "%.0f, \"sm_ns\": %.0f, "
      "\"lag_ns\": %.0f, \"copy_ns\": %.0f, \"memory_bytes\": %llu, \"launches\": %llu}",
      first ? "" : ",", a.pid, static_cast<unsigned long long>(a.start_ticks),
      json_text(a.name).c_str(), process.alive ? "true" : "false", a.busy_ns, a.sm_ns, a.lag_ns,
      a.copy_ns, static_cast<unsigned long long>(a.memory_bytes),
      static_cast<unsigned long long>(a.launches));
}

void accounts_json(std::vector<Device>& devices) {
  std::printf("{\"devices\": [");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Snapshot s = devices[i].snapshot();
    std::printf(
        "%s\n  {\"index\": %u, \"uuid\": \"%s\", \"capacity_bytes\": %llu, \"used_bytes\": %llu, "
        "\"elapsed_ns\": %.0f, "
        "\"busy_ns\": %.0f, \"sm_ns\": %.0f, \"lag_ns\": %.0f,\n    \"processes\": [",
        i == 0 ? "" : ",", s.index, uuid_text(s.uuid).c_str(),
        static_cast<unsigned long long>(s.capacity_bytes),
        static_cast<unsigned long long>(s.used_bytes), s.elapsed_ns, s.busy_ns, s.sm_ns, s.lag_ns);
    for (std::size_t p = 0; p < s.processes.size(); ++p) account_json(s.processes[p], p == 0);
    std::printf("]}");
  }
  std::printf("\n]}\n");
}

void accounts_table(std::vector<Device>& devices) {
  for (Device& device : devices) {
    const Snapshot s = device.snapshot();
    std::printf("gpu %u  %s  memory %.1f of %.1f MiB  busy %.3f s  lag %.3f s\n", s.index,
                uuid_text(s.uuid).c_str(), static_cast<double>(s.used_bytes) / (1 << 20),
                static_cast<double>(s.capacity_bytes) / (1 << 20), s.busy_ns / 1e9, s.lag_ns / 1e9);
    for (const auto& process : s.processes) {
      const Account& a = process.account;
      std::printf(
          "  %8d %-20s %-5s busy %9.3f s  copy %8.3f s  lag %7.3f s  memory %8.1f MiB  launches "
          "%llu\n",
          a.pid, a.name, process.alive ? "alive" : "ended", a.busy_ns / 1e9, a.copy_ns / 1e9,
          a.lag_ns / 1e9, static_cast<double>(a.memory_bytes) / (1 << 20),
          static_cast<unsigned long long>(a.launches));
    }
  }
}

int accounts(const Options& options) {
  std::vector<Device> devices;
  if (!devices_look(options, devices)) return 1;
  options.json ? accounts_json(devices) : accounts_table(devices);
  return 0;
}

int list(const Options& options) {
  std::vector<Device> devices;
  if (!devices_look(options, devices)) return 1;
  if (options.json) std::printf("{\"devices\": [");
  bool first = true;
  for (Device& device : devices) {
    const Segment& s = device.settings();
    const char* format = options.json ? "%s\n  {\"index\": %u, \"uuid\": \"%s\", \"memory_bytes\": "
                                        "%llu, \"sm_count\": %u, \"rate\": %.0f, "
                                        "\"copy_rate\": %.0f, \"context_bytes\": %llu, "
                                        "\"slice_ns\": %llu, \"pacing\": %s, \"users\": %u}"
                                      : "%sgpu %u  %s  memory %llu B  SMs %u  %.3g warp "
                                        "instructions/s  %.3g B/s  context %llu B  slice "
                                        "%llu ns  pacing %s  users %u\n";
    std::printf(format, options.json && !first ? "," : "", s.index, uuid_text(s.uuid).c_str(),
                static_cast<unsigned long long>(s.memory_bytes), s.sm_count, s.rate, s.copy_rate,
                static_cast<unsigned long long>(s.context_bytes),
                static_cast<unsigned long long>(s.slice_ns), s.pacing != 0 ? "true" : "false",
                device.users());
    first = false;
  }
  if (options.json) std::printf("\n]}\n");
  return 0;
}

int reset(const Options& options) {
  std::vector<Device> devices;
  if (!devices_look(options, devices))
    devices.clear();  // of another version: nobody of ours can use it
  std::uint32_t users = 0;
  for (Device& device : devices) users += device.users();
  if (users > 0) {
    std::fprintf(stderr,
                 "softgpu-ctl: not reset: %u living processes use the GPUs of %s; end them first "
                 "(`softgpu-ctl accounts`)\n",
                 users, options.directory.c_str());
    return 1;
  }
  std::string error;
  if (directory_remove(options.directory, error)) return 0;
  std::fprintf(stderr, "softgpu-ctl: %s\n", error.c_str());
  return 1;
}

int calibrate(const Options& options) {
  softgpu::ctl::HostRates rates;
  std::string error;
  if (!softgpu::ctl::host_measure(&rates, &error)) {
    std::fprintf(stderr, "softgpu-ctl: %s\n", error.c_str());
    return 1;
  }
  std::printf(options.json
                  ? "{\"warp_instructions_per_s_per_core\": %.0f, \"copy_bytes_per_s\": %.0f}\n"
                  : "warp instructions per second and core: %.4g\ncopied bytes per second: %.4g\n",
              rates.warp_instructions_per_s_per_core, rates.copy_bytes_per_s);
  return 0;
}

bool options_read(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      options.json = true;
    } else if (word == "--dir" && i + 1 < argc) {
      options.directory = argv[++i];
    } else if (options.command.empty() && !word.starts_with("--")) {
      options.command = word;
    } else {
      std::fprintf(stderr, "softgpu-ctl: unexpected \"%s\"\n%s", word.c_str(), kHelp);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "help") == 0)) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  Options options;
  if (!options_read(argc, argv, options)) return 2;
  if (options.command == "accounts") return accounts(options);
  if (options.command == "list") return list(options);
  if (options.command == "reset") return reset(options);
  if (options.command == "calibrate") return calibrate(options);
  std::fprintf(stderr, "softgpu-ctl: %s\n%s",
               options.command.empty() ? "a command is missing" : "unknown command", kHelp);
  return 2;
}

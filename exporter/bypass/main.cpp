// sluice-watch: wires configuration, broker, NVML, the kernel's eyes and the judge. A program of
// its own, and not a part of the exporter or of the broker: it needs root as long as it runs, hears
// from nobody but root's own files and the broker, and so neither of the two has to be able to kill
// what is not theirs.
#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "broker/protocol/question.h"
#include "config/reader/config.h"
#include "exporter/bpf/sight.h"
#include "exporter/bypass/figures.h"
#include "exporter/bypass/held.h"
#include "exporter/bypass/listed.h"
#include "exporter/bypass/options.h"
#include "exporter/bypass/processes.h"
#include "exporter/clock.h"
#include "exporter/devices.h"
#include "exporter/idle/proc.h"
#include "exporter/snapshot.h"

namespace sluice::exporter {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;
constexpr int kDevicesWait_ms = 500;
// Programs that outlived a broker register with the next one; until then nobody is judged.
constexpr std::uint64_t kBrokerNewNs = 10'000'000'000;
// Processes and descriptors that are looked at: once, at the start, and then each second.
constexpr std::size_t kHeldFirst = 1 << 18;
constexpr std::size_t kHeldEach = 1 << 12;

void say(const std::string& line) { fprintf(stderr, "sluice-watch: %s\n", line.c_str()); }

std::optional<config::Config> config_load(const BypassOptions& options) {
  if (!options.config && access(config::kSystemConfig, F_OK) != 0) return config::config_default();
  auto result = config::config_read_trusted(options.config.value_or(config::kSystemConfig));
  if (result.ok()) return *result;
  for (const config::Error& error : result.errors()) say(error.text());
  return std::nullopt;
}

std::optional<BypassRules> rules_make(const config::Config& config) {
  BypassRules out;
  for (int i = 0; i < 3; ++i)
    if (config.bypass_policy == kPolicyNames[i]) out.policy = static_cast<BypassPolicy>(i);
  out.grace_ns = static_cast<std::uint64_t>(config.bypass_grace_ns);
  for (const std::string& name : config.bypass_exempt_users) {
    const passwd* user = getpwnam(name.c_str());
    if (user == nullptr) {
      say("there is no user '" + name + "', whom [bypass] exempt_users names; correct the name");
      return std::nullopt;
    }
    out.exempt_uids.insert(user->pw_uid);
  }
  if (out.policy == BypassPolicy::kStop && geteuid() != 0) {
    say("only root can stop others' programs; start it as root, or set [bypass] policy to report");
    return std::nullopt;
  }
  return out;
}

/// The broker's number, from the kernel; 0 where it does not answer or is not believed.
std::uint32_t broker_pid(const std::string& socket) {
  constexpr int kWait_ms = 1000;
  long owner = 0;
  const int fd = protocol::broker_connect(socket.c_str(), kWait_ms, &owner);
  if (fd < 0) return 0;
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool good = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  close(fd);
  // The process that opened the listener. With socket activation that is the init process, and its
  // children are no helpers of the broker.
  return good && peer.pid != 1 ? static_cast<std::uint32_t>(peer.pid) : 0;
}

class BypassWatch {
 public:
  /// `device_major`: of devices that are taken for GPUs as well.
  BypassWatch(const config::Config& config, const std::string& socket, BypassRules rules,
              std::optional<std::uint32_t> device_major)
      : figures_path_(config.bypass_figures),
        driver_(config.bypass_driver),
        exempt_paths_(config.bypass_exempt_paths),
        device_major_(device_major),
        socket_(socket),
        source_(socket),
        judge_(rules) {
    figures_.policy = rules.policy;
    sight_renew();
    devices_ = Devices::open();
  }

  void look() {
    sight_renew();
    const std::uint64_t now_ns = monotonic_ns();
    std::map<ProcessName, Seen> found = gather();
    const SnapshotResult result = source_.snapshot_take();
    const auto* snapshot = std::get_if<Snapshot>(&result);
    broker_change(std::get_if<SnapshotError>(&result), snapshot, now_ns);
    if (snapshot != nullptr && now_ns >= judge_from_ns_) judge(found, *snapshot, now_ns);
    figures_.at_ns = now_ns;
    figures_.counts = judge_.counts();
    const int error = bypass_figures_write(figures_path_, figures_);
    if (error != last_write_) {
      last_write_ = error;
      if (error != 0)
        say("cannot write " + figures_path_ + ": " + strerror(error) +
            "; the exporter has no counts ([bypass] figures)");
    }
  }

  /// Until the next look.
  timespec pause() const {
    constexpr std::uint64_t kSecondNs = 1'000'000'000;
    const std::uint64_t ns = judge_.pause_ns(monotonic_ns());
    return {static_cast<time_t>(ns / kSecondNs), static_cast<long>(ns % kSecondNs)};
  }

 private:
  /// The driver's modules come when somebody first computes, and so do the numbers of its devices.
  void sight_renew() {
    constexpr std::size_t kDevicesBytesMax = 16384;
    SightSetup setup;
    setup.majors = driver_majors(proc_file("/proc/devices", kDevicesBytesMax));
    if (device_major_) setup.majors.push_back(*device_major_);
    if (majors_ == setup.majors) return;
    majors_ = setup.majors;
    setup.driver = driver_.empty() ? driver_find() : driver_;
    std::string reason;
    sight_.reset();
    sight_ = sight_open(setup, &reason);
    if (!reason.empty())
      say(std::string(sight_ == nullptr ? "only NVML's list and open descriptors are looked at: "
                                        : "in part: ") +
          reason);
    const bool sees_devices = sight_ != nullptr && sight_->sees_devices();
    source_set(FoundBy::kDriver, sight_ != nullptr && sight_->sees_driver());
    source_set(FoundBy::kDevice, sees_devices);
    source_set(FoundBy::kIoctl, sees_devices);
    source_set(FoundBy::kHeld, !setup.majors.empty());
    held_most_ = kHeldFirst;
  }

  void source_set(FoundBy source, bool on) { figures_.sources[static_cast<int>(source)] = on; }

  /// Kept until it can be judged: it may not be seen again.
  void early_add(const ProcessName& process, FoundBy by) {
    if (early_.size() < kEarlyMax || early_.contains(process)) early_[process].insert(by);
  }

  void early_gather() {
    std::vector<Sighting> sightings;
    if (sight_ != nullptr) sight_->read(sightings);
    for (const Sighting& one : sightings) {
      early_add({one.process, start_ticks_of_ns(one.started_ns)},
                one.what == Sighting::What::kDriver         ? FoundBy::kDriver
                : one.what == Sighting::What::kDeviceOpened ? FoundBy::kDevice
                                                            : FoundBy::kIoctl);
    }
    std::vector<ProcessName> holders;
    held_.look(*majors_, std::exchange(held_most_, kHeldEach), holders);
    for (const ProcessName& process : holders) early_add(process, FoundBy::kHeld);
    std::erase_if(early_, [](const auto& one) {
      return start_ticks_of(one.first.pid) != one.first.start_ticks;
    });
  }

  void nvml_gather(std::map<ProcessName, Seen>& out) {
    const DeviceFigures devices =
        devices_ != nullptr ? devices_->look(kDevicesWait_ms) : DeviceFigures{};
    source_set(FoundBy::kNvml, devices.up);
    std::map<std::uint32_t, std::uint64_t> bytes;
    std::set<std::uint32_t> pids;
    for (const auto& [gpu, look] : devices.gpus) {
      if (!look.processes) continue;
      for (const DeviceProcess& process : *look.processes) {
        pids.insert(process.pid);
        bytes[process.pid] += process.used_bytes.value_or(0);
      }
    }
    for (const ProcessName& process : listed_.look(pids)) {
      Seen& seen = out[process];
      seen.by.insert(FoundBy::kNvml);
      seen.bytes = bytes[process.pid];
    }
  }

  /// Processes that were seen since the last look, and those known from before, by the sources
  /// alone.
  std::map<ProcessName, Seen> gather() {
    std::map<ProcessName, Seen> out;
    early_gather();
    for (const auto& [process, by] : early_) out[process].by = by;
    nvml_gather(out);
    for (const ProcessName& process : judge_.known()) out[process];
    return out;
  }

  void broker_change(const SnapshotError* error, const Snapshot* snapshot, std::uint64_t now_ns) {
    const std::string text = error == nullptr ? std::string() : error->text;
    if (text != last_error_)
      say(text.empty() ? "the broker answers again" : text + "; until it answers nobody is judged");
    last_error_ = text;
    if (snapshot == nullptr) return;
    const bool is_new = snapshot->header.started_ns != broker_started_ns_;
    if (is_new && broker_started_ns_ != 0) judge_from_ns_ = now_ns + kBrokerNewNs;
    broker_started_ns_ = snapshot->header.started_ns;
    if (is_new || broker_ == 0) broker_ = broker_pid(socket_);
  }

  void judge(std::map<ProcessName, Seen>& found, const Snapshot& snapshot, std::uint64_t now_ns) {
    std::set<std::uint32_t> managed;
    for (const auto& row : snapshot.processes)
      if (row.ended == 0) managed.insert(row.pid);
    std::vector<Seen> seen;
    for (auto& [process, what] : found) {
      const std::uint32_t pid = process.pid;
      auto one = process_describe(process);
      if (!one) continue;
      one->by = std::move(what.by);
      one->bytes = what.bytes;
      one->exempt_program = program_is_exempt(*one, exempt_paths_);
      one->managed = managed.contains(pid);
      one->is_broker = pid == broker_ || (broker_ != 0 && process_parent(pid) == broker_);
      one->is_heir = !one->managed && process_descends(pid, managed);
      seen.push_back(*std::move(one));
    }
    early_.clear();
    const BypassJudge::Verdict verdict = judge_.look(seen, now_ns);
    for (const std::string& line : verdict.lines) say(line);
    for (const BypassOrder& order : verdict.orders) {
      const int error = process_signal(order.process, order.kill ? SIGKILL : SIGTERM);
      if (error != 0 && error != ESRCH)
        say("cannot stop process " + std::to_string(order.process.pid) + ": " + strerror(error));
    }
  }

  static constexpr std::size_t kEarlyMax = 4096;

  const std::string figures_path_, driver_;
  const std::vector<std::string> exempt_paths_;
  const std::optional<std::uint32_t> device_major_;
  const std::string socket_;
  std::optional<std::vector<std::uint32_t>> majors_;  // that are watched; unset = nothing is yet
  BrokerSource source_;
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<Sight> sight_;
  BypassJudge judge_;
  BypassFigures figures_;
  HeldScan held_;
  std::size_t held_most_ = kHeldFirst;
  ListedProcesses listed_;
  std::map<ProcessName, std::set<FoundBy>> early_;  // since the last verdict
  std::string last_error_;
  int last_write_ = 0;
  std::uint64_t broker_started_ns_ = 0, judge_from_ns_ = 0;
  std::uint32_t broker_ = 0;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"--version"})
    return std::printf("sluice-watch %s\n", SLUICE_VERSION) > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  std::string error;
  const auto options = bypass_options_parse(arguments, &error);
  if (!options) {
    say(error);
    return kUsageError;
  }
  if (options->help) return fputs(kBypassUsage, stdout) >= 0 ? EXIT_SUCCESS : kFailed;
  const auto config = config_load(*options);
  if (!config) return kUsageError;
  auto rules = rules_make(*config);
  if (!rules) return kUsageError;
  const char* variable = getenv(protocol::kSocketVariable);
  const std::string socket = options->socket ? *options->socket
                             : variable != nullptr && *variable != '\0'
                                 ? variable
                                 : config::client_socket(*config);
  // Before NVML's thread, which must not take them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  BypassWatch watch(*config, socket, *std::move(rules), options->device_major);
  watch.look();
  say("watching for programs beside the broker at " + socket + " (policy " + config->bypass_policy +
      ")");
  for (timespec pause = watch.pause(); sigtimedwait(&ends, nullptr, &pause) < 0;
       pause = watch.pause())
    watch.look();
  unlink(config->bypass_figures.c_str());
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace sluice::exporter

int main(int argc, char** argv) {
  return sluice::exporter::run(std::vector<std::string>(argv + 1, argv + argc));
}

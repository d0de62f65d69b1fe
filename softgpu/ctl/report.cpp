// See report.h.
#include "softgpu/ctl/report.h"

#include <unistd.h>

#include <cstdio>

#include "softgpu/device/directory.h"

namespace softgpu::ctl {
namespace {

using device::Account;
using device::Device;
using device::Fault;
using device::FaultKind;
using device::Segment;
using device::Snapshot;

using Ull = unsigned long long;

double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string json_text(const char* text) {
  std::string out = "\"";
  for (const char* at = text; *at != '\0'; ++at) {
    if (*at == '"' || *at == '\\') out += '\\';
    if (static_cast<unsigned char>(*at) >= 0x20) out += *at;
  }
  return out + "\"";
}

/// The pid by which this program may know a process, or "-".
std::string pid_text(const Snapshot::Process& process) {
  return process.pid == 0 ? "-" : std::to_string(process.pid);
}

/// Says where a process is that has no pid here.
std::string elsewhere_text(const Snapshot::Process& process) {
  return process.pid != 0
             ? ""
             : "  pid " + std::to_string(process.account.pid) + " of another pid namespace";
}

const char* json_bool(bool value) { return value ? "true" : "false"; }

/// Where there are no GPUs, that is said and is no error: the first program that uses one makes
/// them, and the directory.
bool devices_look(const Options& options, std::vector<Device>& devices, int& status) {
  std::string error;
  if (devices_find(options, devices, error)) return true;
  std::string fault;
  const bool empty = options.values.empty() &&
                     device::directory_look(options.directory, fault).empty() && fault.empty();
  if (empty && access(options.directory.c_str(), F_OK) != 0)
    error = "there is no directory " + options.directory;
  if (empty && options.json) return true;  // its empty list says so
  status = fail(error);
  return empty;
}

void account_json(const Snapshot::Process& process, bool first) {
  const Account& a = process.account;
  std::printf(
      "%s\n      {\"pid\": %d, \"own_pid\": %d, \"start_ticks\": %llu, \"name\": %s, \"alive\": "
      "%s, \"busy_ns\": "
      "%.0f, \"sm_ns\": %.0f, \"lag_ns\": %.0f, \"copy_ns\": %.0f, \"memory_bytes\": %llu, "
      "\"memory_peak_bytes\": %llu, \"suspended_bytes\": %llu, \"weight\": %g, \"launches\": %llu}",
      first ? "" : ",", process.pid, a.pid, static_cast<Ull>(a.start_ticks),
      json_text(a.name).c_str(), json_bool(process.alive), a.busy_ns, a.sm_ns, a.lag_ns, a.copy_ns,
      static_cast<Ull>(a.memory_bytes), static_cast<Ull>(a.memory_peak_bytes),
      static_cast<Ull>(a.suspended_bytes), a.weight, static_cast<Ull>(a.launches));
}

void processes_json(const Snapshot& snapshot, bool ended) {
  bool first = true;
  std::printf("\"processes\": [");
  for (const auto& process : snapshot.processes) {
    if (!process.alive && !ended) continue;
    account_json(process, first);
    first = false;
  }
  std::printf("]}");
}

void accounts_json(std::vector<Device>& devices) {
  std::printf("{\"devices\": [");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Snapshot s = devices[i].snapshot();
    std::printf(
        "%s\n  {\"index\": %u, \"uuid\": \"%s\", \"capacity_bytes\": %llu, \"used_bytes\": %llu, "
        "\"peak_bytes\": %llu, \"elapsed_ns\": %.0f, \"busy_ns\": %.0f, \"sm_ns\": %.0f, "
        "\"lag_ns\": %.0f,\n    ",
        i == 0 ? "" : ",", s.index, device::uuid_text(s.uuid).c_str(),
        static_cast<Ull>(s.capacity_bytes), static_cast<Ull>(s.used_bytes),
        static_cast<Ull>(s.peak_bytes), s.elapsed_ns, s.busy_ns, s.sm_ns, s.lag_ns);
    processes_json(s, true);
  }
  std::printf("\n]}\n");
}

void accounts_table(std::vector<Device>& devices) {
  for (Device& device : devices) {
    const Snapshot s = device.snapshot();
    std::printf("gpu %u  %s  memory %.1f of %.1f MiB  busy %.3f s  lag %.3f s\n", s.index,
                device::uuid_text(s.uuid).c_str(), mib(s.used_bytes), mib(s.capacity_bytes),
                s.busy_ns / 1e9, s.lag_ns / 1e9);
    for (const auto& process : s.processes) {
      const Account& a = process.account;
      std::printf(
          "  %8s %-20s %-5s busy %9.3f s  copy %8.3f s  lag %7.3f s  memory %8.1f MiB  launches "
          "%llu%s\n",
          pid_text(process).c_str(), a.name, process.alive ? "alive" : "ended", a.busy_ns / 1e9,
          a.copy_ns / 1e9, a.lag_ns / 1e9, mib(a.memory_bytes), static_cast<Ull>(a.launches),
          elsewhere_text(process).c_str());
    }
  }
}

std::string timed_text(const Segment& segment) {
  std::string text;
  for (std::uint32_t i = 0; i < segment.timed_count; ++i) {
    char time[40];
    std::snprintf(time, sizeof time, "=%gus", segment.timed[i].ns / 1e3);
    text += (i == 0 ? "" : ",") + std::string(segment.timed[i].pattern) + time +
            (segment.timed[i].skip != 0 ? "/skip" : "");
  }
  return text;
}

void list_json(Device& device, bool first) {
  const Segment& s = device.settings();
  const Snapshot now = device.snapshot();
  std::printf(
      "%s\n  {\"index\": %u, \"uuid\": \"%s\", \"memory_bytes\": %llu, \"used_bytes\": %llu, "
      "\"sm_count\": %u, \"rate\": %.0f, \"copy_rate\": %.0f, \"context_bytes\": %llu, "
      "\"slice_ns\": %llu, \"switch_ns\": %.0f, \"launch_ns\": %.0f, \"pacing\": %s, \"timed\": "
      "%s, \"users\": %u, \"busy_ratio\": %.3f, \"copy_ratio\": %.3f, \"lost\": %s, \"faults\": "
      "%zu, \"xids\": %u,\n    ",
      first ? "" : ",", s.index, device::uuid_text(s.uuid).c_str(),
      static_cast<Ull>(s.memory_bytes), static_cast<Ull>(now.used_bytes), s.sm_count, s.rate,
      s.copy_rate, static_cast<Ull>(s.context_bytes), static_cast<Ull>(s.slice_ns), s.switch_ns,
      s.launch_ns, json_bool(s.pacing != 0), json_text(timed_text(s).c_str()).c_str(),
      device.users(), now.recent_busy_ratio, now.recent_copy_ratio, json_bool(now.lost),
      device.faults().size(), device.xid_count());
  processes_json(now, false);
}

void list_table(Device& device) {
  const Segment& s = device.settings();
  const Snapshot now = device.snapshot();
  std::printf("gpu %u  %s  memory %.1f of %.1f MiB  busy %.0f %%%s\n", s.index,
              device::uuid_text(s.uuid).c_str(), mib(now.used_bytes), mib(s.memory_bytes),
              now.recent_busy_ratio * 100, now.lost ? "  LOST" : "");
  std::printf(
      "  SMs %u  %.3g warp instructions/s  %.3g B/s  context %llu B  slice %llu ns  switch %.0f ns "
      " launch %.0f ns  pacing %s\n",
      s.sm_count, s.rate, s.copy_rate, static_cast<Ull>(s.context_bytes),
      static_cast<Ull>(s.slice_ns), s.switch_ns, s.launch_ns, s.pacing != 0 ? "on" : "off");
  if (s.timed_count != 0) std::printf("  timed %s\n", timed_text(s).c_str());
  if (const std::size_t set = device.faults().size(); set != 0)
    std::printf("  faults %zu (softgpu-ctl faults)\n", set);
  for (const auto& process : now.processes) {
    if (!process.alive) continue;
    const Account& a = process.account;
    std::printf("  %8s %-20s memory %8.1f MiB  busy %9.3f s  weight %g%s%s\n",
                pid_text(process).c_str(), a.name, mib(a.memory_bytes), a.busy_ns / 1e9, a.weight,
                a.suspended != 0 ? "  checkpointed" : "", elsewhere_text(process).c_str());
  }
}

std::string fault_text(const Fault& fault) {
  std::string text;
  if (fault.kind == FaultKind::kAllocation)
    text =
        "allocation after " + std::to_string(fault.after) + " times " + std::to_string(fault.times);
  if (fault.kind == FaultKind::kSlowCopy) text = "slow-copy factor " + std::to_string(fault.factor);
  if (fault.kind == FaultKind::kHang) text = "hang";
  if (fault.pid == 0) return text;
  const int pid = device::process_pid({fault.pid, fault.space}, 0);
  return text + " pid " + std::to_string(pid == 0 ? fault.pid : pid) +
         (pid == 0 ? " of another pid namespace" : "");
}

}  // namespace

int accounts(const Options& options) {
  std::vector<Device> devices;
  int status = 0;
  if (!devices_look(options, devices, status)) return status;
  options.json ? accounts_json(devices) : accounts_table(devices);
  return 0;
}

int list(const Options& options) {
  std::vector<Device> devices;
  int status = 0;
  if (!devices_look(options, devices, status)) return status;
  if (options.json) std::printf("{\"devices\": [");
  for (Device& device : devices)
    options.json ? list_json(device, &device == devices.data()) : list_table(device);
  if (options.json) std::printf("\n]}\n");
  return 0;
}

int faults(const Options& options) {
  std::vector<Device> devices;
  int status = 0;
  if (!devices_look(options, devices, status)) return status;
  bool first = true;
  if (options.json) std::printf("{\"faults\": [");
  for (Device& device : devices) {
    for (const device::FaultRule& rule : device.faults()) {
      std::printf(options.json ? "%s\n  {\"gpu\": %u, \"id\": %u, \"what\": \"%s\"}"
                               : "%sgpu %u  fault %u  %s\n",
                  options.json && !first ? "," : "", device.settings().index, rule.id,
                  fault_text(rule.fault).c_str());
      first = false;
    }
    if (device.lost() && !options.json) std::printf("gpu %u  lost\n", device.settings().index);
  }
  if (options.json) std::printf("\n]}\n");
  return 0;
}

}  // namespace softgpu::ctl

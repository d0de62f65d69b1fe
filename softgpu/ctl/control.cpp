// See control.h.
#include "softgpu/ctl/control.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace softgpu::ctl {
namespace {

using device::Change;
using device::Device;
using device::Fault;
using device::FaultKind;
using device::Settings;
using device::SettingText;

/// Adds one setting to the change. What a device is made of cannot be changed while it is there.
bool change_add(const SettingText& text, Change& change, std::string& error) {
  Settings parsed;
  if (!device::setting_store(parsed, text, error)) return false;
  if (text.key == "RATE" && parsed.rate <= 0) {
    error = text.source + ": one rate at a time; choose the device with --gpu";
    return false;
  }
  if (text.key == "RATE") change.rate = parsed.rate;
  if (text.key == "COPY_RATE") change.copy_rate = parsed.copy_rate;
  if (text.key == "SLICE_US") change.slice_ns = static_cast<double>(parsed.slice_ns);
  if (text.key == "SWITCH_US") change.switch_ns = parsed.switch_ns;
  if (text.key == "LAUNCH_US") change.launch_ns = parsed.launch_ns;
  if (text.key == "PACING") change.pacing = parsed.pacing ? 1 : 0;
  if (text.key == "TIMED") change.timed = parsed.timed;
  for (const char* fixed : {"COUNT", "MEMORY", "SMS", "CONTEXT", "PAGE", "STRICT"}) {
    if (text.key != fixed) continue;
    error = text.source + ": " + fixed +
            " cannot be changed while the GPUs exist; `softgpu-ctl reset`, then set it in the "
            "environment or the profile of the next program";
    return false;
  }
  return true;
}

bool weight_parse(const std::string& text, double& weight, std::string& error) {
  char* end = nullptr;
  weight = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && weight >= 0.01 && weight <= 100) return true;
  error = "weight \"" + text + "\" is no number between 0.01 and 100";
  return false;
}

struct Wish {
  Change change;
  double weight = 0;  // 0 = not asked for
};

bool wish_read(const Options& options, Wish& wish, std::string& error) {
  std::vector<SettingText> texts;
  const auto profile = options.values.find("profile");
  if (profile != options.values.end() &&
      !device::profile_read(profile->second.c_str(), texts, error))
    return false;
  for (const std::string& word : options.words) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) {
      error = "\"" + word + "\" is no setting (KEY=VALUE)";
      return false;
    }
    const std::string key = device::key_normal(word.substr(0, equals));
    const std::string value = word.substr(equals + 1);
    if (key != "WEIGHT")
      texts.push_back({key, value, word});
    else if (!weight_parse(value, wish.weight, error))
      return false;
  }
  for (const SettingText& text : texts)
    if (!change_add(text, wish.change, error)) return false;
  if (!texts.empty() || wish.weight > 0) return true;
  error = "nothing to set (KEY=VALUE, or --profile FILE)";
  return false;
}

/// One device, because this is no fault or event of all.
bool device_single(const Options& options, std::vector<Device>& devices, std::string& error) {
  if (!devices_find(options, devices, error)) return false;
  if (devices.size() == 1) return true;
  error = "there are " + std::to_string(devices.size()) + " GPUs; choose one with --gpu";
  return false;
}

bool factor_read(const Options& options, double& factor, std::string& error) {
  const auto given = options.values.find("factor");
  if (given == options.values.end()) {
    error = "slow-copy needs --factor F";
    return false;
  }
  char* end = nullptr;
  factor = std::strtod(given->second.c_str(), &end);
  if (end != given->second.c_str() && *end == '\0' && std::isfinite(factor) && factor >= 1)
    return true;
  error = "--factor \"" + given->second + "\" is no number of at least 1";
  return false;
}

bool fault_read(const Options& options, int pid, Fault& fault, std::string& error) {
  const std::string& kind = options.words[0];
  fault.pid = pid;
  if (kind == "allocation") {
    fault.kind = FaultKind::kAllocation;
    return option_number(options, "after", 1, fault.after, error) &&
           option_number(options, "times", 1, fault.times, error);
  }
  if (kind == "slow-copy") {
    fault.kind = FaultKind::kSlowCopy;
    return factor_read(options, fault.factor, error);
  }
  if (kind == "hang") {
    fault.kind = FaultKind::kHang;
    return true;
  }
  error = "unknown fault \"" + kind + "\" (allocation, slow-copy, hang, xid, lost)";
  return false;
}

int fault_set(Device& device, const Fault& fault) {
  std::uint32_t id = 0;
  if (!device.fault_add(fault, id))
    return fail("no place for another fault; `softgpu-ctl faults`, `softgpu-ctl clear`");
  std::printf("gpu %u fault %u\n", device.settings().index, id);
  return 0;
}

int xid_raise(const Options& options, Device& device, int pid) {
  std::uint64_t number = 0;
  Options positional = options;
  positional.values["xid"] = options.words.size() == 2 ? options.words[1] : "";
  std::string error;
  if (!option_number(positional, "xid", 1, number, error) || number > 999)
    return fail("xid needs its number, 1 to 999", 2);
  if (pid != 0 && !device.has_process(pid))
    return fail("process " + std::to_string(pid) + " does not use GPU " +
                std::to_string(device.settings().index));
  device.xid_raise(static_cast<std::uint32_t>(number), pid);
  return 0;
}

}  // namespace

int set(const Options& options) {
  std::vector<Device> devices;
  std::string error;
  Wish wish;
  std::uint64_t pid = 0;
  if (!wish_read(options, wish, error) || !option_number(options, "pid", 1, pid, error))
    return fail(error, 2);
  if ((wish.weight > 0) != (pid != 0))
    return fail("a weight is of a process: --pid PID weight=W", 2);
  if (!devices_find(options, devices, error)) return fail(error);
  bool found = pid == 0;
  for (Device& device : devices) {
    device.change(wish.change);
    if (pid != 0) found = device.weight_set(static_cast<int>(pid), wish.weight) || found;
  }
  return found ? 0 : fail("process " + std::to_string(pid) + " uses none of these GPUs");
}

int inject(const Options& options) {
  std::string error;
  std::uint64_t pid = 0;
  if (options.words.empty())
    return fail("inject needs a fault (allocation, slow-copy, hang, xid, lost)", 2);
  if (!option_number(options, "pid", 1, pid, error)) return fail(error, 2);
  const bool event = options.words[0] == "xid" || options.words[0] == "lost";
  if (options.words.size() > (options.words[0] == "xid" ? 2U : 1U))
    return fail("unexpected \"" + options.words.back() + "\"", 2);
  Fault fault;
  if (!event && !fault_read(options, static_cast<int>(pid), fault, error)) return fail(error, 2);
  std::vector<Device> devices;
  if (!device_single(options, devices, error)) return fail(error);
  if (!event) return fault_set(devices[0], fault);
  if (options.words[0] == "xid") return xid_raise(options, devices[0], static_cast<int>(pid));
  devices[0].lose();
  return 0;
}

int clear(const Options& options) {
  std::vector<Device> devices;
  std::string error;
  if (options.words.empty()) {
    if (!devices_find(options, devices, error)) return fail(error);
    for (Device& device : devices) device.faults_clear();
    return 0;
  }
  std::uint64_t id = 0;
  Options positional = options;
  positional.values["fault"] = options.words[0];
  if (options.words.size() > 1 || !option_number(positional, "fault", 0, id, error))
    return fail("clear takes one number of a fault (`softgpu-ctl faults`), or nothing for all", 2);
  if (!device_single(options, devices, error)) return fail(error);
  if (devices[0].fault_remove(static_cast<std::uint32_t>(id))) return 0;
  return fail("GPU " + std::to_string(devices[0].settings().index) + " has no fault " +
              options.words[0]);
}

}  // namespace softgpu::ctl

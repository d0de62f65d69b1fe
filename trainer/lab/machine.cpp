#include "trainer/lab/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "trainer/lab/nvml.h"

namespace sluice::lab {
namespace {

namespace fs = std::filesystem;

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

/// What softgpu-ctl measures now.
bool host_measure(const Machine& machine, Calibration* out, std::string* error) {
  const auto text = command_output(
      {{machine.paths.program("softgpu-ctl"), "calibrate", "--json"}, {}, {}, ""}, 30'000, error);
  if (!text) return false;
  const nlohmann::json j = nlohmann::json::parse(*text, nullptr, false);
  if (!j.is_object()) {
    *error = "softgpu-ctl calibrate printed no JSON object: " + *text;
    return false;
  }
  out->warp_instructions_per_s_core = j.value("warp_instructions_per_s_per_core", 0.0);
  out->copy_bytes_per_s = j.value("copy_bytes_per_s", 0.0);
  if (out->warp_instructions_per_s_core <= 0 || out->copy_bytes_per_s <= 0) {
    *error = "softgpu-ctl calibrate measured nothing: " + *text;
    return false;
  }
  return true;
}

// Sets the device rates so that all devices together stay below kHostFraction of what the host can
// do. Virtual machines run faster for moments: the least of a few measurements is what lasts.
bool rates_set(Machine& machine, std::string* error) {
  for (int i = 0; i < kCalibrations; ++i) {
    Calibration now;
    if (!host_measure(machine, &now, error)) return false;
    Calibration& least = machine.calibration;
    if (i == 0) least = now;
    least.warp_instructions_per_s_core =
        std::min(least.warp_instructions_per_s_core, now.warp_instructions_per_s_core);
    least.copy_bytes_per_s = std::min(least.copy_bytes_per_s, now.copy_bytes_per_s);
  }
  const double devices = static_cast<double>(machine.gpu_names.size());
  machine.rate_warp_instructions_per_s =
      kHostFraction * machine.calibration.warp_instructions_per_s_core * machine.cores / devices;
  // A copy needs one core, and both directions may run at once.
  machine.copy_rate_bytes_per_s =
      kHostFraction * machine.calibration.copy_bytes_per_s / devices / 2;
  return true;
}

void programs_check(const Machine& machine, std::vector<std::string>* problems) {
  std::vector<std::string> needed = {"sluice", "sluiced", "sluice-train", "sluice-infer",
                                     "sluice-debug"};
  if (machine.software) needed.push_back("softgpu-ctl");
  for (const std::string& name : needed) {
    if (access(machine.paths.program(name).c_str(), X_OK) != 0) {
      problems->push_back(machine.paths.program(name) +
                          " is missing; build everything with scripts/lab or cmake --build");
    }
  }
  std::vector<std::string> libraries = {"libsluice.so"};
  if (machine.software)
    libraries.insert(libraries.end(), {"softgpu/libcuda.so.1", "softgpu/libnvidia-ml.so.1"});
  for (const std::string& name : libraries) {
    if (!fs::exists(machine.paths.lib + "/" + name)) {
      problems->push_back(machine.paths.lib + "/" + name +
                          " is missing; build everything with scripts/lab or cmake --build");
    }
  }
}

}  // namespace

Paths Paths::of_this_program() {
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  return {self.parent_path().string(), (self.parent_path().parent_path() / "lib").string()};
}

Machine machine_find(int soft, std::vector<std::string>* notes,
                     std::vector<std::string>* problems) {
  Machine machine;
  machine.paths = Paths::of_this_program();
  machine.cores = std::max(1u, std::thread::hardware_concurrency());
  machine.processor = processor_name();
  utsname names{};
  uname(&names);
  machine.host = names.nodename;
  machine.kernel = names.release;
  if (soft == 0) {
    const Nvml nvml;
    machine.gpu_names = nvml.gpu_names();
    machine.driver = nvml.driver_version();
  }
  machine.software = machine.gpu_names.empty();
  if (machine.software) {
    const int count = soft > 0 ? soft : kSoftwareGpusDefault;
    machine.gpu_names.assign(static_cast<std::size_t>(count), "Software GPU");
    notes->push_back(
        soft > 0 ? "using " + std::to_string(count) + " software GPUs, as asked"
                 : "no GPU with a driver here, so this runs on " + std::to_string(count) +
                       " software GPUs (with a GPU: install NVIDIA's driver, 580 or later)");
  }
  programs_check(machine, problems);
  std::string error;
  if (machine.software && problems->empty() && !rates_set(machine, &error))
    problems->push_back(error);
  return machine;
}

std::map<std::string, std::string> gpu_environment(const Machine& machine,
                                                   const std::string& segment_dir) {
  if (!machine.software) return {};
  const char* path = std::getenv("LD_LIBRARY_PATH");
  const std::string soft = machine.paths.lib + "/softgpu";
  return {
      {"LD_LIBRARY_PATH", path != nullptr && *path != '\0' ? soft + ":" + path : soft},
      {"SOFTGPU_DIR", segment_dir},
      {"SOFTGPU_COUNT", std::to_string(machine.gpu_names.size())},
      {"SOFTGPU_RATE",
       std::to_string(static_cast<std::uint64_t>(machine.rate_warp_instructions_per_s))},
      {"SOFTGPU_COPY_RATE",
       std::to_string(static_cast<std::uint64_t>(machine.copy_rate_bytes_per_s))},
  };
}

std::optional<std::vector<DeviceAccount>> accounts_now(const Machine& machine,
                                                       const std::string& segment_dir,
                                                       std::string* raw) {
  if (!machine.software) return std::nullopt;
  Command command{
      {machine.paths.program("softgpu-ctl"), "accounts", "--json", "--dir", segment_dir},
      {},
      {},
      ""};
  command.set = gpu_environment(machine, segment_dir);
  std::string error;
  const auto text = command_output(command, 10'000, &error);
  if (!text) return std::nullopt;
  *raw = *text;
  return accounts_parse(*text);
}

}  // namespace sluice::lab

// What the lab runs on: where the programs are, which GPUs there are (real, or software), and what
// this host can carry.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/lab/process.h"
#include "trainer/lab/records.h"

namespace sluice::lab {

struct Paths {
  std::string bin;  // folder of sluice, sluiced, sluice-train, ...
  std::string lib;  // folder of libsluice.so and softgpu/
  /// From /proc/self/exe.
  static Paths of_this_program();
  std::string program(const std::string& name) const { return bin + "/" + name; }
};

/// What the interpreter and the copy loops of the software GPU reach on this host, as `softgpu-ctl
/// calibrate` measures it.
struct Calibration {
  double warp_instructions_per_s_core = 0;
  double copy_bytes_per_s = 0;
};

struct Machine {
  Paths paths;
  bool software = false;
  std::vector<std::string> gpu_names;
  std::string host;
  std::string processor;
  unsigned cores = 0;
  std::string kernel;
  std::string driver;  // of real GPUs
  Calibration calibration;
  // Settings of the software GPUs derived from the calibration: all of them together ask at most
  // kHostFraction of it.
  double rate_warp_instructions_per_s = 0;  // of one device
  double copy_rate_bytes_per_s = 0;         // of one device
};
/// Above this share of the host, jobs would meet on its cores instead of on the GPU.
inline constexpr double kHostFraction = 0.3;
/// Measurements of the host, of which the least counts.
inline constexpr int kCalibrations = 4;
inline constexpr int kSoftwareGpusDefault = 2;
inline constexpr int kSoftwareGpusMax = 8;

/// `soft` = that many software GPUs; 0 = real ones when present, else kSoftwareGpusDefault software
/// ones. Every missing program or driver is one line in `problems` (what, and the remedy).
Machine machine_find(int soft, std::vector<std::string>* notes, std::vector<std::string>* problems);

/// Environment in which a program finds the software GPUs of `segment_dir`; empty for real GPUs.
std::map<std::string, std::string> gpu_environment(const Machine& machine,
                                                   const std::string& segment_dir);

/// The devices' accounts, now; nothing for real GPUs.
std::optional<std::vector<DeviceAccount>> accounts_now(const Machine& machine,
                                                       const std::string& segment_dir,
                                                       std::string* raw);

}  // namespace sluice::lab

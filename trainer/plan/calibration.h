// What `sluice-train calibrate` measured on one kind of device, and its file: JSON, data for
// people to look at as much as for the plan. A calibration of another device, link or number of
// ranks is refused, not stretched.
#pragma once

#include <string>

#include "trainer/comm/link.h"
#include "trainer/plan/links.h"
#include "trainer/plan/rates.h"

namespace sluice::train::planner {

/// What a calibration is of.
struct DeviceFacts {
  std::string name;
  int count = 0;  // GPUs that were visible
  int multiprocessors = 0;
  std::uint64_t memory_bytes = 0;
  bool software = false;
};

struct Calibration {
  std::string date;    // UTC
  std::string engine;  // of the collectives
  DeviceFacts device;
  LinkModel link;  // of software GPUs: their modelled link
  KernelRates kernels;
  LinkRates links;
};

/// Throws Failure with path and reason where the file is not one.
Calibration calibration_read(const std::string& path);
/// Appears whole or not at all.
void calibration_write(const std::string& path, const Calibration& calibration);
std::string calibration_json(const Calibration& calibration);
Calibration calibration_parse(const std::string& text, const std::string& path);

/// Throws Failure where `calibration` is of another device, or of another modelled link.
void calibration_check(const Calibration& calibration, const std::string& path,
                       const DeviceFacts& device, const LinkModel& link);

/// A few lines for people.
std::string calibration_text(const Calibration& calibration);

}  // namespace sluice::train::planner

// `sluice doctor`: what Sluice needs on this machine, one line per check, with the fix where
// something is missing.
#pragma once

#include <string>
#include <vector>

#include "broker/cli/options.h"
#include "broker/cli/snapshot_reader.h"

namespace sluice::cli {

enum class Verdict {
  kGood,
  kMissing,  // optional and absent
  kBroken,   // required
  kNote,     // worth knowing
};

struct Finding {
  Verdict verdict = Verdict::kGood;
  std::string what;    // "driver library"
  std::string detail;  // what was found, or what is wrong
  std::string fix;     // empty when all is well
};

/// "ok      driver library   libcuda.so.1, CUDA 13.0". Pure.
std::string findings_format(const std::vector<Finding>& findings);
/// {"good": bool, "findings": [{"verdict": "ok|absent|fail|note", "what", "detail", "fix"}]}. Pure.
std::string findings_json(const std::vector<Finding>& findings);

/// The finding about a broker that answers: broken where a GPU of it is lost. Pure.
Finding broker_gpus_check(const Snapshot& snapshot, Finding finding);

/// The finding about the file of the preloaded library's policy.
Finding shim_policy_check(const char* path);

int doctor_command(const DoctorOptions& options);

}  // namespace sluice::cli

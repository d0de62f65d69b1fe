// The few NVML calls that the lab makes: which GPUs are here, and how busy they are. Own
// declarations, since the toolkit ships no nvml.h; the library is opened at run time.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::lab {

class Nvml {
 public:
  /// Nothing when there is no NVML, or it does not start.
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::vector<std::string> gpu_names() const;
  std::string driver_version() const;
  /// Fraction of NVML's last sample period in which a kernel ran on GPU `index`.
  std::optional<double> utilization(unsigned index) const;

 private:
  struct Utilization {
    unsigned gpu = 0;  // percent
    unsigned memory = 0;
  };
  template <class Function>
  Function find(const char* name) const;
  void* device(unsigned index) const;

  void* library_ = nullptr;  // null unless initialised
};

}  // namespace sluice::lab

// Quantities of a board that software does not have, as stand-ins: clocks are those of the
// driver's profile, power, energy and temperature follow the busy time.
#include "softgpu/nvml/library.h"

using namespace softgpu::nvml;

namespace {

constexpr unsigned kClockMhz[NVML_CLOCK_TYPES] = {1410, 1410, 1215, 1275};  // as nvmlClockType_t
constexpr double kIdleWatts = 50, kBusyWatts = 350;                         // the latter on top
constexpr unsigned kLimitMilliwatts = 400'000;
constexpr double kIdleCelsius = 35, kBusyCelsius = 30;
constexpr unsigned kShutdownCelsius = 92, kSlowdownCelsius = 89;
constexpr unsigned kLinkGeneration = 4, kLinkLanes = 16;

/// Of the last second.
double busy_ratio(nvmlDevice_t device) { return device->model.snapshot().recent_busy_ratio; }

}  // namespace

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned* mhz) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (type >= NVML_CLOCK_TYPES) return NVML_ERROR_INVALID_ARGUMENT;
  return give(device, mhz, kClockMhz[type]);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned* mhz) {
  return nvmlDeviceGetClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned* milliwatts) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  return give(device, milliwatts, (kIdleWatts + kBusyWatts * busy_ratio(device)) * 1e3);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                 unsigned long long* millijoules) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  const auto snapshot = device->model.snapshot();
  const double joules = (kIdleWatts * snapshot.elapsed_ns + kBusyWatts * snapshot.busy_ns) / 1e9;
  return give(device, millijoules, joules * 1e3);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return give(device, milliwatts, kLimitMilliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return give(device, milliwatts, kLimitMilliwatts);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned* celsius) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return give(device, celsius, kIdleCelsius + kBusyCelsius * busy_ratio(device));
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold,
                                               unsigned* celsius) {
  switch (threshold) {
    case NVML_TEMPERATURE_SHUTDOWN:
      return give(device, celsius, kShutdownCelsius);
    case NVML_TEMPERATURE_SLOWDOWN:
      return give(device, celsius, kSlowdownCelsius);
    default: {
      const nvmlReturn_t result = device_ready(device);
      return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
    }
  }
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned*) {
  const nvmlReturn_t result = device_ready(device);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;  // no fan
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int* state) {
  return give(device, state, 0);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return give(device, generation, kLinkGeneration);
}
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return give(device, generation, kLinkGeneration);
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned* lanes) {
  return give(device, lanes, kLinkLanes);
}
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned* lanes) {
  return give(device, lanes, kLinkLanes);
}

/// There is no encoder and no decoder that could be busy.
nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned* percent,
                                             unsigned* period_us) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  if (percent == nullptr || period_us == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *percent = 0;
  *period_us = static_cast<unsigned>(softgpu::device::kWindowNs / 1000);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned* percent,
                                             unsigned* period_us) {
  return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long* reasons) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  return give(device, reasons, busy_ratio(device) > 0 ? 0 : NVML_CLOCKS_IDLE);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long* reasons) {
  return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}
nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device,
                                                         unsigned long long* reasons) {
  return give(device, reasons, NVML_CLOCKS_IDLE);
}
nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                      unsigned long long* reasons) {
  return nvmlDeviceGetSupportedClocksThrottleReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned*, unsigned*) {
  const nvmlReturn_t result = device_ready(device);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

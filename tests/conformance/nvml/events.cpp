// Rows of family `nvml`: physical quantities and events.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "tests/conformance/nvml/library.h"

namespace conformance {
namespace {

ROW(nvml, clocks_do_not_exceed_their_maximum) {
  const Library library;
  for (unsigned type = 0; type < 3; ++type) {
    unsigned now = 0, most = 0;
    NVML_MUST(NVML(nvmlDeviceGetClockInfo)(library.first(), type, &now));
    NVML_MUST(NVML(nvmlDeviceGetMaxClockInfo)(library.first(), type, &most));
    EXPECT_GT(now, 0U) << type;
    EXPECT_LE(now, most) << type;
  }
}

ROW(nvml, unknown_clock_refused) {
  const Library library;
  unsigned mhz = 0;
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetClockInfo)(library.first(), 99, &mhz));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetClockInfo)(library.first(), 0, nullptr));
}

ROW(nvml, power_is_within_its_limit) {
  const Library library;
  unsigned used = 0, limit = 0;
  NVML_MUST(NVML(nvmlDeviceGetPowerUsage)(library.first(), &used));
  NVML_MUST(NVML(nvmlDeviceGetEnforcedPowerLimit)(library.first(), &limit));
  EXPECT_GT(used, 1000U) << "in milliwatts";
  EXPECT_LE(used, limit + limit / 5);
}

ROW(nvml, energy_grows) {
  const Library library;
  unsigned long long before = 0, after = 0;
  NVML_MUST(NVML(nvmlDeviceGetTotalEnergyConsumption)(library.first(), &before));
  EXPECT_TRUE(becomes_true([&] {
    EXPECT_EQ(NVML(nvmlDeviceGetTotalEnergyConsumption)(library.first(), &after), NVML_SUCCESS);
    return after > before;
  }));
}

ROW(nvml, temperature_is_below_shutdown) {
  const Library library;
  unsigned now = 0, slowdown = 0, shutdown = 0;
  NVML_MUST(NVML(nvmlDeviceGetTemperature)(library.first(), NVML_TEMPERATURE_GPU, &now));
  NVML_MUST(NVML(nvmlDeviceGetTemperatureThreshold)(library.first(), NVML_TEMPERATURE_SLOWDOWN,
                                                    &slowdown));
  NVML_MUST(NVML(nvmlDeviceGetTemperatureThreshold)(library.first(), NVML_TEMPERATURE_SHUTDOWN,
                                                    &shutdown));
  EXPECT_LT(now, slowdown);
  EXPECT_LE(slowdown, shutdown);
}

ROW(nvml, unknown_sensor_refused) {
  const Library library;
  unsigned celsius = 0;
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetTemperature)(library.first(), 99, &celsius));
}

ROW(nvml, performance_state_is_one_of_sixteen) {
  const Library library;
  int state = -1;
  NVML_MUST(NVML(nvmlDeviceGetPerformanceState)(library.first(), &state));
  EXPECT_GE(state, 0);
  EXPECT_LE(state, 15);
}

ROW(nvml, reasons_for_low_clocks_are_supported_ones) {
  const Library library;
  unsigned long long supported = 0, current = 0;
  NVML_ANSWERS(NVML_SUCCESS,
               NVML(nvmlDeviceGetSupportedClocksThrottleReasons)(library.first(), &supported));
  NVML_MUST(NVML(nvmlDeviceGetCurrentClocksThrottleReasons)(library.first(), &current));
  EXPECT_NE(supported & NVML_CLOCKS_IDLE, 0U);
  EXPECT_EQ(current & ~supported, 0U);
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetSupportedClocksThrottleReasons)(library.first(), nullptr));
}

ROW(nvml, link_does_not_exceed_its_maximum) {
  const Library library;
  unsigned now = 0, most = 0;
  NVML_MUST(NVML(nvmlDeviceGetCurrPcieLinkGeneration)(library.first(), &now));
  NVML_MUST(NVML(nvmlDeviceGetMaxPcieLinkGeneration)(library.first(), &most));
  EXPECT_LE(now, most);
  NVML_MUST(NVML(nvmlDeviceGetCurrPcieLinkWidth)(library.first(), &now));
  NVML_MUST(NVML(nvmlDeviceGetMaxPcieLinkWidth)(library.first(), &most));
  EXPECT_LE(now, most);
}

/// An event set that watches one device for Xid events.
class Watch {
 public:
  explicit Watch(nvmlDevice_t device) {
    EXPECT_EQ(NVML(nvmlEventSetCreate)(&set_), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceRegisterEvents)(device, NVML_EVENT_XID_CRITICAL_ERROR, set_),
              NVML_SUCCESS);
  }
  ~Watch() { EXPECT_EQ(NVML(nvmlEventSetFree)(set_), NVML_SUCCESS); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  nvmlReturn_t wait(nvmlEventData_t& data, unsigned timeout_ms) {
    return NVML(nvmlEventSetWait_v2)(set_, &data, timeout_ms);
  }
  nvmlEventSet_t set() const { return set_; }

 private:
  nvmlEventSet_t set_ = nullptr;
};

ROW(nvml, xids_are_among_the_events) {
  const Library library;
  unsigned long long types = 0;
  NVML_MUST(NVML(nvmlDeviceGetSupportedEventTypes)(library.first(), &types));
  EXPECT_NE(types & NVML_EVENT_XID_CRITICAL_ERROR, 0U);
}

ROW(nvml, waiting_for_an_event_times_out) {
  const Library library;
  Watch watch(library.first());
  nvmlEventData_t data{};
  const auto begin = std::chrono::steady_clock::now();
  NVML_ANSWERS(NVML_ERROR_TIMEOUT, watch.wait(data, 200));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
}

/// A kernel of another process that writes where nothing is.
void fault_in_a_child() {
  const pid_t child = fork();
  if (child == 0) {
    const Context context;
    unsigned long long address = 64;
    (void)launch(kernel("write_address"), 1, 1, {&address});
    _exit(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

ROW(nvml, a_faulting_kernel_is_an_xid) {
  const Library library;
  Watch watch(library.first());
  fault_in_a_child();
  nvmlEventData_t data{};
  NVML_MUST(watch.wait(data, 10'000));
  EXPECT_EQ(data.device, library.first());
  EXPECT_EQ(data.eventType, NVML_EVENT_XID_CRITICAL_ERROR);
  EXPECT_EQ(data.eventData, 31U) << "memory page fault";
}

ROW(nvml, an_event_is_delivered_once) {
  const Library library;
  Watch watch(library.first());
  fault_in_a_child();
  nvmlEventData_t data{};
  NVML_MUST(watch.wait(data, 10'000));
  while (watch.wait(data, 500) == NVML_SUCCESS) {  // hardware may tell of one fault in two events
    EXPECT_EQ(data.eventType, NVML_EVENT_XID_CRITICAL_ERROR);
  }
  NVML_ANSWERS(NVML_ERROR_TIMEOUT, watch.wait(data, 0));
}

ROW(nvml, events_from_before_are_not_told) {
  const Library library;
  {
    Watch watch(library.first());
    fault_in_a_child();
    nvmlEventData_t data{};
    NVML_MUST(watch.wait(data, 10'000));
    while (watch.wait(data, 500) == NVML_SUCCESS) {
    }
  }
  Watch watch(library.first());
  nvmlEventData_t data{};
  NVML_ANSWERS(NVML_ERROR_TIMEOUT, watch.wait(data, 200));
}

ROW(nvml, event_arguments_are_checked) {
  const Library library;
  Watch watch(library.first());
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlEventSetCreate)(nullptr));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlEventSetWait_v2)(watch.set(), nullptr, 0));
  NVML_ANSWERS(
      NVML_ERROR_INVALID_ARGUMENT,
      NVML(nvmlDeviceRegisterEvents)(library.first(), NVML_EVENT_XID_CRITICAL_ERROR, nullptr));
}

}  // namespace
}  // namespace conformance

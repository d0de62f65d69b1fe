// One short job as somebody debugging a program runs it: a little memory, a few small kernels with
// pauses for thought, a first number to look at, and an end that is not always a good one.
#pragma once

#include <vector>

#include "trainer/base/random.h"
#include "trainer/debug/options.h"
#include "trainer/device/device.h"
#include "trainer/job/log.h"
#include "trainer/job/stop.h"

namespace sluice::train {

class DebugJob {
 public:
  /// `begin_ns` is when its life began.
  DebugJob(const DebugOptions& options, const DebugPlan& plan, Nanos begin_ns, JobLog& log);

  /// "ok" or "stopped"; throws when the numbers are wrong or the device fails. A job that crashes
  /// or is killed does not come back.
  const char* run(StopSignal& stop);
  /// By the device's clock, so far.
  Nanos gpu_ns() const { return gpu_ns_; }
  /// How long it has decided to leave the GPU idle, so far. With a life, gpu_ns() is at least the
  /// plan's busy part of gpu_ns() + idle_ns(): what the host takes counts as idle.
  Nanos idle_ns() const { return idle_ns_; }
  std::uint64_t rounds() const { return rounds_; }

 private:
  bool pause(StopSignal& stop);
  bool is_over() const;
  void round_run();
  void first_result();
  [[noreturn]] void device_fail();

  const DebugOptions& options_;
  const DebugPlan plan_;
  const Nanos begin_ns_;
  JobLog& log_;
  Random random_;
  Device device_{0};
  Stream stream_{device_};
  Event round_begin_, round_end_;
  DeviceArray<float> x_;
  DeviceArray<float> y_;
  std::vector<float> host_;
  float expected_ = 0;
  Nanos gpu_ns_ = 0;
  Nanos idle_ns_ = 0;
  std::uint64_t rounds_ = 0;
};

}  // namespace sluice::train

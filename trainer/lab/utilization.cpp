#include "trainer/lab/utilization.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "trainer/lab/nvml.h"

namespace sluice::lab {
namespace {

using Clock = std::chrono::steady_clock;
// NVML's own sample period is between 1/6 s and 1 s.
constexpr std::chrono::milliseconds kAskEvery{150};

}  // namespace

struct UtilizationSampler::Work {
  struct Sum {
    double utilization = 0;
    unsigned samples = 0;
  };
  Nvml nvml;
  std::vector<Sum> sums = std::vector<Sum>(nvml.gpu_names().size());
  Clock::time_point begin = Clock::now();
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    // The first answer would speak of the time before the window.
    while (!wake.wait_for(lock, kAskEvery, [this] { return stopping; })) {
      for (std::size_t g = 0; g < sums.size(); ++g) {
        if (const auto now = nvml.utilization(static_cast<unsigned>(g))) {
          sums[g].utilization += *now;
          ++sums[g].samples;
        }
      }
    }
  }
};

UtilizationSampler::UtilizationSampler() : work_(std::make_unique<Work>()) {
  if (!work_->sums.empty()) work_->thread = std::thread([work = work_.get()] { work->run(); });
}

UtilizationSampler::~UtilizationSampler() { stop(); }

std::vector<GpuUse> UtilizationSampler::stop() {
  std::vector<GpuUse> out;
  if (!work_->thread.joinable()) return out;
  {
    const std::lock_guard lock(work_->mutex);
    work_->stopping = true;
  }
  work_->wake.notify_all();
  work_->thread.join();
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - work_->begin).count();
  for (const Work::Sum& sum : work_->sums) {
    GpuUse use;
    if (sum.samples > 0) {
      use.busy_s = sum.utilization / sum.samples * elapsed_s;
      use.elapsed_s = elapsed_s;
    }
    out.push_back(use);
  }
  return out;
}

}  // namespace sluice::lab

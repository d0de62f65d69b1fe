// See job.h.
#include "trainer/debug/job.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace sluice::train {
namespace {

// In the page that no allocation can have.
constexpr std::uint64_t kWildAddress = 0x40;
constexpr float kFactor = 0.5f;
// A job with a life works in stretches of at least this much device time, and pauses in between: a
// pause of microseconds after every kernel would be work for the host, not thought.
constexpr Nanos kStretchNs = 5 * kNanosPerMilli;
constexpr Nanos kStretchWallMax = 4 * kStretchNs;  // on a GPU that others keep busy

[[noreturn]] void host_crash() {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::abort();
}

}  // namespace

DebugJob::DebugJob(const DebugOptions& options, const DebugPlan& plan, Nanos begin_ns, JobLog& log)
    : options_(options),
      plan_(plan),
      begin_ns_(begin_ns),
      log_(log),
      random_(options.seed, 0x64656275),
      x_(static_cast<std::size_t>(options.elements)),
      y_(static_cast<std::size_t>(options.elements)),
      host_(static_cast<std::size_t>(options.elements)) {
  for (float& value : host_) value = static_cast<float>(random_.below(1024)) / 64.0f;
  stream_.upload(x_.at(), host_.data(), x_.bytes());
  stream_.zero(y_.at(), y_.size());
  stream_.synchronize();
}

const char* DebugJob::run(StopSignal& stop) {
  do {
    if (pause(stop)) return "stopped";
    round_run();
    if (rounds_ == 1) first_result();
  } while (!is_over());
  switch (plan_.outcome) {
    case DebugOutcome::kFail:
      device_fail();
    case DebugOutcome::kCrash:
      host_crash();
    case DebugOutcome::kKill:
      kill(getpid(), SIGKILL);
      break;
    case DebugOutcome::kOk:
    case DebugOutcome::kLoop:
      break;
  }
  return "ok";
}

bool DebugJob::is_over() const {
  if (plan_.outcome == DebugOutcome::kLoop) return false;
  if (plan_.life_ns > 0) return now_ns() - begin_ns_ >= plan_.life_ns;
  return rounds_ >= static_cast<std::uint64_t>(options_.kernels);
}

/// With a life: after each stretch of work for as long as the GPU's part of the life needs,
/// whatever the host took meanwhile; the first stretch needs none. True when asked to stop.
bool DebugJob::pause(StopSignal& stop) {
  if (plan_.life_ns == 0) {
    const double gap_ms = random_.exponential(options_.gap_ms);
    return stop.sleep_until(now_ns() + static_cast<Nanos>(gap_ms * 1e6));
  }
  Nanos until = begin_ns_ + static_cast<Nanos>(static_cast<double>(gpu_ns_) / plan_.busy);
  const bool ends = plan_.outcome != DebugOutcome::kLoop;
  if (ends) until = std::min(until, begin_ns_ + plan_.life_ns);
  idle_ns_ += std::max<Nanos>(until - now_ns(), 0);
  return stop.sleep_until(until);
}

/// y = (y + x) / 2. Multiples of 2^-6 halved at most 24 - 6 - 4 times stay exact, and rounding is
/// the same on host and device beyond: both sides do one addition and one exact halving.
void DebugJob::round_run() {
  ++rounds_;
  const Nanos before_ns = gpu_ns_;
  const Nanos wall_end_ns = now_ns() + kStretchWallMax;
  do {
    round_begin_.record(stream_);
    stream_.launch(kernels::array_add(options_.elements, x_.at(), y_.at()));
    stream_.launch(kernels::array_scale(options_.elements, kFactor, y_.at()));
    round_end_.record(stream_);
    expected_ = (expected_ + host_[0]) * kFactor;
    float got = 0;
    stream_.download(&got, y_.at(), sizeof got);
    stream_.synchronize();
    gpu_ns_ += round_end_.since(round_begin_);
    if (got != expected_) {
      throw Failure(text_format("wrong numbers: element 0 is %.9g, not %.9g",
                                static_cast<double>(got), static_cast<double>(expected_)));
    }
  } while (plan_.life_ns > 0 && rounds_ > 1 && gpu_ns_ - before_ns < kStretchNs &&
           now_ns() < wall_end_ns && !is_over());
}

void DebugJob::first_result() {
  const Nanos now = now_ns();
  log_.write(JsonLine("first_result", now).add("after_ns", now - begin_ns_));
  if (options_.quiet) return;
  std::printf("first result: %.6g\n", static_cast<double>(expected_));
  std::fflush(stdout);
}

void DebugJob::device_fail() {
  stream_.launch(kernels::word_store(kWildAddress, 1));
  stream_.synchronize();
  throw Failure("a store through a wild pointer went unnoticed");
}

}  // namespace sluice::train

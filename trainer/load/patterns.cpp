#include "trainer/load/patterns.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "trainer/load/gpu.h"
#include "trainer/load/meeting.h"

namespace sluice::train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;
using Microseconds = std::chrono::duration<double, std::micro>;

long long ns_of(Clock::duration time) { return nanoseconds(time).count(); }

/// Submits `one`, which is so many kernels, again and again, `depth` of them in flight.
template <class One>
void pipeline(LoadGpu& gpu, int depth, int kernels, const One& one) {
  std::vector<CUevent> ends;
  for (int i = 0; i < depth; ++i) ends.push_back(gpu.event_make());
  for (std::size_t round = 0; !load_is_over(); ++round) {
    const CUevent end = ends[round % ends.size()];
    if (round >= ends.size()) {
      SLUICE_DRIVER(cuEventSynchronize, end);
      gpu.done(kernels);
    }
    one();
    gpu.record(end);
  }
}

void sync(LoadGpu& gpu) {
  while (!load_is_over()) {
    gpu.launch();
    gpu.synchronize();
    gpu.done(1);
  }
}

void bursts(LoadGpu& gpu, const LoadOptions& options) {
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> pause(1.0 / std::max(options.pause_us, 1));
  while (!load_is_over()) {
    for (int i = 0; i < options.kernels; ++i) gpu.launch();
    gpu.synchronize();
    gpu.done(options.kernels);
    if (options.pause_us > 0) std::this_thread::sleep_for(Microseconds(pause(random)));
  }
}

/// Kernels of a block each in many streams, which a GPU runs side by side.
void streams(LoadGpu& gpu, int count) {
  std::vector<Lane> lanes;
  for (int i = 0; i < count; ++i) lanes.push_back(gpu.lane_make());
  for (std::size_t round = 0; !load_is_over(); ++round)
    for (Lane& lane : lanes) {
      const CUevent end = lane.ends[round % Lane::kInFlight];
      if (round >= Lane::kInFlight) {
        SLUICE_DRIVER(cuEventSynchronize, end);
        gpu.done(1);
      }
      gpu.launch_block(lane.stream);
      SLUICE_DRIVER(cuEventRecord, end, lane.stream);
    }
}

/// What many streams are given at once takes from the first launch to the last end.
void once(LoadGpu& gpu, const LoadOptions& options) {
  std::vector<Lane> lanes;
  for (int i = 0; i < options.streams; ++i) lanes.push_back(gpu.lane_make());
  const Clock::time_point begin = Clock::now();
  for (const Lane& lane : lanes)
    for (int i = 0; i < options.kernels; ++i) gpu.launch_block(lane.stream);
  SLUICE_DRIVER(cuCtxSynchronize, );
  std::printf("took %lld\n", ns_of(Clock::now() - begin));
}

/// Records the event that ends are measured from. Returns the host's time of it, as near as a few
/// tries come.
Clock::time_point base_record(LoadGpu& gpu, CUevent base) {
  constexpr int kTries = 200;
  constexpr auto kNear = std::chrono::microseconds(20);
  for (int i = 0;; ++i) {
    const Clock::time_point before = Clock::now();
    gpu.record(base);
    gpu.synchronize();
    const auto took = Clock::now() - before;
    if (took <= kNear || i == kTries) return before + took / 2;
  }
}

/// Requests at the times of a Poisson process. A request that comes while another is served waits
/// for it. Ends are the device's time of an event, so that how fast this host wakes is no part of
/// them.
void requests(LoadGpu& gpu, const LoadOptions& options) {
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> gap(1.0 / options.gap_us);
  const CUevent base = gpu.event_make();
  const CUevent end = gpu.event_make();
  const Clock::time_point base_at = base_record(gpu, base);
  Clock::time_point meant = Clock::now();
  while (!load_is_over()) {
    meant += nanoseconds(static_cast<long long>(gap(random) * 1000));
    std::this_thread::sleep_until(meant);
    for (int i = 0; i < options.kernels; ++i) gpu.launch();
    gpu.record(end);
    SLUICE_DRIVER(cuEventSynchronize, end);
    float ms = 0;
    SLUICE_DRIVER(cuEventElapsedTime, &ms, base, end);
    const auto ended_ns = static_cast<long long>(static_cast<double>(ms) * 1e6);
    std::printf("request %lld\n", ended_ns - ns_of(meant - base_at));
    gpu.done(options.kernels);
  }
}

/// A step ends when all ranks have ended their part of it.
void rank(LoadGpu& gpu, const LoadOptions& options) {
  LoadMeeting meeting(options.meeting, static_cast<std::uint32_t>(options.ranks));
  if (!meeting.wait(load_is_over)) return;
  Clock::time_point begin = Clock::now();
  while (!load_is_over()) {
    for (int i = 0; i < options.kernels; ++i) gpu.launch();
    gpu.synchronize();
    if (!meeting.wait(load_is_over)) return;
    const Clock::time_point end = Clock::now();
    std::printf("step %lld\n", ns_of(end - begin));
    gpu.done(options.kernels);
    begin = end;
  }
}

}  // namespace

bool load_is_over() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

void load_run(const LoadOptions& options) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string& pattern = options.pattern;
  if (pattern == "gang") return load_gang_run(options);
  LoadGpu gpu(options, 0);
  if (pattern == "calibrate") {
    std::printf("%.3f\n", gpu.rounds_per_us());
    return;
  }
  if (pattern == "once") return once(gpu, options);
  gpu.launch();
  gpu.synchronize();
  std::printf("ready\n");
  if (pattern == "loop") pipeline(gpu, options.depth, 1, [&] { gpu.launch(); });
  if (pattern == "sync") sync(gpu);
  if (pattern == "bursts") bursts(gpu, options);
  if (pattern == "streams") streams(gpu, options.streams);
  if (pattern == "requests") requests(gpu, options);
  if (pattern == "rank") rank(gpu, options);
  if (pattern == "graph") {
    const CUgraphExec graph = gpu.graph_make(options.kernels);
    pipeline(gpu, 2, options.kernels, [&] { gpu.graph_launch(graph); });
  }
  gpu.synchronize();
}

}  // namespace sluice::train

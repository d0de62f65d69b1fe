// What is in flight, in launches and in learned time, and how much may pass before the meter looks
// again (meter.h).
#include "interpose/captures.h"
#include "interpose/meter.h"
#include "interpose/process.h"

namespace sluice::interpose {

void busy_publish(int gpu) {
  uint64_t busy_ns = 0;
  for (int device = 0; device < process.device_count; ++device) {
    if (process.device_gpu[device] == gpu) busy_ns += load_relaxed(device_totals[device].busy_ns);
  }
  // Several threads do, in whatever order.
  uint64_t* word = &process.account(gpu).busy_ns.raw;
  uint64_t before_ns = load_relaxed(*word);
  while (before_ns < busy_ns && !__atomic_compare_exchange_n(word, &before_ns, busy_ns, false,
                                                             __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
}

uint64_t launches_in_flight(const ContextRecord& context) {
  uint64_t sum = 0;
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    sum += s->launches() - s->done.launches;
  }
  return sum;
}

void in_flight_add(const ContextRecord& context, const InFlight& before, InFlight* sum) {
  uint64_t most = 0;
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->fence_count == 0) continue;
    const uint64_t launches = s->launches() - s->done.launches;
    sum->launches += launches;
    const bool same = s == before.stream && s->done.launches == before.done;
    const bool found = sum->stream != nullptr && sum->stream == before.stream;
    if (!same && (found || launches <= most)) continue;
    most = launches;
    sum->stream = s;
    sum->done = s->done.launches;
  }
}

// What the stream was given since `since` takes, a kernel at least `kernel_ns_min`.
static double work_ns(const ContextRecord& context, const Work& now, const Work& since,
                      double kernel_ns_min) {
  const uint64_t launches = now.launches - since.launches;
  const uint64_t graphs = now.graphs - since.graphs;
  // A graph that is just being counted may be among the graphs already.
  const uint64_t kernels = launches > graphs ? launches - graphs : 0;
  double kernel_ns = context.mean_ns > 0 ? context.mean_ns : kUnmeasuredKernelNs;
  if (kernel_ns < kernel_ns_min) kernel_ns = kernel_ns_min;
  return static_cast<double>(kernels) * kernel_ns +
         static_cast<double>(now.graph_ns - since.graph_ns);
}

double time_in_flight_ns(const ContextRecord& context, const StreamRecord& stream) {
  return work_ns(context, stream.submitted(), stream.done, 0);
}

// Streams run side by side as far as they were seen to; each is in order.
double time_in_flight_ns(const ContextRecord& context, const StreamRecord* stream, double more_ns) {
  double sum = 0, longest = 0;
  unsigned streams = 0;
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->destroyed && s->fence_count == 0) continue;
    const double one = time_in_flight_ns(context, *s) + (s == stream ? more_ns : 0);
    if (one <= 0) continue;
    sum += one;
    ++streams;
    if (one > longest) longest = one;
  }
  if (streams < 2) return longest;
  const double together = sum / context.overlap.of(streams);
  return together > longest ? together : longest;
}

int32_t budget_share(double launch_ns) {
  // More than the largest budget is as good as that.
  const double most = 2 * kFenceSpacingNs;
  return static_cast<int32_t>(launch_ns < kLaunchNsMin ? kLaunchNsMin
                              : launch_ns > most       ? most
                                                       : launch_ns);
}

// The part of the window that is left for this stream beside the others that have work.
static double window_share_ns(const ContextRecord& context, const StreamRecord& stream,
                              uint64_t window_ns) {
  const double room = static_cast<double>(window_ns) - time_in_flight_ns(context, nullptr, 0);
  unsigned streams = 1;
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s != &stream && !s->destroyed && s->launches() != s->done.launches) ++streams;
  }
  if (room <= 0 || streams == 1) return room > 0 ? room : 0;
  return room * context.overlap.of(streams) / streams;
}

int32_t launch_budget(ContextRecord& context, StreamRecord& stream, const Look& look) {
  const uint64_t launches = stream.launches();
  const uint64_t since = launches - stream.looked_launches;
  const bool burst = since > 0 && (look.now_ns - stream.looked_ns) / since < kBurstGapNs;
  stream.looked_ns = look.now_ns;
  stream.looked_launches = launches;

  double budget = burst && look.launch_ns > 0 ? kFenceSpacingNs : 0;
  if (look.window_ns > 0) {
    const double room = window_share_ns(context, stream, look.window_ns);
    if (room < budget) budget = room;
  }
  // Whose thread may not come back to fence what it leaves: an event of the context must do.
  if (stream.per_thread && budget > 0 &&
      (captures_of(context.context) != 0 || !tails_can_be_fenced(context))) {
    budget = 0;
  }
  if (look.fence_now || !burst || budget < look.launch_ns ||
      work_ns(context, stream.submitted(), stream.fenced, kLaunchNsMin) >= budget)
    (void)fence_record(context, stream, false);
  return static_cast<int32_t>(budget);
}

}  // namespace sluice::interpose

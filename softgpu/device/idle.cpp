// The unused time of an engine. See idle.h.
#include "softgpu/device/idle.h"

#include <algorithm>

namespace softgpu::device {
namespace {

void span_remove(Idle& idle, std::uint32_t at) {
  std::copy(idle.spans + at + 1, idle.spans + idle.count, idle.spans + at);
  --idle.count;
}

/// Before the span at `at`, or at the end.
void span_insert(Idle& idle, std::uint32_t at, const Span& span) {
  if (idle.count == kIdleSpans) {
    if (at == 0) return;  // it would be the oldest
    span_remove(idle, 0);
    --at;
  }
  std::copy_backward(idle.spans + at, idle.spans + idle.count, idle.spans + idle.count + 1);
  idle.spans[at] = span;
  ++idle.count;
}

}  // namespace

void idle_give(Idle& idle, const Span& span) {
  if (span.to_ns - span.from_ns < kEpsilonNs) return;
  std::uint32_t at = idle.count;
  while (at > 0 && idle.spans[at - 1].from_ns > span.from_ns) --at;
  const bool joins_last = at > 0 && idle.spans[at - 1].to_ns >= span.from_ns - kEpsilonNs;
  const bool joins_next = at < idle.count && idle.spans[at].from_ns <= span.to_ns + kEpsilonNs;
  if (!joins_last && !joins_next) return span_insert(idle, at, span);
  if (!joins_last) {
    idle.spans[at].from_ns = span.from_ns;
    return;
  }
  idle.spans[at - 1].to_ns = joins_next ? idle.spans[at].to_ns : span.to_ns;
  if (joins_next) span_remove(idle, at);
}

void idle_note(Idle& idle, double now_ns) {
  if (now_ns <= idle.until_ns) return;
  while (idle.count > 0 && idle.spans[0].to_ns < now_ns - kIdleKeptNs) span_remove(idle, 0);
  idle_give(idle, {std::max(idle.until_ns, now_ns - kIdleKeptNs), now_ns});
  idle.until_ns = now_ns;
}

void idle_end(Idle& idle, double now_ns, double step_ns) {
  idle_note(idle, now_ns);
  idle.until_ns = std::max(idle.until_ns, now_ns + step_ns);
}

double idle_take(Idle& idle, double from_ns, double need_ns, double& end_ns) {
  double taken = 0;
  end_ns = from_ns;
  for (std::uint32_t i = 0; i < idle.count && need_ns - taken > kEpsilonNs;) {
    const Span span = idle.spans[i];
    const double from = std::max(span.from_ns, from_ns);
    const double to = std::min(span.to_ns, from + need_ns - taken);
    if (to - from < kEpsilonNs) {
      ++i;
      continue;
    }
    taken += to - from;
    end_ns = to;
    span_remove(idle, i);
    for (const Span& rest : {Span{span.from_ns, from}, Span{to, span.to_ns}}) {
      if (rest.to_ns - rest.from_ns < kEpsilonNs) continue;
      span_insert(idle, i, rest);
      i = std::min(i + 1, idle.count);
    }
  }
  return taken;
}

void idle_forget(Idle& idle, double now_ns) {
  idle.count = 0;
  idle.until_ns = now_ns;
}

}  // namespace softgpu::device

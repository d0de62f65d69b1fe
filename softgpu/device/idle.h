// Device time that an engine did not use, kept for operations that the host comes to late: they get
// the time that they would have had if the host had been in time. Plain numbers of the segment.
#pragma once

#include <cstdint>

namespace softgpu::device {

/// How long unused time is kept. A host that is later than this shows in the times of events.
inline constexpr double kIdleKeptNs = 100e6;
inline constexpr std::uint32_t kIdleSpans = 16;
/// A shorter time is none: rounding of doubles at 1e15 ns.
inline constexpr double kEpsilonNs = 0.5;

struct Span {
  double from_ns = 0, to_ns = 0;
};

/// The idle time of one engine before `until_ns`: spans that do not touch, in order. Of more than
/// kIdleSpans the oldest is forgotten.
struct Idle {
  double until_ns = 0;
  std::uint32_t count = 0;
  Span spans[kIdleSpans];
};

/// Notes that nothing used the engine from `until_ns` to `now_ns`.
void idle_note(Idle& idle, double now_ns);
/// Notes that the engine is in use for `step_ns` from `now_ns` on, and was in no use before.
void idle_end(Idle& idle, double now_ns, double step_ns);
/// Adds a span that was in use; an empty one changes nothing.
void idle_give(Idle& idle, const Span& span);
/// Takes the first `need_ns` after `from_ns` and returns how much there was. `end_ns` is the end of
/// what was taken.
double idle_take(Idle& idle, double from_ns, double need_ns, double& end_ns);
/// Forgets everything before `now_ns`.
void idle_forget(Idle& idle, double now_ns);

}  // namespace softgpu::device

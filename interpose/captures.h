// The captures in progress in this process: how many, by which stream each was begun, and what the
// shim may do meanwhile. A call that a capture forbids does not only fail, it breaks the program's
// capture, so: a capturing stream is never touched, and the shim's own calls that are unsafe in a
// capture (driver-entrypoints.tsv) are made in the RELAXED mode: questions to events, and what
// gives memory back. Knows the driver's table, nothing of fences or leases.
#pragma once

#include "interpose/threads.h"

namespace sluice::interpose {

/// Captures in progress. While it is not zero, streams are asked before they are touched.
extern uint32_t captures_active;

/// Whether the stream takes part in a capture, or cannot be used because of one.
bool stream_captures(CUstream stream);  // asks the driver
inline bool stream_is_capturing(CUstream stream) {
  return SLUICE_UNLIKELY(load_acquire(captures_active) != 0) && stream_captures(stream);
}
/// Whether it takes part in one, so that work for it becomes nodes, as the driver says. False: it
/// does not say, because the stream is another context's than the thread's, or cannot be used.
bool stream_capture_status(CUstream stream, bool* captured);

/// Just before the driver is asked to begin a capture; nothing of the meter may be on its way in
/// the stream's context (its lock is held). False when there is no memory to remember it: it must
/// not begin, for its end would not be noticed.
[[nodiscard]] bool capture_begins(CUcontext context, CUstream stream);
/// It said no, or the capture has ended. No effect for a stream that began none.
void capture_ended(CUstream stream);
/// Whether the stream began a capture that has not ended.
bool capture_is_origin(CUstream stream);
/// Returns how many captures streams of the context may take part in.
uint32_t captures_of(CUcontext context);
/// A stream has been drawn into a capture by an event; it may be another context's than the one
/// under which the capture began.
void captures_spread();
/// The context has ended, and with it all captures that began under it.
void captures_forget(CUcontext context);
void captures_reset_after_fork();

/// Lets this thread make calls that are unsafe while any thread captures. With a context's lock
/// held it is enough to look whether one does (capture_begin in hooks_stream.cpp takes them all);
/// without, a capture may begin after the look.
class RelaxedScope {
 public:
  enum class When : bool { kCapturing, kAlways };
  explicit RelaxedScope(When when = When::kCapturing);
  ~RelaxedScope();
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
  bool changed_;
  CUstreamCaptureMode mode_;
};

/// Makes a call that undoes what the program asked for: a driver takes loads and allocations of
/// physical memory while a stream is captured, but not their opposites.
template <class Call>
auto relaxed_call(Call call) {
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  return call();
}

}  // namespace sluice::interpose

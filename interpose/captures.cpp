// See captures.h.
#include "interpose/captures.h"

#include "interpose/resolve.h"
#include "interpose/say.h"
#include "interpose/slabs.h"

namespace sluice::interpose {

uint32_t captures_active;

namespace {

// A capture has streams of other contexts than its own; until there is none any more.
uint32_t spread;

struct Capture {
  CUcontext context;  // nullptr = free
  CUstream stream;
  const ThreadRecord* thread;  // of a per-thread default stream
};
constinit Slabs<Capture, 64> captures;
BriefLock captures_lock;

// The stream that the calling thread means by a handle: each context has a per-thread stream for
// every thread.
struct Meant {
  explicit Meant(CUstream handle) : stream(handle) {
    if (handle == CU_STREAM_PER_THREAD) (void)driver.cuCtxGetCurrent(&context);
  }
  bool began(const Capture& capture) const {
    return capture.context != nullptr && capture.stream == stream &&
           (stream != CU_STREAM_PER_THREAD ||
            (capture.thread == this_thread && capture.context == context));
  }
  CUstream stream;
  CUcontext context = nullptr;
};

}  // namespace

// The legacy stream answers with an error while a blocking stream captures.
bool stream_capture_status(CUstream stream, bool* captured) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(stream, &status);
  *captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
  return result == CUDA_SUCCESS;
}

bool stream_captures(CUstream stream) {
  bool captured;
  return !stream_capture_status(stream, &captured) || captured;
}

// With the lock held. nullptr = no memory.
static Capture* capture_place() {
  for (uint32_t i = 0; i < captures.count(); ++i) {
    if (captures[i].context == nullptr) return &captures[i];
  }
  Capture* made = captures.next();
  if (made != nullptr) captures.publish();
  return made;
}

bool capture_begins(CUcontext context, CUstream stream) {
  {
    const LockScope scope(captures_lock);
    if (Capture* place = capture_place(); place != nullptr) {
      if (load_acquire(captures_active) == 0) spread = 0;
      *place = Capture{context, stream, this_thread};
      __atomic_add_fetch(&captures_active, 1, __ATOMIC_SEQ_CST);
      return true;
    }
  }
  unrecorded_say("a capture's record");
  return false;
}

void capture_ended(CUstream stream) {
  const Meant meant(stream);
  const LockScope scope(captures_lock);
  for (uint32_t i = 0; i < captures.count(); ++i) {
    Capture& capture = captures[i];
    if (!meant.began(capture)) continue;
    capture.context = nullptr;
    __atomic_sub_fetch(&captures_active, 1, __ATOMIC_SEQ_CST);
    return;
  }
}

bool capture_is_origin(CUstream stream) {
  if (load_acquire(captures_active) == 0) return false;
  const Meant meant(stream);
  const LockScope scope(captures_lock);
  for (uint32_t i = 0; i < captures.count(); ++i) {
    if (meant.began(captures[i])) return true;
  }
  return false;
}

uint32_t captures_of(CUcontext context) {
  if (load_acquire(captures_active) == 0) return 0;
  const LockScope scope(captures_lock);
  if (spread != 0) return captures_active;
  uint32_t count = 0;
  for (uint32_t i = 0; i < captures.count(); ++i) count += captures[i].context == context ? 1 : 0;
  return count;
}

void captures_spread() {
  const LockScope scope(captures_lock);
  spread = 1;
}

void captures_forget(CUcontext context) {
  if (load_acquire(captures_active) == 0) return;
  const LockScope scope(captures_lock);
  for (uint32_t i = 0; i < captures.count(); ++i) {
    Capture& capture = captures[i];
    if (capture.context != context) continue;
    capture.context = nullptr;
    __atomic_sub_fetch(&captures_active, 1, __ATOMIC_SEQ_CST);
  }
}

void captures_reset_after_fork() {
  captures_lock.reset_after_fork();
  captures.clear();
  spread = 0;
  store_release(captures_active, 0u);
}

RelaxedScope::RelaxedScope(When when)
    : changed_(when == When::kAlways || load_acquire(captures_active) != 0),
      mode_(CU_STREAM_CAPTURE_MODE_RELAXED) {
  if (SLUICE_UNLIKELY(changed_)) {
    changed_ = driver.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
}

RelaxedScope::~RelaxedScope() {
  if (SLUICE_UNLIKELY(changed_)) driver.cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace sluice::interpose

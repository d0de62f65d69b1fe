// Where a stream is. A launch, a capture or a wait may name a stream of any context, whichever is
// current to the calling thread; what is charged, which lease is asked and under which context an
// event can be made follows the stream. The special handles mean a stream of the current context.
#pragma once

#include "interpose/meter.h"
#include "interpose/process.h"

namespace sluice::interpose {

struct StreamPlace {
  ContextRecord* context;  // nullptr = there was no memory for a record
  int gpu;                 // -1 = none of the tenant's
  bool is_current;         // the context is the calling thread's
};

/// The context of the stream; nullptr when it is a special one and none is current.
CUcontext stream_context(CUstream stream);
/// The same of a stream that has a handle, by any context that can be used: the calling thread may
/// have none, or one that has faulted or ended. nullptr: nobody knows.
CUcontext stream_context_anywhere(CUstream stream);

inline bool stream_is_special(CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD);
}

bool named_stream_place(ThreadRecord& thread, CUstream stream, StreamPlace* place);

/// The same with its record. False when there is none. Made for the thread's own driver calls (its
/// depth is raised); takes the current context's lock.
inline bool stream_place(ThreadRecord& thread, CUstream stream, StreamPlace* place) {
  if (!stream_is_special(stream)) return named_stream_place(thread, stream, place);
  if (!thread_context(&thread)) return false;
  *place = {thread.context_record, thread.gpu, true};
  return true;
}

/// Makes a context current for its scope, if it is not.
class CurrentScope {
 public:
  explicit CurrentScope(CUcontext context)
      : result_(driver.cuCtxPushCurrent_v2(context)), pushed_(result_ == CUDA_SUCCESS) {}
  // Each launch that looks passes two of them: both are a compare where the context is current.
  SLUICE_ALWAYS_INLINE explicit CurrentScope(const StreamPlace& place)
      : result_(place.is_current ? CUDA_SUCCESS
                                 : driver.cuCtxPushCurrent_v2(place.context->context)),
        pushed_(!place.is_current && result_ == CUDA_SUCCESS) {}
  SLUICE_ALWAYS_INLINE ~CurrentScope() {
    if (!pushed_) return;
    CUcontext popped = nullptr;
    driver.cuCtxPopCurrent_v2(&popped);
  }
  CurrentScope(const CurrentScope&) = delete;
  CurrentScope& operator=(const CurrentScope&) = delete;
  CUresult result() const { return result_; }

 private:
  CUresult result_;
  bool pushed_;
};

}  // namespace sluice::interpose

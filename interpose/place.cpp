// See place.h.
#include "interpose/place.h"

namespace sluice::interpose {
namespace {

// A stream that ends is struck from every context's list, so one that is there is the context's.
bool is_known_in(ContextRecord& context, CUstream stream) {
  const LockScope scope(context.lock);
  for (const StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream == stream && !s->destroyed) return true;
  }
  return false;
}

ContextRecord* known_context(CUcontext context) {
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord* record = context_at(i);
    if (record->is_usable() && record->context == context) return record;
  }
  return nullptr;
}

// In a context that is not the thread's.
bool place_elsewhere(CUcontext context, StreamPlace* place) {
  CUdevice device = -1;
  if (ContextRecord* known = known_context(context); known != nullptr) {
    device = known->device;
  } else {
    const CurrentScope current(context);
    if (current.result() != CUDA_SUCCESS || driver.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        device < 0 || device >= kDevicesMax) {
      return false;
    }
  }
  place->gpu = device_gpu(device);
  place->context = place->gpu >= 0 ? context_record(context, device) : nullptr;
  place->is_current = false;
  return true;
}

}  // namespace

CUcontext stream_context(CUstream stream) {
  CUcontext context = nullptr;
  if (stream_is_special(stream) || driver.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
      context == nullptr) {
    if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS) return nullptr;
  }
  return context;
}

CUcontext stream_context_anywhere(CUstream stream) {
  CUcontext context = nullptr;
  if (driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) return context;
  for (int i = 0, n = context_count(); i < n; ++i) {
    const ContextRecord& record = *context_at(i);
    if (!record.is_usable()) continue;
    const CurrentScope current(record.context);
    if (current.result() == CUDA_SUCCESS && driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS)
      return context;
  }
  return nullptr;
}

bool named_stream_place(ThreadRecord& thread, CUstream stream, StreamPlace* place) {
  const bool current = thread_context(&thread);
  *place = {current ? thread.context_record : nullptr, current ? thread.gpu : -1, true};
  if (place->context != nullptr && is_known_in(*place->context, stream)) return true;
  const CUcontext context = stream_context(stream);
  if (context == nullptr || (current && context == thread.context)) return current;
  return place_elsewhere(context, place);
}

}  // namespace sluice::interpose

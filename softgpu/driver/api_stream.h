// What the entry points of streams, events, host functions and memory operations share.
#pragma once

#include "softgpu/driver/capture.h"
#include "softgpu/driver/event.h"

namespace softgpu::driver {

/// Opens an entry point that takes a stream.
CUresult stream_enter(CUstream handle, ContextRef& context, StreamRef& stream,
                      const char* name = __builtin_FUNCTION());

inline EventRef event_find(CUevent handle) { return Registry<Event>::all().find(handle); }

}  // namespace softgpu::driver

// What a stream does besides launches, and what it waits for by way of the legacy stream: there a
// stretch ends, so that it is not charged (meter.h).
#include "interpose/meter.h"

namespace sluice::interpose {

// What was launched into the stream ends here; the next launch begins an interval of its own.
static void interrupt(ContextRecord& context, StreamRecord& stream) {
  if (stream.destroyed || !stream.is_reachable()) return;
  if (stream.launches() == stream.done.launches && stream.fence_count == 0) return;
  if (unseen_end(context, stream)) return;
  if (stream.launches() != stream.fenced.launches || stream.awaits_context())
    (void)fence_record(context, stream, false);
  if (stream.interrupted) return;
  stream.interrupted = true;
  stream_changed(stream);
}

// The question invalidates the capture of a stream that is captured. Nothing runs in that stream
// meanwhile, so nothing waits for it either.
StreamRecord::Blocks stream_blocks(CUstream stream) {
  using Blocks = StreamRecord::Blocks;
  if (stream == CU_STREAM_PER_THREAD) return Blocks::kYes;
  if (stream_is_capturing(stream)) return Blocks::kUnknown;
  unsigned flags = 0;
  const bool blocks = driver.cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS &&
                      (flags & CU_STREAM_NON_BLOCKING) == 0;
  return blocks ? Blocks::kYes : Blocks::kNo;
}

static bool blocks(StreamRecord& stream) {
  using Blocks = StreamRecord::Blocks;
  if (stream.blocks == Blocks::kUnknown) stream.blocks = stream_blocks(stream.stream);
  return stream.blocks == Blocks::kYes;
}

void stream_interrupt(ContextRecord& context, CUstream stream) {
  const bool all = stream == nullptr || stream == CU_STREAM_LEGACY;
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->stream == stream || all) interrupt(context, *s);
  }
}

void legacy_interrupt(ContextRecord& context) {
  context.legacy_waits = true;
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (s->is_legacy()) interrupt(context, *s);
  }
}

void blocking_interrupt(ContextRecord& context) {
  context.legacy_waits = false;
  for (StreamRecord* s = context.streams; s != nullptr; s = s->next) {
    if (!s->is_legacy() && !s->destroyed && blocks(*s)) interrupt(context, *s);
  }
}

}  // namespace sluice::interpose

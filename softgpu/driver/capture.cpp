// See capture.h. The rules are those of the programming guide (CUDA graphs, stream capture:
// cross-stream dependencies, prohibited and unhandled operations, invalidation) and of cuda.h
// (cuThreadExchangeStreamCaptureMode, cuStreamEndCapture, the errors 900 to 908).
#include "softgpu/driver/capture.h"

#include <algorithm>

#include "softgpu/driver/ipc_event.h"

namespace softgpu::driver {
namespace {

struct Captures {
  std::mutex mutex;
  std::vector<CaptureRef> all;
  std::atomic<std::size_t> count{0};
};

Captures& captures() {
  static auto* captures = new Captures;  // never destroyed: threads may still run at exit
  return *captures;
}

void nodes_join(std::vector<Node*>& ends, const std::vector<Node*>& more) {
  for (Node* node : more)
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
}

Node* node_append(Stream& stream, CUgraphNodeType type, Command command) {
  auto& ends = stream.capture->ends[&stream];
  Node* node = stream.capture->graph->add(type, std::move(command), ends);
  ends = {node};
  node_captured(*node, stream);
  return node;
}

/// A stream in hand of a capture that has gone wrong answers nothing else.
CUresult captured_refuse(Capture& capture, CUresult error) {
  if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  capture.invalid = true;
  return error;
}

/// A call outside all streams is forbidden to a thread that captures, and to every thread while
/// another captures globally, unless the thread has said that it knows what it does.
CUresult unsafe_locked() {
  const CUstreamCaptureMode mode = thread_state().capture_mode;
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool refused = false;
  for (const CaptureRef& capture : captures().all) {
    const bool mine = capture->thread == capture_thread();
    const bool forbids = mine ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                              : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                    mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    capture->invalid = true;
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

bool never_recorded(const Event& event) {
  return !event.captured && event.op() == nullptr &&
         (event.shared == nullptr || !event.shared->recorded_elsewhere());
}

/// cuStreamWaitEvent on a mark of `capture`, which has not ended.
CUresult wait_joins(Stream& stream, const Event& event, const CaptureRef& capture) {
  if (stream.capture != nullptr && stream.capture != capture) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture->invalid = stream.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.kind == Stream::kLegacy) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  stream.capture = capture;
  nodes_join(capture->ends[&stream], event.captured_after);
  return CUDA_SUCCESS;
}

}  // namespace

std::mutex& capture_mutex() { return captures().mutex; }

std::uint64_t capture_thread() {
  static std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t number = next++;
  return number;
}

bool capture_any() { return captures().count.load(std::memory_order_acquire) != 0; }

void capture_begin_locked(Stream& stream, CaptureRef capture) {
  captures().all.push_back(capture);
  captures().count = captures().all.size();
  stream.capture = std::move(capture);
}

void capture_end_locked(const CaptureRef& capture) {
  for (const auto& [stream, ends] : capture->ends)
    if (stream->capture == capture) stream->capture = nullptr;
  capture->ends.clear();
  std::erase(captures().all, capture);
  captures().count = captures().all.size();
}

bool capture_legacy_locked(const Context& context, bool invalidate) {
  bool conflict = false;
  for (const CaptureRef& capture : captures().all) {
    for (const auto& [stream, ends] : capture->ends) {
      if (&stream->owner() != &context || !stream->blocking()) continue;
      if (invalidate) capture->invalid = true;
      conflict = true;
    }
  }
  return conflict;
}

CUresult capture_enter_any(const char* name) {
  if (!capture_any()) return CUDA_SUCCESS;
  const CaptureEntry* entry = capture_entry(name);
  if (entry == nullptr || entry->rule != CaptureRule::kUnsafe) return CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  return unsafe_locked();
}

CUresult capture_enter(Context& context, const char* name) {
  if (!capture_any()) return CUDA_SUCCESS;
  const CaptureEntry* entry = capture_entry(name);
  if (entry == nullptr || entry->rule != CaptureRule::kLegacyWait) return CUDA_SUCCESS;
  StreamRef stream;
  const CUresult result = stream_find(nullptr, context.shared_from_this(), stream);
  return result == CUDA_SUCCESS ? capture_stream_check(*stream, name) : result;
}

CUresult capture_stream_check(Stream& stream, const char* name) {
  if (!capture_any()) return CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  const CaptureEntry* entry = capture_entry(name);
  const CaptureRule rule = entry != nullptr ? entry->rule : CaptureRule::kStreamWait;
  if (stream.capture != nullptr) {
    return rule == CaptureRule::kStreamNone && !stream.capture->invalid
               ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
               : captured_refuse(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (stream.kind == Stream::kLegacy && capture_legacy_locked(stream.owner(), true))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const bool is_work = rule == CaptureRule::kStreamUse || rule == CaptureRule::kStreamNone;
  return is_work ? CUDA_SUCCESS : unsafe_locked();
}

CUresult capture_context_check(Context& context) {
  if (!capture_any()) return CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  bool refused = false;
  for (const CaptureRef& capture : captures().all) {
    for (const auto& [stream, ends] : capture->ends) {
      if (&stream->owner() != &context) continue;
      capture->invalid = true;
      refused = true;
    }
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_event_check(Event& event) {
  if (!event.captured && !capture_any()) return CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  if (event.captured) {
    if (const CaptureRef capture = event.capture.lock()) capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return unsafe_locked();
}

CUresult capture_event_use(Event& event) {
  if (!event.captured) return CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  if (!event.captured) return CUDA_SUCCESS;
  if (const CaptureRef capture = event.capture.lock()) capture->invalid = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult capture_order_check(Stream& stream) {
  if (!capture_any()) return CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  return stream.kind == Stream::kLegacy && capture_legacy_locked(stream.owner(), true)
             ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
             : CUDA_SUCCESS;
}

bool capture_has(const Stream& stream) {
  if (!capture_any()) return false;
  const std::lock_guard lock(capture_mutex());
  return stream.capture != nullptr;
}

bool capture_builds(const Graph& graph) {
  if (!capture_any()) return false;
  const std::lock_guard lock(capture_mutex());
  const auto& all = captures().all;
  return std::any_of(all.begin(), all.end(),
                     [&](const CaptureRef& capture) { return capture->graph.get() == &graph; });
}

CUresult capture_node(Stream& stream, Command& command, Node*& node) {
  node = nullptr;
  if (!capture_any()) return CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  if (stream.capture != nullptr) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const CUgraphNodeType type = node_type(command);
    node = node_append(stream, type, std::move(command));
    return CUDA_SUCCESS;
  }
  return stream.kind == Stream::kLegacy && capture_legacy_locked(stream.owner(), true)
             ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
             : CUDA_SUCCESS;
}

CUresult capture_command(Stream& stream, Command& command, bool& captured) {
  Node* node = nullptr;
  const CUresult result = capture_node(stream, command, node);
  captured = node != nullptr;
  return result;
}

CUresult capture_record(Stream& stream, const EventRef& event, bool external, bool& captured) {
  captured = false;
  if (!capture_any()) return external ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  const std::lock_guard lock(capture_mutex());
  captured = stream.capture != nullptr;
  if (!captured) return external ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (external) {
    node_append(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, RecordCommand{event});
    return CUDA_SUCCESS;
  }
  event->capture = stream.capture;
  event->captured_after = stream.capture->ends[&stream];
  event->captured = true;
  return CUDA_SUCCESS;
}

CUresult capture_wait(Stream& stream, const EventRef& event, bool external, bool& captured) {
  const std::lock_guard lock(capture_mutex());
  captured = stream.capture != nullptr;
  if (captured && stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (external) {
    if (!captured) return CUDA_ERROR_INVALID_VALUE;
    node_append(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, WaitCommand{event});
    return CUDA_SUCCESS;
  }
  const CaptureRef capture = event->captured ? event->capture.lock() : nullptr;
  if (capture != nullptr) {
    captured = true;
    return wait_joins(stream, *event, capture);
  }
  if (captured) {
    // What the event marks is not of this capture. One that was never recorded marks nothing.
    return never_recorded(*event)
               ? CUDA_SUCCESS
               : captured_refuse(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  return stream.kind == Stream::kLegacy && capture_legacy_locked(stream.owner(), true)
             ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
             : CUDA_SUCCESS;
}

void capture_forget(Event& event) {
  const std::lock_guard lock(capture_mutex());
  event.capture.reset();
  event.captured_after.clear();
  event.captured = false;
}

void capture_leave(Stream& stream) {
  const std::lock_guard lock(capture_mutex());
  const CaptureRef capture = stream.capture;
  if (capture == nullptr) return;
  stream.capture = nullptr;
  if (capture->origin != &stream) {
    nodes_join(capture->left, capture->ends[&stream]);
    capture->ends.erase(&stream);
    return;
  }
  if (!capture->borrowed) Registry<Graph>::all().take(capture->graph.get());
  capture_end_locked(capture);
}

}  // namespace softgpu::driver

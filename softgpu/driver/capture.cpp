// See capture.h.
#include "softgpu/driver/capture.h"

#include <algorithm>

namespace softgpu::driver {

std::mutex& capture_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

Node* capture_add(Stream& stream, CUgraphNodeType type, Command command) {
  auto& ends = stream.capture->ends[&stream];
  Node* node = stream.capture->graph->add(type, std::move(command), ends);
  ends = {node};
  return node;
}

namespace {

/// The captures in progress, of all threads.
std::vector<std::shared_ptr<Capture>> captures_locked() {
  std::vector<std::shared_ptr<Capture>> result;
  for (const StreamRef& stream : Registry<Stream>::all().list()) {
    if (stream->capture == nullptr) continue;
    if (std::find(result.begin(), result.end(), stream->capture) == result.end())
      result.push_back(stream->capture);
  }
  return result;
}

/// Work in the legacy stream would have to wait for the captured work of a blocking stream: it has
/// no place in time.
bool legacy_conflicts_locked(const Context& context) {
  bool conflict = false;
  for (const auto& capture : captures_locked()) {
    for (const auto& [stream, ends] : capture->ends) {
      if (&stream->owner() != &context || !stream->blocking()) continue;
      capture->invalid = true;
      conflict = true;
    }
  }
  return conflict;
}

}  // namespace

CUresult capture_command(Stream& stream, Command& command, bool& captured) {
  const std::lock_guard lock(capture_mutex());
  captured = stream.capture != nullptr;
  if (captured) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const CUgraphNodeType type = node_type(command);
    capture_add(stream, type, std::move(command));
    return CUDA_SUCCESS;
  }
  return stream.kind == Stream::kLegacy && legacy_conflicts_locked(stream.owner())
             ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
             : CUDA_SUCCESS;
}

CUresult capture_refuses(const ContextRef& context) {
  const std::lock_guard lock(capture_mutex());
  const auto captures = captures_locked();
  if (captures.empty()) return CUDA_SUCCESS;
  if (context != nullptr) {  // waiting for a context waits for its capturing streams
    bool refused = false;
    for (const auto& capture : captures) {
      for (const auto& [stream, ends] : capture->ends) {
        if (&stream->owner() != context.get()) continue;
        capture->invalid = true;
        refused = true;
      }
    }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  }
  // An unsafe call: forbidden to a thread that captures, and to every thread while someone captures
  // globally, unless the thread has said that it knows what it does.
  const Thread& thread = thread_state();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool refused = false;
  for (const auto& capture : captures) {
    const bool mine = capture->thread == &thread && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !global) continue;
    capture->invalid = true;
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

}  // namespace softgpu::driver

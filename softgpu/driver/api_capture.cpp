// Entry points: stream capture.
#include <algorithm>
#include <set>

#include "softgpu/driver/capture.h"

using namespace softgpu::driver;

namespace {

CUresult find(CUstream handle, StreamRef& stream, const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  return result == CUDA_SUCCESS ? stream_find(handle, context, stream) : result;
}

CUresult begin(CUstream handle, CUstreamCaptureMode mode, GraphRef graph, std::vector<Node*> after,
               const char* name) {
  StreamRef stream;
  const CUresult result = find(handle, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->kind == Stream::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard lock(capture_mutex());
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  static std::uint64_t next_id = 1;
  auto capture = std::make_shared<Capture>();
  if (graph != nullptr) capture->graph = std::move(graph);
  capture->mode = mode;
  capture->origin = stream.get();
  capture->thread = &thread_state();
  capture->id = next_id++;
  capture->ends[stream.get()] = std::move(after);
  stream->capture = std::move(capture);
  return CUDA_SUCCESS;
}

/// Whether everything that other streams captured has been joined into the origin.
bool joined(const Capture& capture) {
  std::set<const Node*> reached;
  std::vector<const Node*> open(capture.ends.at(capture.origin).begin(),
                                capture.ends.at(capture.origin).end());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->after.begin(), node->after.end());
  }
  for (const auto& [stream, ends] : capture.ends)
    for (const Node* node : ends)
      if (!reached.contains(node)) return false;
  return true;
}

CUresult info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** after, std::size_t* count, const char* name) {
  StreamRef stream;
  const CUresult result = find(handle, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(capture_mutex());
  const auto& capture = stream->capture;
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = capture->id;
  if (graph != nullptr) {
    if (Registry<Graph>::all().find(capture->graph.get()) == nullptr)
      Registry<Graph>::all().add(capture->graph);
    *graph = capture->graph->handle();
  }
  const auto& ends = capture->ends[stream.get()];
  static_assert(sizeof(CUgraphNode) == sizeof(Node*));
  if (after != nullptr) *after = reinterpret_cast<const CUgraphNode*>(ends.data());
  if (count != nullptr) *count = ends.size();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, {}, __func__);
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, mode, nullptr, {}, __func__);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph handle, const CUgraphNode* after,
                                     const CUgraphEdgeData*, std::size_t count,
                                     CUstreamCaptureMode mode) {
  const GraphRef graph = Registry<Graph>::all().find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(reinterpret_cast<Node*>(after[i]));
  return begin(stream, mode, graph, std::move(nodes), __func__);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  StreamRef stream;
  const CUresult result = find(handle, stream);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  const std::lock_guard lock(capture_mutex());
  const auto capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_state())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  for (const StreamRef& other : Registry<Stream>::all().list())
    if (other->capture == capture) other->capture = nullptr;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined(*capture)) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  Registry<Graph>::all().add(capture->graph);
  *out = capture->graph->handle();
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  StreamRef stream;
  const CUresult result = find(handle, stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->kind == Stream::kLegacy) {
    const std::lock_guard lock(capture_mutex());
    for (const StreamRef& other : Registry<Stream>::all().list())
      if (other->capture != nullptr && other->blocking() && &other->owner() == &stream->owner())
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;  // a question does not spoil the capture
  }
  return info(handle, status, nullptr, nullptr, nullptr, nullptr, __func__);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return info(stream, status, id, nullptr, nullptr, nullptr, __func__);
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after, std::size_t* count) {
  return info(stream, status, id, graph, after, count, __func__);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after,
                                   const CUgraphEdgeData** edges, std::size_t* count) {
  if (edges != nullptr) *edges = nullptr;  // all edges are plain
  return info(stream, status, id, graph, after, count, __func__);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* nodes,
                                              const CUgraphEdgeData*, std::size_t count,
                                              unsigned int flags) {
  StreamRef stream;
  const CUresult result = find(handle, stream);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(capture_mutex());
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto& ends = stream->capture->ends[stream.get()];
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) ends.clear();
  for (std::size_t i = 0; i < count; ++i) {
    auto* node = reinterpret_cast<Node*>(nodes[i]);
    if (!stream->capture->graph->owns(node)) return CUDA_ERROR_INVALID_VALUE;
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
  }
  return CUDA_SUCCESS;
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, std::size_t count,
                                           unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(stream, nodes, nullptr, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(thread_state().capture_mode, *mode);
  return CUDA_SUCCESS;
}

// Entry points: stream capture - beginning, ending, asking, and what the next node depends on.
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

bool mode_known(CUstreamCaptureMode mode) {
  return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

/// Nodes of `graph`, given by handle. False: one of them is none.
bool nodes_find(const Graph& graph, const CUgraphNode* handles, std::size_t count,
                std::vector<Node*>& nodes) {
  if (count > 0 && handles == nullptr) return false;
  for (std::size_t i = 0; i < count; ++i) {
    auto* node = reinterpret_cast<Node*>(handles[i]);
    if (!graph.owns(node)) return false;
    nodes.push_back(node);
  }
  return true;
}

CUresult begin(CUstream handle, CUstreamCaptureMode mode, GraphRef graph, std::vector<Node*> after,
               const char* name) {
  StreamRef stream;
  const CUresult result = find(handle, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (!mode_known(mode)) return CUDA_ERROR_INVALID_VALUE;
  if (stream->kind == Stream::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard lock(capture_mutex());
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  static std::uint64_t next_id = 1;
  auto capture = std::make_shared<Capture>();
  capture->borrowed = graph != nullptr;
  if (graph != nullptr) capture->graph = std::move(graph);
  capture->mode = mode;
  capture->origin = stream.get();
  capture->thread = capture_thread();
  capture->id = next_id++;
  capture->ends[stream.get()] = std::move(after);
  capture_begin_locked(*stream, std::move(capture));
  return CUDA_SUCCESS;
}

/// Whether everything that other streams captured has been joined into the origin. What the program
/// took out of a stream's dependencies itself is no longer in `ends` and need not be.
bool joined(const Capture& capture) {
  std::set<const Node*> reached;
  const auto& origin = capture.ends.at(capture.origin);
  std::vector<const Node*> open(origin.begin(), origin.end());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->after.begin(), node->after.end());
  }
  const auto missed = [&](const Node* node) { return !reached.contains(node); };
  if (std::any_of(capture.left.begin(), capture.left.end(), missed)) return false;
  return std::none_of(capture.ends.begin(), capture.ends.end(), [&](const auto& entry) {
    return std::any_of(entry.second.begin(), entry.second.end(), missed);
  });
}

/// What the caller of cuStreamGetCaptureInfo asks for; everything but the status may be null.
struct Question {
  CUstreamCaptureStatus* status = nullptr;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** after = nullptr;
  const CUgraphEdgeData** edges = nullptr;
  std::size_t* count = nullptr;
};

void answer(Stream& stream, const Question& q) {
  Capture& capture = *stream.capture;
  const auto& ends = capture.ends[&stream];
  if (q.id != nullptr) *q.id = capture.id;
  if (q.graph != nullptr) {
    if (Registry<Graph>::all().find(capture.graph.get()) == nullptr)
      Registry<Graph>::all().add(capture.graph);
    *q.graph = capture.graph->handle();
  }
  static_assert(sizeof(CUgraphNode) == sizeof(Node*));
  if (q.after != nullptr) *q.after = reinterpret_cast<const CUgraphNode*>(ends.data());
  if (q.edges != nullptr) {
    if (capture.edges.size() < ends.size()) capture.edges.resize(ends.size());
    *q.edges = capture.edges.data();
  }
  if (q.count != nullptr) *q.count = ends.size();
}

CUresult info(CUstream handle, const Question& q, const char* name) {
  StreamRef stream;
  const CUresult result = find(handle, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (q.status == nullptr || (q.edges != nullptr && q.after == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(capture_mutex());
  // A question does not spoil the capture.
  if (stream->kind == Stream::kLegacy && capture_legacy_locked(stream->owner(), false))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const CaptureRef& capture = stream->capture;
  *q.status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*q.status == CU_STREAM_CAPTURE_STATUS_ACTIVE) answer(*stream, q);
  return CUDA_SUCCESS;
}

CUresult update(CUstream handle, CUgraphNode* nodes, std::size_t count, unsigned flags,
                const char* name) {
  StreamRef stream;
  const CUresult result = find(handle, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(capture_mutex());
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<Node*> more;
  if (!nodes_find(*stream->capture->graph, nodes, count, more)) return CUDA_ERROR_INVALID_VALUE;
  auto& ends = stream->capture->ends[stream.get()];
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) ends.clear();
  for (Node* node : more)
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
  return CUDA_SUCCESS;
}

/// Edges with other than plain dependencies are of programmatic launches, which this device lacks.
bool edges_plain(const CUgraphEdgeData* edges, std::size_t count) {
  return edges == nullptr || std::all_of(edges, edges + count, [](const CUgraphEdgeData& edge) {
           return edge.from_port == 0 && edge.to_port == 0 &&
                  edge.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT;
         });
}

}  // namespace

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, {}, __func__);
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, mode, nullptr, {}, __func__);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph handle, const CUgraphNode* after,
                                     const CUgraphEdgeData* edges, std::size_t count,
                                     CUstreamCaptureMode mode) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const GraphRef graph = Registry<Graph>::all().find(handle);
  std::vector<Node*> nodes;
  if (graph == nullptr || !nodes_find(*graph, after, count, nodes)) return CUDA_ERROR_INVALID_VALUE;
  if (!edges_plain(edges, count)) return CUDA_ERROR_NOT_SUPPORTED;
  return begin(stream, mode, graph, std::move(nodes), __func__);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  StreamRef stream;
  const CUresult result = find(handle, stream);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(capture_mutex());
  const CaptureRef capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != capture_thread())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const CUresult end = capture->invalid    ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                       : !joined(*capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                           : CUDA_SUCCESS;
  capture_end_locked(capture);
  // The program may know the graph already, from cuStreamGetCaptureInfo.
  const auto& graph = capture->graph;
  if (end == CUDA_SUCCESS) {
    if (Registry<Graph>::all().find(graph.get()) == nullptr) Registry<Graph>::all().add(graph);
    *out = graph->handle();
  } else if (!capture->borrowed) {
    Registry<Graph>::all().take(graph.get());
  }
  return end;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return info(stream, {status}, __func__);
}
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return info(stream, {status, id}, __func__);
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after, std::size_t* count) {
  return info(stream, {status, id, graph, after, nullptr, count}, __func__);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after,
                                   const CUgraphEdgeData** edges, std::size_t* count) {
  return info(stream, {status, id, graph, after, edges, count}, __func__);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, std::size_t count,
                                           unsigned int flags) {
  return update(stream, nodes, count, flags, __func__);
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes,
                                              const CUgraphEdgeData* edges, std::size_t count,
                                              unsigned int flags) {
  if (!edges_plain(edges, count)) return CUDA_ERROR_NOT_SUPPORTED;
  return update(stream, nodes, count, flags, __func__);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;  // a driver does not look, and crashes
  std::swap(thread_state().capture_mode, *mode);
  return CUDA_SUCCESS;
}

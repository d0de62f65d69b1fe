// Stream capture: which streams take part in which capture, what the next node of each depends on,
// and which calls a capture forbids to whom (by capture_table.h). It builds graphs and knows
// nothing of how they run. Everything here takes the capture lock by itself; without a capture in
// the process a check is one load.
#pragma once

#include <map>

#include "softgpu/driver/capture_table.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/graph.h"

namespace softgpu::driver {

/// A capture in progress: the streams that take part and the graph they build. Guarded by the
/// capture lock; only capture.cpp and api_capture.cpp look inside.
class Capture {
 public:
  GraphRef graph = std::make_shared<Graph>();
  bool borrowed = false;  // the graph is the program's (cuStreamBeginCaptureToGraph)
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  Stream* origin = nullptr;
  std::uint64_t thread = 0;  // the one that began it
  std::uint64_t id = 0;
  bool invalid = false;
  std::map<Stream*, std::vector<Node*>> ends;  // per stream: what the next node depends on
  std::vector<Node*> left;                     // the ends of streams that were destroyed meanwhile
  std::vector<CUgraphEdgeData> edges;          // as many plain edges as the longest of `ends` asked
};
using CaptureRef = std::shared_ptr<Capture>;

/// Any capture in this process, in whatever state.
bool capture_any();
/// Checks that need no argument of the call, made by enter_any() and enter() for every entry point:
/// kUnsafe, and kLegacyWait in the context's default stream.
CUresult capture_enter_any(const char* name);
CUresult capture_enter(Context& context, const char* name);
/// Checks of the stream, context or event that a call is about.
CUresult capture_stream_check(Stream& stream, const char* name = __builtin_FUNCTION());
CUresult capture_context_check(Context& context);
CUresult capture_event_check(Event& event);
/// The same for a call that orders work behind an event without waiting for it itself.
CUresult capture_event_use(Event& event);

/// The same for one that takes a place in the stream's order without being work for it.
CUresult capture_order_check(Stream& stream);
/// Whether the stream takes part in a capture, valid or not.
bool capture_has(const Stream& stream);
/// Whether a capture is building this graph.
bool capture_builds(const Graph& graph);

/// A command for a stream: `captured` when it has become a node and was taken. Otherwise it is to
/// run, unless the result says that a capture forbids it.
CUresult capture_command(Stream& stream, Command& command, bool& captured);
/// The same with the node it became, for commands whose node has to be found again.
CUresult capture_node(Stream& stream, Command& command, Node*& node);
/// cuEventRecord: in a capturing stream the event marks a place in the graph (`captured`).
/// `external`: it becomes a node that records it at every launch.
CUresult capture_record(Stream& stream, const EventRef& event, bool external, bool& captured);
/// cuStreamWaitEvent: on a mark of a capture, the stream joins that capture (`captured`).
CUresult capture_wait(Stream& stream, const EventRef& event, bool external, bool& captured);
/// The stream is being destroyed. A capture ends with its first stream, and without a graph.
void capture_leave(Stream& stream);

/// For the entry points of captures.
std::mutex& capture_mutex();
std::uint64_t capture_thread();  // a number of the calling thread that is never given again
void capture_begin_locked(Stream& stream, CaptureRef capture);
void capture_end_locked(const CaptureRef& capture);
/// Whether work in the legacy stream would have to wait for captured work of a blocking stream.
bool capture_legacy_locked(const Context& context, bool invalidate);

}  // namespace softgpu::driver

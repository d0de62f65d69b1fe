// Stream capture: which streams take part in which capture, what the next node of each depends on,
// and which calls a capture forbids. It builds graphs and knows nothing of how they run.
#pragma once

#include <map>

#include "softgpu/driver/graph.h"

namespace softgpu::driver {

/// A capture in progress: the streams that take part and the graph they build.
class Capture {
 public:
  GraphRef graph = std::make_shared<Graph>();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  Stream* origin = nullptr;
  const void* thread = nullptr;  // the one that began it
  std::uint64_t id = 0;
  bool invalid = false;
  std::map<Stream*, std::vector<Node*>> ends;  // per stream: what the next node depends on
};

/// One lock for all captures: they are short and rare.
std::mutex& capture_mutex();

/// Adds `command` to the stream's capture; the caller holds the capture lock.
Node* capture_add(Stream& stream, CUgraphNodeType type, Command command);

/// A command for a stream: `captured` when it has become a node and was taken. Otherwise it is to
/// run, unless the result says that a capture forbids it.
CUresult capture_command(Stream& stream, Command& command, bool& captured);

}  // namespace softgpu::driver

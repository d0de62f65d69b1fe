// What the rows of family `capture` share: asking a stream and a graph what they hold, and ending
// and replaying a capture.
#pragma once

#include <algorithm>

#include "tests/conformance/gate.h"

namespace conformance {

inline CUresult capture_begin(CUstream stream,
                              CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) {
  return cuStreamBeginCapture(stream, mode);
}

inline CUstreamCaptureStatus capture_status(CUstream stream) {
  auto status = no_such<CUstreamCaptureStatus>(77);
  EXPECT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  return status;
}

/// What cuStreamGetCaptureInfo tells of a capturing stream.
struct CaptureInfo {
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> next_after;  // what the next node will depend on
};

inline CaptureInfo capture_info(CUstream stream) {
  CaptureInfo info;
  CUstreamCaptureStatus status{};
  const CUgraphNode* nodes = nullptr;
  std::size_t count = 0;
  EXPECT_EQ(cuStreamGetCaptureInfo(stream, &status, &info.id, &info.graph, &nodes, nullptr, &count),
            CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  info.next_after.assign(nodes, nodes + count);
  std::sort(info.next_after.begin(), info.next_after.end());
  return info;
}

/// The one node that the next one of the stream will depend on.
inline CUgraphNode capture_last(CUstream stream) {
  const CaptureInfo info = capture_info(stream);
  EXPECT_EQ(info.next_after.size(), 1U);
  return info.next_after.size() == 1 ? info.next_after[0] : nullptr;
}

inline CUgraphNodeType node_type(CUgraphNode node) {
  auto type = no_such<CUgraphNodeType>(77);
  EXPECT_EQ(cuGraphNodeGetType(node, &type), CUDA_SUCCESS);
  return type;
}

inline std::size_t nodes_count(CUgraph graph) {
  std::size_t count = 77;
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
  return count;
}

/// Ends a capture that must have gone well.
inline CUgraph capture_end(CUstream stream) {
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  return graph;
}

/// The capture has gone wrong: its end says so and gives no graph.
inline void expect_invalidated(CUstream stream) {
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  auto* graph = reinterpret_cast<CUgraph>(&stream);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

/// Still a capture in progress, which ends well.
inline void expect_valid(CUstream stream) {
  EXPECT_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cuGraphDestroy(capture_end(stream)), CUDA_SUCCESS);
}

/// Runs the graph once and waits for it.
inline void replay(CUgraph graph, CUstream stream) {
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

/// Each call, made while the stream captures, answers `error` and ends the capture.
template <class... Calls>
void expect_each_invalidates(CUstream stream, CUresult error, Calls... calls) {
  const auto expect_one = [&](auto call) {
    MUST(capture_begin(stream));
    ANSWERS(error, call());
    expect_invalidated(stream);
  };
  (expect_one(calls), ...);
}

/// A word of device memory.
class Cell {
 public:
  explicit Cell(std::size_t words = 1) {
    EXPECT_EQ(cuMemAlloc(&address_, 4 * words), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD32(address_, 0, words), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  ~Cell() { cuMemFree(address_); }
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  operator CUdeviceptr() const { return address_; }  // NOLINT: it stands for the address
  unsigned value() const {
    unsigned value = 0;
    EXPECT_EQ(cuMemcpyDtoH(&value, address_, 4), CUDA_SUCCESS);
    return value;
  }

 private:
  CUdeviceptr address_ = 0;
};

/// The kernel add_one on a cell, loaded and run once on something else, so that a launch is nothing
/// but a launch.
class AddOne {
 public:
  AddOne() : function_(kernel("add_one")) {
    EXPECT_EQ((*this)(scratch_, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  CUresult operator()(const Cell& cell, CUstream stream) const {
    CUdeviceptr address = cell;
    unsigned count = 1;
    return launch(function_, 1, 1, {&address, &count}, stream);
  }

 private:
  Cell scratch_;
  CUfunction function_;
};

/// An executable graph of one addition, captured from the stream.
inline CUgraphExec captured_addition(const AddOne& add, const Cell& cell, CUstream stream) {
  CUgraphExec exec = nullptr;
  EXPECT_EQ(capture_begin(stream), CUDA_SUCCESS);
  EXPECT_EQ(add(cell, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphInstantiate(&exec, capture_end(stream), 0), CUDA_SUCCESS);
  return exec;
}

}  // namespace conformance

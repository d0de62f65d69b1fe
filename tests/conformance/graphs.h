// What the rows of family `graphs` share: a graph under construction, with nodes that write numbers
// to pinned words, so that rows can see which nodes ran and in which order.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "tests/conformance/gate.h"

namespace conformance {

using Nodes = std::vector<CUgraphNode>;

inline CUDA_MEMSET_NODE_PARAMS set_params(CUdeviceptr to, unsigned value, std::size_t width = 1) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = to;
  params.value = value;
  params.elementSize = 4;
  params.width = width;
  params.height = 1;
  return params;
}

inline CUDA_MEMCPY3D copy_params(CUdeviceptr from, CUdeviceptr to, std::size_t bytes) {
  CUDA_MEMCPY3D params{};
  params.srcMemoryType = params.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  params.srcDevice = from;
  params.dstDevice = to;
  params.WidthInBytes = bytes;
  params.Height = params.Depth = 1;
  return params;
}

/// A graph that goes with the row.
class Build {
 public:
  explicit Build(CUcontext context) : context_(context) {
    EXPECT_EQ(cuGraphCreate(&graph_, 0), CUDA_SUCCESS);
  }
  ~Build() {
    if (graph_ != nullptr) cuGraphDestroy(graph_);
  }
  Build(const Build&) = delete;
  Build& operator=(const Build&) = delete;
  operator CUgraph() const { return graph_; }  // NOLINT: it stands for the handle
  CUcontext context() const { return context_; }
  /// Destroys the graph now.
  CUresult destroy() { return cuGraphDestroy(std::exchange(graph_, nullptr)); }

  CUgraphNode empty(const Nodes& after = {}) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddEmptyNode(&node, graph_, after.data(), after.size()), CUDA_SUCCESS);
    return node;
  }
  /// Writes `value` to a word of memory.
  CUgraphNode set(CUdeviceptr to, unsigned value, const Nodes& after = {}) {
    const CUDA_MEMSET_NODE_PARAMS params = set_params(to, value);
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddMemsetNode(&node, graph_, after.data(), after.size(), &params, context_),
              CUDA_SUCCESS);
    return node;
  }
  CUgraphNode copy(CUdeviceptr from, CUdeviceptr to, std::size_t bytes, const Nodes& after = {}) {
    const CUDA_MEMCPY3D params = copy_params(from, to, bytes);
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddMemcpyNode(&node, graph_, after.data(), after.size(), &params, context_),
              CUDA_SUCCESS);
    return node;
  }
  /// The kernel `store`: writes `value` to a word.
  CUgraphNode store(CUfunction function, CUdeviceptr to, unsigned value, const Nodes& after = {}) {
    void* arguments[] = {&to, &value};
    return kernel(function, arguments, after);
  }
  CUgraphNode kernel(CUfunction function, void** arguments, const Nodes& after = {}) {
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddKernelNode(&node, graph_, after.data(), after.size(), &params),
              CUDA_SUCCESS);
    return node;
  }
  CUgraphNode host(CUhostFn function, void* data, const Nodes& after = {}) {
    const CUDA_HOST_NODE_PARAMS params{function, data};
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddHostNode(&node, graph_, after.data(), after.size(), &params), CUDA_SUCCESS);
    return node;
  }
  /// Waits until the word has this value.
  CUgraphNode wait(const Word& word, unsigned value, const Nodes& after = {}) {
    CUstreamBatchMemOpParams operation{};
    operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operation.waitValue.address = word.device();
    operation.waitValue.value = value;
    operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    const CUDA_BATCH_MEM_OP_NODE_PARAMS params{context_, 1, &operation, 0};
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddBatchMemOpNode(&node, graph_, after.data(), after.size(), &params),
              CUDA_SUCCESS);
    return node;
  }

 private:
  CUcontext context_;
  CUgraph graph_ = nullptr;
};

/// An instance of a graph that goes with the row.
class Instance {
 public:
  explicit Instance(CUgraph graph, unsigned long long flags = 0) {
    EXPECT_EQ(cuGraphInstantiate(&exec_, graph, flags), CUDA_SUCCESS);
  }
  ~Instance() {
    if (exec_ != nullptr) cuGraphExecDestroy(exec_);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  operator CUgraphExec() const { return exec_; }  // NOLINT: it stands for the handle
  CUresult destroy() { return cuGraphExecDestroy(std::exchange(exec_, nullptr)); }
  /// Launches it and waits.
  CUresult run(CUstream stream = nullptr) const {
    const CUresult result = cuGraphLaunch(exec_, stream);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(stream) : result;
  }

 private:
  CUgraphExec exec_ = nullptr;
};

inline Nodes nodes_of(CUgraph graph) {
  std::size_t count = 0;
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
  Nodes nodes(count);
  EXPECT_EQ(cuGraphGetNodes(graph, nodes.data(), &count), CUDA_SUCCESS);
  return nodes;
}

}  // namespace conformance

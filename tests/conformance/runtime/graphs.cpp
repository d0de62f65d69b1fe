// Rows of family `runtime`: capture and graphs.
#include "tests/conformance/runtime/runtime.h"

namespace conformance {
namespace {

ROW(runtime, captured_work_runs_when_launched) {
  const DeviceWord word;
  const cudaStream_t stream = stream_make();
  cudaFuncAttributes attributes{};
  RUNS(cudaFuncGetAttributes(&attributes, kernel_of(runtime_store)));
  RUNS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  RUNS(run(runtime_store, 1, 1, stream, word.get(), 23U));
  cudaGraph_t graph = nullptr;
  RUNS(cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(word.value(), 0U) << "capturing runs nothing";
  cudaGraphExec_t executable = nullptr;
  RUNS(cudaGraphInstantiate(&executable, graph, 0));
  RUNS(cudaGraphLaunch(executable, stream));
  RUNS(cudaStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 23U);
  RUNS(cudaMemsetAsync(word.get(), 0, 4, stream));
  RUNS(cudaGraphLaunch(executable, stream));
  RUNS(cudaStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 23U) << "and again";
}

ROW(runtime, capture_forbids_allocation) {
  const cudaStream_t stream = stream_make();
  RUNS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  void* data = nullptr;
  ANSWERS(cudaErrorStreamCaptureUnsupported, cudaMalloc(&data, 256));
  cudaGraph_t graph = nullptr;
  ANSWERS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(graph, nullptr);
}

ROW(runtime, capture_status_is_told) {
  const cudaStream_t stream = stream_make();
  auto status = no_such<cudaStreamCaptureStatus>(9);
  RUNS(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  RUNS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  RUNS(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  RUNS(cudaStreamEndCapture(stream, &graph));
}

ROW(runtime, graphs_are_built_by_nodes) {
  const DeviceWord word;
  cudaGraph_t graph = nullptr;
  RUNS(cudaGraphCreate(&graph, 0));
  cudaMemsetParams fill{};
  fill.dst = word.get();
  fill.value = 3;
  fill.elementSize = 4;
  fill.width = 1;
  fill.height = 1;
  cudaGraphNode_t first = nullptr, second = nullptr;
  RUNS(cudaGraphAddMemsetNode(&first, graph, nullptr, 0, &fill));
  unsigned* address = word.get();
  unsigned count = 1;
  void* arguments[] = {&address, &count};
  cudaKernelNodeParams kernel{};
  kernel.func = const_cast<void*>(kernel_of(runtime_scale));
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(1);
  kernel.kernelParams = arguments;
  RUNS(cudaGraphAddKernelNode(&second, graph, &first, 1, &kernel));
  std::size_t nodes = 0;
  RUNS(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2U);
  cudaGraphExec_t executable = nullptr;
  RUNS(cudaGraphInstantiate(&executable, graph, 0));
  RUNS(cudaGraphLaunch(executable, nullptr));
  RUNS(cudaDeviceSynchronize());
  EXPECT_EQ(word.value(), 21U);
}

ROW(runtime, graphs_copy_to_variables) {
  cudaGraph_t graph = nullptr;
  RUNS(cudaGraphCreate(&graph, 0));
  unsigned value = 31, back = 0;
  cudaGraphNode_t to = nullptr, from = nullptr;
  ANSWERS(cudaSuccess,
          cudaGraphAddMemcpyNodeToSymbol(&to, graph, nullptr, 0, runtime_counter_symbol, &value, 4,
                                         0, cudaMemcpyHostToDevice));
  ANSWERS(cudaSuccess,
          cudaGraphAddMemcpyNodeFromSymbol(&from, graph, &to, 1, &back, runtime_counter_symbol, 4,
                                           0, cudaMemcpyDeviceToHost));
  cudaGraphExec_t executable = nullptr;
  RUNS(cudaGraphInstantiate(&executable, graph, 0));
  RUNS(cudaGraphLaunch(executable, nullptr));
  RUNS(cudaDeviceSynchronize());
  EXPECT_EQ(back, 31U);
}

ROW(runtime, copy_nodes_tell_their_parameters) {
  cudaGraph_t graph = nullptr;
  RUNS(cudaGraphCreate(&graph, 0));
  const DeviceWord word;
  unsigned value = 5;
  cudaGraphNode_t node = nullptr;
  RUNS(cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, word.get(), &value, 4,
                                cudaMemcpyHostToDevice));
  cudaMemcpy3DParms told{};
  ANSWERS(cudaSuccess, cudaGraphMemcpyNodeGetParams(node, &told));
  EXPECT_EQ(told.srcPtr.ptr, &value);
  EXPECT_EQ(told.dstPtr.ptr, word.get());
  EXPECT_EQ(told.extent.width, 4U);
}

ROW(runtime, event_nodes_take_new_events) {
  cudaEvent_t first = nullptr, second = nullptr, told = nullptr;
  RUNS(cudaEventCreate(&first));
  RUNS(cudaEventCreate(&second));
  cudaGraph_t graph = nullptr;
  RUNS(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t node = nullptr;
  RUNS(cudaGraphAddEventRecordNode(&node, graph, nullptr, 0, first));
  ANSWERS(cudaSuccess, cudaGraphEventRecordNodeGetEvent(node, &told));
  EXPECT_EQ(told, first);
  ANSWERS(cudaSuccess, cudaGraphEventRecordNodeSetEvent(node, second));
  RUNS(cudaGraphEventRecordNodeGetEvent(node, &told));
  EXPECT_EQ(told, second);
}

/// Gets, sets, changes and sets the parameters of the only node, and expects what it stores then.
void expect_settable(cudaGraph_t graph, const DeviceWord& word) {
  cudaGraphNode_t node = nullptr;
  std::size_t nodes = 1;
  RUNS(cudaGraphGetNodes(graph, &node, &nodes));
  cudaGraphExec_t executable = nullptr;
  RUNS(cudaGraphInstantiate(&executable, graph, 0));
  cudaKernelNodeParams told{};
  ANSWERS(cudaSuccess, cudaGraphKernelNodeGetParams(node, &told));
  EXPECT_EQ(told.func, kernel_of(runtime_store));
  ANSWERS(cudaSuccess, cudaGraphExecKernelNodeSetParams(executable, node, &told));
  ANSWERS(cudaSuccess, cudaGraphKernelNodeSetParams(node, &told));
  RUNS(cudaGraphKernelNodeGetParams(node, &told));
  unsigned* address = word.get();
  unsigned value = 9;
  void* arguments[] = {&address, &value};
  told.kernelParams = arguments;
  ANSWERS(cudaSuccess, cudaGraphExecKernelNodeSetParams(executable, node, &told));
  RUNS(cudaGraphLaunch(executable, nullptr));
  RUNS(cudaDeviceSynchronize());
  EXPECT_EQ(word.value(), 9U);
}

ROW(runtime, kernel_nodes_tell_what_sets_them) {
  const DeviceWord word;
  const cudaStream_t stream = stream_make();
  RUNS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  RUNS(run(runtime_store, 1, 1, stream, word.get(), 1U));
  cudaGraph_t captured = nullptr, built = nullptr;
  RUNS(cudaStreamEndCapture(stream, &captured));
  expect_settable(captured, word);
  unsigned* address = word.get();
  unsigned value = 2;
  void* arguments[] = {&address, &value};
  cudaKernelNodeParams kernel{};
  kernel.func = const_cast<void*>(kernel_of(runtime_store));
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(1);
  kernel.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  RUNS(cudaGraphCreate(&built, 0));
  RUNS(cudaGraphAddKernelNode(&node, built, nullptr, 0, &kernel));
  expect_settable(built, word);
}

ROW(runtime, executable_graphs_take_new_parameters) {
  const DeviceWord word;
  cudaGraph_t graph = nullptr;
  RUNS(cudaGraphCreate(&graph, 0));
  unsigned* address = word.get();
  unsigned value = 1;
  void* arguments[] = {&address, &value};
  cudaKernelNodeParams kernel{};
  kernel.func = const_cast<void*>(kernel_of(runtime_store));
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(1);
  kernel.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  RUNS(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &kernel));
  cudaGraphExec_t executable = nullptr;
  RUNS(cudaGraphInstantiate(&executable, graph, 0));
  value = 2;
  ANSWERS(cudaSuccess, cudaGraphExecKernelNodeSetParams(executable, node, &kernel));
  RUNS(cudaGraphLaunch(executable, nullptr));
  EXPECT_EQ(word.value(), 2U);
}

ROW(runtime, nodes_of_any_kind) {
  const DeviceWord word;
  cudaGraph_t graph = nullptr;
  RUNS(cudaGraphCreate(&graph, 0));
  cudaGraphNodeParams fill{};
  fill.type = cudaGraphNodeTypeMemset;
  fill.memset.dst = word.get();
  fill.memset.value = 2;
  fill.memset.elementSize = 4;
  fill.memset.width = 1;
  fill.memset.height = 1;
  cudaGraphNode_t first = nullptr, second = nullptr;
  ANSWERS(cudaSuccess, cudaGraphAddNode(&first, graph, nullptr, nullptr, 0, &fill));
  unsigned* address = word.get();
  unsigned count = 1;
  void* arguments[] = {&address, &count};
  cudaGraphNodeParams kernel{};
  kernel.type = cudaGraphNodeTypeKernel;
  kernel.kernel.func = const_cast<void*>(kernel_of(runtime_scale));
  kernel.kernel.gridDim = dim3(1);
  kernel.kernel.blockDim = dim3(1);
  kernel.kernel.kernelParams = arguments;
  ANSWERS(cudaSuccess, cudaGraphAddNode(&second, graph, &first, nullptr, 1, &kernel));
  cudaGraphExec_t executable = nullptr;
  RUNS(cudaGraphInstantiate(&executable, graph, 0));
  RUNS(cudaGraphLaunch(executable, nullptr));
  EXPECT_EQ(word.value(), 14U);
  fill.memset.value = 3;
  ANSWERS(cudaSuccess, cudaGraphExecNodeSetParams(executable, first, &fill));
  RUNS(cudaGraphLaunch(executable, nullptr));
  EXPECT_EQ(word.value(), 21U);
}

}  // namespace
}  // namespace conformance

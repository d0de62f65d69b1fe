// Graphs: captured from a stream, and built node by node; launched more than once.
#include "checks.h"

namespace {

__global__ void scale(int* cells, int n, int factor) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) cells[i] *= factor;
}

constexpr int kCount = 64;

void run_twice(cudaGraph_t graph, cudaStream_t stream) {
  cudaGraphExec_t executable = nullptr;
  CHECK_OK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_OK(cudaGraphLaunch(executable, stream));
  CHECK_OK(cudaGraphLaunch(executable, stream));
  CHECK_OK(cudaStreamSynchronize(stream));
  CHECK_OK(cudaGraphExecDestroy(executable));
}

void check_captured(int* cells, cudaStream_t stream) {
  int host[kCount];
  int back[kCount] = {};
  for (int i = 0; i < kCount; ++i) host[i] = i;
  CHECK_OK(cudaMemcpy(cells, host, sizeof(host), cudaMemcpyHostToDevice));
  CHECK_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  scale<<<1, kCount, 0, stream>>>(cells, kCount, 3);
  CHECK_OK(cudaMemcpyAsync(back, cells, sizeof(back), cudaMemcpyDeviceToHost, stream));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK_OK(cudaStreamIsCapturing(stream, &status));
  CHECK(status == cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  CHECK_OK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CHECK_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 2);
  CHECK(back[5] == 0);  // captured, not run
  run_twice(graph, stream);
  CHECK(back[5] == 45 && back[63] == 567);
  CHECK_OK(cudaGraphDestroy(graph));
}

void check_built(int* cells, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t fill = nullptr;
  cudaGraphNode_t kernel = nullptr;
  cudaGraphNode_t copy = nullptr;
  int back[kCount] = {};
  CHECK_OK(cudaGraphCreate(&graph, 0));
  cudaMemsetParams fill_parameters = {};
  fill_parameters.dst = cells;
  fill_parameters.value = 7;
  fill_parameters.elementSize = 4;
  fill_parameters.width = kCount;
  fill_parameters.height = 1;
  CHECK_OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &fill_parameters));
  int n = kCount;
  int factor = 6;
  void* arguments[] = {&cells, &n, &factor};
  cudaKernelNodeParams kernel_parameters = {};
  kernel_parameters.func = reinterpret_cast<void*>(scale);
  kernel_parameters.gridDim = dim3(1);
  kernel_parameters.blockDim = dim3(kCount);
  kernel_parameters.kernelParams = arguments;
  CHECK_OK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &kernel_parameters));
  CHECK_OK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, back, cells, sizeof(back),
                                    cudaMemcpyDeviceToHost));
  run_twice(graph, stream);
  CHECK(back[0] == 42 && back[63] == 42);
  CHECK_OK(cudaGraphDestroy(graph));
}

}  // namespace

void check_graphs() {
  int* cells = nullptr;
  cudaStream_t stream = nullptr;
  CHECK_OK(cudaMalloc(&cells, kCount * sizeof(int)));
  CHECK_OK(cudaStreamCreate(&stream));
  check_captured(cells, stream);
  check_built(cells, stream);
  CHECK_OK(cudaStreamDestroy(stream));
  CHECK_OK(cudaFree(cells));
}

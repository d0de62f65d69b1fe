// Every call that may be the first to use a kernel in a context, for tests of what it makes the
// driver take.
#pragma once

#include <string>
#include <utility>

#include "tests/interpose/softgpu_residual.h"

namespace sluice::test {

struct Given {
  CUlibrary library;
  CUfunction kernel;
  CUdeviceptr out;
  CUcontext context;
  CUfunction other = nullptr;  // of a module
};

// The parameters of a node that launches a kernel.
template <class Params>
Params node_params(CUfunction function, CUdeviceptr* out, void** parameters) {
  Params params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  parameters[0] = out;
  params.kernelParams = parameters;
  return params;
}

inline CUresult node_add(const Given& g, CUgraph graph, CUgraphNode* node, CUfunction function) {
  void* parameters[1];
  CUdeviceptr out = g.out;
  const auto params = node_params<CUDA_KERNEL_NODE_PARAMS>(function, &out, parameters);
  return cuGraphAddKernelNode(node, graph, nullptr, 0, &params);
}

inline CUgraph graph_make() {
  CUgraph graph = nullptr;
  EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  return graph;
}

// The interface of CUDA 1 to 3 is among them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// What a call does with the kernel. A launch, or a node that is to launch it, needs its local
// memory as well.
enum class Uses : bool { kAsks, kLaunches };

// Every call that may be the first to need the library.
struct FirstUse {
  const char* name;
  CUresult (*use)(const Given& g);
  Uses uses = Uses::kAsks;
};
inline const FirstUse kFirstUses[] = {
    {"cuLaunchKernel", [](const Given& g) { return launch_of(g.kernel, g.out); }, Uses::kLaunches},
    {"cuLaunchKernelEx",
     [](const Given& g) {
       CUlaunchConfig config{};
       config.gridDimX = config.gridDimY = config.gridDimZ = 1;
       config.blockDimX = config.blockDimY = config.blockDimZ = 1;
       CUdeviceptr out = g.out;
       void* parameters[] = {&out};
       return cuLaunchKernelEx(&config, g.kernel, parameters, nullptr);
     },
     Uses::kLaunches},
    {"cuLaunchCooperativeKernel",
     [](const Given& g) {
       CUdeviceptr out = g.out;
       void* parameters[] = {&out};
       return cuLaunchCooperativeKernel(g.kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters);
     },
     Uses::kLaunches},
    {"a launch into a stream",
     [](const Given& g) {
       CUstream stream = nullptr;
       CUdeviceptr out = g.out;
       void* parameters[] = {&out};
       EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
       return cuLaunchKernel(g.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
     },
     Uses::kLaunches},
    {"a launch that is captured",
     [](const Given& g) {
       CUstream stream = nullptr;
       CUgraph graph = nullptr;
       CUdeviceptr out = g.out;
       void* parameters[] = {&out};
       EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
       EXPECT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
       const CUresult result =
           cuLaunchKernel(g.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
       EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
       return result;
     },
     Uses::kLaunches},
    {"a launch of a thread without a context",
     [](const Given& g) {
       CUstream stream = nullptr;
       EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
       CUdeviceptr out = g.out;
       void* parameters[] = {&out};
       CUcontext popped = nullptr, other = nullptr;
       EXPECT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
       const CUresult result =
           cuLaunchKernel(g.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
       EXPECT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
       EXPECT_EQ(cuCtxGetCurrent(&popped), CUDA_SUCCESS);
       EXPECT_EQ(popped, g.context);
       return result;
     },
     Uses::kLaunches},
    {"cuLaunchGrid",
     [](const Given& g) {
       const CUresult result = cuFuncSetBlockShape(g.kernel, 1, 1, 1);
       if (result != CUDA_SUCCESS) return result;
       CUdeviceptr out = g.out;
       EXPECT_EQ(cuParamSetv(g.kernel, 0, &out, sizeof out), CUDA_SUCCESS);
       EXPECT_EQ(cuParamSetSize(g.kernel, sizeof out), CUDA_SUCCESS);
       return cuLaunchGrid(g.kernel, 1, 1);
     },
     Uses::kLaunches},
    {"cuParamSeti", [](const Given& g) { return cuParamSeti(g.kernel, 0, 1); }},
    {"cuParamSetSize", [](const Given& g) { return cuParamSetSize(g.kernel, 8); }},
    {"cuKernelGetFunction",
     [](const Given& g) {
       CUfunction function = nullptr;
       return cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(g.kernel));
     }},
    {"cuLibraryGetModule",
     [](const Given& g) {
       CUmodule module = nullptr;
       return cuLibraryGetModule(&module, g.library);
     }},
    {"cuLibraryGetGlobal",
     [](const Given& g) {
       CUdeviceptr at = 0;
       return cuLibraryGetGlobal(&at, nullptr, g.library, "room");
     }},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor",
     [](const Given& g) {
       int blocks = 0;
       return cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, g.kernel, 32, 0);
     }},
    {"cuFuncGetAttribute",
     [](const Given& g) {
       int value = 0;
       return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, g.kernel);
     }},
    {"cuFuncSetCacheConfig",
     [](const Given& g) { return cuFuncSetCacheConfig(g.kernel, CU_FUNC_CACHE_PREFER_L1); }},
    {"cuFuncGetModule",
     [](const Given& g) {
       CUmodule module = nullptr;
       return cuFuncGetModule(&module, g.kernel);
     }},
    {"cuFuncGetName",
     [](const Given& g) {
       const char* name = nullptr;
       return cuFuncGetName(&name, g.kernel);
     }},
    {"cuFuncIsLoaded",
     [](const Given& g) {
       CUfunctionLoadingState state{};
       return cuFuncIsLoaded(&state, g.kernel);
     }},
    {"cuFuncGetParamInfo",
     [](const Given& g) {
       size_t offset = 0, size = 0;
       return cuFuncGetParamInfo(g.kernel, 0, &offset, &size);
     }},
    {"cuFuncLoad", [](const Given& g) { return cuFuncLoad(g.kernel); }},
    {"cuGraphAddKernelNode",
     [](const Given& g) {
       CUgraphNode node = nullptr;
       return node_add(g, graph_make(), &node, g.kernel);
     },
     Uses::kLaunches},
    {"a node of a kernel in a context",
     [](const Given& g) {
       CUgraphNode node = nullptr;
       void* parameters[1];
       CUdeviceptr out = g.out;
       auto params = node_params<CUDA_KERNEL_NODE_PARAMS>(nullptr, &out, parameters);
       params.kern = reinterpret_cast<CUkernel>(g.kernel);
       params.ctx = g.context;
       EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
       CUgraph graph = graph_make();
       const CUresult result = cuGraphAddKernelNode(&node, graph, nullptr, 0, &params);
       EXPECT_EQ(cuCtxPushCurrent(g.context), CUDA_SUCCESS);
       return result;
     },
     Uses::kLaunches},
    {"cuGraphAddNode",
     [](const Given& g) {
       CUgraphNode node = nullptr;
       void* parameters[1];
       CUdeviceptr out = g.out;
       CUgraphNodeParams params{};
       params.type = CU_GRAPH_NODE_TYPE_KERNEL;
       params.kernel = node_params<CUDA_KERNEL_NODE_PARAMS_v3>(g.kernel, &out, parameters);
       return cuGraphAddNode(&node, graph_make(), nullptr, nullptr, 0, &params);
     },
     Uses::kLaunches},
    {"cuGraphKernelNodeSetParams",
     [](const Given& g) {
       CUgraphNode node = nullptr;
       void* parameters[1];
       CUdeviceptr out = g.out;
       EXPECT_EQ(node_add(g, graph_make(), &node, g.other), CUDA_SUCCESS);
       const auto params = node_params<CUDA_KERNEL_NODE_PARAMS>(g.kernel, &out, parameters);
       return cuGraphKernelNodeSetParams(node, &params);
     },
     Uses::kLaunches},
    {"cuGraphExecKernelNodeSetParams",
     [](const Given& g) {
       CUgraphNode node = nullptr;
       CUgraphExec exec = nullptr;
       void* parameters[1];
       CUdeviceptr out = g.out;
       CUgraph graph = graph_make();
       EXPECT_EQ(node_add(g, graph, &node, g.other), CUDA_SUCCESS);
       EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
       const auto params = node_params<CUDA_KERNEL_NODE_PARAMS>(g.kernel, &out, parameters);
       return cuGraphExecKernelNodeSetParams(exec, node, &params);
     },
     Uses::kLaunches},
};

#pragma GCC diagnostic pop

/// Two contexts and kRoom fit the quota. A kernel of a module goes the short way already.
class SoftGpuFirstUsesTest : public SoftGpuResidualTest {
 protected:
  /// `listed`: NVML has a figure for the process. `module`: PTX with a kernel `store`.
  SoftGpuFirstUsesTest(bool listed, std::string module)
      : SoftGpuResidualTest([listed] {
          Options o;
          o.listed = listed;
          o.quota = 2 * kContext + kRoom;
          return o;
        }()),
        text_(std::move(module)) {}
  void SetUp() override {
    SoftGpuResidualTest::SetUp();
    ASSERT_EQ(cuMemAlloc(&out_, kOut), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleLoadData(&module_, text_.c_str()), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&other_, module_, "store"), CUDA_SUCCESS);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(launch_of(other_, out_), CUDA_SUCCESS);
  }

  static constexpr size_t kOut = 4, kRoom = 36 * kMiB;
  CUdeviceptr out_ = 0;
  CUmodule module_ = nullptr;
  CUfunction other_ = nullptr;

 private:
  const std::string text_;
};

}  // namespace sluice::test

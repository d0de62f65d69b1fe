// Ways to take memory whose size no call tells: modules, libraries, limits of contexts, contexts
// themselves.
#include <algorithm>
#include <mutex>

#include "tests/attacks/attacker/attack.h"

namespace attacks {
namespace {

// Of the suite's GPUs: 16 multiprocessors of 2048 threads.
constexpr std::size_t kThreadsOnDevice = 16 * 2048;
constexpr std::size_t kStackMin = 1024;

const char kPrints[] = R"(.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 done) vprintf(.param .b64 format, .param .b64 words);
.global .align 1 .b8 text[3] = {104, 10, 0};
.visible .entry prints()
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  mov.u64 %rd1, text;
  cvta.global.u64 %rd1, %rd1;
  mov.u64 %rd2, 0;
  { .param .b64 a; .param .b64 b; .param .b32 d;
    st.param.b64 [a], %rd1; st.param.b64 [b], %rd2;
    call.uni (d), vprintf, (a, b); ld.param.b32 %r1, [d]; }
  ret;
}
)";

const char kMallocs[] = R"(.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 at) malloc(.param .b64 size);
.visible .entry mallocs()
{
  .reg .b64 %rd<3>;
  mov.u64 %rd1, 16;
  { .param .b64 s; .param .b64 d;
    st.param.b64 [s], %rd1;
    call.uni (d), malloc, (s); ld.param.b64 %rd2, [d]; }
  ret;
}
)";

CUresult kernel_run(const std::string& text, const char* name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUresult result = cuModuleLoadData(&module, text.c_str());
  if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&function, module, name);
  if (result == CUDA_SUCCESS)
    result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

CUresult take_module(std::size_t bytes) {
  CUmodule module = nullptr;
  return cuModuleLoadData(&module, module_text(bytes).c_str());
}

/// Loads and unloads without end; what stays is one of three.
CUresult take_module_churn(std::size_t bytes) {
  CUmodule gone = nullptr;
  CUmodule also = nullptr;
  const std::string text = module_text(bytes);
  if (cuModuleLoadData(&gone, text.c_str()) == CUDA_SUCCESS) {
    if (cuModuleLoadData(&also, text.c_str()) == CUDA_SUCCESS) (void)cuModuleUnload(also);
    (void)cuModuleUnload(gone);
  }
  return take_module(bytes);
}

/// The variable's address is asked for at once, before anything could be taken back.
CUresult take_variable(std::size_t bytes) {
  CUmodule module = nullptr;
  CUdeviceptr at = 0;
  std::size_t size = 0;
  CUresult result = cuModuleLoadData(&module, module_text(bytes).c_str());
  if (result == CUDA_SUCCESS) result = cuModuleGetGlobal(&at, &size, module, "room");
  return result == CUDA_SUCCESS ? cuMemsetD8(at, 1, size) : result;
}

CUresult take_library(std::size_t bytes) {
  CUlibrary library = nullptr;
  return cuLibraryLoadData(&library, module_text(bytes).c_str(), nullptr, nullptr, 0, nullptr,
                           nullptr, 0);
}

/// A library comes to the device when something of it is asked for.
CUresult take_library_late(std::size_t bytes) {
  CUlibrary library = nullptr;
  CUdeviceptr at = 0;
  std::size_t size = 0;
  CUresult result = cuLibraryLoadData(&library, module_text(bytes).c_str(), nullptr, nullptr, 0,
                                      nullptr, nullptr, 0);
  return result == CUDA_SUCCESS ? cuLibraryGetGlobal(&at, &size, library, "room") : result;
}

/// The kernel of a library is launched by its own handle, which loads it.
CUresult take_library_launched(std::size_t bytes) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUresult result = cuLibraryLoadData(&library, module_text(bytes).c_str(), nullptr, nullptr, 0,
                                      nullptr, nullptr, 0);
  if (result == CUDA_SUCCESS) result = cuLibraryGetKernel(&kernel, library, "k_tiny");
  if (result == CUDA_SUCCESS)
    result = cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr,
                            nullptr, nullptr);
  return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

CUresult take_linked(std::size_t bytes) {
  CUlinkState state = nullptr;
  CUmodule module = nullptr;
  void* image = nullptr;
  std::size_t size = 0;
  const std::string text = module_text(bytes);
  CUresult result = cuLinkCreate(0, nullptr, nullptr, &state);
  if (result == CUDA_SUCCESS)
    result = cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(text.c_str()),
                           text.size() + 1, "room", 0, nullptr, nullptr);
  if (result == CUDA_SUCCESS) result = cuLinkComplete(state, &image, &size);
  if (result == CUDA_SUCCESS) result = cuModuleLoadData(&module, image);
  if (state != nullptr) (void)cuLinkDestroy(state);
  return result;
}

/// A context of its own for an attempt, current while `work` runs; it stays.
template <class Work>
CUresult in_new_context(Work work) {
  CUcontext context = nullptr;
  CUcontext popped = nullptr;
  CUresult result = cuCtxCreate(&context, nullptr, 0, options.device);
  if (result != CUDA_SUCCESS) return result;
  result = work();
  (void)cuCtxPopCurrent(&popped);
  return result;
}

CUresult take_context(std::size_t) {
  return in_new_context([] { return CUDA_SUCCESS; });
}

CUresult take_context_filled(std::size_t bytes) {
  return in_new_context([bytes] {
    CUdeviceptr at = 0;
    return cuMemAlloc(&at, bytes);
  });
}

/// Contexts begin and end without pause; memory of the ended must not be missed, nor counted as
/// free twice.
CUresult take_context_churn(std::size_t bytes) {
  for (int n = 0; n < 4; ++n) {
    CUcontext context = nullptr;
    if (cuCtxCreate(&context, nullptr, 0, options.device) != CUDA_SUCCESS) break;
    CUdeviceptr at = 0;
    (void)cuMemAlloc(&at, bytes);
    (void)cuCtxDestroy(context);
    (void)cuMemFree(at);  // it is gone with its context
  }
  (void)gpu_open();
  CUdeviceptr at = 0;
  return cuMemAlloc(&at, bytes);
}

CUresult take_primary_reset(std::size_t bytes) {
  static int resets = 0;
  CUdeviceptr at = 0;
  if (resets++ < 20) {
    for (int n = 0; n < 3; ++n) (void)cuMemAlloc(&at, bytes);
    (void)cuDevicePrimaryCtxReset(options.device);
    (void)cuMemFree(at);
    (void)gpu_open();
  }
  return cuMemAlloc(&at, bytes);
}

CUresult take_stack(std::size_t bytes) {
  std::size_t now = 0;
  const CUresult result = cuCtxGetLimit(&now, CU_LIMIT_STACK_SIZE);
  const std::size_t more = std::max<std::size_t>(bytes / kThreadsOnDevice, 16);
  return result == CUDA_SUCCESS
             ? cuCtxSetLimit(CU_LIMIT_STACK_SIZE, std::max(now, kStackMin) + more)
             : result;
}

/// A stack for every context, so that each limit alone is small.
CUresult take_stack_each(std::size_t bytes) {
  return in_new_context(
      [bytes] { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kStackMin + bytes / kThreadsOnDevice); });
}

/// Local memory of a kernel, which the driver takes at its load or launch.
CUresult take_local(std::size_t bytes) {
  const std::size_t each =
      std::min<std::size_t>(kStackMin + bytes / kThreadsOnDevice / 16 * 16, 500 * 1024);
  const std::string text =
      ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry deep()\n{\n  .local .align "
      "16 .b8 depot[" +
      std::to_string(each) +
      "];\n  .reg .b64 %rd<2>;\n  .reg .b32 %r<2>;\n  mov.u64 %rd1, depot;\n  mov.u32 %r1, 7;\n"
      "  st.local.u32 [%rd1], %r1;\n  ret;\n}\n";
  return in_new_context([&text] { return kernel_run(text, "deep"); });
}

CUresult take_heap(std::size_t bytes) {
  return in_new_context([bytes] {
    const CUresult result = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, bytes);
    return result == CUDA_SUCCESS ? kernel_run(kMallocs, "mallocs") : result;
  });
}

CUresult take_fifo(std::size_t bytes) {
  return in_new_context([bytes] {
    const CUresult result = cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, bytes);
    return result == CUDA_SUCCESS ? kernel_run(kPrints, "prints") : result;
  });
}

/// The limit is raised in one context while the kernel that uses it is loaded in another, which has
/// had its limit for longer: when the quota is full, a heap is still to come.
CUresult take_heap_later(std::size_t bytes) {
  static CUcontext raised = nullptr;
  static std::mutex order;
  const std::lock_guard lock(order);
  CUresult result = CUDA_SUCCESS;
  if (raised != nullptr) {
    CUcontext popped = nullptr;
    (void)cuCtxPushCurrent(raised);
    result = kernel_run(kMallocs, "mallocs");
    (void)cuCtxPopCurrent(&popped);
    raised = nullptr;
  }
  if (result != CUDA_SUCCESS) return result;
  return in_new_context([bytes] {
    const CUresult set = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, bytes);
    if (set == CUDA_SUCCESS) (void)cuCtxGetCurrent(&raised);
    return set;
  });
}

/// One graph launches a kernel of each of four libraries.
CUresult take_library_graph(std::size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = cuGraphCreate(&graph, 0);
  for (int i = 0; i < 4 && result == CUDA_SUCCESS; ++i) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUgraphNode node = nullptr;
    CUDA_KERNEL_NODE_PARAMS params{};
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    result = cuLibraryLoadData(&library, module_text(bytes / 4).c_str(), nullptr, nullptr, 0,
                               nullptr, nullptr, 0);
    if (result == CUDA_SUCCESS) result = cuLibraryGetKernel(&kernel, library, "k_tiny");
    params.func = reinterpret_cast<CUfunction>(kernel);
    if (result == CUDA_SUCCESS) result = cuGraphAddKernelNode(&node, graph, nullptr, 0, &params);
  }
  if (result == CUDA_SUCCESS) result = cuGraphInstantiate(&exec, graph, 0);
  if (result == CUDA_SUCCESS) result = cuGraphLaunch(exec, nullptr);
  return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

}  // namespace

std::string module_text(std::size_t variable_bytes) {
  std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n";
  if (variable_bytes > 0)
    text += ".visible .global .align 4 .b8 room[" + std::to_string(variable_bytes) + "];\n";
  for (const char* name : {"k_tiny", "k_mid", "k_long", "k_huge", "k_endless"})
    text += std::string(".visible .entry ") + name + "()\n{\n  ret;\n}\n";
  return text;
}

const Way kOtherWays[] = {{"module", take_module},
                          {"module_churn", take_module_churn},
                          {"variable", take_variable},
                          {"library", take_library},
                          {"library_late", take_library_late},
                          {"library_launched", take_library_launched},
                          {"linked", take_linked},
                          {"context", take_context},
                          {"context_filled", take_context_filled},
                          {"context_churn", take_context_churn},
                          {"primary_reset", take_primary_reset},
                          {"stack", take_stack},
                          {"stack_each", take_stack_each},
                          {"local", take_local},
                          {"heap", take_heap},
                          {"fifo", take_fifo},
                          {"heap_later", take_heap_later},
                          {"library_graph", take_library_graph},
                          {nullptr, nullptr}};

}  // namespace attacks

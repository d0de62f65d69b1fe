// How a call of a random program reaches the driver (RANDOM_ALSO has `routes`): by the plain
// symbol, by dlsym, or by cuGetProcAddress of either ABI, as the function that it was compiled for,
// as that function's per-thread twin, or as one of the ABIs before it.
#include <dlfcn.h>

#include <cstring>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

void* symbol(const std::string& name) { return dlsym(RTLD_DEFAULT, name.c_str()); }

template <class F>
F* symbol_as(const char* name) {
  return reinterpret_cast<F*>(symbol(name));
}

// --- older ABIs, in the form of the newer ones ---

CUresult context_create_v3(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice gpu) {
  using F = CUresult(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice);
  return symbol_as<F>("cuCtxCreate_v3")(context, nullptr, 0, flags, gpu);
}
CUresult context_create_v2(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice gpu) {
  return symbol_as<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(context, flags, gpu);
}
CUresult synchronize_named() {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  return symbol_as<CUresult(CUcontext)>("cuCtxSynchronize_v2")(context);
}
CUresult device_named(CUdevice* device) {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  return symbol_as<CUresult(CUdevice*, CUcontext)>("cuCtxGetDevice_v2")(device, context);
}
CUresult stream_context_green(CUstream stream, CUcontext* context) {
  CUgreenCtx green = nullptr;
  using F = CUresult(CUstream, CUcontext*, CUgreenCtx*);
  return symbol_as<F>("cuStreamGetCtx_v2")(stream, context, &green);
}
// These know no flags.
template <const char* const& name>
CUresult instantiate_logging(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  if (flags != 0) return cuGraphInstantiate(exec, graph, flags);
  CUgraphNode node = nullptr;
  char text[64];
  using F = CUresult(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
  return symbol_as<F>(name)(exec, graph, &node, text, sizeof text);
}
constexpr const char* kInstantiate = "cuGraphInstantiate";
constexpr const char* kInstantiateV2 = "cuGraphInstantiate_v2";

// Captures globally.
CUresult capture_begin_global(CUstream stream, CUstreamCaptureMode mode) {
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL) return cuStreamBeginCapture(stream, mode);
  return symbol_as<CUresult(CUstream)>("cuStreamBeginCapture")(stream);
}
CUresult update_v1(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  using F = CUresult(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*);
  return symbol_as<F>("cuGraphExecUpdate")(exec, graph, &info->errorNode, &info->result);
}

struct Older {
  const char* name;  // of the function that was compiled for
  void* form;        // what to call in its place
};

/// Those whose arguments are the same are known by name.
std::vector<void*> older(const std::string& exported) {
  static const std::vector<Older> forms = {
      {"cuCtxCreate_v4", reinterpret_cast<void*>(context_create_v3)},
      {"cuCtxCreate_v4", reinterpret_cast<void*>(context_create_v2)},
      {"cuCtxSynchronize", reinterpret_cast<void*>(synchronize_named)},
      {"cuCtxGetDevice", reinterpret_cast<void*>(device_named)},
      {"cuStreamGetCtx", reinterpret_cast<void*>(stream_context_green)},
      {"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(instantiate_logging<kInstantiate>)},
      {"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(instantiate_logging<kInstantiateV2>)},
      {"cuStreamBeginCapture_v2", reinterpret_cast<void*>(capture_begin_global)},
      {"cuGraphExecUpdate_v2", reinterpret_cast<void*>(update_v1)},
      {"cuCtxDestroy_v2", symbol("cuCtxDestroy")},
      {"cuCtxPushCurrent_v2", symbol("cuCtxPushCurrent")},
      {"cuCtxPopCurrent_v2", symbol("cuCtxPopCurrent")},
      {"cuStreamDestroy_v2", symbol("cuStreamDestroy")},
      {"cuEventDestroy_v2", symbol("cuEventDestroy")},
      {"cuDevicePrimaryCtxRelease_v2", symbol("cuDevicePrimaryCtxRelease")},
      {"cuDevicePrimaryCtxReset_v2", symbol("cuDevicePrimaryCtxReset")},
  };
  std::vector<void*> found;
  for (const Older& form : forms)
    if (exported == form.name) found.push_back(form.form);
  return found;
}

/// By the call that runtimes ask for all others by, of one of its two ABIs.
void* asked(Random& random, const char* name, int version, cuuint64_t flags) {
  void* found = nullptr;
  if (random.chance(50)) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    return cuGetProcAddress(name, &found, version, flags, &status) == CUDA_SUCCESS ? found
                                                                                   : nullptr;
  }
  using F = CUresult(const char*, void**, int, cuuint64_t);
  return symbol_as<F>("cuGetProcAddress")(name, &found, version, flags) == CUDA_SUCCESS ? found
                                                                                        : nullptr;
}

/// What is compiled as one function and answered as another when the newest is asked for.
int version_of(const char* name) {
  for (const char* const other : {"cuCtxGetDevice", "cuCtxSynchronize", "cuStreamGetCtx"})
    if (strcmp(name, other) == 0) return 12000;
  return CUDA_VERSION;
}

void* twin(Random& random, const char* name, const std::string& exported) {
  for (const char* const end : {"_ptsz", "_ptds"}) {
    void* const found = symbol(exported + end);
    if (found == nullptr || random.chance(50)) {
      if (found != nullptr)
        return asked(random, name, version_of(name), CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
      continue;
    }
    return found;
  }
  return nullptr;
}

}  // namespace

void* Step::route(const char* name, const char* exported, void* plain) {
  if (!world.routes) return plain;
  // The compiler's name for it is another than the one to ask for.
  const bool instantiates = strcmp(name, "cuGraphInstantiate") == 0;
  if (per_thread) {
    void* const found = twin(random, name, exported);
    return found == nullptr ? plain : found;
  }
  void* found = plain;
  const std::vector<void*> forms = older(exported);
  switch (random.below(4)) {
    case 0:
      break;
    case 1:
      found = symbol(exported);
      break;
    case 2:
      found = asked(random, instantiates ? exported : name, version_of(name),
                    random.of({cuuint64_t{CU_GET_PROC_ADDRESS_DEFAULT},
                               cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM}}));
      break;
    case 3:
      if (!forms.empty()) found = forms[random.below(forms.size())];
      break;
  }
  if (found == nullptr) fault(std::string("no way to ") + exported);
  return found == nullptr ? plain : found;
}

namespace {

// What all ABIs say of one stream's capture is the same.
void capture_info(Step& step) {
  const CUstream stream = step.null_named(step.stream());
  CUstreamCaptureStatus status[3] = {};
  cuuint64_t id[3] = {};
  using F1 = CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*);
  using F2 = CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                      size_t*);
  const CUresult first = symbol_as<F1>("cuStreamGetCaptureInfo")(stream, &status[0], &id[0]);
  const CUresult second = symbol_as<F2>("cuStreamGetCaptureInfo_v2")(stream, &status[1], &id[1],
                                                                     nullptr, nullptr, nullptr);
  const CUresult third = CALL(step, cuStreamGetCaptureInfo, stream, &status[2], &id[2], nullptr,
                              nullptr, nullptr, nullptr);
  step.say(std::to_string(status[2]));
  step.note("v1", first);
  step.note("v2", second);
  if (first == third && (status[0] != status[2] || id[0] != id[2])) step.fault("v1 says another");
  if (second == third && (status[1] != status[2] || id[1] != id[2])) step.fault("v2 says another");
}

// Of the days of 32 bits: a driver of today may have no memory for them.
void memory_of_32_bits(Step& step) {
  unsigned address = 0x7777, free = 0, total = 0, pitch = 0;
  const auto bytes = static_cast<unsigned>(step.random.bytes());
  step.say(std::to_string(bytes));
  const CUresult result =
      step.note("cuMemAlloc_v1",
                step.random.chance(50)
                    ? symbol_as<CUresult(unsigned*, unsigned)>("cuMemAlloc")(&address, bytes)
                    : symbol_as<CUresult(unsigned*, unsigned*, unsigned, unsigned, unsigned)>(
                          "cuMemAllocPitch")(&address, &pitch, bytes / 16 + 1, 16, 4));
  step.output("address", result, address, 0x7777u);
  step.note("cuMemGetInfo_v1",
            symbol_as<CUresult(unsigned*, unsigned*)>("cuMemGetInfo")(&free, &total));
  if (free > total) step.fault("more is free than there is");
  if (result == CUDA_SUCCESS)
    step.note("cuMemFree_v1", symbol_as<CUresult(unsigned)>("cuMemFree")(address));
}

}  // namespace

void route_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"routes", "capture_info", 4, capture_info},
                             {"routes", "memory_of_32_bits", 2, memory_of_32_bits}});
}

}  // namespace sluice::test

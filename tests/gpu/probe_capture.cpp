// Part of probe_driver: the calls of which the manuals leave open whether they are legal while a
// stream is captured. Each is made outside a capture first (which tells whether its arguments are
// good), then under captures of the three modes, by the capturing thread and by another one.
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "tests/gpu/probe.h"

namespace probe {
namespace {

void* driver_library;

/// The driver's function of that exact name; answers NOT_FOUND where this driver has none.
template <class F>
struct Named;
template <class... A>
struct Named<CUresult(A...)> {
  static CUresult call(const char* symbol, A... arguments) {
    const auto function = function_named<CUresult (*)(A...)>(driver_library, symbol);
    return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
  }
};
#define CALL(function, ...) Named<decltype(::function)>::call(#function, __VA_ARGS__)

constexpr size_t kBytes = 2 << 20;

/// What the calls work on; made before the capture begins, anew for every call.
struct Things {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;  // the one that is captured
  CUstream other = nullptr;
  CUevent event = nullptr;  // recorded before
  CUdeviceptr plain = 0, plain_to = 0, managed = 0;
  CUarray array = nullptr;
  CUmipmappedArray mipmap = nullptr;
  CUmemoryPool pool = nullptr;
  CUgreenCtx green = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec graph_exec = nullptr;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  std::string image_path;
  std::vector<char> image;
  // Outputs, and the arguments of batches.
  size_t size = kBytes, index = 0;
  char log[64] = {};
  CUDA_ARRAY_DESCRIPTOR flat{16, 16, CU_AD_FORMAT_FLOAT, 1};
  CUDA_ARRAY_DESCRIPTOR_v1 flat_v1{16, 16, CU_AD_FORMAT_FLOAT, 1};
  CUDA_ARRAY3D_DESCRIPTOR deep{16, 16, 16, CU_AD_FORMAT_FLOAT, 1, 0};
  CUDA_ARRAY3D_DESCRIPTOR_v1 deep_v1{16, 16, 16, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmemAllocationProp memory{};
  CUmemPoolProps pool_properties{};
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemcpyAttributes copy{};
  CUDA_MEMCPY3D_BATCH_OP copy_3d{};
  CUmemDecompressParams decompress{};
  CUarrayMapInfo map{};
  CUgraphicsResource resource = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS instantiate{};
};

void green_make(Things& t) {
  CUdevResource all{}, part{};
  CUdevResourceDesc description = nullptr;
  unsigned groups = 1;
  CALL(cuDeviceGetDevResource, t.device, &all, CU_DEV_RESOURCE_TYPE_SM);
  CALL(cuDevSmResourceSplitByCount, &part, &groups, &all, nullptr, 0u, 8u);
  CALL(cuDevResourceGenerateDesc, &description, &part, 1u);
  CALL(cuGreenCtxCreate, &t.green, description, t.device,
       static_cast<unsigned>(CU_GREEN_CTX_DEFAULT_STREAM));
}

void things_make(Things& t, CUdevice device, CUcontext context) {
  t.device = device;
  t.context = context;
  CALL(cuStreamCreate, &t.stream, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  CALL(cuStreamCreate, &t.other, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  CALL(cuEventCreate, &t.event, 0u);
  CALL(cuEventRecord, t.event, t.other);
  CALL(cuStreamSynchronize, t.other);
  CALL(cuMemAlloc_v2, &t.plain, kBytes);
  CALL(cuMemAlloc_v2, &t.plain_to, kBytes);
  CALL(cuMemAllocManaged, &t.managed, kBytes, static_cast<unsigned>(CU_MEM_ATTACH_GLOBAL));
  CALL(cuArrayCreate_v2, &t.array, &t.flat);
  CALL(cuMipmappedArrayCreate, &t.mipmap, &t.deep, 2u);
  t.memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  t.memory.location = t.location;
  t.pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  t.pool_properties.location = t.location;
  CALL(cuMemPoolCreate, &t.pool, &t.pool_properties);
  green_make(t);
  CALL(cuGraphCreate, &t.graph, 0u);
  CALL(cuGraphInstantiateWithFlags, &t.graph_exec, t.graph, 0ull);
  t.image_path = sibling_path("probe_kernels.fatbin");
  std::ifstream file(t.image_path, std::ios::binary);
  t.image.assign(std::istreambuf_iterator<char>(file), {});
  if (!t.image.empty()) {
    CALL(cuLibraryLoadData, &t.library, t.image.data(), nullptr, nullptr, 0u, nullptr, nullptr, 0u);
    CALL(cuLibraryGetKernel, &t.kernel, t.library, "probe_kernel");
    CALL(cuModuleLoadData, &t.module, t.image.data());
    CALL(cuModuleGetFunction, &t.function, t.module, "probe_kernel");
  }
  t.copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  t.copy_3d.src.type = t.copy_3d.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  t.copy_3d.src.op.ptr.ptr = t.plain;
  t.copy_3d.dst.op.ptr.ptr = t.plain_to;
  t.copy_3d.extent = {256, 1, 1};
  t.copy_3d.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  t.decompress.srcNumBytes = t.decompress.dstNumBytes = 256;
  t.decompress.src = reinterpret_cast<const void*>(t.plain);
  t.decompress.dst = reinterpret_cast<void*>(t.plain_to);
  t.decompress.algo = CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE;
  t.map.resourceType = CU_RESOURCE_TYPE_ARRAY;
  t.map.resource.array = t.array;
}

using Body = std::function<CUresult(Things&)>;
struct Probe {
  const char* symbol;
  Body body;
};

// One call, and one call with its per-thread twin (whose stream is given, so it does the same).
#define ONE(function, ...)                                                \
  {                                                                       \
#function, [](Things& t) { (void)t; return CALL(function, __VA_ARGS__); } \
  }
#define TWIN(function, ...) ONE(function, __VA_ARGS__), ONE(function##_ptsz, __VA_ARGS__)

template <class T>
T* out() {
  static T value;
  return &value;
}

// The calls of which the reference list of entry points (tests/interpose/driver-entrypoints.tsv)
// says what hardware answered, or what is inferred; and those that Sluice makes by itself.
const Probe kProbes[] = {
    ONE(cuArray3DCreate, out<CUarray>(), &t.deep_v1),
    ONE(cuArray3DCreate_v2, out<CUarray>(), &t.deep),
    ONE(cuArrayCreate, out<CUarray>(), &t.flat_v1),
    ONE(cuArrayCreate_v2, out<CUarray>(), &t.flat),
    ONE(cuArrayDestroy, t.array),
    ONE(cuCtxCreate, out<CUcontext>(), 0u, t.device),
    ONE(cuCtxCreate_v2, out<CUcontext>(), 0u, t.device),
    ONE(cuCtxCreate_v3, out<CUcontext>(), nullptr, 0, 0u, t.device),
    ONE(cuCtxCreate_v4, out<CUcontext>(), nullptr, 0u, t.device),
    ONE(cuFuncLoad, t.function),
    ONE(cuGraphInstantiate, out<CUgraphExec>(), t.graph, nullptr, t.log, sizeof t.log),
    ONE(cuGraphInstantiateWithFlags, out<CUgraphExec>(), t.graph, 0ull),
    TWIN(cuGraphInstantiateWithParams, out<CUgraphExec>(), t.graph, &t.instantiate),
    ONE(cuGraphInstantiate_v2, out<CUgraphExec>(), t.graph, nullptr, t.log, sizeof t.log),
    TWIN(cuGraphUpload, t.graph_exec, t.stream),
    TWIN(cuGraphicsMapResources, 1u, &t.resource, t.stream),
    TWIN(cuGraphicsUnmapResources, 1u, &t.resource, t.stream),
    ONE(cuKernelGetFunction, out<CUfunction>(), t.kernel),
    ONE(cuLibraryGetGlobal, out<CUdeviceptr>(), &t.size, t.library, "probe_cell"),
    ONE(cuLibraryGetManaged, out<CUdeviceptr>(), &t.size, t.library, "probe_shared_cell"),
    ONE(cuLibraryGetModule, out<CUmodule>(), t.library),
    TWIN(cuMemBatchDecompressAsync, &t.decompress, size_t{1}, 0u, &t.index, t.stream),
    ONE(cuMemCreate, out<CUmemGenericAllocationHandle>(), kBytes, &t.memory, 0ull),
    TWIN(cuMemDiscardAndPrefetchBatchAsync, &t.managed, &t.size, size_t{1}, &t.location, &t.index,
         size_t{1}, 0ull, t.stream),
    TWIN(cuMemDiscardBatchAsync, &t.managed, &t.size, size_t{1}, 0ull, t.stream),
    TWIN(cuMemMapArrayAsync, &t.map, 1u, t.stream),
    ONE(cuMemPoolCreate, out<CUmemoryPool>(), &t.pool_properties),
    ONE(cuMemPoolDestroy, t.pool),
    ONE(cuMemPoolTrimTo, t.pool, size_t{0}),
    TWIN(cuMemPrefetchAsync, t.managed, kBytes, t.device, t.stream),
    TWIN(cuMemPrefetchAsync_v2, t.managed, kBytes, t.location, 0u, t.stream),
    TWIN(cuMemPrefetchBatchAsync, &t.managed, &t.size, size_t{1}, &t.location, &t.index, size_t{1},
         0ull, t.stream),
    TWIN(cuMemcpy3DBatchAsync, size_t{1}, &t.copy_3d, &t.index, 0ull, t.stream),
    TWIN(cuMemcpy3DBatchAsync_v2, size_t{1}, &t.copy_3d, 0ull, t.stream),
    TWIN(cuMemcpyBatchAsync, &t.plain_to, &t.plain, &t.size, size_t{1}, &t.copy, &t.index,
         size_t{1}, out<size_t>(), t.stream),
    TWIN(cuMemcpyBatchAsync_v2, &t.plain_to, &t.plain, &t.size, size_t{1}, &t.copy, &t.index,
         size_t{1}, t.stream),
    ONE(cuMipmappedArrayCreate, out<CUmipmappedArray>(), &t.deep, 2u),
    ONE(cuMipmappedArrayDestroy, t.mipmap),
    ONE(cuModuleLoad, out<CUmodule>(), t.image_path.c_str()),
    ONE(cuModuleLoadData, out<CUmodule>(), t.image.data()),
    ONE(cuModuleLoadDataEx, out<CUmodule>(), t.image.data(), 0u, nullptr, nullptr),
    ONE(cuModuleLoadFatBinary, out<CUmodule>(), t.image.data()),
    ONE(cuStreamCreate, out<CUstream>(), 0u),
    ONE(cuStreamCreateWithPriority, out<CUstream>(), 0u, 0),
    ONE(cuCtxRecordEvent, t.context, t.event),
    ONE(cuCtxSetCacheConfig, CU_FUNC_CACHE_PREFER_NONE),
    ONE(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, size_t{4096}),
    ONE(cuDeviceGetGraphMemAttribute, t.device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
        out<cuuint64_t>()),
    ONE(cuDeviceGetMemPool, out<CUmemoryPool>(), t.device),
    ONE(cuDeviceGraphMemTrim, t.device),
    ONE(cuEventCreate, out<CUevent>(), 0u),
    ONE(cuEventDestroy_v2, t.event),
    ONE(cuEventElapsedTime, out<float>(), t.event, t.event),
    ONE(cuEventQuery, t.event),
    ONE(cuGraphExecDestroy, t.graph_exec),
    ONE(cuGreenCtxDestroy, t.green),
    ONE(cuLibraryUnload, t.library),
    ONE(cuMemFree_v2, t.plain),
    ONE(cuMemGetAddressRange_v2, out<CUdeviceptr>(), &t.size, t.plain),
    ONE(cuMemGetInfo_v2, out<size_t>(), &t.size),
    ONE(cuMemPoolGetAttribute, t.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, out<cuuint64_t>()),
    ONE(cuModuleUnload, t.module),
    TWIN(cuGraphLaunch, t.graph_exec, t.stream),
    TWIN(cuStreamGetCtx, t.stream, out<CUcontext>()),
    TWIN(cuStreamGetDevice, t.stream, out<CUdevice>()),
    TWIN(cuStreamGetFlags, t.stream, out<unsigned>()),
    TWIN(cuStreamGetId, t.stream, out<unsigned long long>()),
    ONE(cuStreamQuery, t.other),
};

constexpr struct {
  const char* name;
  CUstreamCaptureMode mode;
} kModes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
              {"thread_local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
              {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};

CUresult on_another_thread(const Probe& probe, Things& things) {
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread other([&] {
    CALL(cuCtxSetCurrent, things.context);
    result = probe.body(things);
  });
  other.join();
  return result;
}

void captured_call_print(const Probe& probe, CUdevice device, CUcontext context,
                         CUstreamCaptureMode mode, bool other_thread) {
  Things things;
  things_make(things, device, context);
  const CUresult begun = CALL(cuStreamBeginCapture_v2, things.stream, mode);
  const CUresult result = other_thread ? on_another_thread(probe, things) : probe.body(things);
  CALL(cuCtxSetCurrent, context);  // the call may have been one that makes a context
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CALL(cuStreamIsCapturing, things.stream, &status);
  CUgraph graph = nullptr;
  const CUresult ended = CALL(cuStreamEndCapture, things.stream, &graph);
  const bool survives = status == CU_STREAM_CAPTURE_STATUS_ACTIVE && ended == CUDA_SUCCESS;
  std::printf("{\"begin\": %d, \"result\": %d, \"survives\": %s, \"end\": %d}", begun, result,
              survives ? "true" : "false", ended);
}

}  // namespace

int capture_probe(void* library, const std::string& symbol) {
  driver_library = library;
  CUdevice device = 0;
  CUcontext context = nullptr;
  for (const Probe& probe : kProbes) {
    if (symbol != probe.symbol) continue;
    if (CALL(cuInit, 0u) != CUDA_SUCCESS || CALL(cuDeviceGet, &device, 0) != CUDA_SUCCESS ||
        CALL(cuDevicePrimaryCtxRetain, &context, device) != CUDA_SUCCESS ||
        CALL(cuCtxSetCurrent, context) != CUDA_SUCCESS) {
      return 1;
    }
    Things outside;
    things_make(outside, device, context);
    std::printf("{\"outside\": %d", probe.body(outside));
    CALL(cuCtxSetCurrent, context);
    for (const auto& [name, mode] : kModes) {
      std::printf(", \"%s\": {\"same_thread\": ", name);
      captured_call_print(probe, device, context, mode, false);
      std::printf(", \"other_thread\": ");
      captured_call_print(probe, device, context, mode, true);
      std::printf("}");
      std::fflush(stdout);
    }
    std::printf("}\n");
    return 0;
  }
  return 2;
}

void captures_print() {
  std::printf("  \"capture\": {");
  for (const Probe& probe : kProbes) {
    const Answer answer = sibling_run("probe_driver", {"--capture", probe.symbol});
    const bool whole = answer.ended == "status 0" && answer.text.rfind("}\n") != std::string::npos;
    std::printf("%s\n    \"%s\": %s", &probe == kProbes ? "" : ",", probe.symbol,
                whole ? answer.text.substr(0, answer.text.size() - 1).c_str()
                      : ("{\"ended\": \"" + answer.ended + "\"}").c_str());
  }
  std::printf("},\n");
}

}  // namespace probe

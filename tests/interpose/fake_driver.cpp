// See fake_driver.h.
#include "tests/interpose/fake_driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE FakeState fake;
FakeState fake = {8ull << 30,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  CUDA_SUCCESS,
                  0,
                  1,
                  0,
                  nullptr,
                  0,
                  1000,
                  0,
                  0,
                  2 << 20,
                  0,
                  0,
                  nullptr,
                  0,
                  0,
                  nullptr,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  nullptr,
                  nullptr,
                  0,
                  0,
                  nullptr,
                  nullptr,
                  0,
                  0,
                  nullptr,
                  CU_MEM_LOCATION_TYPE_DEVICE,
                  nullptr,
                  0,
                  0,
                  CUDA_SUCCESS,
                  0,
                  0,
                  CUDA_SUCCESS};

void fake_enter(const char* function) {
  if (fake.on_enter != nullptr) fake.on_enter(function);
  if (__atomic_load_n(&fake.held, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_add_fetch(&fake.calls_while_held, 1, __ATOMIC_SEQ_CST);
  fake.held_offender = function;
}

namespace {
std::mutex mutex;
std::unordered_map<CUdeviceptr, unsigned long long> sizes;
struct Chunk {
  unsigned long long bytes, rest;  // the rest lies behind what was given out last
  int live;                        // allocations
};
std::map<unsigned long long, Chunk> chunks;  // by number; with fake.pool_pieces
struct Pooled {
  unsigned long long bytes, chunk;
};
std::map<CUdeviceptr, Pooled> pooled;
CUdeviceptr next_address = 0x7f0000000000;
// What was freed last is given out first, as real drivers do.
struct Freed {
  CUdeviceptr address;
  unsigned long long bytes;
} freed;
unsigned long long next_event = 1;
// Whatever a program says is an event may be none.
constexpr unsigned kEventMark = 0xe7e47000;
struct Event {
  double time_ns;
  unsigned mark;
  Event* before;  // all that there ever were: contexts end with theirs, as drivers' do
};
std::atomic<Event*> events{nullptr};

CUresult take(CUdeviceptr* out, unsigned long long bytes) {
  fake_enter("an allocation");
  if (fake.errno_to_set != 0) errno = fake.errno_to_set;
  if (fake.alloc_result != CUDA_SUCCESS) return fake.alloc_result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex);
  if (fake.used_bytes + bytes > fake.capacity_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  fake.used_bytes += bytes;
  if (freed.bytes == bytes) {
    *out = freed.address;
    freed = {};
  } else {
    *out = next_address;
    next_address += (bytes + 511) / 512 * 512;
  }
  sizes[*out] = bytes;
  return CUDA_SUCCESS;
}
}  // namespace

FAKE CUresult cuInit(unsigned int) {
  const char* count = getenv("FAKE_DEVICES");
  if (count != nullptr) fake.device_count = atoi(count);
  return CUDA_SUCCESS;
}
FAKE CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGetCount(int* count) {
  *count = fake.device_count;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
// Of a size, so that shims which reckon a share in multiprocessors have something to reckon with.
FAKE CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT             ? 108
           : attribute == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR ? 2048
                                                                             : 0;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  memset(uuid, kFakeUuidBase + device, sizeof *uuid);
  return CUDA_SUCCESS;
}
// Of the second device there is one context, which is current where it was pushed.
static const auto kContextElsewhere = reinterpret_cast<CUcontext>(0x1100);
static thread_local int pushed_elsewhere;
FAKE CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = pushed_elsewhere > 0      ? kContextElsewhere
             : fake.context != nullptr ? fake.context
                                       : reinterpret_cast<CUcontext>(0x1000);
  return CUDA_SUCCESS;
}
FAKE CUresult cuCtxGetDevice(CUdevice* device) {
  *device = pushed_elsewhere > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}
FAKE CUresult cuCtxPushCurrent_v2(CUcontext context) {
  fake_enter(__func__);
  if (context == kContextElsewhere) ++pushed_elsewhere;
  return CUDA_SUCCESS;
}
FAKE CUresult cuCtxPopCurrent_v2(CUcontext*) {
  fake_enter(__func__);
  if (pushed_elsewhere > 0) --pushed_elsewhere;
  return CUDA_SUCCESS;
}
FAKE CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  if (fake.stream_elsewhere == nullptr || stream != fake.stream_elsewhere)
    return cuCtxGetCurrent(context);
  *context = kContextElsewhere;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  fake_enter(__func__);
  *context = reinterpret_cast<CUcontext>(0x1000);
  ++fake.context_active;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  fake_enter(__func__);
  --fake.context_active;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  *flags = 0;
  *active = fake.context_active > 0;
  if (fake.on_state != nullptr) fake.on_state();
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) { return take(out, bytes); }
// At an address of 32 bits, where nothing else is.
static CUresult take_low(CUdeviceptr_v1* out, unsigned long long bytes) {
  static CUdeviceptr next_low = 0x10000;
  CUdeviceptr high = 0;
  const CUresult result = take(&high, bytes);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex);
  sizes.erase(high);
  sizes[next_low] = bytes;
  *out = static_cast<CUdeviceptr_v1>(next_low);
  next_low += (bytes + 511) / 512 * 512;
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemAlloc(CUdeviceptr_v1* out, unsigned int bytes) {
  ++fake.calls_alloc_v1;
  return take_low(out, bytes);
}
FAKE CUresult cuMemAllocPitch(CUdeviceptr_v1* out, unsigned int* pitch, unsigned int width,
                              unsigned int height, unsigned int) {
  *pitch = (width + 511) / 512 * 512;
  return take_low(out, static_cast<unsigned long long>(*pitch) * height);
}
FAKE CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned int) {
  return take(out, bytes);
}
FAKE CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                                 unsigned int) {
  *pitch = (width + 511) / 512 * 512;
  return take(out, *pitch * height);
}
// A piece of the first chunk that has room at its end, or of a new one.
static unsigned long long piece_take(unsigned long long bytes) {
  for (auto& [number, chunk] : chunks) {
    if (chunk.rest < bytes) continue;
    chunk.rest -= bytes;
    ++chunk.live;
    return number;
  }
  static unsigned long long next_chunk = 1;
  const unsigned long long step = fake.pool_step_bytes;
  const unsigned long long whole = (bytes + step - 1) / step * step;
  fake.pool_reserved_bytes += whole;
  chunks[next_chunk] = Chunk{whole, whole - bytes, 1};
  return next_chunk++;
}
static void pooled_give(CUdeviceptr pointer) {
  const auto found = pooled.find(pointer);
  if (found == pooled.end()) return;
  fake.pool_used_bytes -= found->second.bytes;
  if (found->second.chunk != 0) {
    Chunk& chunk = chunks[found->second.chunk];
    if (--chunk.live == 0) chunk.rest = chunk.bytes;
  }
  pooled.erase(found);
}
FAKE CUresult cuMemFree_v2(CUdeviceptr pointer) {
  fake_enter(__func__);
  ++fake.calls_free;
  const std::lock_guard lock(mutex);
  if (pooled.contains(pointer)) {
    pooled_give(pointer);
    return CUDA_SUCCESS;
  }
  const auto found = sizes.find(pointer);
  if (found == sizes.end()) return CUDA_ERROR_INVALID_VALUE;
  fake.used_bytes -= found->second;
  freed = {pointer, found->second};
  sizes.erase(found);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemFree(CUdeviceptr_v1 pointer) { return cuMemFree_v2(pointer); }
FAKE CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  if (free_bytes != nullptr) *free_bytes = fake.capacity_bytes - fake.used_bytes;
  if (total_bytes != nullptr) *total_bytes = fake.capacity_bytes;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = fake.capacity_bytes;
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle*, void*) {
  fake_enter(__func__);
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice) {
  *pool = reinterpret_cast<CUmemoryPool>(0x5000);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation*, CUmemAllocationType) {
  *pool = reinterpret_cast<CUmemoryPool>(0x5100);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation*, CUmemAllocationType) {
  *pool = reinterpret_cast<CUmemoryPool>(0x5200);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
  static uintptr_t next_pool = 0x6000;
  *pool = reinterpret_cast<CUmemoryPool>(next_pool += 0x10);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute attribute, void* value) {
  fake_enter(__func__);
  *static_cast<cuuint64_t*>(value) = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
                                         ? fake.pool_reserved_bytes
                                         : fake.pool_used_bytes;
  if (fake.on_pool_read != nullptr) fake.on_pool_read();
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream) {
  fake_enter(__func__);
  const std::lock_guard lock(mutex);
  fake.pool_used_bytes += bytes;
  const unsigned long long chunk = fake.pool_pieces != 0 ? piece_take(bytes) : 0;
  while (fake.pool_reserved_bytes < fake.pool_used_bytes)
    fake.pool_reserved_bytes += fake.pool_step_bytes;
  *out = next_address;
  next_address += (bytes + 511) / 512 * 512;
  pooled[*out] = Pooled{bytes, chunk};
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool,
                                      CUstream stream) {
  return cuMemAllocAsync(out, bytes, stream);
}
FAKE CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream) {
  fake_enter(__func__);
  const std::lock_guard lock(mutex);
  pooled_give(pointer);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemPoolTrimTo(CUmemoryPool, size_t bytes) {
  fake_enter(__func__);
  const std::lock_guard lock(mutex);
  if (fake.pool_stuck != 0) return CUDA_SUCCESS;
  if (fake.pool_pieces != 0) {
    std::erase_if(chunks, [bytes](const auto& entry) {
      const Chunk& chunk = entry.second;
      const bool goes = chunk.live == 0 && fake.pool_reserved_bytes - chunk.bytes >= bytes;
      if (goes) fake.pool_reserved_bytes -= chunk.bytes;
      return goes;
    });
    return CUDA_SUCCESS;
  }
  const unsigned long long low = fake.pool_used_bytes > bytes ? fake.pool_used_bytes : bytes;
  if (fake.pool_reserved_bytes > low) fake.pool_reserved_bytes = low;
  return CUDA_SUCCESS;
}
// The n-th graph within each other has the handle n and one node, whose handle is n as well.
FAKE CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  *count = fake.graph_depth > 0 ? 1 : 0;
  if (nodes != nullptr) *nodes = reinterpret_cast<CUgraphNode>(graph);
  return CUDA_SUCCESS;
}
FAKE CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  const bool innermost =
      reinterpret_cast<uintptr_t>(node) >= static_cast<uintptr_t>(fake.graph_depth);
  *type = !innermost                   ? CU_GRAPH_NODE_TYPE_GRAPH
          : fake.graph_node_bytes != 0 ? CU_GRAPH_NODE_TYPE_MEM_ALLOC
                                       : CU_GRAPH_NODE_TYPE_EMPTY;
  return CUDA_SUCCESS;
}
FAKE CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  *graph = reinterpret_cast<CUgraph>(reinterpret_cast<uintptr_t>(node) + 1);
  return CUDA_SUCCESS;
}
FAKE CUresult cuGraphMemAllocNodeGetParams(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  params->poolProps.location.type = fake.graph_node_place;
  params->bytesize = fake.graph_node_bytes;
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGetGraphMemAttribute(CUdevice, CUgraphMem_attribute attribute, void* value) {
  fake_enter(__func__);
  const bool reserved = attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
  *static_cast<cuuint64_t*>(value) = reserved ? fake.graph_reserved_bytes : fake.graph_used_bytes;
  return CUDA_SUCCESS;
}
FAKE CUresult cuGraphExecDestroy(CUgraphExec) {
  fake_enter(__func__);
  return fake.graph_end_result;
}
FAKE CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  fake_enter(__func__);
  *exec = reinterpret_cast<CUgraphExec>(0x8800);
  params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return CUDA_SUCCESS;
}
static CUresult graph_launch(unsigned long long* calls, CUgraphExec exec, CUstream stream) {
  ++*calls;
  fake.device_ns += fake.launch_ns;
  if (fake.on_launch == nullptr) return CUDA_SUCCESS;
  FakeLaunch launch{};
  launch.f = reinterpret_cast<CUfunction>(exec);
  launch.stream = stream;
  return fake.on_launch(launch);
}
FAKE CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                             unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                             CUstream stream, void** params, void** extra) {
  fake_enter(__func__);
  ++fake.calls_launch;
  fake.device_ns += fake.launch_ns;
  if (fake.errno_to_set != 0) errno = fake.errno_to_set;
  if (fake.on_launch == nullptr) return CUDA_SUCCESS;
  return fake.on_launch({f, gx, gy, gz, bx, by, bz, shared, stream, params, extra});
}
FAKE CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                  unsigned int bx, unsigned int by, unsigned int bz,
                                  unsigned int shared, CUstream stream, void** params,
                                  void** extra) {
  fake_enter(__func__);
  ++fake.calls_launch_ptsz;
  fake.device_ns += fake.launch_ns;
  if (fake.on_launch == nullptr) return CUDA_SUCCESS;
  return fake.on_launch({f, gx, gy, gz, bx, by, bz, shared, stream, params, extra});
}
FAKE CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params,
                               void** extra) {
  fake_enter(__func__);
  ++fake.calls_launch;
  fake.device_ns += fake.launch_ns;
  if (fake.on_launch == nullptr) return CUDA_SUCCESS;
  return fake.on_launch({f, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                         config->blockDimY, config->blockDimZ, config->sharedMemBytes,
                         config->hStream, params, extra});
}
FAKE CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  fake_enter(__func__);
  return graph_launch(&fake.calls_launch, exec, stream);
}
FAKE CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  fake_enter(__func__);
  return graph_launch(&fake.calls_launch_ptsz, exec, stream);
}
FAKE CUresult cuEventCreate(CUevent* event, unsigned int) {
  fake_enter(__func__);
  if (fake.event_result != CUDA_SUCCESS) return fake.event_result;
  auto* made = new Event{0, kEventMark, events};
  while (!events.compare_exchange_weak(made->before, made)) {
  }
  *event = reinterpret_cast<CUevent>(made);
  ++next_event;
  return CUDA_SUCCESS;
}
FAKE CUresult cuEventDestroy_v2(CUevent event) {
  fake_enter(__func__);
  Event* made = reinterpret_cast<Event*>(event);
  if (made->mark != kEventMark) return CUDA_ERROR_INVALID_HANDLE;
  made->mark = 0;
  return CUDA_SUCCESS;
}
FAKE CUresult cuEventRecord(CUevent event, CUstream stream) {
  fake_enter(__func__);
  ++fake.calls_event_record;
  if (fake.capturing != 0 && stream == fake.capturing_stream) ++fake.calls_on_capturing;
  reinterpret_cast<Event*>(event)->time_ns = fake.device_ns;
  return CUDA_SUCCESS;
}
FAKE CUresult cuEventQuery(CUevent) {
  if (fake.on_enter != nullptr) fake.on_enter(__func__);
  return fake.events_pending != 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
FAKE CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to) {
  *ms = static_cast<float>(
      (reinterpret_cast<Event*>(to)->time_ns - reinterpret_cast<Event*>(from)->time_ns) / 1e6);
  return CUDA_SUCCESS;
}
FAKE CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
FAKE CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = fake.capturing != 0 && stream == fake.capturing_stream ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                                   : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
FAKE CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  fake_enter(__func__);
  fake.capturing = 1;
  fake.capturing_stream = stream;
  return CUDA_SUCCESS;
}
FAKE CUresult cuStreamEndCapture(CUstream, CUgraph*) {
  fake.capturing = 0;
  return CUDA_SUCCESS;
}

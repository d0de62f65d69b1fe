// A process of the tenant that does what a test tells it. See softgpu_partner.h.
#include "tests/interpose/softgpu_partner.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

using namespace sluice::test;

namespace {

CUcontext context;
CUdevice device;

CUmemAllocationProp shareable() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

template <class Handle>
Handle handle(std::uint64_t value) {
  return reinterpret_cast<Handle>(value);
}

CUresult init(int ordinal) {
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, ordinal);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

CUresult map(CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr* at) {
  const CUresult result = cuMemAddressReserve(at, bytes, 0, 0, 0);
  return result == CUDA_SUCCESS ? cuMemMap(*at, bytes, 0, memory, 0) : result;
}

// The driver keeps the descriptor that it is given.
CUresult external_import(int fd, std::uint64_t bytes, CUexternalMemory* memory) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  what.size = bytes;
  const CUresult result = cuImportExternalMemory(memory, &what);
  if (result != CUDA_SUCCESS) close(what.handle.fd);
  return result;
}

CUresult external_map(CUexternalMemory memory, std::uint64_t bytes, CUdeviceptr* at) {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC what{};
  what.size = bytes;
  return cuExternalMemoryGetMappedBuffer(at, memory, &what);
}

CUresult module_load(size_t bytes, CUmodule* module) {
  const std::string text =
      ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 room[" +
      std::to_string(bytes) + "];\n.visible .entry k()\n{\n  ret;\n}\n";
  return cuModuleLoadData(module, text.c_str());
}

// Counts to n in one thread.
constexpr char kSpin[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [n];
  mov.u32 %r2, 0;
LOOP:
  add.s32 %r2, %r2, 1;
  setp.lt.s32 %p1, %r2, %r1;
  @%p1 bra LOOP;
  ret;
}
)";

CUresult spin(std::uint64_t launches, std::uint64_t count) {
  static CUfunction function;
  CUmodule module = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (function == nullptr) {
    result = cuModuleLoadData(&module, kSpin);
    if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&function, module, "spin");
  }
  auto n = static_cast<unsigned>(count);
  void* parameters[] = {&n};
  for (std::uint64_t i = 0; i < launches && result == CUDA_SUCCESS; ++i)
    result = cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
  return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

// `a` bytes at most in each of four threads, `b` rounds, `extra` = 1: every request has `a` bytes,
// so that it is known what fits. `value` counts the refusals, `extra` wrong answers: a result that
// is neither success nor out of memory, an output that a refusal touched, a view beyond the quota.
void churn(const PartnerMessage& request, PartnerMessage* answer) {
  std::atomic<std::uint64_t> refused{0}, wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      if (cuCtxSetCurrent(context) != CUDA_SUCCESS) ++wrong;
      unsigned seed = static_cast<unsigned>(request.value) * 8 + t + 1;
      for (std::uint64_t i = 0; i < request.b; ++i) {
        seed = seed * 1664525u + 1013904223u;
        const size_t bytes = request.extra != 0 ? request.a : 1 + (seed >> 4) % request.a;
        CUdeviceptr pointer = 77;
        const CUresult result = cuMemAlloc(&pointer, bytes);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
          ++refused;
          wrong += pointer != 77 ? 1 : 0;
          continue;
        }
        wrong += result != CUDA_SUCCESS ? 1 : 0;
        size_t free_bytes = 0, total_bytes = 0;
        wrong += cuMemGetInfo(&free_bytes, &total_bytes) != CUDA_SUCCESS ||
                         bytes + free_bytes > total_bytes
                     ? 1
                     : 0;
        wrong += cuMemFree(pointer) != CUDA_SUCCESS ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  answer->value = refused;
  answer->extra = wrong;
}

// ---- every way to take memory

// What a thread has for it.
struct Worker {
  unsigned index;
  CUstream stream;
  CUmemoryPool pool;
};

// Takes at most that many bytes and gives them back; looks at what the program is shown meanwhile.
// `untouched` is set to false where a refusal changed an output.
struct Taking {
  const Worker& worker;
  size_t bytes;
  bool untouched = true;
  bool shown_right = true;
  template <class Handle, class Take, class Give>
  CUresult run(Take take, Give give) {
    auto* const before = reinterpret_cast<void*>(0x77);
    Handle out;
    memcpy(&out, &before, sizeof out);
    const CUresult result = take(&out);
    if (result != CUDA_SUCCESS) {
      untouched = memcmp(&out, &before, sizeof out) == 0;
      return result;
    }
    std::this_thread::yield();  // others are to meet it
    size_t free_bytes = 0, total_bytes = 0;
    shown_right =
        cuMemGetInfo(&free_bytes, &total_bytes) == CUDA_SUCCESS && free_bytes < total_bytes;
    return give(out);
  }
};

constexpr size_t kGrain = 2 << 20;  // of physical memory and of pools

CUresult array_way(Taking& t, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  if (levels != 0) {
    return t.run<CUmipmappedArray>(
        [&](CUmipmappedArray* out) { return cuMipmappedArrayCreate(out, &shape, levels); },
        [](CUmipmappedArray array) { return cuMipmappedArrayDestroy(array); });
  }
  return t.run<CUarray>([&](CUarray* out) { return cuArray3DCreate(out, &shape); },
                        [](CUarray array) { return cuArrayDestroy(array); });
}

CUDA_ARRAY3D_DESCRIPTOR floats(size_t width, size_t height, size_t depth, unsigned flags = 0) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = width;
  shape.Height = height;
  shape.Depth = depth;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  shape.Flags = flags;
  return shape;
}

size_t at_least_one(size_t n) { return n > 0 ? n : 1; }
size_t grains(size_t bytes) { return at_least_one(bytes / kGrain) * kGrain; }

CUresult pool_way(Taking& t, CUmemoryPool pool, CUstream stream, CUdeviceptr pointer) {
  CUresult result = cuMemFreeAsync(pointer, stream);
  if (result == CUDA_SUCCESS) result = cuStreamSynchronize(stream);
  return result == CUDA_SUCCESS ? cuMemPoolTrimTo(pool, 0) : (t.shown_right = false, result);
}

// A graph that takes memory when it is launched and gives it back within.
CUresult graph_way(Taking& t) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  params.bytesize = grains(t.bytes);
  CUgraph graph = nullptr;
  CUgraphNode alloc = nullptr, end = nullptr;
  CUgraphExec exec = nullptr;
  if (cuGraphCreate(&graph, 0) != CUDA_SUCCESS ||
      cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &params) != CUDA_SUCCESS ||
      cuGraphAddMemFreeNode(&end, graph, &alloc, 1, params.dptr) != CUDA_SUCCESS ||
      cuGraphInstantiate(&exec, graph, 0) != CUDA_SUCCESS) {
    return CUDA_ERROR_UNKNOWN;
  }
  const CUresult result = cuGraphLaunch(exec, t.worker.stream);
  if (cuStreamSynchronize(t.worker.stream) != CUDA_SUCCESS ||
      cuGraphExecDestroy(exec) != CUDA_SUCCESS || cuGraphDestroy(graph) != CUDA_SUCCESS ||
      cuDeviceGraphMemTrim(device) != CUDA_SUCCESS) {
    return CUDA_ERROR_UNKNOWN;
  }
  return result;
}

CUresult context_way(Taking& t) {
  return t.run<CUcontext>([](CUcontext* out) { return cuCtxCreate(out, nullptr, 0, device); },
                          [](CUcontext made) {
                            const CUresult result = cuCtxDestroy(made);
                            return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
                          });
}

CUresult default_pool_way(Taking& t) {
  CUmemoryPool pool = nullptr;
  if (cuDeviceGetDefaultMemPool(&pool, device) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
  const CUstream stream = t.worker.stream;
  return t.run<CUdeviceptr>(
      [&](CUdeviceptr* out) { return cuMemAllocAsync(out, grains(t.bytes), stream); },
      [&](CUdeviceptr pointer) { return pool_way(t, pool, stream, pointer); });
}

using TakingWay = CUresult (*)(Taking& t);
constexpr auto pointer_free = [](CUdeviceptr pointer) { return cuMemFree(pointer); };
const TakingWay kTakingWays[] = {
    [](Taking& t) {
      return t.run<CUdeviceptr>([&](CUdeviceptr* out) { return cuMemAlloc(out, t.bytes); },
                                pointer_free);
    },
    [](Taking& t) {  // rows of 1,000 bytes take 1,024
      size_t pitch = 0;
      return t.run<CUdeviceptr>(
          [&](CUdeviceptr* out) {
            return cuMemAllocPitch(out, &pitch, 1000, at_least_one(t.bytes / 1024), 4);
          },
          pointer_free);
    },
    [](Taking& t) {
      return t.run<CUdeviceptr>(
          [&](CUdeviceptr* out) { return cuMemAllocManaged(out, t.bytes, CU_MEM_ATTACH_GLOBAL); },
          pointer_free);
    },
    [](Taking& t) {
      const CUmemAllocationProp properties = shareable();
      return t.run<CUmemGenericAllocationHandle>(
          [&](CUmemGenericAllocationHandle* out) {
            return cuMemCreate(out, grains(t.bytes), &properties, 0);
          },
          [](CUmemGenericAllocationHandle memory) { return cuMemRelease(memory); });
    },
    [](Taking& t) { return array_way(t, floats(at_least_one(t.bytes % (1 << 19) / 4), 0, 0), 0); },
    [](Taking& t) { return array_way(t, floats(256, at_least_one(t.bytes / 1024), 0), 0); },
    [](Taking& t) { return array_way(t, floats(32, 32, at_least_one(t.bytes / 4096)), 0); },
    [](Taking& t) {
      const size_t layers = at_least_one(t.bytes / 16384);
      return array_way(t, floats(4096, 0, layers, CUDA_ARRAY3D_LAYERED), 0);
    },
    [](Taking& t) { return array_way(t, floats(256, at_least_one(t.bytes / 2048), 0), 3); },
    [](Taking& t) {
      return t.run<CUdeviceptr>(
          [&](CUdeviceptr* out) {
            return cuMemAllocFromPoolAsync(out, grains(t.bytes), t.worker.pool, t.worker.stream);
          },
          [&](CUdeviceptr pointer) {
            return pool_way(t, t.worker.pool, t.worker.stream, pointer);
          });
    },
    context_way,
    graph_way,
    // One thread's: a pool that several use has what is left in pieces, and grows by more than was
    // missing, which is the step by which it may pass the quota.
    [](Taking& t) { return t.worker.index == 1 ? default_pool_way(t) : context_way(t); },
};

bool worker_make(unsigned index, Worker* worker) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  worker->index = index;
  return cuCtxSetCurrent(context) == CUDA_SUCCESS &&
         cuStreamCreate(&worker->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
         cuMemPoolCreate(&worker->pool, &properties) == CUDA_SUCCESS;
}

// As churn, by every way in turn. `b` = 0: what a process learns of the driver when it first meets
// it, with room to spare.
void churn_all_ways(const PartnerMessage& request, PartnerMessage* answer) {
  std::atomic<std::uint64_t> refused{0}, wrong{0};
  const std::uint64_t rounds = request.b != 0 ? request.b : std::size(kTakingWays);
  std::vector<std::thread> threads;
  for (unsigned index = 0; index < (request.b != 0 ? 4u : 1u); ++index) {
    threads.emplace_back([&, index] {
      Worker worker{};
      if (!worker_make(index, &worker)) ++wrong;
      unsigned seed = static_cast<unsigned>(request.value) * 8 + index + 1;
      for (std::uint64_t i = 0; i < rounds; ++i) {
        seed = seed * 1664525u + 1013904223u;
        const size_t bytes = request.extra != 0 ? request.a : 1 + (seed >> 4) % request.a;
        Taking taking{worker, bytes};
        const auto way = (i + request.value + 3 * index) % std::size(kTakingWays);
        const CUresult result = kTakingWays[way](taking);
        refused += result == CUDA_ERROR_OUT_OF_MEMORY ? 1 : 0;
        if ((result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) || !taking.untouched ||
            !taking.shown_right) {
          ++wrong;
          fprintf(stderr, "way %zu: %d, untouched %d, shown right %d\n", way, result,
                  taking.untouched, taking.shown_right);
        }
      }
      if (cuMemPoolDestroy(worker.pool) != CUDA_SUCCESS ||
          cuStreamDestroy(worker.stream) != CUDA_SUCCESS) {
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  answer->value = refused;
  answer->extra = wrong;
}

CUresult serve(const PartnerMessage& request, int fd, PartnerMessage* answer, int* fd_out) {
  auto* const sent_fd = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  const CUmemAllocationProp properties = shareable();
  switch (request.op) {
    case PartnerOp::kInit:
      return init(static_cast<int>(request.a));
    case PartnerOp::kAlloc:
      return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(&answer->value), request.a);
    case PartnerOp::kFree:
      return cuMemFree(request.a);
    case PartnerOp::kIpcGet:
      return cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(answer->blob), request.a);
    case PartnerOp::kIpcOpen: {
      CUipcMemHandle from;
      memcpy(&from, request.blob, sizeof from);
      return cuIpcOpenMemHandle(reinterpret_cast<CUdeviceptr*>(&answer->value), from,
                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    }
    case PartnerOp::kIpcClose:
      return cuIpcCloseMemHandle(request.a);
    case PartnerOp::kVmmCreate:
      return cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(&answer->value), request.a,
                         &properties, 0);
    case PartnerOp::kVmmRelease:
      return cuMemRelease(request.a);
    case PartnerOp::kVmmExport:
      return cuMemExportToShareableHandle(fd_out, request.a,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    case PartnerOp::kVmmImport:
      return cuMemImportFromShareableHandle(
          reinterpret_cast<CUmemGenericAllocationHandle*>(&answer->value), sent_fd,
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    case PartnerOp::kVmmMap:
      return map(request.a, request.b, reinterpret_cast<CUdeviceptr*>(&answer->value));
    case PartnerOp::kVmmUnmap:
      return cuMemUnmap(request.a, request.b);
    case PartnerOp::kExternalImport:
      return external_import(fd, request.a, reinterpret_cast<CUexternalMemory*>(&answer->value));
    case PartnerOp::kExternalMap:
      return external_map(handle<CUexternalMemory>(request.a), request.b,
                          reinterpret_cast<CUdeviceptr*>(&answer->value));
    case PartnerOp::kExternalDestroy:
      return cuDestroyExternalMemory(handle<CUexternalMemory>(request.a));
    case PartnerOp::kPoolCreate: {
      CUmemPoolProps pool{};
      pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
      pool.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
      return cuMemPoolCreate(reinterpret_cast<CUmemoryPool*>(&answer->value), &pool);
    }
    case PartnerOp::kPoolDestroy:
      return cuMemPoolDestroy(handle<CUmemoryPool>(request.a));
    case PartnerOp::kPoolAlloc:
      return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(&answer->value), request.b,
                                     handle<CUmemoryPool>(request.a), nullptr);
    case PartnerOp::kPoolTrim:
      return cuMemPoolTrimTo(handle<CUmemoryPool>(request.a), 0);
    case PartnerOp::kPoolExport:
      return cuMemPoolExportToShareableHandle(fd_out, handle<CUmemoryPool>(request.a),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    case PartnerOp::kPoolImport:
      return cuMemPoolImportFromShareableHandle(reinterpret_cast<CUmemoryPool*>(&answer->value),
                                                sent_fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                0);
    case PartnerOp::kPointerExport:
      return cuMemPoolExportPointer(reinterpret_cast<CUmemPoolPtrExportData*>(answer->blob),
                                    request.a);
    case PartnerOp::kPointerImport: {
      CUmemPoolPtrExportData from;
      memcpy(&from, request.blob, sizeof from);
      return cuMemPoolImportPointer(reinterpret_cast<CUdeviceptr*>(&answer->value),
                                    handle<CUmemoryPool>(request.a), &from);
    }
    case PartnerOp::kMemoryInfo:
      return cuMemGetInfo(&answer->value, &answer->extra);
    case PartnerOp::kSynchronize:
      return cuCtxSynchronize();
    case PartnerOp::kModuleLoad:
      return module_load(request.a, reinterpret_cast<CUmodule*>(&answer->value));
    case PartnerOp::kSpin:
      return spin(request.a, request.b);
    case PartnerOp::kChurn:
      churn(request, answer);
      return CUDA_SUCCESS;
    case PartnerOp::kChurnAllWays:
      churn_all_ways(request, answer);
      return CUDA_SUCCESS;
    case PartnerOp::kEnd:
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

int main(int, char** arguments) {
  const int socket = atoi(arguments[1]);
  PartnerMessage request;
  int fd = -1;
  while (partner_receive(socket, &request, &fd)) {
    PartnerMessage answer;
    int fd_out = -1;
    answer.result = serve(request, fd, &answer, &fd_out);
    if (fd >= 0) close(fd);
    partner_send(socket, answer, fd_out);
    if (fd_out >= 0) close(fd_out);
    if (request.op == PartnerOp::kEnd) return 0;
  }
  return 1;
}

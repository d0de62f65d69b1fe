// Threads of the partner that take memory and give it back as fast as they can, all at once.
#include <stdio.h>

#include <iterator>

#include "tests/interpose/softgpu_partner_ways.h"

namespace sluice::test::partner {

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

void churn_pools(const PartnerMessage& request, PartnerMessage* answer) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  CUmemoryPool pool = nullptr;
  CUstream stream = nullptr;
  std::uint64_t wrong = 0, refused = 0, bytes = 0;
  wrong += cuMemPoolCreate(&pool, &properties) != CUDA_SUCCESS ? 1 : 0;
  wrong += cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ? 1 : 0;
  std::vector<std::pair<CUdeviceptr, size_t>> taken;
  unsigned seed = static_cast<unsigned>(request.value) + 1;
  const auto random = [&seed] { return (seed = seed * 1664525u + 1013904223u) >> 8; };
  for (std::uint64_t i = 0; i < request.b; ++i) {
    if (!taken.empty() && random() % 3 == 0) {
      std::swap(taken[random() % taken.size()], taken.back());
      wrong += cuMemFreeAsync(taken.back().first, stream) != CUDA_SUCCESS ? 1 : 0;
      bytes -= taken.back().second;
      taken.pop_back();
      continue;
    }
    const size_t size = 1 + random() % request.a;
    CUdeviceptr pointer = 77;
    const CUresult result = cuMemAllocFromPoolAsync(&pointer, size, pool, stream);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      ++refused;
      wrong += pointer != 77 ? 1 : 0;
      continue;
    }
    wrong += result != CUDA_SUCCESS ? 1 : 0;
    taken.emplace_back(pointer, size);
    bytes += size;
  }
  wrong += cuStreamSynchronize(stream) != CUDA_SUCCESS ? 1 : 0;
  answer->a = bytes;
  answer->value = refused;
  answer->extra = wrong;
}

// ---- every way to take memory

namespace {

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
    // One thread's: a pool that several use has what is left in pieces, and may grow within a call
    // that is then refused. The most that the device ever held would show that.
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

std::vector<TakingWay> ways_of(std::uint64_t flags) {
  std::vector<TakingWay> ways(std::begin(kTakingWays), std::end(kTakingWays));
  if ((flags & kChurnLoads) != 0) ways.insert(ways.end(), kLoadWays.begin(), kLoadWays.end());
  if ((flags & kChurnShares) != 0) ways.insert(ways.end(), kShareWays.begin(), kShareWays.end());
  return ways;
}

// A neighbour that was killed has nothing to open any more.
bool is_answer(CUresult result, std::uint64_t flags) {
  return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ||
         ((flags & kChurnMortal) != 0 && result == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

void churn_all_ways(const PartnerMessage& request, PartnerMessage* answer) {
  std::atomic<std::uint64_t> refused{0}, wrong{0};
  const std::vector<TakingWay> ways = ways_of(request.extra);
  const std::uint64_t rounds = request.b != 0 ? request.b : ways.size();
  std::vector<std::thread> threads;
  for (unsigned index = 0; index < (request.b != 0 ? 4u : 1u); ++index) {
    threads.emplace_back([&, index] {
      Worker worker{};
      if (!worker_make(index, &worker)) ++wrong;
      unsigned seed = static_cast<unsigned>(request.value) * 8 + index + 1;
      for (std::uint64_t i = 0; i < rounds; ++i) {
        seed = seed * 1664525u + 1013904223u;
        const size_t bytes =
            (request.extra & kChurnSameSize) != 0 ? request.a : 1 + (seed >> 4) % request.a;
        Taking taking{worker, bytes};
        const auto way = (i + request.value + 3 * index) % ways.size();
        const CUresult result = ways[way](taking);
        refused += result == CUDA_ERROR_OUT_OF_MEMORY ? 1 : 0;
        if (!is_answer(result, request.extra) || !taking.untouched || !taking.shown_right) {
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

}  // namespace sluice::test::partner

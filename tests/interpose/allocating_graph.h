// Executable graphs that allocate.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

namespace sluice::test {

/// One that allocates on a device and frees it again; with `kept`, where the address goes, it does
/// not free.
inline CUgraph allocating_template(int device, size_t bytes, CUdeviceptr* kept = nullptr) {
  CUgraph graph = nullptr;
  EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  params.bytesize = bytes;
  CUgraphNode alloc = nullptr, end = nullptr;
  EXPECT_EQ(cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &params), CUDA_SUCCESS);
  if (kept != nullptr) {
    *kept = params.dptr;
  } else {
    EXPECT_EQ(cuGraphAddMemFreeNode(&end, graph, &alloc, 1, params.dptr), CUDA_SUCCESS);
  }
  return graph;
}

/// The same, instantiated.
inline CUgraphExec allocating_graph(int device, size_t bytes, CUdeviceptr* kept = nullptr) {
  CUgraph graph = allocating_template(device, bytes, kept);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  return exec;
}

}  // namespace sluice::test

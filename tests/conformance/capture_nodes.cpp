// Rows of family `capture`: what becomes which node, and what a replay does.
#include "tests/conformance/capture.h"

namespace conformance {
namespace {

/// Pinned, so that copies from and to it are asynchronous.
class Pinned {
 public:
  Pinned() {
    EXPECT_EQ(cuMemAllocHost(reinterpret_cast<void**>(&words_), 64), CUDA_SUCCESS);
    std::memset(words_, 0, 64);
  }
  ~Pinned() { cuMemFreeHost(words_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  unsigned& operator*() { return *words_; }
  unsigned* get() { return words_; }

 private:
  unsigned* words_ = nullptr;
};

ROW(capture, launches_become_kernel_nodes) {
  const Context context;
  const AddOne add;
  const Cell cell;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(add(cell, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_KERNEL);
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(cell.value(), 0U);
  replay(graph, stream);
  EXPECT_EQ(cell.value(), 1U);
}

ROW(capture, fills_become_memset_nodes) {
  const Context context;
  const Cell cells(2);
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemsetD8Async(cells, 0x11, 8, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEMSET);
  MUST(cuMemsetD16Async(cells, 0x2222, 1, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEMSET);
  MUST(cuMemsetD2D32Async(cells + 4, 8, 0x33, 1, 1, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEMSET);
  replay(capture_end(stream), stream);
  unsigned words[2] = {};
  MUST(cuMemcpyDtoH(words, cells, 8));
  EXPECT_EQ(words[0], 0x11112222U);
  EXPECT_EQ(words[1], 0x33U);
}

ROW(capture, copies_become_memcpy_nodes) {
  const Context context;
  const Cell cell, middle;
  Pinned from, to;
  *from = 5;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemcpyHtoDAsync(middle, from.get(), 4, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEMCPY);
  MUST(cuMemcpyDtoDAsync(cell, middle, 4, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEMCPY);
  MUST(cuMemcpyDtoHAsync(to.get(), cell, 4, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEMCPY);
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(*to, 0U);
  replay(graph, stream);
  EXPECT_EQ(*to, 5U);
}

ROW(capture, copies_read_their_source_at_the_launch) {
  const Context context;
  const Cell cell;
  Pinned from;
  *from = 5;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuMemcpyHtoDAsync(cell, from.get(), 4, stream));
  const CUgraph graph = capture_end(stream);
  *from = 6;
  replay(graph, stream);
  EXPECT_EQ(cell.value(), 6U);
  *from = 7;
  replay(graph, stream);
  EXPECT_EQ(cell.value(), 7U);
}

ROW(capture, host_functions_become_host_nodes) {
  const Context context;
  const CUstream stream = stream_new();
  int calls = 0;
  MUST(capture_begin(stream));
  MUST(cuLaunchHostFunc(
      stream, [](void* data) { ++*static_cast<int*>(data); }, &calls));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_HOST);
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(calls, 0);
  replay(graph, stream);
  replay(graph, stream);
  EXPECT_EQ(calls, 2);
}

ROW(capture, memory_operations_become_batch_nodes) {
  const Context context;
  const Word word;
  const CUstream stream = stream_new();
  MUST(capture_begin(stream));
  MUST(cuStreamWriteValue32(stream, word.device(), 5, CU_STREAM_WRITE_VALUE_DEFAULT));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(word.value(), 0U);
  replay(graph, stream);
  EXPECT_EQ(word.value(), 5U);
}

ROW(capture, arguments_are_taken_when_captured) {
  const Context context;
  const Store store;
  const Word word;
  const CUstream stream = stream_new();
  CUdeviceptr address = word.device();
  unsigned value = 5;
  MUST(capture_begin(stream));
  MUST(launch(store.function(), 1, 1, {&address, &value}, stream));
  const CUgraph graph = capture_end(stream);
  value = 6;
  address = 0;
  replay(graph, stream);
  EXPECT_EQ(word.value(), 5U);
}

ROW(capture, replay_computes_the_same) {
  const Context context;
  const AddOne add;
  const Cell cell;
  Pinned to;
  const CUstream stream = stream_new();
  const auto work = [&] {
    EXPECT_EQ(cuMemsetD32Async(cell, 40, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(add(cell, stream), CUDA_SUCCESS);
    EXPECT_EQ(add(cell, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoHAsync(to.get(), cell, 4, stream), CUDA_SUCCESS);
  };
  work();
  MUST(cuStreamSynchronize(stream));
  const unsigned expected = *to;
  EXPECT_EQ(expected, 42U);
  MUST(capture_begin(stream));
  work();
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(nodes_count(graph), 4U);
  for (int i = 0; i < 2; ++i) {
    *to = 0;
    replay(graph, stream);
    EXPECT_EQ(*to, expected);
  }
}

ROW(capture, allocations_become_nodes) {
  const Context context;
  const Cell cell;
  const CUstream stream = stream_new();
  CUdeviceptr memory = 0;
  MUST(capture_begin(stream));
  MUST(cuMemAllocAsync(&memory, 4096, stream));
  EXPECT_NE(memory, 0U);
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  MUST(cuMemsetD32Async(memory, 5, 1024, stream));
  MUST(cuMemcpyDtoDAsync(cell, memory + 4092, 4, stream));
  MUST(cuMemFreeAsync(memory, stream));
  EXPECT_EQ(node_type(capture_last(stream)), CU_GRAPH_NODE_TYPE_MEM_FREE);
  const CUgraph graph = capture_end(stream);
  EXPECT_EQ(nodes_count(graph), 4U);
  replay(graph, stream);
  EXPECT_EQ(cell.value(), 5U);
}

ROW(capture, only_graph_memory_is_freed_in_a_capture) {
  const Context context;
  const CUstream stream = stream_new();
  CUdeviceptr memory = 0;
  MUST(cuMemAllocAsync(&memory, 4096, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(capture_begin(stream));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory, stream));
}

}  // namespace
}  // namespace conformance

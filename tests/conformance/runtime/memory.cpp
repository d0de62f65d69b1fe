// Rows of family `runtime`: memory, copies, variables, pools.
#include <vector>

#include "tests/conformance/runtime/runtime.h"

namespace conformance {
namespace {

constexpr unsigned kWords = 64;

ROW(runtime, free_of_null_is_nothing) {
  ANSWERS(cudaSuccess, cudaFree(nullptr));
  ANSWERS(cudaSuccess, cudaFreeHost(nullptr));
}

ROW(runtime, freed_twice_refused) {
  void* data = nullptr;
  RUNS(cudaMalloc(&data, 256));
  ANSWERS(cudaSuccess, cudaFree(data));
  ANSWERS(cudaErrorInvalidValue, cudaFree(data));
}

ROW(runtime, too_much_memory_refused) {
  std::size_t free = 0, total = 0;
  RUNS(cudaMemGetInfo(&free, &total));
  void* data = nullptr;
  ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&data, total * 2));
  ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
  ANSWERS(cudaSuccess, cudaMalloc(&data, 256));  // the context is unharmed
  RUNS(cudaFree(data));
}

ROW(runtime, copies_of_every_kind) {
  std::vector<unsigned> from(kWords, 5), through(kWords), back(kWords);
  void *a = nullptr, *b = nullptr;
  RUNS(cudaMalloc(&a, kWords * 4));
  RUNS(cudaMalloc(&b, kWords * 4));
  ANSWERS(cudaSuccess, cudaMemcpy(through.data(), from.data(), kWords * 4, cudaMemcpyHostToHost));
  ANSWERS(cudaSuccess, cudaMemcpy(a, through.data(), kWords * 4, cudaMemcpyHostToDevice));
  ANSWERS(cudaSuccess, cudaMemcpy(b, a, kWords * 4, cudaMemcpyDeviceToDevice));
  ANSWERS(cudaSuccess, cudaMemcpy(back.data(), b, kWords * 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, from);
}

ROW(runtime, copies_find_their_direction) {
  std::vector<unsigned> from(kWords, 6), back(kWords);
  void *a = nullptr, *b = nullptr;
  RUNS(cudaMalloc(&a, kWords * 4));
  RUNS(cudaMalloc(&b, kWords * 4));
  ANSWERS(cudaSuccess, cudaMemcpy(a, from.data(), kWords * 4, cudaMemcpyDefault));
  ANSWERS(cudaSuccess, cudaMemcpy(b, a, kWords * 4, cudaMemcpyDefault));
  ANSWERS(cudaSuccess, cudaMemcpy(back.data(), b, kWords * 4, cudaMemcpyDefault));
  EXPECT_EQ(back, from);
}

ROW(runtime, unknown_copy_direction_refused) {
  unsigned from = 1, to = 2;
  ANSWERS(cudaErrorInvalidMemcpyDirection, cudaMemcpy(&to, &from, 4, no_such<cudaMemcpyKind>(17)));
  EXPECT_EQ(to, 2U);
}

ROW(runtime, rows_with_a_pitch) {
  void* data = nullptr;
  std::size_t pitch = 0;
  RUNS(cudaMallocPitch(&data, &pitch, 100, 4));
  EXPECT_GE(pitch, 100U);
  std::vector<unsigned char> from(100 * 4), back(100 * 4);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i);
  ANSWERS(cudaSuccess, cudaMemcpy2D(data, pitch, from.data(), 100, 100, 4, cudaMemcpyHostToDevice));
  ANSWERS(cudaSuccess, cudaMemcpy2D(back.data(), 100, data, pitch, 100, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, from);
  ANSWERS(cudaErrorInvalidPitchValue,
          cudaMemcpy2D(data, 50, from.data(), 100, 100, 4, cudaMemcpyHostToDevice));
}

ROW(runtime, boxes) {
  cudaPitchedPtr device{};
  const cudaExtent extent{20, 3, 2};
  RUNS(cudaMalloc3D(&device, extent));
  EXPECT_GE(device.pitch, 20U);
  std::vector<unsigned char> from(20 * 3 * 2), back(20 * 3 * 2);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i + 1);
  cudaMemcpy3DParms copy{};
  copy.srcPtr = cudaPitchedPtr{from.data(), 20, 20, 3};
  copy.dstPtr = device;
  copy.extent = cudaExtent{20, 3, 2};
  copy.kind = cudaMemcpyHostToDevice;
  ANSWERS(cudaSuccess, cudaMemcpy3D(&copy));
  copy.srcPtr = device;
  copy.dstPtr = cudaPitchedPtr{back.data(), 20, 20, 3};
  copy.kind = cudaMemcpyDeviceToHost;
  ANSWERS(cudaSuccess, cudaMemcpy3D(&copy));
  EXPECT_EQ(back, from);
}

ROW(runtime, fills) {
  unsigned char back[48];
  void* data = nullptr;
  RUNS(cudaMalloc(&data, sizeof back));
  RUNS(cudaMemset(data, 0x5a, sizeof back));
  ANSWERS(cudaSuccess, cudaMemset2D(data, 16, 0xa5, 4, 3));
  RUNS(cudaMemcpy(back, data, sizeof back, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 48; ++i) EXPECT_EQ(back[i], i % 16 < 4 ? 0xa5 : 0x5a) << i;
}

ROW(runtime, pinned_memory_is_seen_by_the_device) {
  unsigned* host = nullptr;
  RUNS(cudaHostAlloc(reinterpret_cast<void**>(&host), 4, cudaHostAllocMapped));
  void* device = nullptr;
  ANSWERS(cudaSuccess, cudaHostGetDevicePointer(&device, host, 0));
  RUNS(run(runtime_store, 1, 1, nullptr, static_cast<unsigned*>(device), 9U));
  RUNS(cudaDeviceSynchronize());
  EXPECT_EQ(*host, 9U);
  unsigned flags = 0;
  ANSWERS(cudaSuccess, cudaHostGetFlags(&flags, host));
  EXPECT_NE(flags & cudaHostAllocMapped, 0U);
  ANSWERS(cudaSuccess, cudaFreeHost(host));
}

ROW(runtime, host_memory_is_registered_once) {
  std::vector<char> memory(1 << 16);
  ANSWERS(cudaSuccess, cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault));
  ANSWERS(cudaErrorHostMemoryAlreadyRegistered,
          cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault));
  ANSWERS(cudaSuccess, cudaHostUnregister(memory.data()));
  ANSWERS(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(memory.data()));
}

ROW(runtime, managed_memory_is_seen_by_both) {
  unsigned* data = nullptr;
  RUNS(cudaMallocManaged(reinterpret_cast<void**>(&data), 4, cudaMemAttachGlobal));
  *data = 3;
  RUNS(run(runtime_scale, 1, 1, nullptr, data, 1U));
  RUNS(cudaDeviceSynchronize());
  EXPECT_EQ(*data, 21U);
  RUNS(cudaFree(data));
}

ROW(runtime, pointers_tell_what_they_are) {
  void *device = nullptr, *pinned = nullptr, *managed = nullptr;
  int plain = 0;
  RUNS(cudaMalloc(&device, 256));
  RUNS(cudaMallocHost(&pinned, 256));
  RUNS(cudaMallocManaged(&managed, 256, cudaMemAttachGlobal));
  const auto type_of = [](const void* pointer) {
    cudaPointerAttributes attributes{};
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, pointer), cudaSuccess);
    return attributes.type;
  };
  EXPECT_EQ(type_of(device), cudaMemoryTypeDevice);
  EXPECT_EQ(type_of(static_cast<char*>(device) + 100), cudaMemoryTypeDevice);
  EXPECT_EQ(type_of(pinned), cudaMemoryTypeHost);
  EXPECT_EQ(type_of(managed), cudaMemoryTypeManaged);
  EXPECT_EQ(type_of(&plain), cudaMemoryTypeUnregistered);
}

ROW(runtime, variables_by_symbol) {
  unsigned value = 40;
  ANSWERS(cudaSuccess,
          cudaMemcpyToSymbol(runtime_counter_symbol, &value, 4, 0, cudaMemcpyHostToDevice));
  RUNS(run(runtime_count, 1, 2, nullptr));
  ANSWERS(cudaSuccess,
          cudaMemcpyFromSymbol(&value, runtime_counter_symbol, 4, 0, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 42U);
}

ROW(runtime, variables_have_address_and_size) {
  void* address = nullptr;
  std::size_t bytes = 0;
  ANSWERS(cudaSuccess, cudaGetSymbolSize(&bytes, runtime_table_symbol));
  EXPECT_EQ(bytes, 32U);
  ANSWERS(cudaSuccess, cudaGetSymbolAddress(&address, runtime_table_symbol));
  EXPECT_EQ(word_at(static_cast<char*>(address) + 8), 3U);
  int no_symbol = 0;
  ANSWERS(cudaErrorInvalidSymbol, cudaGetSymbolAddress(&address, &no_symbol));
  ANSWERS(cudaErrorInvalidSymbol, cudaGetSymbolSize(&bytes, &no_symbol));
}

ROW(runtime, variables_from_an_offset) {
  const unsigned written[2] = {8, 9};
  unsigned back[4] = {};
  RUNS(cudaMemcpyToSymbol(runtime_table_symbol, written, 8, 4, cudaMemcpyHostToDevice));
  RUNS(cudaMemcpyFromSymbol(back, runtime_table_symbol, 16, 0, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back[0], 1U);
  EXPECT_EQ(back[1], 8U);
  EXPECT_EQ(back[2], 9U);
  EXPECT_EQ(back[3], 0U);
}

ROW(runtime, constants_by_symbol) {
  const unsigned factor = 10;
  RUNS(cudaMemcpyToSymbol(runtime_factor_symbol, &factor, 4, 0, cudaMemcpyHostToDevice));
  const DeviceWord word;
  RUNS(run(runtime_store, 1, 1, nullptr, word.get(), 4U));
  RUNS(run(runtime_scale, 1, 1, nullptr, word.get(), 1U));
  EXPECT_EQ(word.value(), 40U);
}

ROW(runtime, managed_variables_are_seen_by_both) {
  RUNS(cudaFree(nullptr));
  EXPECT_EQ(*runtime_managed_address(), 11U);
  *runtime_managed_address() = 20;
  RUNS(run(runtime_count, 1, 1, nullptr));
  RUNS(cudaDeviceSynchronize());
  EXPECT_EQ(*runtime_managed_address(), 21U);
}

ROW(runtime, arrays_keep_their_shape) {
  const cudaChannelFormatDesc channels{8, 8, 8, 8, cudaChannelFormatKindUnsigned};
  cudaArray_t array = nullptr;
  RUNS(cudaMallocArray(&array, &channels, 20, 3, cudaArrayDefault));
  cudaChannelFormatDesc told{};
  cudaExtent extent{};
  unsigned flags = 99;
  ANSWERS(cudaSuccess, cudaArrayGetInfo(&told, &extent, &flags, array));
  EXPECT_EQ(told.x + told.y + told.z + told.w, 32);
  EXPECT_EQ(told.f, cudaChannelFormatKindUnsigned);
  EXPECT_EQ(extent.width, 20U);
  EXPECT_EQ(extent.height, 3U);
  EXPECT_EQ(extent.depth, 0U);
  EXPECT_EQ(flags, 0U);
  ANSWERS(cudaSuccess, cudaFreeArray(array));
}

ROW(runtime, arrays_are_copied_by_rows) {
  const cudaChannelFormatDesc channels{32, 0, 0, 0, cudaChannelFormatKindFloat};
  cudaArray_t array = nullptr;
  RUNS(cudaMallocArray(&array, &channels, 8, 4, cudaArrayDefault));
  std::vector<float> from(32), back(32);
  for (std::size_t i = 0; i < 32; ++i) from[i] = static_cast<float>(i);
  ANSWERS(cudaSuccess,
          cudaMemcpy2DToArray(array, 0, 0, from.data(), 32, 32, 4, cudaMemcpyHostToDevice));
  ANSWERS(cudaSuccess,
          cudaMemcpy2DFromArray(back.data(), 32, array, 0, 0, 32, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, from);
  float part[2] = {};
  ANSWERS(cudaSuccess, cudaMemcpy2DFromArray(part, 8, array, 4, 2, 8, 1,
                                             cudaMemcpyDeviceToHost));  // offsets in bytes and rows
  EXPECT_EQ(part[0], 17.0F);
  EXPECT_EQ(part[1], 18.0F);
}

ROW(runtime, arrays_are_copied_by_boxes) {
  const cudaChannelFormatDesc channels{32, 0, 0, 0, cudaChannelFormatKindUnsigned};
  const cudaExtent extent{4, 2, 2};
  cudaArray_t array = nullptr;
  RUNS(cudaMalloc3DArray(&array, &channels, extent, cudaArrayDefault));
  std::vector<unsigned> from(16), back(16);
  for (unsigned i = 0; i < 16; ++i) from[i] = i + 1;
  cudaMemcpy3DParms copy{};
  copy.srcPtr = cudaPitchedPtr{from.data(), 16, 4, 2};
  copy.dstArray = array;
  copy.extent = extent;  // in elements, since an array takes part
  copy.kind = cudaMemcpyHostToDevice;
  ANSWERS(cudaSuccess, cudaMemcpy3D(&copy));
  cudaMemcpy3DParms out{};
  out.srcArray = array;
  out.dstPtr = cudaPitchedPtr{back.data(), 16, 4, 2};
  out.extent = extent;
  out.kind = cudaMemcpyDeviceToHost;
  ANSWERS(cudaSuccess, cudaMemcpy3D(&out));
  EXPECT_EQ(back, from);
}

ROW(runtime, array_formats_are_checked) {
  const cudaChannelFormatDesc unequal{8, 16, 0, 0, cudaChannelFormatKindUnsigned};
  cudaArray_t array = nullptr;
  EXPECT_NE(cudaMallocArray(&array, &unequal, 8, 8, cudaArrayDefault), cudaSuccess);
}

ROW(runtime, pools_allocate_in_stream_order) {
  int supported = 0;
  RUNS(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
  if (supported == 0) GTEST_SKIP() << "needs memory pools";
  const cudaStream_t stream = stream_make();
  void* data = nullptr;
  ANSWERS(cudaSuccess, cudaMallocAsync(&data, 1 << 20, stream));
  RUNS(run(runtime_store, 1, 1, stream, static_cast<unsigned*>(data), 13U));
  unsigned value = 0;
  RUNS(cudaMemcpyAsync(&value, data, 4, cudaMemcpyDeviceToHost, stream));
  ANSWERS(cudaSuccess, cudaFreeAsync(data, stream));
  RUNS(cudaStreamSynchronize(stream));
  EXPECT_EQ(value, 13U);
}

ROW(runtime, pools_keep_what_they_are_told) {
  cudaMemPool_t pool = nullptr;
  RUNS(cudaDeviceGetDefaultMemPool(&pool, 0));
  unsigned long long threshold = 1;
  RUNS(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  EXPECT_EQ(threshold, 0U) << "the default";
  threshold = 8 << 20;
  ANSWERS(cudaSuccess, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  void* data = nullptr;
  RUNS(cudaMallocAsync(&data, 1 << 20, nullptr));
  RUNS(cudaFreeAsync(data, nullptr));
  RUNS(cudaDeviceSynchronize());
  unsigned long long reserved = 0;
  RUNS(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  EXPECT_GE(reserved, 1U << 20) << "kept for the next allocation";
  ANSWERS(cudaSuccess, cudaMemPoolTrimTo(pool, 0));
  RUNS(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  EXPECT_EQ(reserved, 0U);
}

}  // namespace
}  // namespace conformance

// Rows of family `pools`: pools of other devices and of other processes.
#include <unistd.h>

#include <cstdint>

#include "tests/conformance/ipc_partner.h"
#include "tests/conformance/pools.h"

namespace conformance {
namespace {

constexpr std::size_t kShared = 8 * kMiB;

CUmemPoolProps shareable() {
  CUmemPoolProps props = pool_props();
  props.handleTypes = kDescriptorHandle;
  return props;
}

/// The importing process's side of a connection that has brought a pool.
CUmemoryPool pool_receive(Channel& channel) {
  const int file = channel.get_file();
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuMemPoolImportFromShareableHandle(&pool, os_handle(file), kDescriptorHandle, 0),
            CUDA_SUCCESS);
  close(file);
  return pool;
}

CUdeviceptr pointer_receive(Channel& channel, CUmemoryPool pool) {
  auto data = channel.get<CUmemPoolPtrExportData>();
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemPoolImportPointer(&p, pool, &data), CUDA_SUCCESS);
  return p;
}

void pool_give(Channel& channel, CUmemoryPool pool) {
  int file = -1;
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&file, pool, kDescriptorHandle, 0), CUDA_SUCCESS);
  channel.put_file(file);
  close(file);
}

void pointer_give(Channel& channel, CUdeviceptr p) {
  CUmemPoolPtrExportData data{};
  EXPECT_EQ(cuMemPoolExportPointer(&data, p), CUDA_SUCCESS);
  channel.put(data);
}

ROW(pools, other_devices_start_without_access) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context context;
  const MemPool pool;
  CUmemLocation own = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, other = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  MUST(cuMemPoolGetAccess(&flags, pool, &own));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  MUST(cuMemPoolGetAccess(&flags, pool, &other));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

ROW(pools, access_can_be_given_and_taken) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  int peer = 0;
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  MUST(cuDeviceCanAccessPeer(&peer, 1, 0));
  if (peer == 0) GTEST_SKIP() << "needs GPUs that are peers";
  const Context context;
  const MemPool pool;
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  MUST(cuMemPoolSetAccess(pool, &access, 1));
  MUST(cuMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  MUST(cuMemPoolSetAccess(pool, &access, 1));
  MUST(cuMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

ROW(pools, own_access_cannot_be_taken) {
  const Context context;
  const MemPool pool;
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  EXPECT_NE(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  MUST(cuMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

ROW(pools, current_pool_must_be_of_the_device) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context context;
  const MemPool pool(pool_props(1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, pool));
}

ROW(pools, a_pool_of_another_device_can_be_named) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context context(0);
  const MemPool pool(pool_props(1));
  const CUdeviceptr p = pool.allocate(4096, nullptr);
  MUST(cuCtxSynchronize());
  int ordinal = -1;
  MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
  EXPECT_EQ(ordinal, 1);
  MUST(cuMemFreeAsync(p, nullptr));
  MUST(cuCtxSynchronize());
}

ROW(pools, only_shareable_pools_are_exported) {
  const Context context;
  const MemPool pool;
  int file = -1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolExportToShareableHandle(&file, pool, kDescriptorHandle, 0));
  const CUdeviceptr p = pool.allocate(4096, nullptr);
  CUmemPoolPtrExportData data{};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, p));
  MUST(cuMemFreeAsync(p, nullptr));
  MUST(cuCtxSynchronize());
}

ROW(pools, export_flags_must_be_zero) {
  const Context context;
  const MemPool pool(shareable());
  int file = -1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolExportToShareableHandle(&file, pool, kDescriptorHandle, 1));
}

ROW(pools, device_tells_how_pools_are_shared) {
  const Context context;
  int types = 0;
  MUST(cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
                            context.device()));
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = shareable();
  const bool supported = (types & kDescriptorHandle) != 0;
  ANSWERS(supported ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED, cuMemPoolCreate(&pool, &props));
  if (!supported) return;
  MUST(cuMemPoolDestroy(pool));
}

ROW(pools, an_imported_pointer_shows_the_same_memory) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUmemoryPool pool = pool_receive(channel);
    const CUdeviceptr p = pointer_receive(channel, pool);
    EXPECT_EQ(word_at(p), 21U);
    MUST(cuMemsetD32(p, 22, 1));
    MUST(cuCtxSynchronize());
    MUST(cuMemFree(p));
    channel.signal();
  });
  const Context context;
  const MemPool pool(shareable());
  (void)pool.allocate(4096, nullptr);  // so that the shared one is not the pool's first
  const CUdeviceptr p = pool.allocate(kShared, nullptr);
  MUST(cuMemsetD32(p, 21, 1));
  MUST(cuCtxSynchronize());
  pool_give(importer, pool);
  pointer_give(importer, p);
  importer.await();
  EXPECT_EQ(word_at(p), 22U);
}

ROW(pools, imported_pools_do_not_allocate) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUmemoryPool pool = pool_receive(channel);
    CUdeviceptr p = 0;
    EXPECT_NE(cuMemAllocFromPoolAsync(&p, 4096, pool, nullptr), CUDA_SUCCESS);
    EXPECT_NE(cuDeviceSetMemPool(0, pool), CUDA_SUCCESS);
    MUST(cuMemPoolDestroy(pool));
    channel.signal();
  });
  const Context context;
  const MemPool pool(shareable());
  pool_give(importer, pool);
  importer.await();
}

ROW(pools, an_import_is_freed_in_stream_order) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUstream stream = stream_new();
    const Word word;
    const CUmemoryPool pool = pool_receive(channel);
    const CUdeviceptr p = pointer_receive(channel, pool);
    {
      Gate gate;
      MUST(gate.hold(stream));
      MUST(cuMemcpyDtoDAsync(word.device(), p, 4, stream));
      MUST(cuMemFreeAsync(p, stream));
    }
    MUST(cuStreamSynchronize(stream));
    EXPECT_EQ(word.value(), 31U);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, stream));
    channel.signal();
  });
  const Context context;
  const MemPool pool(shareable());
  const CUdeviceptr p = pool.allocate(kShared, nullptr);
  MUST(cuMemsetD32(p, 31, 1));
  MUST(cuCtxSynchronize());
  pool_give(importer, pool);
  pointer_give(importer, p);
  importer.await();
}

ROW(pools, imports_take_no_memory_of_their_own) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUmemoryPool pool = pool_receive(channel);
    const std::size_t before = memory_free();
    const CUdeviceptr p = pointer_receive(channel, pool);
    EXPECT_GT(memory_free() + 48 * kMiB, before);
    MUST(cuMemFree(p));
    channel.signal();
  });
  const Context context;
  const MemPool pool(shareable());
  const CUdeviceptr p = pool.allocate(48 * kMiB, nullptr);
  MUST(cuCtxSynchronize());
  pool_give(importer, pool);
  pointer_give(importer, p);
  importer.await();
}

ROW(pools, a_killed_importer_leaves_nothing) {
  Partner importer([](Channel& channel) {
    const Context context;
    (void)pointer_receive(channel, pool_receive(channel));
    channel.signal();
    channel.await();
  });
  const Context context;
  const std::size_t before = memory_free();
  const CUstream stream = stream_new();
  const MemPool pool(shareable());
  const CUdeviceptr p = pool.allocate(48 * kMiB, stream);
  MUST(cuMemsetD32Async(p, 41, 1, stream));
  MUST(cuStreamSynchronize(stream));
  pool_give(importer, pool);
  pointer_give(importer, p);
  importer.await();
  importer.kill();
  EXPECT_EQ(word_at(p), 41U);
  MUST(cuMemFreeAsync(p, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolTrimTo(pool, 0));
  EXPECT_GE(memory_free_from(before - 4 * kMiB) + 4 * kMiB, before);
}

ROW(pools, a_killed_exporter_leaves_nothing) {
  Partner exporter([](Channel& channel) {
    const Context context;
    MemPool pool(shareable());
    const CUdeviceptr p = pool.allocate(48 * kMiB, nullptr);
    MUST(cuCtxSynchronize());
    pool_give(channel, pool);
    pointer_give(channel, p);
    channel.await();
  });
  const Context context;
  const CUmemoryPool pool = pool_receive(exporter);
  const CUdeviceptr p = pointer_receive(exporter, pool);
  const std::size_t shared = memory_free();
  exporter.kill();
  MUST(cuMemFree(p));
  MUST(cuMemPoolDestroy(pool));
  EXPECT_GE(memory_free_from(shared + 48 * kMiB), shared + 48 * kMiB);
}

}  // namespace
}  // namespace conformance

// Rows of family `memory`: what a pointer tells of itself.
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

constexpr std::size_t kPointedBytes = 8192;

struct Pointers {
  Pointers() {
    EXPECT_EQ(cuMemAlloc(&device, kPointedBytes), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocManaged(&managed, kPointedBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    void* p = nullptr;
    EXPECT_EQ(cuMemHostAlloc(&p, kPointedBytes, 0), CUDA_SUCCESS);
    host = reinterpret_cast<CUdeviceptr>(p);
  }
  CUdeviceptr device = 0, managed = 0, host = 0;
};

template <typename T>
T told(CUpointer_attribute attribute, CUdeviceptr p) {
  T value{};
  EXPECT_EQ(cuPointerGetAttribute(&value, attribute, p), CUDA_SUCCESS) << attribute;
  return value;
}

ROW(memory, pointer_type) {
  const Context context;
  const Pointers p;
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p.device + 5),
            unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p.host + 5),
            unsigned{CU_MEMORYTYPE_HOST});
}

ROW(memory, pointer_context_and_device) {
  const Context context;
  const Pointers p;
  const Context other;
  EXPECT_EQ(told<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, p.device), CUcontext{context});
  EXPECT_EQ(told<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, p.host), CUcontext{context});
  EXPECT_EQ(told<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p.device), context.device());
  EXPECT_EQ(told<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p.managed), context.device());
}

ROW(memory, pointer_of_the_other_side) {
  const Context context;
  const Pointers p;
  for (const CUdeviceptr address : {p.device, p.managed, p.host})
    EXPECT_EQ(told<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 12), address + 12);
  for (const CUdeviceptr address : {p.managed, p.host})
    EXPECT_EQ(told<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 12), address + 12);
  void* none = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&none, CU_POINTER_ATTRIBUTE_HOST_POINTER, p.device));
}

ROW(memory, pointer_managed_or_not) {
  const Context context;
  const Pointers p;
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, p.managed), 1U);
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, p.device), 0U);
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, p.host), 0U);
}

ROW(memory, pointer_range) {
  const Context context;
  const Pointers p;
  EXPECT_EQ(told<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p.device + 100), p.device);
  EXPECT_GE(told<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, p.device + 100), kPointedBytes);
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_MAPPED, p.device + 100), 1U);
}

ROW(memory, pointer_buffer_ids_are_not_reused) {
  const Context context;
  const Pointers p;
  using Id = unsigned long long;
  const Id first = told<Id>(CU_POINTER_ATTRIBUTE_BUFFER_ID, p.device);
  EXPECT_EQ(told<Id>(CU_POINTER_ATTRIBUTE_BUFFER_ID, p.device + 4096), first);
  EXPECT_NE(told<Id>(CU_POINTER_ATTRIBUTE_BUFFER_ID, p.managed), first);
  MUST(cuMemFree(p.device));
  CUdeviceptr again = 0;
  MUST(cuMemAlloc(&again, kPointedBytes));
  EXPECT_NE(told<Id>(CU_POINTER_ATTRIBUTE_BUFFER_ID, again), first);
}

ROW(memory, pointer_legacy_ipc) {
  const Context context;
  const Pointers p;
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p.device), 1U);
  EXPECT_EQ(told<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p.managed), 0U);
}

ROW(memory, pointer_unknown_refused) {
  const Context context;
  int local = 0;
  unsigned type = 0;
  const auto unknown = reinterpret_cast<CUdeviceptr>(&local);
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unknown));
  const Pointers p;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&type, no_such<CUpointer_attribute>(1000), p.device));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p.device));
  MUST(cuMemFree(p.device));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p.device));
}

ROW(memory, pointers_asked_together) {
  const Context context;
  const Pointers p;
  std::array attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT,
                        CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  unsigned type = 99;
  CUcontext owner = nullptr;
  void* host = &type;
  int ordinal = 99;
  std::array<void*, 4> places{&type, &owner, &host, &ordinal};
  MUST(cuPointerGetAttributes(4, attributes.data(), places.data(), p.device));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(owner, CUcontext{context});
  EXPECT_EQ(host, nullptr);  // where one alone is refused, it is null
  EXPECT_EQ(ordinal, context.device());
}

ROW(memory, pointers_unknown_are_null) {
  const Context context;
  int local = 0;
  std::array attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT,
                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  unsigned type = 99, managed = 99;
  auto owner = CUcontext{context};
  CUdeviceptr device = 99;
  std::array<void*, 4> places{&type, &owner, &device, &managed};
  ANSWERS(CUDA_SUCCESS, cuPointerGetAttributes(4, attributes.data(), places.data(),
                                               reinterpret_cast<CUdeviceptr>(&local)));
  EXPECT_EQ(type, 0U);
  EXPECT_EQ(owner, nullptr);
  EXPECT_EQ(device, 0U);
  EXPECT_EQ(managed & 0xff, 0U);
}

ROW(memory, sync_memops_is_kept) {
  const Context context;
  const Pointers p;
  unsigned on = 1;
  const auto now = [&] {
    return told<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.device) & 0xff;
  };
  EXPECT_EQ(now(), 0U);
  MUST(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.device));
  EXPECT_EQ(now(), 1U);
  on = 0;
  MUST(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.device));
  EXPECT_EQ(now(), 0U);
}

ROW(memory, only_sync_memops_can_be_set) {
  const Context context;
  const Pointers p;
  unsigned value = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p.device));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.device));
}

// With the attribute, a memset without Async does not return before its turn has come.
ROW(memory, sync_memops_makes_memset_wait) {
  const Context context;
  const Pointers p;
  Gate gate;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  unsigned on = 1;
  MUST(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.device));
  MUST(gate.hold(stream));
  std::atomic<bool> opened{false};
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    opened = true;
    gate.open();
  });
  ANSWERS(CUDA_SUCCESS, cuMemsetD32(p.device, 1, 16));
  EXPECT_TRUE(opened);
  opener.join();
}

}  // namespace
}  // namespace conformance

// What a program sees when something is wrong: the quota's no, the driver's no, arguments that make
// no sense, a quota that was lowered.
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/interpose/softgpu_ways.h"

namespace {

using namespace sluice::test;

class SoftGpuErrorsTest : public SoftGpuTest {
 protected:
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  // Every request for device memory of this process fails, with room or without. A driver may make
  // several for one call.
  void device_refuses() {
    softgpu::device::Fault fault;
    fault.kind = softgpu::device::FaultKind::kAllocation;
    fault.pid = getpid();
    fault.times = 1000;
    uint32_t id = 0;
    ASSERT_TRUE(devices[0]->fault_add(fault, id));
  }
  void nothing_held(const char* when) {
    EXPECT_EQ(held(), kContext) << when;
    EXPECT_EQ(broker->account().reserved_bytes.load(), 0u) << when;
    EXPECT_EQ(broker->account().asked_bytes.load(), 0u) << when;
    agrees(when);
  }
};

TEST_F(SoftGpuErrorsTest, OverQuotaIsOutOfMemoryWithTheOutputUntouchedAndOneLine) {
  testing::internal::CaptureStderr();
  uint64_t refusals = 0;
  for (const Way& way : kWays) {
    uint64_t out = 0x77;
    EXPECT_EQ(way.call(70, &out), CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    EXPECT_EQ(out, 0x77u) << way.name;
    EXPECT_EQ(broker->account().refused.load(), ++refusals) << way.name;
    nothing_held(way.name);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  // At most one a second; they took less than that, or a little more.
  EXPECT_EQ(said.find("sluice: refused 70.0 MiB: you use 32.0 of your 100.0 MiB on GPU 0. The "
                      "program sees CUDA out of memory.\n"),
            0u)
      << said;
  EXPECT_LT(std::count(said.begin(), said.end(), '\n'), 5) << said;
}

// What the table says to take device memory and kWays lacks, and where it is tested instead.
const std::pair<const char*, std::vector<std::string>> kElsewhere[] = {
    {"GuestTest.CallsOfTheFirstAbiAreChargedAsAnyOther: the software GPU has none of 32 bits",
     {"cuMemAlloc", "cuMemAllocPitch", "cuCtxCreate"}},
    {"SoftGpuTest: taken when the graph is launched or uploaded",
     {"cuGraphAddMemAllocNode", "cuGraphInstantiate", "cuGraphInstantiateWithFlags",
      "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz", "cuGraphInstantiate_v2",
      "cuGraphUpload", "cuGraphUpload_ptsz"}},
    {"SoftGpuResidualTest: loads",
     {"cuModuleLoad", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibraryLoadData",
      "cuLibraryLoadFromFile"}},
    {"SoftGpuResidualTest: charged when it is there, and withheld",
     {"cuFuncLoad", "cuKernelGetFunction", "cuLibraryGetGlobal", "cuLibraryGetModule"}},
    {"SoftGpuResidualTest.AStackLimitThatDoesNotFitIsSetBack", {"cuCtxSetLimit"}},
    {"GuestNvmlTest: the software GPU has none that are loaded late", {"cuLibraryGetManaged"}},
    {"SoftGpuPathsTest: takes nothing before its first allocation", {"cuMemPoolCreate"}},
    {"SoftGpuResidualTest.APrimaryContextThatDoesNotFitIsNotMade", {"cuDevicePrimaryCtxRetain"}},
    {"GuestNvmlTest: the software GPU has no green contexts", {"cuGreenCtxCreate"}},
};

TEST(SoftGpuWaysTest, TheTablesEveryWayToTakeMemoryIsTested) {
  std::set<std::string> named;
  for (const Way& way : kWays) EXPECT_TRUE(named.insert(way.name).second) << way.name;
  for (const auto& [where, symbols] : kElsewhere) {
    for (const std::string& symbol : symbols) EXPECT_TRUE(named.insert(symbol).second) << symbol;
  }
  std::set<std::string> listed;
  std::ifstream table(SLUICE_ENTRYPOINTS);
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string symbol, version, classes;
    std::getline(fields, symbol, '\t');
    std::getline(fields, version, '\t');
    std::getline(fields, classes, '\t');
    if (classes.find("not_in_stub") != std::string::npos) continue;  // nor in our table
    if ((";" + classes).find(";mem_alloc") != std::string::npos) listed.insert(symbol);
  }
  ASSERT_GT(listed.size(), 40u);
  EXPECT_EQ(named, listed);
}

TEST_F(SoftGpuErrorsTest, WhatTheDriverRefusesIsGivenBack) {
  std::uint64_t full = 0;
  for (const Way& way : kWays) {
    uint64_t out = 0x77;
    device_refuses();
    const CUresult result = way.call(1, &out);
    devices[0]->faults_clear();
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    nothing_held(way.name);
    EXPECT_EQ(broker->account().refused.load(), 0u) << "it was not the quota: " << way.name;
    // A pool may have a limit of its own, so there the GPU is asked, and it is not full: the fault
    // was planted. What a module takes is told by nobody beforehand, so it is not waited for
    // either.
    const std::string name = way.name;
    const bool counted = name.find("Async") == name.npos && name.find("Module") == name.npos;
    full += counted ? 1 : 0;
    EXPECT_EQ(broker->claims().slots[0].refused_full.load(), full) << way.name;
  }
}

TEST_F(SoftGpuErrorsTest, AfterAFailureTheSameCallsSucceed) {
  for (const Way& way : kWays) {
    uint64_t out = 0;
    device_refuses();
    EXPECT_EQ(way.call(1, &out), CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    devices[0]->faults_clear();
    EXPECT_EQ(way.call(1, &out), CUDA_SUCCESS) << way.name;
    EXPECT_NE(out, 0u) << way.name;
    agrees(way.name);
    large_undo(way, out, context);
  }
}

TEST_F(SoftGpuErrorsTest, NothingAtAllIsTheDriversBusiness) {
  CUdeviceptr pointer = 7;
  size_t pitch = 7;
  EXPECT_EQ(cuMemAlloc(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch(&pointer, &pitch, 0, 0, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&pointer, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocAsync(&pointer, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc(nullptr, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocAsync(nullptr, 4, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&pointer, 0, default_pool(), nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocFromPoolAsync(nullptr, 4, default_pool(), nullptr), CUDA_ERROR_INVALID_VALUE);
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 7;
  EXPECT_EQ(cuMemCreate(&handle, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(nullptr, 2 * kMiB, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, 2 * kMiB, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(handle, 7u);
  auto array = reinterpret_cast<CUarray>(7);
  auto levels = reinterpret_cast<CUmipmappedArray>(7);
  CUDA_ARRAY_DESCRIPTOR plane{};
  plane.Format = CU_AD_FORMAT_FLOAT;
  plane.NumChannels = 1;
  CUDA_ARRAY3D_DESCRIPTOR box = box_of(1);
  EXPECT_EQ(cuArrayCreate(&array, &plane), CUDA_ERROR_INVALID_VALUE) << "no width";
  plane.Width = 4;
  plane.NumChannels = 0;
  EXPECT_EQ(cuArrayCreate(&array, &plane), CUDA_ERROR_INVALID_VALUE) << "no channel";
  EXPECT_EQ(cuArrayCreate(nullptr, &plane), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayCreate(&array, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayCreate(nullptr, &box, 1), CUDA_ERROR_INVALID_VALUE);
  box.Width = 0;
  EXPECT_EQ(cuArray3DCreate(&array, &box), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayCreate(&levels, &box, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(array, reinterpret_cast<CUarray>(7));
  EXPECT_EQ(levels, reinterpret_cast<CUmipmappedArray>(7));
  EXPECT_EQ(cuMemFree(0), CUDA_SUCCESS);
  EXPECT_EQ(pointer, 7u);
  nothing_held("nothing");
}

// Arguments that the driver refuses, with sizes that no quota has room for: its answer is told, and
// no refusal is counted or said.
TEST_F(SoftGpuErrorsTest, WrongArgumentsAboveTheQuotaAreTheDriversBusiness) {
  constexpr size_t kHuge = size_t{200} << 30;
  testing::internal::CaptureStderr();
  CUdeviceptr pointer = 7;
  size_t pitch = 7;
  EXPECT_EQ(cuMemAlloc(nullptr, kHuge), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(nullptr, kHuge, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&pointer, kHuge, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&pointer, kHuge, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch(nullptr, &pitch, kHuge, 1, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch(&pointer, nullptr, kHuge, 1, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch(&pointer, &pitch, kHuge, 1, 5), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocAsync(nullptr, kHuge, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocFromPoolAsync(nullptr, kHuge, default_pool(), nullptr),
            CUDA_ERROR_INVALID_VALUE);
  const auto no_stream = reinterpret_cast<CUstream>(0x1234567000);
  EXPECT_EQ(cuMemAllocAsync(&pointer, kHuge, no_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&pointer, kHuge, default_pool(), no_stream),
            CUDA_ERROR_INVALID_HANDLE);
  std::thread([&] {  // it has no context, whose default stream it could be
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&pointer, kHuge, pool, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  })
      .join();
  CUstream capturing = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamCreate(&capturing, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUdeviceptr answered = 7;
  EXPECT_EQ(cuMemAllocAsync(&answered, kHuge, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(answered, 0u) << "as the driver answers";
  EXPECT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(cuStreamDestroy(capturing), CUDA_SUCCESS);
  const CUmemAllocationProp properties = on_device();
  CUmemAllocationProp pageable = properties;
  pageable.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  CUmemGenericAllocationHandle handle = 7;
  EXPECT_EQ(cuMemCreate(nullptr, kHuge, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, kHuge, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, kHuge + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, kHuge, &pageable, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, kHuge, &properties, 1), CUDA_ERROR_INVALID_VALUE);
  auto array = reinterpret_cast<CUarray>(7);
  CUDA_ARRAY3D_DESCRIPTOR box = box_of(kHuge / kMiB);
  EXPECT_EQ(cuArray3DCreate(nullptr, &box), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayCreate(nullptr, &box, 1), CUDA_ERROR_INVALID_VALUE);
  box.NumChannels = 5;
  EXPECT_EQ(cuArray3DCreate(&array, &box), CUDA_ERROR_INVALID_VALUE);
  box = box_of(kHuge / kMiB);
  box.Width = 0;
  EXPECT_EQ(cuArray3DCreate(&array, &box), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pointer + pitch + handle, 21u);
  EXPECT_EQ(array, reinterpret_cast<CUarray>(7));
  // A context has one size.
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  broker->lease().gpus[0].memory_max_bytes = kContext - 1;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxCreate(nullptr, nullptr, 0, 0), CUDA_ERROR_INVALID_VALUE);
  broker->lease().gpus[0].memory_max_bytes = kQuota;
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(broker->account().refused.load(), 0u);
  // What else is too much is the quota's business.
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocManaged(&pointer, kHuge, CU_MEM_ATTACH_HOST), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemCreate(&handle, kHuge, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(broker->account().refused.load(), 2u);
  nothing_held("refused");
}

TEST_F(SoftGpuErrorsTest, PointersThatNobodyGaveAreTheDriversBusiness) {
  EXPECT_EQ(cuMemFree(0x1234), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(0x1234, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuMemRelease(0x1234), CUDA_SUCCESS);
  EXPECT_NE(cuIpcCloseMemHandle(0x1234), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc(&pointer, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(pointer + 8), CUDA_ERROR_INVALID_VALUE) << "into the middle";
  EXPECT_EQ(held(), kContext + 4096);
  EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE) << "twice";
  nothing_held("freed");
}

TEST_F(SoftGpuErrorsTest, UsageAboveALoweredQuotaShowsAsNothingFreeAndComesBack) {
  CUdeviceptr large = 0, small = 0;
  ASSERT_EQ(cuMemAlloc(&large, 40 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&small, 1 * kMiB), CUDA_SUCCESS);
  broker->lease().gpus[0].memory_max_bytes = 50 * kMiB;
  size_t free_bytes = 1, total_bytes = 0;
  EXPECT_EQ(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 0u);
  EXPECT_EQ(total_bytes, 50 * kMiB);
  CUdeviceptr more = 7;
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&more, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(small), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY) << "still above";
  EXPECT_EQ(cuMemFree(large), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&more, 18 * kMiB), CUDA_SUCCESS) << "to the last byte of the new quota";
  EXPECT_EQ(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(SoftGpuErrorsTest, MemoryInfoWithNullArguments) {
  size_t free_bytes = 1, total_bytes = 1;
  EXPECT_EQ(cuMemGetInfo(&free_bytes, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, kQuota - kContext);
  EXPECT_EQ(cuMemGetInfo(nullptr, &total_bytes), CUDA_SUCCESS);
  EXPECT_EQ(total_bytes, kQuota);
  EXPECT_EQ(cuMemGetInfo(nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceTotalMem(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

}  // namespace

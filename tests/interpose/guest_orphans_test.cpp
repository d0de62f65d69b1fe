// Shared memory that no process's figure has. The counts are an H100's (driver 580.159): a piece
// leaves the figure of its creator with its last handle and mapping, though a descriptor or an
// import that was made later keeps it on the device; a pool that another process has imported does
// so with the end of the exporter's. Here the device's part is scripted: each case is a process of
// its own.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/guest_nvml.h"

namespace {

using namespace sluice::test;

constexpr unsigned long long kPiece = 64 * kMiB, kContext = 30 * kMiB,
                             kUnfigured = 8 * kMiB;  // of a context
constexpr size_t kFit = (kGiB - kContext) / kPiece;

// What the next calls of a name do to the figure of the process and to what the device has used.
struct Effect {
  const char* function;
  long long figure, device;
};
std::mutex effects_mutex;  // the shim's own thread calls the driver, too
Effect effects[2];
FakeNvml* on_device;

void effect_set(size_t i, const Effect& effect) {
  const std::lock_guard lock(effects_mutex);
  effects[i] = effect;
}

void take_effect(const char* function) {
  const std::lock_guard lock(effects_mutex);
  for (const Effect& effect : effects) {
    if (effect.function == nullptr || strcmp(function, effect.function) != 0) continue;
    on_device->processes[0].usedGpuMemory += static_cast<unsigned long long>(effect.figure);
    on_device->used_more += static_cast<unsigned long long>(effect.device);
  }
}

constexpr auto kSigned = static_cast<long long>(kPiece);

class GuestOrphansTest : public GuestNvmlTest {
 protected:
  void SetUp() override {
    GuestNvmlTest::SetUp();
    begin();
    ASSERT_EQ(held(), kContext);
  }
  void begin() {
    listed(static_cast<unsigned>(getpid()), kContext);
    listed(kStranger, 500 * kMiB);
    nvml->used_more = 500 * kMiB + kContext + kUnfigured - 3 * kGiB;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    on_device = nvml;
    effect_set(0, {"cuMemCreate", kSigned, kSigned});
    fake.on_enter = take_effect;
  }
  static void release_does(long long figure, long long device) {
    effect_set(1, {"cuMemRelease", figure, device});
  }
  static CUresult create(CUmemGenericAllocationHandle* handle) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    const unsigned long long before[] = {on_device->processes[0].usedGpuMemory,
                                         on_device->used_more};
    const CUresult result = cuMemCreate(handle, kPiece, &properties, 0);
    if (result != CUDA_SUCCESS) {
      EXPECT_EQ(on_device->processes[0].usedGpuMemory, before[0]);
      EXPECT_EQ(on_device->used_more, before[1]);
    }
    return result;
  }
  static void exported(CUmemGenericAllocationHandle handle) {
    int fd = -1;
    ASSERT_EQ(
        cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
  }
  static CUmemGenericAllocationHandle imported() {
    CUmemGenericAllocationHandle handle = 0x777;
    EXPECT_EQ(
        cuMemImportFromShareableHandle(&handle, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_SUCCESS);
    return handle;
  }
  // Creates, exports and releases; only the descriptor is left.
  static CUresult park() {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = create(&handle);
    if (result != CUDA_SUCCESS) return result;
    exported(handle);
    release_does(-kSigned, 0);
    return cuMemRelease(handle);
  }
  void park_all() {
    for (size_t i = 0; i < kFit; ++i) ASSERT_EQ(park(), CUDA_SUCCESS) << i;
    EXPECT_EQ(park(), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(held(), kContext + kFit * kPiece);
  }
  // The device has all of it back, and a whole quota can be taken again.
  static std::vector<CUmemGenericAllocationHandle> create_all() {
    std::vector<CUmemGenericAllocationHandle> pieces(kFit);
    for (CUmemGenericAllocationHandle& piece : pieces) EXPECT_EQ(create(&piece), CUDA_SUCCESS);
    return pieces;
  }
  void all_is_there_again() {
    const auto pieces = create_all();
    release_does(-kSigned, -kSigned);
    for (const CUmemGenericAllocationHandle piece : pieces)
      ASSERT_EQ(cuMemRelease(piece), CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return held() == kContext; })) << held() / kMiB;
  }
};

TEST_F(GuestOrphansTest, WhatOnlyDescriptorsHoldStaysCharged) {
  park_all();
  nvml->used_more -= kFit * kPiece;  // they are closed
  all_is_there_again();
}

TEST_F(GuestOrphansTest, WhatIsClosedBeforeTheReleaseIsBackWithIt) {
  for (size_t i = 0; i < 3 * kFit; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(create(&handle), CUDA_SUCCESS) << i;
    exported(handle);
    release_does(-kSigned, -kSigned);
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }
  all_is_there_again();
}

// An import after the last handle has gone is in no figure, and nothing that the device has less.
TEST_F(GuestOrphansTest, WhatIsImportedAgainLateIsChargedOnce) {
  park_all();
  for (size_t i = 0; i < kFit; ++i) {
    const CUmemGenericAllocationHandle again = imported();
    EXPECT_EQ(held(), kContext + kFit * kPiece);
    if (i % 2 == 0) continue;
    release_does(0, 0);  // the descriptor is still open
    ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
    EXPECT_EQ(park(), CUDA_ERROR_OUT_OF_MEMORY);
  }
  release_does(0, -kSigned);
  for (size_t i = 0; i < kFit; ++i) {
    ASSERT_EQ(cuMemRelease(0x777), CUDA_SUCCESS);
    ASSERT_EQ(held(), kContext + (kFit - 1 - i) * kPiece);
  }
  all_is_there_again();
}

TEST_F(GuestOrphansTest, ExternalMemoryOfWhatIsParkedIsChargedOnce) {
  park_all();
  auto* memory = reinterpret_cast<CUexternalMemory>(0x778);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  ASSERT_EQ(cuImportExternalMemory(&memory, &what), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + kFit * kPiece);
  EXPECT_EQ(park(), CUDA_ERROR_OUT_OF_MEMORY);
  effect_set(1, {"cuDestroyExternalMemory", 0, -kSigned});
  ASSERT_EQ(cuDestroyExternalMemory(memory), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + (kFit - 1) * kPiece);
}

// What the device has less after the import, and no process is charged for.
TEST_F(GuestOrphansTest, AnImportThatTheDeviceShowsAloneIsCharged) {
  effect_set(1, {"cuMemImportFromShareableHandle", 0, kSigned});
  for (size_t i = 1; i <= kFit; ++i) {
    (void)imported();
    ASSERT_EQ(held(), kContext + i * kPiece);
  }
  nvml->used_more -= kPiece;  // taken back, as the release of the one that is refused
  release_does(0, -kSigned);
  CUmemGenericAllocationHandle handle = 0x777;
  EXPECT_EQ(create(&handle), CUDA_SUCCESS);
  EXPECT_EQ(create(&handle), CUDA_ERROR_OUT_OF_MEMORY);
}

// Another handle of the process keeps it in the figure, and with that one's end it leaves that.
TEST_F(GuestOrphansTest, AnOwnSecondHandleIsChargedOnceAndKeptBehindItsEnd) {
  std::vector<CUmemGenericAllocationHandle> seconds;
  for (size_t i = 0; i < kFit; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(create(&handle), CUDA_SUCCESS);
    exported(handle);
    seconds.push_back(imported());
    release_does(0, 0);
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return broker->claims().released_bytes[0][0].load() == 0; }));
    ASSERT_EQ(held(), kContext + (i + 1) * kPiece);
  }
  EXPECT_EQ(park(), CUDA_ERROR_OUT_OF_MEMORY);
  release_does(-kSigned, 0);  // the descriptors are still open
  for (const CUmemGenericAllocationHandle second : seconds)
    ASSERT_EQ(cuMemRelease(second), CUDA_SUCCESS);
  EXPECT_EQ(park(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(held(), kContext + kFit * kPiece);
  nvml->used_more -= kFit * kPiece;
  all_is_there_again();
}

// A stranger that imports it is charged for it, as far as this tenant goes.
TEST_F(GuestOrphansTest, WhatAnotherProcessHasByItsFigureIsKeptNoLonger) {
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(create(&handle), CUDA_SUCCESS);
  exported(handle);
  release_does(-kSigned, 0);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(held(), kContext + kPiece);
  nvml->processes[1].usedGpuMemory += kPiece;
  all_is_there_again();
}

// While both have it, both figures do. All but what no figure has is given back.
TEST_F(GuestOrphansTest, WhatTwoFiguresHaveIsKeptNoLonger) {
  for (int i = 0; i < 3; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(create(&handle), CUDA_SUCCESS);
    exported(handle);
    nvml->processes[1].usedGpuMemory += kPiece;
    release_does(-kSigned, 0);
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return held() <= kContext + kUnfigured; })) << held() / kMiB;
  }
}

// The figure has what another thread is just importing before it is charged.
TEST_F(GuestOrphansTest, WhatAnImportIsJustTakingUpIsNotBack) {
  static CUmemGenericAllocationHandle other;
  static unsigned long long meanwhile;
  static TestBroker* told;
  told = &*broker;
  for (size_t i = 0; i < 3; ++i) ASSERT_EQ(park(), CUDA_SUCCESS) << i;
  ASSERT_EQ(create(&other), CUDA_SUCCESS);
  exported(other);
  effect_set(1, {"cuMemImportFromShareableHandle", kSigned, 0});
  fake.on_enter = [](const char* function) {
    take_effect(function);
    if (strcmp(function, "cuMemRelease") == 0) meanwhile = told->account().held_bytes.load();
    if (strcmp(function, "cuMemImportFromShareableHandle") != 0) return;
    release_does(-kSigned, 0);
    std::thread([] { EXPECT_EQ(cuMemRelease(other), CUDA_SUCCESS); }).join();
  };
  (void)imported();
  EXPECT_EQ(meanwhile, kContext + 4 * kPiece);
  EXPECT_EQ(held(), kContext + 4 * kPiece);
}

// A figure has it already, and its keeper notices that in the middle of an import.
TEST_F(GuestOrphansTest, WhatAnotherProcessGivesBackMeanwhileIsNotTaken) {
  static TestBroker* told;
  told = &*broker;
  const auto keep = [](uint64_t bytes) {
    told->claims().slots[1].pid.store(1);
    told->claims().slots[1].gpus[0].held_bytes.store(bytes);
    told->claims().released_bytes[1][0].store(bytes);
  };
  broker->claims().slots_used.store(2);
  keep(kPiece);
  effect_set(1, {"cuMemImportFromShareableHandle", 0, 0});
  fake.on_enter = [](const char* function) {
    take_effect(function);
    if (strcmp(function, "cuMemImportFromShareableHandle") == 0) {
      told->claims().slots[1].gpus[0].held_bytes.store(0);
      told->claims().released_bytes[1][0].store(0);
    }
  };
  (void)imported();
  EXPECT_EQ(held(), kContext);
}

// It is in no figure then, and not kept yet.
TEST_F(GuestOrphansTest, WhatIsReadInTheMiddleOfAReleaseIsNoMeasure) {
  static CUmemGenericAllocationHandle other;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(create(&other), CUDA_SUCCESS);
  ASSERT_EQ(create(&handle), CUDA_SUCCESS);
  exported(handle);
  release_does(-kSigned, 0);
  fake.on_enter = [](const char* function) {
    take_effect(function);
    if (strcmp(function, "cuMemRelease") == 0) std::thread([] { exported(other); }).join();
  };
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + 2 * kPiece);
}

// The broker has seen its end and leaves its slot, because another process keeps its memory.
TEST_F(GuestOrphansTest, WhatHasEndedInAReadingReadsNoMore) {
  broker->claims().slots_used.store(2);
  broker->claims().slots[1].pid.store(1);
  broker->claims().reading_turn.store(2);
  ASSERT_EQ(park(), CUDA_SUCCESS);
  nvml->used_more -= kPiece;
  EXPECT_FALSE(eventually([&] { return held() == kContext; }, 1)) << "one that lives is waited for";
  broker->claims().slots[1].end_seen.store(1);
  for (size_t i = 0; i < kFit; ++i) ASSERT_EQ(park(), CUDA_SUCCESS) << i;
  nvml->used_more -= kFit * kPiece;
  all_is_there_again();
}

TEST_F(GuestOrphansTest, WhatHasEndedInACallLetsGoOfNothing) {
  broker->claims().slots_used.store(2);
  broker->claims().slots[1].pid.store(1);
  broker->claims().letting_go[0].set(2);
  effect_set(1, {"cuMemImportFromShareableHandle", 0, kSigned});
  (void)imported();
  EXPECT_EQ(held(), kContext) << "no reading counts while one that lives is in such a call";
  broker->claims().slots[1].end_seen.store(1);
  (void)imported();
  EXPECT_EQ(held(), kContext + kPiece);
}

// What is loaded beside it is charged besides.
TEST_F(GuestOrphansTest, AModuleIsNotWhatIsKept) {
  for (size_t i = 0; i + 1 < kFit; ++i) ASSERT_EQ(park(), CUDA_SUCCESS) << i;
  effect_set(1, {"cuModuleLoadData", 40 * kMiB, 40 * kMiB});
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + (kFit - 1) * kPiece + 40 * kMiB);
  effect_set(1, {"cuModuleUnload", -40 * static_cast<long long>(kMiB),
                 -40 * static_cast<long long>(kMiB)});
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(held(), kContext + (kFit - 1) * kPiece);
}

TEST_F(GuestOrphansTest, APoolThatOthersHaveImportedStaysChargedBehindItsEnd) {
  fake.pool_step_bytes = kPiece;
  const auto pooled = [&] {
    CUmemoryPool pool = nullptr;
    CUmemPoolProps properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    int fd = -1;
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
    EXPECT_EQ(
        cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
    effect_set(1, {"cuMemAllocAsync", kSigned, kSigned});
    const CUresult result = cuMemAllocFromPoolAsync(&pointer, kPiece, pool, nullptr);
    if (result != CUDA_SUCCESS) return result;
    EXPECT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
    fake.pool_reserved_bytes = 0;
    effect_set(1, {"cuMemPoolDestroy", -kSigned, 0});
    return cuMemPoolDestroy(pool);
  };
  for (size_t i = 0; i < kFit; ++i) {
    ASSERT_EQ(pooled(), CUDA_SUCCESS) << i;
    ASSERT_EQ(held(), kContext + (i + 1) * kPiece);
  }
  EXPECT_EQ(pooled(), CUDA_ERROR_OUT_OF_MEMORY);
  nvml->used_more -= kFit * kPiece;  // the partner has let go of them
  all_is_there_again();
}

TEST_F(GuestOrphansTest, ANewBrokerIsToldOfIt) {
  park_all();
  TestBroker second(kGiB, kContext);
  broker->die();
  second.path_take(*broker);
  ASSERT_TRUE(eventually([&] { return second.registrations() == 1; }));
  EXPECT_TRUE(
      eventually([&] { return second.account().held_bytes.load() == kContext + kFit * kPiece; }));
  EXPECT_EQ(second.claims().released_bytes[0][0].load(), kFit * kPiece);
  EXPECT_EQ(park(), CUDA_ERROR_OUT_OF_MEMORY);
}

// A process asks the device which memory is back, and another of its threads executes a program:
// here in the middle of the question. The program is of the tenant, with the same pid.
constexpr char kExecuted[] = "SLUICE_TEST_EXECUTED";
TestBroker* asked_for;

void execute_when_it_asks() {
  if (asked_for->claims().reading_turn.load() == 0) return;
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  setenv(kExecuted, "1", 1);
  execl("/proc/self/exe", "executed", filter.c_str(), nullptr);
}

class GuestExecutedTest : public GuestOrphansTest {
 protected:
  void SetUp() override {}
  // In a child. Does not return.
  void execute() {
    nvml_open();
    begin();
    asked_for = broker.get();
    nvml->on_memory_read = execute_when_it_asks;
    (void)park();
    (void)park();
    _exit(2);
  }
  void executed() {
    nvml_open();
    begin();
    for (size_t i = 0; i < kFit; ++i) ASSERT_EQ(park(), CUDA_SUCCESS) << i;
    nvml->used_more -= kFit * kPiece;
    (void)create_all();
  }
  void what_it_parks_comes_back() {
    if (getenv(kExecuted) != nullptr) return executed();
    broker = std::make_unique<TestBroker>(kGiB, 30 * kMiB);
    broker->environment_set();
    if (slots_again) broker->slots_again();
    const pid_t child = fork();
    if (child == 0) execute();
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(broker->registrations(), 2);
  }
  bool slots_again = false;
};

TEST_F(GuestExecutedTest, WhatItParksComesBackInAnotherSlot) { what_it_parks_comes_back(); }
TEST_F(GuestExecutedTest, WhatItParksComesBackInTheSameSlot) {
  slots_again = true;
  what_it_parks_comes_back();
}

}  // namespace

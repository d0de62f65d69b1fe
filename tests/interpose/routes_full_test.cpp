// What is asked of the driver where a call takes longer than its short way, over one that only
// notes its calls: at a full quota, under a full window, with work in flight and while a capture is
// in progress. Nothing but what is listed (routes_beside.cpp), which waits for no work of the
// program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/interpose/routes_beside.h"

namespace {

using namespace sluice::test;

constexpr size_t kTooMuch = 70 << 20;

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return properties;
}

CUDA_ARRAY3D_DESCRIPTOR large_box() {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 512;
  shape.Depth = 70;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  return shape;
}

struct FullWay {
  const char* name;
  CUresult (*call)(uint64_t* out);
};
/// Every call that asks for memory by its size, or for a context.
const FullWay kFullWays[] = {
    {"cuMemAlloc",
     [](uint64_t* out) { return cuMemAlloc(reinterpret_cast<CUdeviceptr_v1*>(out), kTooMuch); }},
    {"cuMemAlloc_v2",
     [](uint64_t* out) { return cuMemAlloc_v2(reinterpret_cast<CUdeviceptr*>(out), kTooMuch); }},
    {"cuMemAllocPitch",
     [](uint64_t* out) {
       unsigned int pitch = 0;
       return cuMemAllocPitch(reinterpret_cast<CUdeviceptr_v1*>(out), &pitch, 1000, kTooMuch / 1000,
                              4);
     }},
    {"cuMemAllocPitch_v2",
     [](uint64_t* out) {
       size_t pitch = 0;
       return cuMemAllocPitch_v2(reinterpret_cast<CUdeviceptr*>(out), &pitch, 1000, kTooMuch / 1000,
                                 4);
     }},
    {"cuMemAllocManaged",
     [](uint64_t* out) {
       return cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(out), kTooMuch,
                                CU_MEM_ATTACH_GLOBAL);
     }},
    {"cuMemAllocAsync",
     [](uint64_t* out) {
       return cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(out), kTooMuch, nullptr);
     }},
    {"cuMemAllocAsync_ptsz",
     [](uint64_t* out) {
       return cuMemAllocAsync_ptsz(reinterpret_cast<CUdeviceptr*>(out), kTooMuch, nullptr);
     }},
    {"cuMemAllocFromPoolAsync",
     [](uint64_t* out) {
       return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(out), kTooMuch,
                                      reinterpret_cast<CUmemoryPool>(0x5000), nullptr);
     }},
    {"cuMemAllocFromPoolAsync_ptsz",
     [](uint64_t* out) {
       return cuMemAllocFromPoolAsync_ptsz(reinterpret_cast<CUdeviceptr*>(out), kTooMuch,
                                           reinterpret_cast<CUmemoryPool>(0x5000), nullptr);
     }},
    {"cuMemCreate",
     [](uint64_t* out) {
       const CUmemAllocationProp properties = on_device();
       return cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(out), kTooMuch,
                          &properties, 0);
     }},
    {"cuArrayCreate_v2",
     [](uint64_t* out) {
       CUDA_ARRAY_DESCRIPTOR shape{};
       shape.Width = 1024;
       shape.Height = 70 * 256;
       shape.Format = CU_AD_FORMAT_FLOAT;
       shape.NumChannels = 1;
       return cuArrayCreate_v2(reinterpret_cast<CUarray*>(out), &shape);
     }},
    {"cuArray3DCreate_v2",
     [](uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = large_box();
       return cuArray3DCreate_v2(reinterpret_cast<CUarray*>(out), &shape);
     }},
    {"cuMipmappedArrayCreate",
     [](uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = large_box();
       return cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(out), &shape, 2);
     }},
    {"cuDevicePrimaryCtxRetain",
     [](uint64_t* out) { return cuDevicePrimaryCtxRetain(reinterpret_cast<CUcontext*>(out), 0); }},
    {"cuCtxCreate",
     [](uint64_t* out) { return cuCtxCreate(reinterpret_cast<CUcontext*>(out), 0, 0); }},
    {"cuCtxCreate_v2",
     [](uint64_t* out) { return cuCtxCreate_v2(reinterpret_cast<CUcontext*>(out), 0, 0); }},
    {"cuCtxCreate_v3",
     [](uint64_t* out) {
       return cuCtxCreate_v3(reinterpret_cast<CUcontext*>(out), nullptr, 0, 0, 0);
     }},
    {"cuCtxCreate_v4",
     [](uint64_t* out) {
       return cuCtxCreate_v4(reinterpret_cast<CUcontext*>(out), nullptr, 0, 0);
     }},
};

const HookedEntry& entry_of(const std::string& symbol) {
  return *std::find_if(entries().begin(), entries().end(),
                       [&](const HookedEntry& one) { return one.symbol == symbol; });
}

constexpr size_t kFull = 64 << 20;

class RouteFullTest : public RouteTableTest {
 protected:
  void start(size_t quota) {
    broker = std::make_unique<TestBroker>(quota, 1 << 20);
    broker->lease_store(sluice::protocol::kLeaseOpen);
    broker->environment_set();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  void fill() {
    CUdeviceptr filler = 0x1234;
    ASSERT_EQ(cuMemAlloc_v2(&filler, kFull), CUDA_SUCCESS);
  }
  // Launches are in flight, and fences behind them.
  void launches(int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
                CUDA_SUCCESS);
    }
  }
  // A call through every hook, each of which does what it is asked for.
  void call_all() {
    for (const HookedEntry& entry : entries()) {
      if (!is_called(entry)) continue;
      SCOPED_TRACE(entry.symbol);
      calls_forget();
      const Call call = entry.call(named(entry.symbol));
      const bool says_no =
          entry.symbol == std::string("cuEventQuery") && recording_answers.events_pending != 0;
      EXPECT_EQ(call.result, says_no ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
      expect_only_listed(entry, &call, gettid());
    }
  }
  void capture_begin(int streams = 1) {
    const auto stream = reinterpret_cast<CUstream>(0x7000);
    ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    recording_answers.capturing = streams;
  }
  // Each refused call; the driver sees none of them.
  void refuse_all() {
    for (const FullWay& way : kFullWays) {
      SCOPED_TRACE(way.name);
      calls_forget();
      uint64_t out = 0x77;
      EXPECT_EQ(way.call(&out), CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(out, 0x77u);
      expect_only_listed(entry_of(way.name), nullptr, gettid());
    }
    EXPECT_EQ(broker->account().refused.load(), std::size(kFullWays));
  }
  // Each load that the driver makes and the shim takes back.
  void undo_all();
  std::unique_ptr<TestBroker> broker;
};

// What the shim asks before it refuses - pools read again, contexts and graphs asked - waits for no
// work of the program, and the call itself is not made.
TEST_F(RouteFullTest, ARefusalAtAFullQuotaSynchronisesNothing) {
  start(kFull);
  fill();
  launches(10);
  refuse_all();
}

void RouteFullTest::undo_all() {
  recording_answers.load_takes = 1 << 20;
  const std::pair<const char*, const char*> kUndone[] = {
      {"cuModuleLoad", "cuModuleUnload"},        {"cuModuleLoadData", "cuModuleUnload"},
      {"cuModuleLoadDataEx", "cuModuleUnload"},  {"cuModuleLoadFatBinary", "cuModuleUnload"},
      {"cuLibraryLoadData", "cuLibraryUnload"},  {"cuLibraryLoadFromFile", "cuLibraryUnload"},
      {"cuGreenCtxCreate", "cuGreenCtxDestroy"}, {"cuCtxSetLimit", "cuCtxSetLimit"},
  };
  for (const auto& [symbol, undo] : kUndone) {
    SCOPED_TRACE(symbol);
    calls_forget();
    const HookedEntry& entry = entry_of(symbol);
    const Call call = entry.call(named(symbol));
    EXPECT_EQ(call.result, CUDA_ERROR_OUT_OF_MEMORY);
    expect_only_listed(entry, &call, gettid(), Outcome::kUndone);
    EXPECT_NE(names_of_recorded().find(undo), std::string::npos) << names_of_recorded();
  }
}

// A load is made before it is known what it takes. One that does not fit is taken back by its own
// unload, and nothing else waits.
TEST_F(RouteFullTest, ALoadThatDoesNotFitIsTakenBackAndNothingElse) {
  start(kFull);
  fill();
  launches(10);
  undo_all();
}

// A driver takes loads, contexts and cuMemCreate while a stream is captured: a refusal by the quota
// must leave the capture as it was.
TEST_F(RouteFullTest, ARefusalWhileACaptureIsInProgressBreaksItNot) {
  start(kFull);
  recording_answers.pools_keep = kFull;
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cuMemAllocAsync(&pooled, 1 << 20, nullptr), CUDA_SUCCESS);
  launches(10);
  capture_begin();
  refuse_all();
}

TEST_F(RouteFullTest, ALoadThatIsTakenBackWhileACaptureIsInProgressBreaksItNot) {
  start(kFull);
  fill();
  launches(10);
  capture_begin();
  undo_all();
}

TEST_F(RouteFullTest, ALaunchUnderAFullWindowWaitsForNoneByTheDriver) {
  start(1ull << 30);
  const auto classes = classes_of_all();
  broker->window_set(1);
  for (const HookedEntry& entry : entries()) {
    if (!is_called(entry) || classes.at(entry.symbol).count("launch") == 0) continue;
    SCOPED_TRACE(entry.symbol);
    recording_answers.events_pending = 0;
    launches(1);  // waits until the window is empty
    recording_answers.events_pending = 1;
    launches(1);
    calls_forget();
    std::atomic<bool> done{false};
    int program_id = 0;
    Call call;
    std::thread program([&] {
      program_id = gettid();
      call = entry.call(named(entry.symbol));
      done = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(done) << "the window is not full";
    recording_answers.events_pending = 0;
    program.join();
    EXPECT_EQ(call.result, CUDA_SUCCESS);
    expect_only_listed(entry, &call, program_id);
  }
}

TEST_F(RouteFullTest, WithWorkInFlightEveryHookAsksForNothingThatIsNotListed) {
  start(1ull << 30);
  recording_answers.events_pending = 1;
  launches(10);
  call_all();
}

TEST_F(RouteFullTest, WhileACaptureIsInProgressEveryHookAsksForNothingThatIsNotListed) {
  start(1ull << 30);
  launches(10);
  capture_begin();
  call_all();
}

TEST_F(RouteFullTest, WhileEveryStreamIsCapturedNoHookTouchesOne) {
  constexpr int kAll = 2;
  start(1ull << 30);
  launches(10);
  capture_begin(kAll);
  call_all();
}

}  // namespace

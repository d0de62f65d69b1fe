// The shim's tables have no end: with more contexts, threads, captures, pools, graphs and peers
// than the first slab of each has room for, the limits hold for the last one as for the first. And
// where there is no memory for one more record, the call is refused, not passed. Over the fake
// driver; each case is a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/interpose/guest.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using sluice::test::kMemoryWatched;
using sluice::test::kMiB;
using sluice::test::kRacesWatched;
using sluice::test::launch;
using sluice::test::sleep_ms;
using sluice::test::TestBroker;
using testing::HasSubstr;

constexpr int kManyContexts = 70;

// No new memory from the kernel during the call.
CUresult without_memory(const std::function<CUresult()>& call) {
  rlimit before{};
  EXPECT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{1, before.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  const CUresult result = call();
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  return result;
}

class TablesTest : public ::testing::Test {
 protected:
  void start(unsigned long long quota = 1ull << 30) {
    broker = std::make_unique<TestBroker>(quota);
    broker->environment_set();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  // Each is the current one of all threads, and known to the shim by a launch.
  void contexts(int count) {
    for (int i = 0; i < count; ++i) {
      context_set(i);
      ASSERT_EQ(launch(), CUDA_SUCCESS);
    }
  }
  static void context_set(int number) {
    fake.context = reinterpret_cast<CUcontext>(uintptr_t{0x10000} + 0x100u * unsigned(number));
    ASSERT_EQ(cuCtxSetCurrent(fake.context), CUDA_SUCCESS);
  }
  // Whether the call is under way after a while; it then ends when `release` is called.
  static void waits(const std::function<CUresult()>& call, const std::function<void()>& release) {
    std::atomic<bool> done{false};
    std::thread program([&] {
      EXPECT_EQ(call(), CUDA_SUCCESS);
      done = true;
    });
    sleep_ms(120);
    EXPECT_FALSE(done);
    release();
    program.join();
  }
  std::unique_ptr<TestBroker> broker;
};

TEST_F(TablesTest, TheLastOfManyContextsWaitsForItsLease) {
  start();
  contexts(kManyContexts);
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  waits(launch, [&] { broker->lease_store(kLeaseOpen); });
}

TEST_F(TablesTest, WorkInTheLastOfManyContextsKeepsTheLeaseFromDraining) {
  start();
  contexts(kManyContexts);
  fake.events_pending = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 150));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

TEST_F(TablesTest, ACopyInTheLastOfManyContextsKeepsAHoldFromBeingAcknowledged) {
  start();
  contexts(kManyContexts - 1);
  context_set(kManyContexts - 1);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(1, nullptr, 1, nullptr), CUDA_SUCCESS);
  // The others have passed by then.
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  fake.events_pending = 1;
  broker->hold_store(true);
  EXPECT_FALSE(broker->wait_held(150));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_held());
  waits([] { return cuMemcpyHtoD_v2(1, nullptr, 1); }, [&] { broker->hold_store(false); });
}

TEST_F(TablesTest, AnEndedContextsRecordIsAnothers) {
  start();
  contexts(kManyContexts);
  for (int i = 0; i < 1000; ++i) {
    CUcontext made = nullptr;
    fake.context = reinterpret_cast<CUcontext>(uintptr_t{0x900000} + 0x100u * unsigned(i));
    ASSERT_EQ(cuCtxCreate_v2(&made, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(launch(), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxDestroy_v2(made), CUDA_SUCCESS);
  }
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

// A context that cannot be put on record neither launches nor touches memory, and does both when
// there is memory again.
TEST_F(TablesTest, WithoutMemoryForItsRecordAContextDoesNothing) {
  if (kRacesWatched || kMemoryWatched) GTEST_SKIP() << "the sanitizer needs memory itself";
  start();
  contexts(8);  // as many as fit the first slab
  context_set(8);
  testing::internal::CaptureStderr();
  const auto launches = fake.calls_launch;
  EXPECT_EQ(without_memory(launch), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(without_memory([] { return cuMemcpyHtoD_v2(1, nullptr, 1); }),
            CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(fake.calls_launch, launches);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("for lack of a context's record"));
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD_v2(1, nullptr, 1), CUDA_SUCCESS);
}

// Many threads that have all called the driver, parked until the end; the program goes on in one
// more.
class TablesThreadsTest : public TablesTest {
 protected:
  static constexpr int kThreads = 4100;
  void SetUp() override { start(64 * kMiB); }
  void TearDown() override {
    leave = true;
    leave.notify_all();
    for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  }
  // False: this machine gives no process as many.
  bool park() {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN + 16384);
    bool all = true;
    for (int i = 0; i < kThreads && all; ++i) {
      pthread_t thread;
      all = pthread_create(&thread, &small, parked, this) == 0;
      if (all) threads.push_back(thread);
    }
    pthread_attr_destroy(&small);
    while (arrived < threads.size()) sleep_ms(1);
    return all;
  }
  static void* parked(void* test) {
    auto& self = *static_cast<TablesThreadsTest*>(test);
    CUdeviceptr pointer = 0;
    if (cuMemAlloc_v2(&pointer, 1) != CUDA_SUCCESS) ++self.failed;
    ++self.arrived;
    self.leave.wait(false);  // thousands that wake up now and then would keep the host busy
    return nullptr;
  }
  std::vector<pthread_t> threads;
  std::atomic<size_t> arrived{0}, failed{0};
  std::atomic<bool> leave{false};
};

TEST_F(TablesThreadsTest, TheLastOfManyIsLimitedAsTheFirst) {
  if (kRacesWatched) GTEST_SKIP() << "a sanitizer takes minutes for so many threads";
  if (!park()) GTEST_SKIP() << "no more than " << threads.size() << " threads to be had here";
  EXPECT_EQ(failed, 0u);
  std::thread last([&] {
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 64 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 32 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(broker->account().held_bytes.load(), fake.used_bytes);
    EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
  });
  last.join();
  EXPECT_EQ(broker->account().held_bytes.load(), static_cast<uint64_t>(kThreads));
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  waits(launch, [&] { broker->lease_store(kLeaseOpen); });
  broker->lease_store(0);
  broker->hold_store(true);
  ASSERT_TRUE(broker->wait_held());
  waits([] { return cuMemcpyHtoD_v2(1, nullptr, 1); }, [&] { broker->hold_store(false); });
}

// What a launch of the last one has in flight is seen by the drain: it is inside.
TEST_F(TablesThreadsTest, TheLastOfManyIsSeenInsideItsLaunch) {
  if (kRacesWatched) GTEST_SKIP() << "a sanitizer takes minutes for so many threads";
  if (!park()) GTEST_SKIP() << "no more than " << threads.size() << " threads to be had here";
  static std::atomic<bool> inside{false}, go{false};
  fake.on_launch = [](const FakeLaunch&) {
    inside = true;
    while (!go) sleep_ms(1);
    return CUDA_SUCCESS;
  };
  std::thread last([] { EXPECT_EQ(launch(), CUDA_SUCCESS); });
  while (!inside) sleep_ms(1);
  broker->lease_store(0);
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 150));
  go = true;
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  last.join();
}

// The process has used up its keys of thread-local storage before its first call.
TEST_F(TablesTest, AThreadThatCannotHaveARecordIsRefused) {
  pthread_key_t key;
  while (pthread_key_create(&key, nullptr) == 0) {
  }
  start();
  testing::internal::CaptureStderr();
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(pointer, 0u);
  EXPECT_EQ(cuMemFree_v2(1), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuMemAllocAsync(&pointer, 1, nullptr), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(launch(), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuMemcpyHtoD_v2(1, nullptr, 1), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuStreamDestroy_v2(nullptr), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(fake.calls_launch + fake.calls_free + fake.used_bytes, 0u);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: refused a call that cannot be put on record, for lack of a thread's record; "
            "uncounted it would pass the job's limits. Give the program more memory or address "
            "space (ulimit -v), or have it do with fewer threads, contexts or pools\n");
}

TEST_F(TablesTest, AHoldComesAfterTheEndOfManyCaptures) {
  start();
  contexts(1);
  const auto stream = [](int i) {
    return reinterpret_cast<CUstream>(uintptr_t{0x20000} + unsigned(i) * 16u);
  };
  constexpr int kCaptures = 600;
  for (int i = 0; i < kCaptures; ++i)
    ASSERT_EQ(cuStreamBeginCapture_v2(stream(i), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  broker->lease_store(0);
  broker->hold_store(true);
  for (int i = 0; i < kCaptures; ++i) {
    if (i == kCaptures - 1) {
      EXPECT_FALSE(broker->wait_held(100));
    }
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream(i), &graph), CUDA_SUCCESS);
  }
  EXPECT_TRUE(broker->wait_held());
}

TEST_F(TablesTest, WithoutMemoryForItsRecordACaptureDoesNotBegin) {
  start();
  contexts(1);
  for (uintptr_t i = 1; i <= 64; ++i) {
    ASSERT_EQ(cuStreamBeginCapture_v2(reinterpret_cast<CUstream>(i * 0x1000),
                                      CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_SUCCESS);
  }
  fake.capturing_stream = nullptr;
  EXPECT_EQ(without_memory([] {
              return cuStreamBeginCapture_v2(reinterpret_cast<CUstream>(0x99),
                                             CU_STREAM_CAPTURE_MODE_RELAXED);
            }),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fake.capturing_stream, nullptr);
}

TEST_F(TablesTest, WithoutMemoryForItsRecordAPoolIsNotMade) {
  if (kRacesWatched || kMemoryWatched) GTEST_SKIP() << "the sanitizer needs memory itself";
  start();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  for (int i = 0; i < 64; ++i) ASSERT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  const CUmemoryPool before = pool;
  EXPECT_EQ(without_memory([&] { return cuMemPoolCreate(&pool, &properties); }),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pool, before);
  // Nor is anything allocated from one that the shim meets there for the first time.
  CUdeviceptr pointer = 0;
  EXPECT_EQ(without_memory([&] { return cuMemAllocAsync(&pointer, 4096, nullptr); }),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pointer, 0u);
  EXPECT_EQ(fake.pool_used_bytes, 0u);
  EXPECT_EQ(cuMemAllocAsync(&pointer, 4096, nullptr), CUDA_SUCCESS);
}

// Graphs within graphs allocate like others, however deep they lie; what lies too deep to be looked
// at is not instantiated.
TEST_F(TablesTest, MemoryOfNestedGraphsIsCharged) {
  start(64 * kMiB);
  contexts(1);
  fake.graph_node_bytes = 128 * kMiB;
  fake.graph_depth = 100;
  auto exec = reinterpret_cast<CUgraphExec>(0x700);
  const auto graph = reinterpret_cast<CUgraph>(1);
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  fake.graph_depth = 1000;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

// Of a place on the host the number may be a device's.
TEST_F(TablesTest, WhatGraphsAllocateOnTheHostIsNotAskedFor) {
  start(64 * kMiB);
  contexts(1);
  fake.graph_node_bytes = 128 * kMiB;
  fake.graph_depth = 1;
  auto exec = reinterpret_cast<CUgraphExec>(0x700);
  const auto graph = reinterpret_cast<CUgraph>(1);
  for (const CUmemLocationType place :
       {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CU_MEM_LOCATION_TYPE_DEVICE}) {
    fake.graph_node_place = place;
    ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(exec, nullptr),
              place == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS)
        << place;
  }
}

// Each of many executable graphs has its learned time: launched again, it needs no fences of its
// own.
TEST_F(TablesTest, ManyExecutableGraphsAreMeasured) {
  start();
  fake.launch_ns = 1000;
  const auto exec = [](int i) {
    return reinterpret_cast<CUgraphExec>(uintptr_t{0x100000} + unsigned(i) * 64u);
  };
  constexpr int kGraphs = 20000;
  for (int i = 0; i < kGraphs; ++i) ASSERT_EQ(cuGraphLaunch(exec(i), nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  // A graph without a record goes between two fences at each launch. One that has one goes in
  // bursts with hardly any, unless the host puts the thread off between its launches: one burst
  // tells.
  constexpr unsigned kLaunches = 100;
  auto fewest = 2ull * kLaunches;
  for (int burst = 0; burst < 20 && fewest >= kLaunches / 2; ++burst) {
    const auto before = fake.calls_event_record;
    for (unsigned i = 0; i < kLaunches; ++i)
      ASSERT_EQ(cuGraphLaunch(exec(kGraphs - 1), nullptr), CUDA_SUCCESS);
    fewest = std::min(fewest, fake.calls_event_record - before);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_LT(fewest, kLaunches / 2);
}

TEST_F(TablesTest, ManyContextsMayReachEachOther) {
  broker = std::make_unique<TestBroker>(1ull << 30);
  broker->swap_set();
  broker->environment_set();
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  for (int i = 0; i < 33; ++i) {
    context_set(i);
    for (unsigned j = 0; j < 32; ++j) {
      ASSERT_EQ(cuCtxEnablePeerAccess(reinterpret_cast<CUcontext>(0x500000 + j * 0x100ul), 0),
                CUDA_SUCCESS)
          << i << " " << j;
    }
  }
}

// What an allocating call answers in, filled with what nobody gives.
constexpr unsigned char kUntouched = 0x77;
struct Answer {
  uint64_t first, second;
  Answer() { memset(this, kUntouched, sizeof *this); }
  bool operator==(const Answer&) const = default;
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(&first);
  }
};

// Every hook that puts on record what the driver gave. What the fake driver answers without having
// anything tells nothing, so contexts are not among them.
struct RecordedWay {
  const char* name;
  CUresult (*call)(Answer& out);
};
constexpr size_t kTaken = 4096;
const CUDA_ARRAY3D_DESCRIPTOR kRefusedArray = {16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
const CUmemAllocationProp kHere = {CU_MEM_ALLOCATION_TYPE_PINNED,
                                   CU_MEM_HANDLE_TYPE_NONE,
                                   {CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                                   nullptr,
                                   {}};
const auto kDevicesPool = reinterpret_cast<CUmemoryPool>(0x5000);
const RecordedWay kRecordedWays[] = {
    {"cuMemAlloc", [](Answer& o) { return cuMemAlloc(o.as<CUdeviceptr_v1>(), kTaken); }},
    {"cuMemAlloc_v2", [](Answer& o) { return cuMemAlloc_v2(o.as<CUdeviceptr>(), kTaken); }},
    {"cuMemAllocManaged",
     [](Answer& o) {
       return cuMemAllocManaged(o.as<CUdeviceptr>(), kTaken, CU_MEM_ATTACH_GLOBAL);
     }},
    {"cuMemAllocPitch",
     [](Answer& o) {
       return cuMemAllocPitch(o.as<CUdeviceptr_v1>(), reinterpret_cast<unsigned*>(&o.second), 512,
                              8, 4);
     }},
    {"cuMemAllocPitch_v2",
     [](Answer& o) { return cuMemAllocPitch_v2(o.as<CUdeviceptr>(), &o.second, 512, 8, 4); }},
    {"cuMemAllocAsync",
     [](Answer& o) { return cuMemAllocAsync(o.as<CUdeviceptr>(), kTaken, nullptr); }},
    {"cuMemAllocFromPoolAsync",
     [](Answer& o) {
       return cuMemAllocFromPoolAsync(o.as<CUdeviceptr>(), kTaken, kDevicesPool, nullptr);
     }},
    {"cuMemCreate",
     [](Answer& o) {
       return cuMemCreate(o.as<CUmemGenericAllocationHandle>(), 2 * kMiB, &kHere, 0);
     }},
    {"cuArrayCreate_v2",
     [](Answer& o) {
       const CUDA_ARRAY_DESCRIPTOR plane = {16, 16, CU_AD_FORMAT_FLOAT, 1};
       return cuArrayCreate_v2(o.as<CUarray>(), &plane);
     }},
    {"cuArrayCreate",
     [](Answer& o) {
       const CUDA_ARRAY_DESCRIPTOR_v1 plane = {16, 16, CU_AD_FORMAT_FLOAT, 1};
       return cuArrayCreate(o.as<CUarray>(), &plane);
     }},
    {"cuArray3DCreate_v2",
     [](Answer& o) { return cuArray3DCreate_v2(o.as<CUarray>(), &kRefusedArray); }},
    {"cuArray3DCreate",
     [](Answer& o) {
       const CUDA_ARRAY3D_DESCRIPTOR_v1 box = {16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
       return cuArray3DCreate(o.as<CUarray>(), &box);
     }},
    {"cuMipmappedArrayCreate",
     [](Answer& o) { return cuMipmappedArrayCreate(o.as<CUmipmappedArray>(), &kRefusedArray, 2); }},
};

// The records are in tables of which some have room already: then the call succeeds, and the next
// one's record goes elsewhere.
TEST_F(TablesTest, WithoutMemoryForItsRecordNothingIsAllocatedAndNoOutputIsTouched) {
  if (kRacesWatched || kMemoryWatched) GTEST_SKIP() << "the sanitizer needs memory itself";
  start();
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  free(malloc(64 << 10));  // for the fake driver's own small tables
  const auto here = [] { return fake.used_bytes + fake.pool_reserved_bytes + fake.arrays; };
  const auto held = [&] { return broker->account().held_bytes.load(); };
  for (const RecordedWay& way : kRecordedWays) {
    int refused = 0;
    for (int i = 0; i < 500 && refused == 0; ++i) {
      ASSERT_EQ(cuMemPoolTrimTo(kDevicesPool, 0), CUDA_SUCCESS);
      const uint64_t held_before = held(), here_before = here();
      Answer out;
      if (without_memory([&] { return way.call(out); }) == CUDA_SUCCESS) {
        EXPECT_NE(out, Answer()) << way.name;
        continue;
      }
      ++refused;
      EXPECT_EQ(without_memory([&] { return way.call(out); }), CUDA_ERROR_OUT_OF_MEMORY)
          << way.name;
      EXPECT_EQ(out, Answer()) << way.name;
      ASSERT_EQ(cuMemPoolTrimTo(kDevicesPool, 0), CUDA_SUCCESS);
      EXPECT_EQ(held(), held_before) << way.name;
      EXPECT_EQ(here(), here_before) << way.name;
      EXPECT_EQ(broker->account().reserved_bytes.load(), 0u) << way.name;
      EXPECT_EQ(way.call(out), CUDA_SUCCESS) << way.name;
      EXPECT_NE(out, Answer()) << way.name;
      EXPECT_GT(held(), held_before) << way.name;
    }
    EXPECT_EQ(refused, 1) << way.name;
  }
}

// The driver's answer to an instantiation is in its parameters as well.
TEST_F(TablesTest, AGraphThatCannotBeLookedAtLeavesItsParametersAsTheyWere) {
  start();
  contexts(1);
  fake.graph_node_bytes = kMiB;
  fake.graph_depth = 1000;
  auto exec = reinterpret_cast<CUgraphExec>(0x77);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, reinterpret_cast<CUgraph>(1), &params),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(exec, reinterpret_cast<CUgraphExec>(0x77));
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_ERROR);
  fake.graph_depth = 1;
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, reinterpret_cast<CUgraph>(1), &params),
            CUDA_SUCCESS);
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
}

}  // namespace

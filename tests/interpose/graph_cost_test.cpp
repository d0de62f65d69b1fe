// What graphs and kernels cost, as the gate and the meter learn it: the whole shim over the fake
// driver, whose device time is ours to set. Each case is a process of its own.
#include <gtest/gtest.h>
#include <string.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/test_broker.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using sluice::test::TestBroker;

const auto kGraph = reinterpret_cast<CUgraphExec>(0x1000);
// More than waits for locks make, and less than 50 ms of waiting.
constexpr long kSleepsMax = 30;
const auto kOther = reinterpret_cast<CUgraphExec>(0x2000);

class GraphCostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    broker = std::make_unique<TestBroker>(1ull << 30);
    broker->environment_set();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  void graphs(int count, double ns, CUgraphExec exec = kGraph) {
    fake.launch_ns = ns;
    for (int i = 0; i < count; ++i) ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  }
  void kernels(int count, double ns) {
    fake.launch_ns = ns;
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
                CUDA_SUCCESS);
    }
  }
  unsigned long long fences(int count, double ns, CUgraphExec exec = kGraph) {
    const auto before = fake.calls_event_record;
    graphs(count, ns, exec);
    return fake.calls_event_record - before;
  }
  // How often the driver's function of the same name was called by a call that it takes well.
  template <class Entry>
  static int calls_seen(const Entry& entry) {
    static std::atomic<const char*> wanted;
    static std::atomic<int> seen;  // the helper's calls are looked at, too
    wanted = entry.symbol;
    seen = 0;
    fake.on_enter = [](const char* function) { seen += strcmp(function, wanted) == 0 ? 1 : 0; };
    EXPECT_EQ(entry.call(), CUDA_SUCCESS);
    fake.on_enter = nullptr;
    return seen;
  }
  // Whether the launches go through at once while nothing of what is in flight ends. One that finds
  // the window full looks again and again, and sleeps in between, until it is let through.
  bool passes(void (*call)()) {
    long sleeps = 0;
    fake.events_pending = 1;
    std::thread program([&] {
      rusage before{}, after{};
      getrusage(RUSAGE_THREAD, &before);
      call();
      getrusage(RUSAGE_THREAD, &after);
      sleeps = after.ru_nvcsw - before.ru_nvcsw;
    });
    program.join();
    fake.events_pending = 0;
    return sleeps < kSleepsMax;
  }
  std::unique_ptr<TestBroker> broker;
};

using KernelCostTest = GraphCostTest;

TEST_F(GraphCostTest, AMeasuredGraphGoesByTheBudgetLikeLaunches) {
  EXPECT_GE(fences(1, 10'000), 2u);  // alone, between two
  fences(64, 10'000);
  // 50 launches to half a millisecond, and every 64th is measured alone.
  EXPECT_LT(fences(10'000, 10'000), 10'000 / 50 + 2 * 10'000 / 64 + 50);
}

// Where every launch is measured, it asks for its own stream's events and no others.
TEST_F(KernelCostTest, ALaunchBesideManyStreamsAsksOneOfThem) {
  constexpr int kStreams = 32, kEach = 20;
  static thread_local int queries = 0;  // the helper's thread asks for all
  fake.events_pending = 1;
  fake.on_enter = [](const char* function) {
    queries += strcmp(function, "cuEventQuery") == 0 ? 1 : 0;
  };
  for (uintptr_t stream = 1; stream <= kStreams; ++stream) {
    for (int i = 0; i < kEach; ++i) {
      ASSERT_EQ(
          cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0,
                         reinterpret_cast<CUstream>(0x7000 + 0x40 * stream), nullptr, nullptr),
          CUDA_SUCCESS);
    }
  }
  fake.on_enter = nullptr;
  fake.events_pending = 0;
  EXPECT_GT(queries, 0) << "else this test sees nothing";
  EXPECT_LE(queries, 2 * kStreams * kEach);
}

// A device whose clock does not move between two events measures 0 ns, and that is a measure.
TEST_F(GraphCostTest, AGraphThatIsMeasuredAtNothingIsMeasured) {
  fences(64, 0);
  EXPECT_LT(fences(10'000, 0), 5'000u) << "as one of 2 us: not a fence for each launch";
}

TEST_F(KernelCostTest, AKernelThatIsMeasuredAtNothingIsMeasured) {
  kernels(64, 0);
  const auto before = fake.calls_event_record;
  kernels(10'000, 0);
  EXPECT_LT(fake.calls_event_record - before, 5'000u);
}

TEST_F(GraphCostTest, BusyTimeAndCountsAreExact) {
  for (int i = 0; i < 100; ++i) {
    graphs(7, 30'000);
    kernels(5, 4'000);
    graphs(3, 200'000, kOther);
    if (i % 3 == 0) {
      ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
      fake.device_ns += 1e6;  // idle
    }
  }
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  const double expected = 100 * (7 * 30'000.0 + 5 * 4'000.0 + 3 * 200'000.0);
  EXPECT_NEAR(static_cast<double>(broker->account().busy_ns.load()), expected, expected * 0.01);
  EXPECT_EQ(broker->account().launches.load(), 1500u);
  EXPECT_EQ(broker->account().graph_launches.load(), 1000u);
}

void one_graph() { EXPECT_EQ(cuGraphLaunch(kGraph, nullptr), CUDA_SUCCESS); }
void one_other() { EXPECT_EQ(cuGraphLaunch(kOther, nullptr), CUDA_SUCCESS); }

TEST_F(GraphCostTest, TheWindowCountsWhatWasLearnedAndAnUnmeasuredGraphFillsIt) {
  broker->window_set(1'000'000);
  graphs(5, 300'000);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  // Three of 0.3 ms fit one of 1 ms; and another graph not beside them.
  fake.launch_ns = 300'000;
  EXPECT_TRUE(passes([] {
    for (int i = 0; i < 3; ++i) one_graph();
  }));
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(passes([] {
    for (int i = 0; i < 4; ++i) one_graph();
  }));
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(passes([] {
    one_graph();
    one_other();
  })) << "an unmeasured graph beside work in flight";
  ASSERT_EQ(cuGraphExecDestroy(kOther), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(passes([] {
    one_other();
    one_graph();
  })) << "work beside an unmeasured graph";
}

TEST_F(KernelCostTest, TheWindowCountsWhatTheFencesSaid) {
  broker->window_set(1'000'000);
  static int at_once;
  const auto fit = [&](int count) {
    at_once = count;
    const bool all = passes([] {
      for (int i = 0; i < at_once; ++i)
        cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    });
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    return all;
  };
  const auto learn = [&](double ns) {
    for (int i = 0; i < 40; ++i) {
      kernels(1, ns);
      ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
  };
  fake.launch_ns = 300'000;
  EXPECT_TRUE(fit(1)) << "the first, which nobody knows, alone";
  learn(300'000);
  EXPECT_TRUE(fit(3));
  EXPECT_FALSE(fit(5)) << "of 0.3 ms each in a window of 1 ms";
  learn(100'000);
  EXPECT_TRUE(fit(8)) << "they have become shorter";
  learn(900'000);
  EXPECT_FALSE(fit(3)) << "and longer";
}

// A kernel in each of four streams: side by side, or one after the other.
void round_of_streams(bool side_by_side) {
  const double begin_ns = fake.device_ns;
  for (uintptr_t i = 1; i <= 4; ++i) {
    if (side_by_side) fake.device_ns = begin_ns;
    cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, reinterpret_cast<CUstream>(0x100 * i), nullptr,
                   nullptr);
  }
}

TEST_F(KernelCostTest, StreamsThatRunSideBySideCountOnce) {
  broker->window_set(1'000'000);
  fake.launch_ns = 300'000;
  const auto learn = [](bool side_by_side) {
    for (int i = 0; i < 200; ++i) {
      round_of_streams(side_by_side);
      ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
  };
  learn(true);
  EXPECT_TRUE(passes([] {
    for (int i = 0; i < 3; ++i) round_of_streams(true);
  })) << "twelve kernels, in the time of three";
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(passes([] {
    for (int i = 0; i < 4; ++i) round_of_streams(true);
  }));
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  learn(false);
  EXPECT_FALSE(passes([] { round_of_streams(false); })) << "four, in the time of four";
}

TEST_F(KernelCostTest, AKernelThatWasNeverMeasuredFillsTheWindow) {
  broker->window_set(1'000'000);
  fake.launch_ns = 1'000;
  EXPECT_FALSE(passes([] {
    for (int i = 0; i < 2; ++i)
      cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  }));
}

// Every entry point of the table whose first argument is an executable graph, with a call of it.
struct ExecEntry {
  const char* symbol;
  CUresult (*call)();
};

// What looks like an argument of any entry point: the handle of something, an address, a number.
template <class T>
T argument_of_exec() {
  static unsigned char room[4096];
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(room);
  } else {
    return static_cast<T>(1);
  }
}

template <auto Function>
struct ExecCall {
  static void add(const char*, std::vector<ExecEntry>&) {}
};
template <class... A, CUresult (*Function)(CUgraphExec, A...)>
struct ExecCall<Function> {
  static CUresult call() { return Function(kGraph, argument_of_exec<A>()...); }
  static void add(const char* symbol, std::vector<ExecEntry>& out) {
    out.push_back({symbol, call});
  }
};

std::vector<ExecEntry> exec_entries() {
  std::vector<ExecEntry> all;
#define ENTRY(symbol, real) ExecCall<&symbol>::add(#symbol, all);
#include "call_table.gen.inc"
#undef ENTRY
  return all;
}

// They change what a launch of the graph takes, and nothing else of it.
const std::set<std::string> kUpdates = {
    "cuGraphExecUpdate",
    "cuGraphExecUpdate_v2",
    "cuGraphExecNodeSetParams",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecHostNodeSetParams",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecEventRecordNodeSetEvent",
    "cuGraphExecEventWaitNodeSetEvent",
    "cuGraphExecExternalSemaphoresSignalNodeSetParams",
    "cuGraphExecExternalSemaphoresWaitNodeSetParams",
    "cuGraphNodeSetEnabled",
};
const std::set<std::string> kNoUpdates = {
    "cuGraphLaunch",      "cuGraphLaunch_ptsz",  "cuGraphUpload",         "cuGraphUpload_ptsz",
    "cuGraphExecDestroy", "cuGraphExecGetFlags", "cuGraphNodeGetEnabled",
};

TEST_F(GraphCostTest, TheCostSurvivesEveryUpdate) {
  broker->window_set(1'000'000);
  graphs(5, 100'000);
  size_t updates = 0, others = 0;
  for (const ExecEntry& entry : exec_entries()) {
    SCOPED_TRACE(entry.symbol);
    const bool update = kUpdates.count(entry.symbol) != 0;
    EXPECT_NE(update, kNoUpdates.count(entry.symbol) != 0) << "to be named in one of the two";
    (update ? updates : others) += 1;
    if (!update) continue;
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    const int calls = calls_seen(entry);
    EXPECT_EQ(calls, 1) << "of the driver's function";
    // Still measured: several fit the window.
    fake.launch_ns = 100'000;
    EXPECT_TRUE(passes([] {
      for (int i = 0; i < 5; ++i) one_graph();
    }));
  }
  EXPECT_EQ(updates, kUpdates.size());
  EXPECT_EQ(others, kNoUpdates.size());
}

TEST_F(GraphCostTest, TheCostFollowsAnUpdate) {
  broker->window_set(1'000'000);
  graphs(5, 100'000);
  CUgraphExecUpdateResultInfo info{};
  ASSERT_EQ(cuGraphExecUpdate_v2(kGraph, nullptr, &info), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  // What it became is learned from its launches: up at once.
  graphs(1, 800'000);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(passes([] {
    for (int i = 0; i < 2; ++i) one_graph();
  }));
}

// The helper puts a fence behind kernels that nobody waits for, also while the driver is about to
// take a graph: which is not among them, and no kernel of the next stretch either.
TEST_F(GraphCostTest, AFenceInTheMiddleOfALaunchTakesNoGraphForAKernel) {
  broker->window_set(1'000'000);
  for (int i = 0; i < 40; ++i) {
    kernels(1, 10'000);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  graphs(5, 300'000);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  static int graphs_begun;
  fake.on_enter = [](const char* function) {
    if (strcmp(function, "cuGraphLaunch") != 0 || ++graphs_begun % 2 != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  for (int i = 0; i < 20; ++i) {
    kernels(3, 10'000);
    graphs(1, 300'000);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  fake.on_enter = nullptr;
  fake.launch_ns = 10'000;
  EXPECT_TRUE(passes([] {
    for (int i = 0; i < 20; ++i)
      cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  })) << "kernels take what they took";
}

TEST_F(GraphCostTest, TheCostGoesWithTheHandleThatTheDriverGivesAgain) {
  broker->window_set(1'000'000);
  graphs(5, 10'000);
  ASSERT_EQ(cuGraphExecDestroy(kGraph), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(passes([] {
    one_graph();
    one_graph();
  })) << "the new graph of an old handle is not measured";
  // And one that was not destroyed by name, but with its context.
  graphs(5, 10'000);
  CUgraphExec exec = kGraph;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, nullptr, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_FALSE(passes([] {
    one_graph();
    one_graph();
  }));
}

TEST_F(GraphCostTest, AGraphWaitsForTheLease) {
  graphs(100, 10'000);
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  const auto before = fake.calls_launch;
  std::thread program(one_graph);
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, broker->epoch()));
  EXPECT_EQ(fake.calls_launch, before);
  broker->lease_store(kLeaseOpen);
  program.join();
  EXPECT_EQ(fake.calls_launch, before + 1);
}

// Many handles, more than are remembered at once: each launch is measured, nothing else happens.
TEST_F(GraphCostTest, MoreGraphsThanRecords) {
  fake.launch_ns = 100'000;
  for (uintptr_t i = 1; i <= 20'000; ++i)
    ASSERT_EQ(cuGraphLaunch(reinterpret_cast<CUgraphExec>(i * 64), nullptr), CUDA_SUCCESS);
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_EQ(broker->account().graph_launches.load(), 20'000u);
  EXPECT_NEAR(static_cast<double>(broker->account().busy_ns.load()), 20'000 * 100'000.0,
              20'000'000);
}

}  // namespace

// GPU-busy time by fences against the software GPU's own account, which is exact: within one per
// cent, whatever the shape of the work.
#include <poll.h>
#include <stdio.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/interpose/busy.h"

namespace {

using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;
using sluice::test::BusyTest;

// Of five runs most agree, and none is charged less than it used. One run is not enough: where
// the scheduler stops a process or its helper between a launch and the fence behind it, that run's
// stretch is longer by as much.
template <class Run>
void expect_most_agree(Run run) {
  constexpr int kRuns = 5, kMost = kRuns / 2 + 1;
  int agreed = 0;
  for (int i = 0; i < kRuns && agreed < kMost && i - agreed < kMost; ++i) {
    const double error = run();
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_GE(error, -0.01);
    agreed += std::abs(error) <= 0.01 ? 1 : 0;
  }
  EXPECT_EQ(agreed, kMost);
}

TEST_F(BusyTest, LaunchesThatAreWaitedForOneByOne) {
  agrees([&] {
    for (int i = 0; i < 200; ++i) {
      ASSERT_EQ(launch(5000), CUDA_SUCCESS);
      ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
  });
}

TEST_F(BusyTest, BurstsAndGaps) {
  agrees([&] {
    for (int i = 0; i < 20; ++i) {
      for (int k = 0; k < 1 + i % 30; ++k) ASSERT_EQ(launch(2000), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
      sleep_us(i % 5 * 1000);
    }
  });
}

// Nobody waits and nobody asks: what the helper's trailing fences say.
TEST_F(BusyTest, LaunchesThatNobodyWaitsFor) {
  agrees([&] {
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(launch(5000), CUDA_SUCCESS);
      sleep_us(3000);
    }
  });
}

// Small kernels, launched as fast as the host can: the device is idle for microseconds between
// them, which counts. Never less than what was used, and never more than the time it took.
TEST_F(BusyTest, SmallKernelsThatTheDeviceIsFasterThanTheHostWith) {
  drain();
  broker->lease_store(kLeaseOpen);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(launch(10), CUDA_SUCCESS);
    if (i % 500 == 499) {
      ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
  }
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begin;
  drain();
  EXPECT_GE(ours, device * 0.99);
  EXPECT_LE(ours, wall.count());
}

// Kernels of 300 and of 64 microseconds, each waited for: what lies between them is not charged.
TEST_F(BusyTest, SmallKernelsThatAreWaitedForOneByOne) {
  for (const unsigned spins : {500u, 100u}) {
    SCOPED_TRACE(spins);
    agrees([&] {
      for (int i = 0; i < 2000; ++i) {
        ASSERT_EQ(launch(spins), CUDA_SUCCESS);
        ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
      }
    });
  }
}

// Kernels of some 6.6 microseconds, each waited for. What is charged beside a kernel is a part of
// the call that launches it, from where the driver is asked (docs/interposition.md), so all of it
// is less than the program sees all these calls take, in every run.
TEST_F(BusyTest, TinyKernelsThatAreWaitedForOneByOne) {
  constexpr size_t kLaunches = 2000;
  constexpr int kRuns = 5;
  using Clock = std::chrono::steady_clock;
  drain();
  for (int i = 0; i < kRuns; ++i) {
    std::vector<double> calls_ns;
    calls_ns.reserve(kLaunches);
    broker->lease_store(kLeaseOpen);
    for (size_t k = 0; k < kLaunches; ++k) {
      const auto begin = Clock::now();
      ASSERT_EQ(launch(5), CUDA_SUCCESS);
      calls_ns.push_back(static_cast<double>((Clock::now() - begin).count()));
      ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    drain();
    if (HasFatalFailure()) return;
    const double all_calls_ns = std::accumulate(calls_ns.begin(), calls_ns.end(), 0.0);
    std::ranges::sort(calls_ns);
    printf(
        "  a kernel %.2f us, its launch %.2f us (the median %.2f us), charged beside it %.2f us\n",
        device / kLaunches / 1e3, all_calls_ns / kLaunches / 1e3, calls_ns[kLaunches / 2] / 1e3,
        (ours - device) / kLaunches / 1e3);
    EXPECT_LT(device / kLaunches, 20e3) << "no tiny kernel";
    EXPECT_GE(ours, device * 0.99);
    EXPECT_LE(ours - device, all_calls_ns);
  }
}

// The device is slower than the host here, so it is busy all the time: as long as the host's
// scheduler lets the program launch. Where it does not, the time that passed is the bound.
TEST_F(BusyTest, AFewMicrosecondsBetweenLaunches) {
  drain();
  broker->lease_store(kLeaseOpen);
  const auto begin = std::chrono::steady_clock::now();
  const auto pause = std::chrono::microseconds(10);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(launch(100), CUDA_SUCCESS);
    const auto until = std::chrono::steady_clock::now() + pause;
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begin;
  drain();
  EXPECT_GE(ours, device * 0.99);
  EXPECT_LE(ours, std::max(device * 1.01, wall.count()));
}

TEST_F(BusyTest, OneLongKernel) {
  agrees([&] { ASSERT_EQ(launch(3'000'000), CUDA_SUCCESS); });
}

// A kernel that does not end is charged all the same, as it goes on, under an open lease and while
// the drain waits for it.
TEST_F(BusyTest, AKernelIsChargedWhileItRuns) {
  drain();
  broker->lease_store(kLeaseOpen);
  const auto begin = std::chrono::steady_clock::now();
  const auto charged_ns = [&] {
    return static_cast<double>(broker->account().busy_ns.load()) - ours_before;
  };
  ASSERT_EQ(launch(1'500'000), CUDA_SUCCESS);  // 0.9 s
  for (const double wanted_ns : {1e8, 3e8}) {
    double charged = 0;
    EXPECT_TRUE(sluice::test::eventually([&] { return (charged = charged_ns()) >= wanted_ns; }));
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY) << "it was charged at its end only";
    const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begin;
    EXPECT_LE(charged, wall.count());
    broker->lease_store(0);
  }
  drain();
  EXPECT_NEAR(ours, device, device * 0.02);
}

TEST_F(BusyTest, OverlappingStreams) {
  agrees([&] {
    const CUstream a = stream_make(), b = stream_make(), c = stream_make();
    for (int i = 0; i < 30; ++i) {
      ASSERT_EQ(launch(20000, a), CUDA_SUCCESS);
      for (int k = 0; k < 5; ++k) ASSERT_EQ(launch(3000, b), CUDA_SUCCESS);
      sleep_us(i % 3 * 700);
      ASSERT_EQ(launch(9000, c), CUDA_SUCCESS);
      if (i % 4 == 0) {
        ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
      }
    }
  });
}

TEST_F(BusyTest, SeveralThreads) {
  agrees([&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([this, t] {
        EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        const CUstream stream = t == 3 ? CU_STREAM_PER_THREAD : stream_make();
        for (int i = 0; i < 60; ++i) {
          EXPECT_EQ(launch(2000u + 1500u * static_cast<unsigned>(t), stream), CUDA_SUCCESS);
          if (i % (5 + t) == 0) {
            EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
          }
          if (i % 10 == t) sleep_us(2000);
        }
        thread_ends();
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(BusyTest, GraphsAndKernelsMixed) {
  agrees([&] {
    const CUstream stream = stream_make();
    CUgraphExec execs[2];
    for (int i = 0; i < 2; ++i) {
      CUgraph graph = nullptr;
      ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      for (int k = 0; k < 1 + 2 * i; ++k) ASSERT_EQ(launch(1000u, stream), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
      ASSERT_EQ(cuGraphInstantiate(&execs[i], graph, 0), CUDA_SUCCESS);
    }
    for (int i = 0; i < 60; ++i) {
      ASSERT_EQ(cuGraphLaunch(execs[i % 3 == 0], stream), CUDA_SUCCESS);
      if (i % 4 == 0) {
        ASSERT_EQ(launch(700, stream), CUDA_SUCCESS);
      }
      if (i % 9 == 0) {
        ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      }
    }
  });
}

// An executable graph whose kernels become ten times as long, and as short again, by each way there
// is, between bursts: what was learned of it is no longer true, and the time charged is.
class BusyUpdateTest : public BusyTest {
 protected:
  static constexpr unsigned kShort = 500, kLong = 5000;
  CUDA_KERNEL_NODE_PARAMS node_params(unsigned& n) {
    arguments[0] = &result;
    arguments[1] = &n;
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = spin;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 32;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    return params;
  }
  CUgraph graph_make(unsigned n) {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    const CUDA_KERNEL_NODE_PARAMS params = node_params(n);
    CUgraphNode first = nullptr, second = nullptr;
    EXPECT_EQ(cuGraphAddKernelNode(&first, graph, nullptr, 0, &params), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode(&second, graph, &first, 1, &params), CUDA_SUCCESS);
    return graph;
  }
  void* arguments[2] = {};
};

TEST_F(BusyUpdateTest, GraphsWhoseKernelsAreExchanged) {
  const CUstream stream = stream_make();
  const CUgraph graph = graph_make(kShort), other = graph_make(kLong);
  CUgraphNode nodes[2] = {};
  size_t count = 2;
  ASSERT_EQ(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  const auto by_node = [&](unsigned n) {
    for (const CUgraphNode node : nodes) {
      const CUDA_KERNEL_NODE_PARAMS params = node_params(n);
      ASSERT_EQ(cuGraphExecKernelNodeSetParams(exec, node, &params), CUDA_SUCCESS);
    }
  };
  const auto whole = [&](CUgraph to) {
    CUgraphExecUpdateResultInfo info{};
    ASSERT_EQ(cuGraphExecUpdate(exec, to, &info), CUDA_SUCCESS);
  };
  const auto burst = [&](int launches) {
    for (int i = 0; i < launches; ++i) ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  };
  agrees([&] {
    for (int i = 0; i < 2; ++i) {
      burst(20);
      whole(other);
      burst(5);
      ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      burst(5);
      whole(graph);
      burst(20);
      sleep_us(2000);
      by_node(kLong);
      burst(5);
      by_node(kShort);
    }
  });
}

// Two tenants that take turns, as the broker lets them: each is charged what it used.
class BusyProcessesTest : public BusyTest {
 protected:
  BusyProcessesTest() : BusyTest(Options{.uses_cuda = false}) {}
  void SetUp() override {
    go_first();  // with its brokers and tenants
    SoftGpuTest::SetUp();
  }
  struct Tenant {
    std::unique_ptr<sluice::test::TestBroker> broker;
    pid_t pid = 0;
    int go = -1;  // written to: the process may end
  };
  std::unique_ptr<sluice::test::TestBroker> broker_make() {
    auto made =
        std::make_unique<sluice::test::TestBroker>(sluice::test::kQuota, sluice::test::kContext);
    made->gpu_uuid_set(devices[0]->settings().uuid);
    made->window_set(5'000'000);
    return made;
  }
  // A child that works as fast as it is let, and stays until it is told to go.
  void tenant_start(Tenant& tenant, unsigned spins, int sleeps_us) {
    child_start(*tenant.broker, tenant, spins, sleeps_us);
  }
  void child_start(const sluice::test::TestBroker& of, Tenant& tenant, unsigned spins,
                   int sleeps_us, int launches = 150) {
    int go[2], done[2];
    ASSERT_EQ(pipe(go) | pipe(done), 0);
    tenant.pid = fork();
    if (tenant.pid == 0) {
      close(go[1]);
      of.environment_set();
      EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
      EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      kernel_load();
      for (int i = 0; i < launches; ++i) {
        EXPECT_EQ(launch(spins), CUDA_SUCCESS);
        if (i % 7 == 0) {
          EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        }
        if (i % 10 == 0) sleep_us(sleeps_us);
      }
      EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
      char byte = HasFailure() ? 1 : 0;
      EXPECT_EQ(write(done[1], &byte, 1), 1);
      EXPECT_EQ(read(go[0], &byte, 1), 1);
      _exit(HasFailure() ? 1 : 0);
    }
    close(go[0]);
    close(done[1]);
    tenant.go = go[1];
    finished.push_back(done[0]);
  }
  bool all_finished() {
    for (int& fd : finished) {
      pollfd poll_one{fd, POLLIN, 0};
      if (fd >= 0 && poll(&poll_one, 1, 0) == 1) {
        char byte = 1;
        EXPECT_EQ(read(fd, &byte, 1), 1);
        EXPECT_EQ(byte, 0);
        close(fd);
        fd = -1;
      }
    }
    return std::ranges::all_of(finished, [](int fd) { return fd < 0; });
  }
  std::vector<int> finished;
  // Both do their work to the end, in turns. How far what the worse was charged is from what it
  // used.
  double both_in_turns() {
    Tenant tenants[2];
    for (Tenant& tenant : tenants) tenant.broker = broker_make();
    tenant_start(tenants[0], 2000, 3000);
    tenant_start(tenants[1], 5000, 500);
    for (int turn = 0; turn < 2000 && !all_finished() && !HasFailure(); ++turn) {
      sluice::test::TestBroker& turns = *tenants[turn % 2].broker;
      turns.lease_store(kLeaseOpen);
      sleep_us(10'000);
      turns.lease_store(0);
      if (turns.registrations() > 0) {
        EXPECT_TRUE(turns.wait_for(MessageType::kDrained, turns.epoch()));
      }
    }
    EXPECT_TRUE(all_finished());
    double worst = 0;
    for (Tenant& tenant : tenants) {
      const double used = busy_of(tenant.pid);
      const auto charged = static_cast<double>(tenant.broker->account().busy_ns.load());
      printf("busy: shim %.3f ms, device %.3f ms (%+.2f %%)\n", charged / 1e6, used / 1e6,
             100 * (charged / used - 1));
      if (std::abs(charged / used - 1) > std::abs(worst)) worst = charged / used - 1;
      child_end(tenant);
    }
    return worst;
  }
  void child_end(Tenant& child) {
    EXPECT_EQ(write(child.go, "", 1), 1);
    close(child.go);
    int status = 1;
    waitpid(child.pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  // Two processes of one tenant, on the GPU at the same moments: each one's events lie around the
  // other's slices, and the tenant is charged what both used together.
  struct Part {
    unsigned spins;
    int sleeps_us, launches;
  };
  double both_together(const Part& one, const Part& other) {
    const auto tenant = broker_make();
    Tenant children[2];
    tenant->lease_store(kLeaseOpen);
    child_start(*tenant, children[0], one.spins, one.sleeps_us, one.launches);
    child_start(*tenant, children[1], other.spins, other.sleeps_us, other.launches);
    for (int i = 0; i < 60000 && !all_finished() && !HasFailure(); ++i) sleep_us(1000);
    EXPECT_TRUE(all_finished());
    tenant->lease_store(0);
    double used = 0, charged = 0;
    for (uint32_t slot = 0; slot < 2; ++slot) {  // in the order in which they registered
      const sluice::protocol::ClaimsGpu& account = tenant->account(slot);
      for (int i = 0; i < 20000 && account.drained_epoch.load() != tenant->epoch(); ++i)
        sleep_us(1000);
      EXPECT_EQ(account.drained_epoch.load(), tenant->epoch());
      charged += static_cast<double>(account.busy_ns.load());
    }
    for (Tenant& child : children) {
      used += busy_of(child.pid);
      child_end(child);
    }
    printf("busy: shim %.3f ms, device %.3f ms (%+.2f %%)\n", charged / 1e6, used / 1e6,
           100 * (charged / used - 1));
    return charged / used - 1;
  }
};

TEST_F(BusyProcessesTest, TwoProcessesThatTakeTurns) {
  expect_most_agree([&] { return both_in_turns(); });
}

TEST_F(BusyProcessesTest, TwoProcessesOfOneTenantAtOnce) {
  expect_most_agree([&] { return both_together({2000, 3000, 150}, {5000, 500, 150}); });
}

// Longer than the map of what was charged reaches back. The device changes between the two all the
// time, here without losing any: what it loses is in the fences' time and not in its account.
class BusyLongTest : public BusyProcessesTest {
 protected:
  BusyLongTest() { setenv("SOFTGPU_SWITCH_US", "0", 1); }
};

TEST_F(BusyLongTest, TwoLongKernelsOfOneTenantAtOnce) {
  expect_most_agree([&] { return both_together({800'000, 0, 1}, {600'000, 0, 1}); });
}

}  // namespace

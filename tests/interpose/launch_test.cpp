// The short way of cuLaunchKernel and cuGraphLaunch, which is assembly: arguments and results pass
// through it unchanged, what the driver does in the middle (call again, unwind, fork) meets a whole
// stack, and what it counts is right. Each case under an open lease and under an exclusive one.
#include <execinfo.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/test_broker.h"

extern "C" CUresult cuLaunchKernel_ptsz(CUfunction, unsigned int, unsigned int, unsigned int,
                                        unsigned int, unsigned int, unsigned int, unsigned int,
                                        CUstream, void**, void**);

extern "C" CUresult cuGraphLaunch_ptsz(CUgraphExec, CUstream);

namespace {

using sluice::protocol::kLeaseExclusive;
using sluice::protocol::kLeaseOpen;
using sluice::protocol::MessageType;

FakeLaunch seen;
int nested_left;
std::vector<void*> frames;
CUresult answer;

const auto kAnyGraph = reinterpret_cast<CUgraphExec>(0x5555666677778888);
bool graphs;

CUresult launch_way() {
  return graphs ? cuGraphLaunch(kAnyGraph, nullptr)
                : cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}

struct Way {
  const char* name;
  unsigned lease;
  bool graphs;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class LaunchTest : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    broker = std::make_unique<sluice::test::TestBroker>(1ull << 30, 0);
    broker->environment_set();
    broker->lease_store(kLeaseOpen | GetParam().lease);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    fake.launch_ns = 1000;
    graphs = GetParam().graphs;
    warm(launch_way);
  }
  // Until the stream is known, measured and has a budget: what follows goes the short way.
  template <class Call>
  void warm(Call call) {
    for (int i = 0; i < 300; ++i) ASSERT_EQ(call(), CUDA_SUCCESS);
    warmed += 300;
  }
  uint64_t drained_launches() {
    broker->lease_store(0);
    EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
    return broker->account().launches.load();
  }
  std::unique_ptr<sluice::test::TestBroker> broker;
  uint64_t warmed = 0;
};

TEST_P(LaunchTest, ArgumentsAndResultsPassUnchanged) {
  warm([] { return cuLaunchKernel_ptsz(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); });
  void* params[1] = {nullptr};
  void* extra[1] = {nullptr};
  auto* f = reinterpret_cast<CUfunction>(0x1111222233334444);
  fake.on_launch = [](const FakeLaunch& launch) {
    seen = launch;
    return answer;
  };
  for (const auto call : {cuLaunchKernel, cuLaunchKernel_ptsz}) {
    answer = CUDA_ERROR_INVALID_VALUE;
    EXPECT_EQ(call(f, 1, 2, 3, 4, 5, 6, 7, nullptr, params, extra), CUDA_ERROR_INVALID_VALUE);
    answer = CUDA_SUCCESS;
    EXPECT_EQ(call(f, 1, 2, 3, 4, 5, 0xfffffff6, 0xfffffff7, nullptr, params, extra), CUDA_SUCCESS);
    EXPECT_EQ(seen.f, f);
    EXPECT_EQ(seen.grid_x, 1u);
    EXPECT_EQ(seen.grid_y, 2u);
    EXPECT_EQ(seen.grid_z, 3u);
    EXPECT_EQ(seen.block_x, 4u);
    EXPECT_EQ(seen.block_y, 5u);
    EXPECT_EQ(seen.block_z, 0xfffffff6);
    EXPECT_EQ(seen.shared_bytes, 0xfffffff7);
    EXPECT_EQ(seen.stream, nullptr);
    EXPECT_EQ(seen.params, params);
    EXPECT_EQ(seen.extra, extra);
  }
  fake.on_launch = nullptr;
  // Those that failed are not counted.
  EXPECT_EQ(drained_launches(), warmed + 2);
}

TEST_P(LaunchTest, AGraphAndItsStreamPassUnchanged) {
  warm([] { return cuGraphLaunch_ptsz(kAnyGraph, nullptr); });
  fake.on_launch = [](const FakeLaunch& launch) {
    seen = launch;
    return answer;
  };
  for (const auto call : {cuGraphLaunch, cuGraphLaunch_ptsz}) {
    answer = CUDA_ERROR_INVALID_VALUE;
    EXPECT_EQ(call(kAnyGraph, nullptr), CUDA_ERROR_INVALID_VALUE);
    answer = CUDA_SUCCESS;
    EXPECT_EQ(call(kAnyGraph, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(seen.f, reinterpret_cast<CUfunction>(kAnyGraph));
    EXPECT_EQ(seen.stream, nullptr);
  }
  fake.on_launch = nullptr;
  EXPECT_EQ(drained_launches(), warmed + 2) << "those that failed are not counted";
}

// A driver may come back to its own exported function, which is ours.
TEST_P(LaunchTest, ALaunchInTheMiddleOfALaunch) {
  nested_left = 3;
  fake.on_launch = [](const FakeLaunch&) {
    return --nested_left > 0 ? launch_way() : CUDA_SUCCESS;
  };
  EXPECT_EQ(launch_way(), CUDA_SUCCESS);
  EXPECT_EQ(nested_left, 0);
  fake.on_launch = nullptr;
  EXPECT_EQ(launch_way(), CUDA_SUCCESS);
  // The inner ones are the driver's own.
  EXPECT_EQ(drained_launches(), warmed + 2);
}

// Profilers and debuggers look from the driver through us at the program.
TEST_P(LaunchTest, TheProgramIsSeenBehindTheDriver) {
  fake.on_launch = [](const FakeLaunch&) {
    frames.resize(64);
    frames.resize(static_cast<size_t>(backtrace(frames.data(), 64)));
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(launch_way(), CUDA_SUCCESS);
  std::vector<void*> here(64);
  here.resize(static_cast<size_t>(backtrace(here.data(), 64)));
  // All that called this test, but for the place in it, which a sanitizer's backtrace may precede.
  ASSERT_GT(here.size(), 4u);
  EXPECT_NE(std::search(frames.begin(), frames.end(), here.begin() + 2, here.end()), frames.end());
}

// And exceptions pass, of callbacks that a tool puts into the driver, with all registers restored.
TEST_P(LaunchTest, AnExceptionPassesThrough) {
  fake.on_launch = [](const FakeLaunch&) -> CUresult { throw 7; };
  // More values than there are registers to keep them in.
  volatile uint64_t input = 1;
  const uint64_t a = input, b = a + input, c = b + input, d = c + input, e = d + input,
                 f = e + input, g = f + input, h = g + input;
  int caught = 0;
  try {
    launch_way();
  } catch (int value) {
    caught = value;
  }
  EXPECT_EQ(caught, 7);
  EXPECT_EQ(a | b << 8 | c << 16 | d << 24 | e << 32 | f << 40 | g << 48 | h << 56,
            0x0807060504030201u);
}

TEST_P(LaunchTest, AForkInTheMiddleOfALaunch) {
  fake.on_launch = [](const FakeLaunch&) {
    nested_left = fork();
    return CUDA_SUCCESS;
  };
  const CUresult result = launch_way();
  if (nested_left == 0) _exit(result == CUDA_SUCCESS ? 42 : 1);
  EXPECT_EQ(result, CUDA_SUCCESS);
  int status = 0;
  ASSERT_EQ(waitpid(nested_left, &status, 0), nested_left);
  EXPECT_EQ(WEXITSTATUS(status), 42) << status;
}

INSTANTIATE_TEST_SUITE_P(Leases, LaunchTest,
                         ::testing::Values(Way{"Open", 0, false},
                                           Way{"Exclusive", kLeaseExclusive, false},
                                           Way{"OpenGraphs", 0, true},
                                           Way{"ExclusiveGraphs", kLeaseExclusive, true}),
                         [](const auto& way) { return std::string(way.param.name); });

// One call that launches on several devices, or several times on one.
class MultiDeviceTest : public ::testing::Test {
 protected:
  static inline const auto kHere = reinterpret_cast<CUstream>(0x7000);
  static inline const auto kElsewhere = reinterpret_cast<CUstream>(0x7100);
  void SetUp() override {
    fake.device_count = 2;
    fake.stream_elsewhere = kElsewhere;
    fake.on_enter = [](const char* function) {
      calls += strcmp(function, "cuLaunchCooperativeKernelMultiDevice") == 0 ? 1 : 0;
    };
  }
  void start(bool both) {
    broker = std::make_unique<sluice::test::TestBroker>(1ull << 30, 0);
    unsigned char second[16];
    memset(second, kFakeUuidBase + 1, sizeof second);
    if (both) broker->gpu_add(second);
    broker->environment_set();
    broker->lease_store(kLeaseOpen);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  static CUresult launch_on_each(const std::vector<CUstream>& streams) {
    std::vector<CUDA_LAUNCH_PARAMS> launches;
    for (CUstream stream : streams) {
      CUDA_LAUNCH_PARAMS one{};
      one.gridDimX = one.gridDimY = one.gridDimZ = 1;
      one.blockDimX = one.blockDimY = one.blockDimZ = 1;
      one.hStream = stream;
      launches.push_back(one);
    }
    return cuLaunchCooperativeKernelMultiDevice(launches.data(),
                                                static_cast<unsigned>(launches.size()), 0);
  }
  uint64_t drained_launches(uint32_t gpu) {
    broker->lease_store(0, gpu);
    for (int i = 0; i < 5000 && broker->account(0, gpu).drained_epoch.load() != broker->epoch(gpu);
         ++i)
      usleep(1000);
    EXPECT_EQ(broker->account(0, gpu).drained_epoch.load(), broker->epoch(gpu));
    return broker->account(0, gpu).launches.load();
  }
  static inline std::atomic<int> calls;  // the helper's are looked at, too
  std::unique_ptr<sluice::test::TestBroker> broker;
};

TEST_F(MultiDeviceTest, OnSeveralGpusOfATenantItIsRefused) {
  start(true);
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch_on_each({kHere, kElsewhere}), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(launch_on_each({kElsewhere, kHere}), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "sluice: refused a launch on several GPUs at once "
      "(cuLaunchCooperativeKernelMultiDevice): under limits a launch is held back and "
      "counted on one GPU. Launch on each GPU by itself, or run the program without limits\n");
  EXPECT_EQ(drained_launches(0) + drained_launches(1), 0u);
}

TEST_F(MultiDeviceTest, ALineThatNobodyCouldReadIsCounted) {
  start(true);
  int full[2];
  ASSERT_EQ(pipe2(full, O_NONBLOCK), 0);
  while (write(full[1], "", 1) == 1) {
  }
  const int before = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(full[1], STDERR_FILENO), STDERR_FILENO);
  EXPECT_EQ(launch_on_each({kHere, kElsewhere}), CUDA_ERROR_NOT_SUPPORTED);
  ASSERT_EQ(dup2(before, STDERR_FILENO), STDERR_FILENO);
  sleep(2);  // such a line is tried once a second
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch_on_each({kHere, kElsewhere}), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("(1 more since the last such line.)"),
            std::string::npos);
}

TEST_F(MultiDeviceTest, OnOneGpuItIsALaunchThere) {
  start(true);
  EXPECT_EQ(launch_on_each({kHere, kHere}), CUDA_SUCCESS);
  EXPECT_EQ(launch_on_each({kElsewhere, kElsewhere}), CUDA_SUCCESS);
  EXPECT_EQ(launch_on_each({kElsewhere}), CUDA_SUCCESS);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(drained_launches(0), 1u);
  EXPECT_EQ(drained_launches(1), 2u);
}

// Which the driver refuses: no two may be on one device. The list may be no list at all.
TEST_F(MultiDeviceTest, MoreLaunchesThanDevicesAreTheDriversToRefuse) {
  start(true);
  CUDA_LAUNCH_PARAMS one{};
  one.hStream = kHere;
  EXPECT_EQ(cuLaunchCooperativeKernelMultiDevice(&one, 0x7fffffff, 0), CUDA_SUCCESS);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(drained_launches(0), 1u);
}

TEST_F(MultiDeviceTest, BesideAGpuThatIsNotTheTenantsItIsALaunchOnTheTenants) {
  start(false);
  EXPECT_EQ(launch_on_each({kHere, kElsewhere}), CUDA_SUCCESS);
  EXPECT_EQ(launch_on_each({kElsewhere, kHere}), CUDA_SUCCESS);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(drained_launches(0), 2u);
}

TEST_F(MultiDeviceTest, WithoutATenantItPasses) {
  unsetenv("SLUICE_TENANT");
  setenv("SLUICE_SOCKET", "/nonexistent/sluice.sock", 1);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(launch_on_each({kHere, kElsewhere}), CUDA_SUCCESS);
  EXPECT_EQ(calls, 1);
}

}  // namespace

// What happens to a guest: brokers that refuse, go and come back, forks, closed descriptors; over
// the fake driver, each case in a process of its own.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/forbidden_call.h"
#include "tests/interpose/guest.h"

namespace {

using namespace sluice::protocol;
using namespace sluice::test;

TEST_F(GuestTest, ARefusedProcessIsToldWhyAndDoesNotRunUnlimited) {
  start(kGiB);
  broker->refuse_with("too many processes of this tenant use the GPU; end one of them first");
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(launch(), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: this process may not use the GPU: too many processes of this tenant use the "
            "GPU; end one of them "
            "first\n");
}

TEST_F(GuestTest, AStrangersSocketIsNotAsked) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  ASSERT_EQ(seteuid(61234), 0);
  start(kGiB);
  ASSERT_EQ(seteuid(0), 0);
  testing::internal::CaptureStderr();
  ASSERT_EQ(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(launch(), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: this process may not use the GPU: the socket " + broker->path() +
                " belongs to uid 61234, which is neither root nor you; whoever that is, it is not "
                "asked for anything; check --socket and SLUICE_SOCKET\n");
  EXPECT_EQ(broker->registrations(), 0);
}

TEST_F(GuestTest, WithoutItsBrokerATenantKeepsItsLimitsWithOneLine) {
  std::string path;
  {
    TestBroker gone(10 * kMiB);
    gone.environment_set();
    path = gone.path();
  }
  testing::internal::CaptureStderr();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 3 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, "sluice: no broker answers at " + path +
                      "; until one does, the program keeps the limits of its job, 10.0 MiB and 100 "
                      "% of each GPU, by itself\n");
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 8 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
}

// Another job's limits, or a text that is cut off, say nothing of this one.
TEST_F(GuestTest, WithoutItsBrokerATenantOfUnknownLimitsWaits) {
  if (kRacesWatched) GTEST_SKIP() << "a fork child that starts threads is beyond it";
  std::string path;
  {
    TestBroker gone(10 * kMiB);
    gone.environment_set();
    path = gone.path();
  }
  for (const char* text : {"", "0000000000000008-0123456789abcdef memory=1 sm=1 gpus=00",
                           "0000000000000007-0123456789abcdef memory=10485760 sm=100 context=0"}) {
    setenv(kTenantLimitsVariable, text, 1);
    int lines[2];
    ASSERT_EQ(pipe(lines), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(lines[1], STDERR_FILENO);
      _exit(cuInit(0) == CUDA_SUCCESS ? 0 : 1);
    }
    close(lines[1]);
    char said[600] = {};
    EXPECT_GT(read(lines[0], said, sizeof said - 1), 0);
    EXPECT_EQ(said, "sluice: no broker answers at " + path +
                        "; CUDA calls wait for one, at most 60 s (nothing says what the job may "
                        "take, and SLUICE_TENANT_LIMITS does not)\n");
    EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(lines[0]);
  }
}

TEST_F(GuestTest, ABrokerThatComesBackGetsTheWholeAccountAgain) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 5 * kMiB), CUDA_SUCCESS);
  broker->die();
  TestBroker next(kGiB);
  next.path_take(*broker);
  ASSERT_TRUE(eventually([&] { return next.account().held_bytes.load() == 5 * kMiB; }));
  ASSERT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
  EXPECT_EQ(next.account().held_bytes.load(), 0u);
  next.lease_store(kLeaseOpen);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
}

TEST_F(GuestTest, WithoutABrokerTheGatesOpenAfterTheGraceAndTheQuotaStays) {
  start(10 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  broker->die();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 11 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(GuestTest, ABrokerThatComesBackAndKnowsNothingOfTheTenantIsSaidOnce) {
  start(10 * kMiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 5 * kMiB), CUDA_SUCCESS);
  broker->lease_store(0);
  broker->die();
  TestBroker next(kGiB);
  next.refuse_with("no job of yours has this id");
  next.path_take(*broker);
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(), CUDA_SUCCESS);  // after the grace
  // Later refusals of the reconnecting helper add nothing.
  sleep_ms(4000);
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluice: the broker went away and the one now at " + next.path() +
                " does not take this program: no job of yours has this id. It goes on under the "
                "limits it had, which it keeps by itself.\n");
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(next.registrations(), 0);
}

TEST_F(GuestTest, IdlenessCountsFromTheOpeningOfTheLease) {
  constexpr uint64_t kGraceNs = 400'000'000;
  start(kGiB);
  broker->lease().gpus[0].idle_grace_ns.store(kGraceNs);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  sleep_ms(600);  // idle for longer than the grace, uncontended
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  // The scheduler may keep a thread that waited for this lease from running for a while: nothing
  // launches yet.
  const auto opened = std::chrono::steady_clock::now();
  broker->lease_store(kLeaseOpen | kLeaseContended);
  ASSERT_TRUE(broker->wait_for(MessageType::kGateIdle, broker->epoch()));
  EXPECT_GE(std::chrono::steady_clock::now() - opened, std::chrono::nanoseconds(kGraceNs));
  // And with a thread that waited and goes on to launch.
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  std::thread program([] { EXPECT_EQ(launch(), CUDA_SUCCESS); });
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, broker->epoch()));
  sleep_ms(600);
  const auto again = std::chrono::steady_clock::now();
  broker->lease_store(kLeaseOpen | kLeaseContended);
  program.join();
  ASSERT_TRUE(broker->wait_for(MessageType::kGateIdle, broker->epoch()));
  EXPECT_GE(std::chrono::steady_clock::now() - again, std::chrono::nanoseconds(kGraceNs));
}

TEST_F(GuestTest, AForkChildRegistersForItself) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, 5 * kMiB), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return broker->account(0).launches.load() == 3; }));
  const pid_t pid = fork();
  if (pid == 0) {
    CUdeviceptr own = 0;
    // What the parent launched is the parent's.
    const bool good = cuInit(0) == CUDA_SUCCESS && cuMemAlloc_v2(&own, 3 * kMiB) == CUDA_SUCCESS &&
                      launch() == CUDA_SUCCESS &&
                      broker->account(1).held_bytes.load() == 3 * kMiB &&
                      eventually([&] { return broker->account(1).launches.load() != 0; }) &&
                      broker->account(1).launches.load() == 1;
    _exit(good ? 0 : 1);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(broker->registrations(), 2);
  EXPECT_EQ(broker->account(0).held_bytes.load(), 5 * kMiB);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
}

// In a time namespace of its own, or beside a broker in one, a process has another clock.
TEST_F(GuestTest, ABrokerWithAnotherClockLivesAsLongAsItSaysSo) {
  for (const std::uint64_t clock_ns : {std::uint64_t{1}, UINT64_MAX / 2}) {
    broker.reset();
    start(kGiB);
    broker->lease().heartbeat_ns.store(clock_ns);
    const pid_t pid = fork();
    if (pid == 0) _exit(cuInit(0) == CUDA_SUCCESS && pause() == 0 ? 0 : 1);
    EXPECT_TRUE(eventually([&] { return broker->registrations() == 1; }));
    for (unsigned beat = 1; beat <= 6; ++beat) {
      sleep_ms(250);
      broker->lease().heartbeat_ns.store(clock_ns + beat);
    }
    EXPECT_EQ(broker->registrations(), 1) << "it was taken for one that hangs";
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

// As a signal handler that forks in the middle of a call, which then returns in both.
pid_t forked_in_a_call;
thread_local bool forks;  // the helper calls the driver as well
void fork_once(const char*) {
  if (!forks) return;
  forks = false;
  forked_in_a_call = fork();
}

class GuestForkTest : public GuestTest, public ::testing::WithParamInterface<bool> {};

TEST_P(GuestForkTest, AChildOfTheMiddleOfACallIsLimitedAndHeld) {
  if (sluice::test::kRacesWatched) GTEST_SKIP() << "a child may find a lock of the sanitizer taken";
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  fake.on_enter = fork_once;
  forks = true;
  EXPECT_EQ(GetParam() ? cuMemAlloc_v2(&pointer, kMiB) : cuMemcpyHtoD_v2(1, nullptr, 1),
            CUDA_SUCCESS);
  if (forked_in_a_call == 0) {
    alarm(30);
    const bool good = cuInit(0) == CUDA_SUCCESS && launch() == CUDA_SUCCESS &&
                      cuMemAlloc_v2(&pointer, 2 * kGiB) == CUDA_ERROR_OUT_OF_MEMORY;
    const auto& hold = broker->lease().gpus[0].hold;
    while (good && hold.load() == 0) sleep_ms(1);
    const bool copied = cuMemcpyHtoD_v2(1, nullptr, 1) == CUDA_SUCCESS;
    _exit(good && copied && (hold.load() & sluice::protocol::kHoldSet) == 0 ? 0 : 1);
  }
  EXPECT_TRUE(eventually([&] { return broker->account(1).refused.load() != 0; }));
  broker->lease_store(0);
  broker->hold_store(true);
  EXPECT_TRUE(broker->wait_held()) << "both";
  sleep_ms(100);
  broker->hold_store(false);
  broker->lease_store(kLeaseOpen);
  int status = 1;
  ASSERT_EQ(waitpid(forked_in_a_call, &status, 0), forked_in_a_call);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(Calls, GuestForkTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Allocation" : "Copy"; });

// The parent's pages are not there in the child, which finds no broker to give it its own.
TEST_F(GuestTest, AForkChildThatFindsNoBrokerAnyMoreRunsOpen) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(broker->registrations(), 1);
  broker->die();
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    CUcontext context = nullptr;
    CUdeviceptr pointer = 0;
    const bool good = cuInit(0) == CUDA_SUCCESS &&
                      cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                      cuMemAlloc_v2(&pointer, 3 * kMiB) == CUDA_SUCCESS &&
                      cuMemsetD8_v2(pointer, 0, 1) == CUDA_SUCCESS && launch() == CUDA_SUCCESS &&
                      cuCtxSynchronize() == CUDA_SUCCESS && cuMemFree_v2(pointer) == CUDA_SUCCESS;
    _exit(good ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

int socket_descriptor() {
  for (int fd = 1000; fd < 1100; ++fd) {
    if (fcntl(fd, F_GETFD) == FD_CLOEXEC) return fd;
  }
  return -1;
}

TEST_F(GuestTest, TheSocketIsHighClosesOnExecAndAReusedNumberIsLeftAlone) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const int fd = socket_descriptor();
  ASSERT_GE(fd, 1000);
  // A rude program closes everything and gets the number back for a file of its own.
  close(fd);
  char name[] = "/tmp/sluice-test-file-XXXXXX";
  const int own = mkstemp(name);
  ASSERT_EQ(dup2(own, fd), fd);
  broker->lease_store(kLeaseOpen);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return broker->registrations() == 2; }));
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_EQ(fcntl(fd, F_GETFD), 0);
  EXPECT_EQ(lseek(fd, 0, SEEK_END), 0);
  close(fd);
  close(own);
  unlink(name);
}

// From where the driver is asked to end a context until it has, nobody may name it: not the helper,
// who has a drain to see to, with work in flight.
TEST_F(GuestTest, AContextThatEndsIsLeftAlone) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  static std::atomic<bool> ending{false};
  static std::atomic<int> named{0};
  fake.on_enter = [](const char* function) {
    if (strcmp(function, "cuDevicePrimaryCtxRelease_v2") == 0) {
      ending = true;
      sleep_ms(100);
      fake.events_pending = 0;
    } else if (ending) {
      ++named;
      printf("%s\n", function);
    }
  };
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  fake.events_pending = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  broker->lease_store(0);
  sleep_ms(20);
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 1));
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  // Its work is over with it.
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  EXPECT_EQ(named, 0);
  fake.on_enter = nullptr;
}

// One that others hold, too, goes on.
TEST_F(GuestTest, AContextThatDoesNotEndIsDrainedAsBefore) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  fake.events_pending = 1;
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_FALSE(broker->wait_for(MessageType::kDrained, broker->epoch(), 50));
  fake.events_pending = 0;
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

// A fork while another thread makes a context, which takes a driver long: the child, where that
// thread is not, makes its own.
TEST_F(GuestTest, AForkInTheMiddleOfAnotherThreadsContextLeavesTheChildFree) {
  start(kGiB, 30 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  static std::atomic<bool> inside{false}, go{false};
  static const pid_t parent = getpid();
  fake.on_enter = [](const char* function) {
    if (getpid() != parent || strcmp(function, "cuDevicePrimaryCtxRetain") != 0) return;
    inside = true;
    while (!go) sleep_ms(1);
  };
  std::thread slow([] {
    CUcontext context = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  });
  while (!inside) sleep_ms(1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    CUcontext context = nullptr;
    CUdeviceptr pointer = 0;
    const bool good = cuInit(0) == CUDA_SUCCESS &&
                      cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                      cuMemAlloc_v2(&pointer, kMiB) == CUDA_SUCCESS;
    size_t free_bytes = 0, total_bytes = 0;
    if (!good || cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) _exit(1);
    // Its own context is charged, beside its parent's.
    _exit(free_bytes == kGiB - 61 * kMiB ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  go = true;
  slow.join();
}

// A container's filter that is older than the call, and says so in its own way.
TEST_F(GuestTest, WhereAFilterForbidsToWaitOnSeveralWordsTheHelperSleepsAllTheSame) {
  constexpr unsigned kFutexWaitV = 449;
  ASSERT_TRUE(call_forbid(kFutexWaitV, EPERM));
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return broker->account().in_flight.load() == 0; }));
  const clock_t before = clock();  // of all threads' CPU time
  sleep_ms(1000);
  EXPECT_LT(clock() - before, CLOCKS_PER_SEC / 10);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

// A worker waits at the gate of its process's own share, with nothing in flight. The process exits,
// and what runs after the shim's own end joins the worker.
TEST_F(GuestTest, AProcessThatExitsLetsItsThreadsPassTheGateOfItsOwnShare) {
  if (sluice::test::kRacesWatched) GTEST_SKIP() << "a fork child that starts threads is beyond it";
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  setenv("SLUICE_SM", "1%", 1);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    static std::thread worker;
    static std::atomic<bool> passed{false};
    static const AtomicU64& waits = broker->account().gate_waits;
    atexit([] {
      worker.join();
      _exit(!passed ? 1 : waits.load() != 1 ? 6 : 0);
    });
    fake.launch_ns = 500e6;
    fake.events_pending = 1;
    if (cuInit(0) != CUDA_SUCCESS || launch() != CUDA_SUCCESS) _exit(2);
    sleep_ms(500);  // as long as the launch takes: its time is paid for by the clock
    fake.events_pending = 0;
    if (!eventually([&] { return broker->account().in_flight.load() == 0; })) _exit(3);
    worker = std::thread([] { passed = launch() == CUDA_SUCCESS; });
    sleep_ms(300);
    if (passed) _exit(4);
    exit(5);
  }
  int status = 1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

// The broker goes, and there are no descriptors for anything to keep limits with.
TEST_F(GuestTest, LimitsAreKeptWithoutDescriptors) {
  if (sluice::test::kMemoryWatched) GTEST_SKIP() << "the sanitizer reads objects through a pipe";
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  setenv("SLUICE_MEMORY", "100MiB", 1);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  broker->die();  // within the grace; poll, too, minds the limit
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  broker->lease_store(0);
  EXPECT_EQ(launch(), CUDA_SUCCESS);  // after the grace
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 101 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&pointer, 99 * kMiB), CUDA_SUCCESS);
}

}  // namespace

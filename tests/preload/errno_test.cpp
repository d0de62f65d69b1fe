// Every hook, called once with errno set: it is what it was, for the real function (the fake
// driver) leaves it alone. Arguments are zeroed memory, whatever the hook takes. In each mode of
// the shim. The C library's functions that the shim calls are wrapped here and leave another errno
// behind, which they may even when they succeed: so a hook keeps errno only if it takes care. The
// same wrappers show how long a gate sleeps at a time, without its sleeping.
#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/test_broker.h"

namespace {
__thread bool disturbing;  // in this thread the wrapped functions change errno
unsigned long disturbed;

// The real function's result; the function is looked for behind this program.
template <class Function, class... A>
auto disturb(Function*& real, const char* name, A... arguments) {
  if (real == nullptr) real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  const auto result = real(arguments...);
  if (!disturbing) return result;
  ++disturbed;
  // A failed call keeps its own: whoever made it may look.
  if (result != static_cast<decltype(result)>(-1)) errno = 99;
  return result;
}

// The sleeps of a thread that waits at a gate: each is noted, and over at once as if its time had
// passed. With the last of them what it waits for comes.
struct Sleeps {
  std::vector<long> ns;
  const void* word = nullptr;
  std::size_t last = 0;
  std::function<void()> come;
};
__thread Sleeps* sleeps;

bool is_sleep(long number, const long* words) {
  return sleeps != nullptr && number == SYS_futex && words[1] == FUTEX_WAIT;
}

long sleep_noted(const long* words) {
  const auto* time = reinterpret_cast<const timespec*>(words[3]);
  const auto* word = reinterpret_cast<const void*>(words[0]);
  EXPECT_TRUE(sleeps->word == nullptr || sleeps->word == word);
  sleeps->word = word;
  sleeps->ns.push_back(time == nullptr ? -1 : time->tv_sec * 1000000000 + time->tv_nsec);
  if (sleeps->ns.size() == sleeps->last) sleeps->come();
  errno = ETIMEDOUT;
  return -1;
}

constexpr int kWords = 6;
using SystemCall = long(long, long, long, long, long, long, long);
}  // namespace

#define WRAPPED(type, name, parameters, ...)                               \
  extern "C" __attribute__((visibility("default"))) type name parameters { \
    static decltype(::name)* real;                                         \
    return disturb(real, #name __VA_OPT__(, ) __VA_ARGS__);                \
  }
WRAPPED(int, close, (int fd), fd)
WRAPPED(int, fstat, (int fd, struct stat* out) noexcept, fd, out)
WRAPPED(int, munmap, (void* a, size_t n) noexcept, a, n)
WRAPPED(int, madvise, (void* a, size_t n, int advice) noexcept, a, n, advice)
WRAPPED(int, nanosleep, (const timespec* t, timespec* left), t, left)
WRAPPED(int, sched_yield, () noexcept)
WRAPPED(int, poll, (pollfd * p, nfds_t n, int timeout), p, n, timeout)
WRAPPED(ssize_t, recv, (int fd, void* out, size_t n, int flags), fd, out, n, flags)
WRAPPED(ssize_t, recvmsg, (int fd, msghdr* m, int flags), fd, m, flags)
WRAPPED(ssize_t, sendmsg, (int fd, const msghdr* m, int flags), fd, m, flags)
WRAPPED(int, socket, (int domain, int type, int protocol) noexcept, domain, type, protocol)
WRAPPED(ssize_t, write, (int fd, const void* bytes, size_t n), fd, bytes, n)

// A thread may be ahead of the clock.
__thread long ahead_ns;
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* out) noexcept {
  static decltype(::clock_gettime)* real;
  const int result = disturb(real, "clock_gettime", clock, out);
  const long ns = out->tv_nsec + ahead_ns;
  out->tv_sec += ns / 1'000'000'000;
  out->tv_nsec = ns % 1'000'000'000;
  return result;
}

// Variadic ones take six words and leave what is too much unread.
extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  static SystemCall* real;
  long words[kWords];
  va_list list;
  va_start(list, number);
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (is_sleep(number, words)) return sleep_noted(words);
  return disturb(real, "syscall", number, words[0], words[1], words[2], words[3], words[4],
                 words[5]);
}

namespace {

using sluice::test::TestBroker;

constexpr int kErrno = 77;
constexpr std::size_t kScratchBytes = 1 << 20;

// Hooks return a 32-bit status and take up to twelve words, in registers and on the stack.
using Hook = int (*)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                     void*);

/// All of them: dlsym and dlvsym, which are exported too, end in glibc's own and are no hooks.
std::vector<std::string> hooks() {
  std::ifstream file(SLUICE_EXPORTS);
  std::vector<std::string> out;
  for (std::string name; file >> name;) out.push_back(name);
  return out;
}

// Calls every hook; the names of those after which errno was another.
std::string offenders(int* called) {
  void* scratch =
      mmap(nullptr, kScratchBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  std::string out;
  for (const std::string& name : hooks()) {
    void* address = dlsym(name.rfind("nvml", 0) == 0 ? nvml : RTLD_DEFAULT, name.c_str());
    if (address == nullptr) {
      out += name + " is not to be found\n";
      continue;
    }
    Hook hook;
    memcpy(&hook, &address, sizeof hook);
    memset(scratch, 0, kScratchBytes);
    void* s = static_cast<char*>(scratch) + kScratchBytes / 2;
    errno = kErrno;
    disturbing = true;
    hook(s, s, s, s, s, s, s, s, s, s, s, s);
    disturbing = false;
    if (errno != kErrno) out += name + " left " + std::to_string(errno) + "\n";
    ++*called;
  }
  munmap(scratch, kScratchBytes);
  return out;
}

void expect_no_offenders() {
  int called = 0;
  testing::internal::CaptureStderr();  // refusals are said
  EXPECT_EQ(offenders(&called), "");
  (void)testing::internal::GetCapturedStderr();
  EXPECT_EQ(static_cast<size_t>(called), hooks().size());
  EXPECT_GT(called, 440) << "the list of hooks is not what it was";
}

// It finds the driver, registers, and starts a thread.
void expect_first_call(CUresult expected) {
  errno = kErrno;
  disturbing = true;
  const CUresult result = cuInit(0);
  disturbing = false;
  EXPECT_EQ(errno, kErrno);
  EXPECT_EQ(result, expected);
}

TEST(Errno, OfATenant) {
  TestBroker broker(1 << 20);
  broker.environment_set();
  broker.lease_store(sluice::protocol::kLeaseOpen);
  expect_first_call(CUDA_SUCCESS);
  EXPECT_GT(disturbed, 10u);  // it registered
  const unsigned long before = disturbed;
  expect_no_offenders();
  EXPECT_GT(disturbed, before);
}

TEST(Errno, OfALaunchThatWaited) {
  TestBroker broker(1 << 20);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  std::thread opener([&broker] {
    EXPECT_TRUE(broker.wait_for(sluice::protocol::MessageType::kGateWant, 0, 10000));
    broker.lease_store(sluice::protocol::kLeaseOpen);
  });
  const unsigned long before = disturbed;
  errno = kErrno;
  disturbing = true;
  const CUresult result = cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  disturbing = false;
  EXPECT_EQ(errno, kErrno);
  EXPECT_EQ(result, CUDA_SUCCESS);
  EXPECT_GT(disturbed, before);
  opener.join();
}

TEST(Errno, OfACallThatWaitedForTheEndOfAHold) {
  TestBroker broker(1 << 20);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  broker.hold_store(true);
  ASSERT_TRUE(broker.wait_held(10000));
  std::thread opener([&broker] {
    EXPECT_TRUE(broker.wait_for(sluice::protocol::MessageType::kGateWant, 0, 10000));
    broker.hold_store(false);
  });
  const unsigned long before = disturbed;
  errno = kErrno;
  disturbing = true;
  const CUresult result = cuMemcpyHtoD_v2(1, nullptr, 1);
  disturbing = false;
  EXPECT_EQ(errno, kErrno);
  EXPECT_EQ(result, CUDA_SUCCESS);
  EXPECT_GT(disturbed, before);
  opener.join();
}

// ---- how a wait is divided

constexpr long kSliceNs = 50'000'000;
constexpr uintptr_t kPage = 4096;    // the shim has the broker's pages at addresses of its own
constexpr std::size_t kSlices = 45;  // 2.25 s

class Waits : public ::testing::Test {
 protected:
  void SetUp() override {
    broker.environment_set();
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  // The call waits kSlices times, which takes it no time, until `come` has happened.
  void expect_slices(const std::function<CUresult()>& call, const std::function<void()>& come,
                     uintptr_t at) {
    Sleeps noted;
    noted.last = kSlices;
    noted.come = come;
    sleeps = &noted;
    errno = kErrno;
    const CUresult result = call();
    const int after = errno;
    sleeps = nullptr;
    EXPECT_EQ(result, CUDA_SUCCESS);
    EXPECT_EQ(after, kErrno) << "each sleep left ETIMEDOUT";
    EXPECT_EQ(reinterpret_cast<uintptr_t>(noted.word) % kPage, at % kPage);
    EXPECT_EQ(noted.ns, std::vector<long>(kSlices, kSliceNs));
    // It said that it waits with the first sleep, and again with every twentieth: once a second.
    EXPECT_EQ(wants(), 3);
    EXPECT_EQ(broker.account().gate_waits.load(), 1u);
  }
  // Notes come in order: with one more nothing is on its way any more.
  long wants() {
    broker.lease_store(sluice::protocol::kLeaseOpen);
    broker.lease_store(0);
    EXPECT_TRUE(broker.wait_for(sluice::protocol::MessageType::kDrained, broker.epoch(), 10000));
    const auto notes = broker.notes();
    return std::count_if(notes.begin(), notes.end(), [](const auto& note) {
      return note.type == sluice::protocol::MessageType::kGateWant;
    });
  }
  TestBroker broker{1 << 20};
};

TEST_F(Waits, ForALeaseLookAgainEvery50Milliseconds) {
  expect_slices(
      [] { return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); },
      [this] { broker.lease_store(sluice::protocol::kLeaseOpen); },
      reinterpret_cast<uintptr_t>(&broker.lease().gpus[0].lease));
}

TEST_F(Waits, ForTheEndOfAHoldLookAgainEvery50Milliseconds) {
  broker.hold_store(true);
  ASSERT_TRUE(broker.wait_held(10000));
  expect_slices([] { return cuMemcpyHtoD_v2(1, nullptr, 1); }, [this] { broker.hold_store(false); },
                reinterpret_cast<uintptr_t>(&broker.lease().gpus[0].hold));
}

// ---- what is said, and how often

TEST(Refusals, AreSaidOnceASecondWithTheNumberOfThoseThatWereNot) {
  TestBroker broker(1 << 20);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const std::string line =
      "sluice: refused 2.0 MiB: you use 0.0 of your 1.0 MiB on GPU 0. The program sees CUDA out of "
      "memory.";
  const auto said = [](int refusals, long ns_later) {
    ahead_ns += ns_later;
    testing::internal::CaptureStderr();
    for (int i = 0; i < refusals; ++i) {
      CUdeviceptr pointer = 0;
      EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(3, 0), line + "\n");
  EXPECT_EQ(said(4, 1000), "") << "a microsecond later";
  EXPECT_EQ(said(2, 1'000'000'000), line + " (6 more since the last such line.)\n");
  EXPECT_EQ(said(1, 1'000'000'000), line + " (1 more since the last such line.)\n");
  EXPECT_EQ(said(1, 1'000'000'000), line + "\n");
  EXPECT_EQ(broker.account().refused.load(), 11u);
}

TEST(Errno, OfATenantWhoseBrokerIsGone) {
  TestBroker broker(1 << 20);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  broker.die();
  ASSERT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  expect_no_offenders();
}

TEST(Errno, OfARefusedProcess) {
  TestBroker broker(1 << 20);
  broker.environment_set();
  broker.refuse_with("no");
  testing::internal::CaptureStderr();
  expect_first_call(CUDA_ERROR_NOT_PERMITTED);
  (void)testing::internal::GetCapturedStderr();
  expect_no_offenders();
}

TEST(Errno, OfAProcessOutsideSluice) {
  setenv("SLUICE_SOCKET", "/nonexistent", 1);
  expect_first_call(CUDA_SUCCESS);
  expect_no_offenders();
}

TEST(Errno, OfAProcessWithLimitsOfItsOwn) {
  setenv("SLUICE_SOCKET", "/nonexistent", 1);
  setenv("SLUICE_MEMORY", "1MiB", 1);
  setenv("SLUICE_SM", "90%", 1);
  expect_first_call(CUDA_SUCCESS);
  expect_no_offenders();
}

TEST(Errno, IsTheRealFunctionsWhereThatSetsIt) {
  TestBroker broker(1 << 30);
  broker.environment_set();
  broker.lease_store(sluice::protocol::kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  fake.errno_to_set = 33;
  errno = kErrno;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(errno, 33);
    errno = kErrno;
  }
}

}  // namespace

// Every hook, called once with errno set: it is what it was, for the real function (the fake
// driver) leaves it alone. Arguments are zeroed memory, whatever the hook takes. In each mode of
// the shim. The C library's functions that the shim calls are wrapped here and leave another errno
// behind, which they may even when they succeed: so a hook keeps errno only if it takes care.
#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <set>
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

// Variadic ones take six words and leave what is too much unread.
extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  static SystemCall* real;
  long words[kWords];
  va_list list;
  va_start(list, number);
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
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

std::vector<std::string> hooks() {
  // These two answer by errno-like means of their own, or wait for a peer.
  const std::set<std::string> left_out = {"dlsym", "dlvsym"};
  std::ifstream file(SLUICE_EXPORTS);
  std::vector<std::string> out;
  for (std::string name; file >> name;) {
    if (left_out.count(name) == 0) out.push_back(name);
  }
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
    if (address == nullptr) continue;
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
  EXPECT_GT(called, 290);
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

// Every hook, called once with errno set: it is what it was, for the real function (the fake
// driver) leaves it alone. Arguments are zeroed memory, whatever the hook takes: most calls fail in
// one way or another, which is where errno is lost. In each mode of the shim.
#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/test_broker.h"

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
    hook(s, s, s, s, s, s, s, s, s, s, s, s);
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

TEST(Errno, OfATenant) {
  TestBroker broker(1 << 20);
  broker.environment_set();
  broker.lease_store(sluice::protocol::kLeaseOpen);
  errno = kErrno;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);  // registers, starts a thread, finds the driver
  EXPECT_EQ(errno, kErrno);
  expect_no_offenders();
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
  errno = kErrno;
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(errno, kErrno);
  (void)testing::internal::GetCapturedStderr();
  expect_no_offenders();
}

TEST(Errno, OfAProcessOutsideSluice) {
  setenv("SLUICE_SOCKET", "/nonexistent", 1);
  errno = kErrno;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(errno, kErrno);
  expect_no_offenders();
}

TEST(Errno, OfAProcessWithLimitsOfItsOwn) {
  setenv("SLUICE_SOCKET", "/nonexistent", 1);
  setenv("SLUICE_MEMORY", "1MiB", 1);
  setenv("SLUICE_SM", "90%", 1);
  errno = kErrno;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(errno, kErrno);
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

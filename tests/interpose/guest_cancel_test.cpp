// Threads that are cancelled (pthread_cancel) in the middle of the shim's work: at a closed gate,
// while a refusal is said, while the account stands still. They go on until they are back in the
// program, and nothing that others need stays held. Over the fake driver, each case in a process of
// its own.
#include <gtest/gtest.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "tests/interpose/guest.h"

namespace {

using namespace sluice::protocol;
using namespace sluice::test;

// A thread with something to do, and a cancellation point behind it.
class Cancelled {
 public:
  explicit Cancelled(std::function<void()> work) : work_(std::move(work)) {
    EXPECT_EQ(pthread_create(&thread_, nullptr, run, this), 0);
  }
  void cancel() { EXPECT_EQ(pthread_cancel(thread_), 0); }
  /// True when it did all its work first.
  bool join() {
    void* result = nullptr;
    EXPECT_EQ(pthread_join(thread_, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
    return done_;
  }

 private:
  static void* run(void* self) {
    auto* cancelled = static_cast<Cancelled*>(self);
    cancelled->work_();
    cancelled->done_ = true;
    for (;;) sleep(1);
  }
  std::function<void()> work_;
  std::atomic<bool> done_{false};
  pthread_t thread_;
};

class GuestCancelTest : public GuestTest {
 protected:
  void SetUp() override { alarm(30); }  // what is held for ever is waited for as long
};

TEST_F(GuestCancelTest, AThreadAtAClosedGateGoesOnWhenItOpens) {
  start(kGiB);
  broker->lease_store(kLeaseOpen);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  broker->lease_store(0);
  ASSERT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
  std::atomic<CUresult> result{CUDA_ERROR_UNKNOWN};
  Cancelled thread([&] { result = launch(); });
  ASSERT_TRUE(broker->wait_for(MessageType::kGateWant, broker->epoch()));
  thread.cancel();
  sleep_ms(1500);  // it says that it waits once a second
  broker->lease_store(kLeaseOpen);
  EXPECT_TRUE(thread.join());
  EXPECT_EQ(result, CUDA_SUCCESS);
  broker->lease_store(0);
  EXPECT_TRUE(broker->wait_for(MessageType::kDrained, broker->epoch()));
}

TEST_F(GuestCancelTest, AThreadThatIsToldItsRefusalHoldsNoPoolForEver) {
  start(10 * kMiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocAsync(&pointer, kMiB, nullptr), CUDA_SUCCESS);
  std::atomic<CUresult> result{CUDA_ERROR_UNKNOWN};
  testing::internal::CaptureStderr();
  Cancelled thread([&] {
    CUdeviceptr none = 0;
    pthread_cancel(pthread_self());
    result = cuMemAllocAsync(&none, 20 * kMiB, nullptr);
  });
  EXPECT_TRUE(thread.join());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("sluice: refused "), std::string::npos);
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAllocAsync(&pointer, kMiB, nullptr), CUDA_SUCCESS);
}

// Another thread is within an allocation, so that whoever wants the account to stand still sleeps.
TEST_F(GuestCancelTest, AThreadThatStopsTheAccountLetsItGoOn) {
  start(kGiB);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_SUCCESS);
  static std::atomic<bool> inside{false}, go{false};
  fake.on_enter = [](const char* function) {
    if (strcmp(function, "an allocation") != 0 || inside.exchange(true)) return;
    while (!go) sleep_ms(1);
  };
  std::thread slow([] {
    CUdeviceptr slowly = 0;
    EXPECT_EQ(cuMemAlloc_v2(&slowly, kMiB), CUDA_SUCCESS);
  });
  while (!inside) sleep_ms(1);
  std::atomic<CUresult> result{CUDA_ERROR_UNKNOWN};
  Cancelled thread([&] {
    CUmodule module = nullptr;
    pthread_cancel(pthread_self());
    result = cuModuleLoadData(&module, "");
  });
  EXPECT_TRUE(thread.join());
  EXPECT_EQ(result, CUDA_SUCCESS);
  go = true;
  slow.join();
  EXPECT_EQ(cuMemAlloc_v2(&pointer, kMiB), CUDA_SUCCESS);
}

}  // namespace

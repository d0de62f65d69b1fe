// Where NVML lists nobody: what loads and contexts cost, by what the device has left and what
// others do meanwhile.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "tests/interpose/guest_nvml.h"

namespace {

using namespace sluice::test;

// Limits of the user's own, and nobody who says by which pid NVML knows this process.
class AloneNvmlTest : public GuestNvmlTest {
 protected:
  void SetUp() override {
    GuestNvmlTest::SetUp();
    broker.reset();
    unsetenv("SLUICE_TENANT");  // of a job's processes the broker has said what a context takes
    setenv("SLUICE_SOCKET", "/nonexistent/sluice.sock", 1);
    setenv("SLUICE_MEMORY", "100MiB", 1);
    pid = static_cast<unsigned>(getpid());
  }
  void context_make() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  size_t free_mib() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, 100 * kMiB);
    return free / kMiB;
  }
  unsigned pid = 0;
};

TEST_F(AloneNvmlTest, WhoIsListedFromItsContextOnIsThisProcess) {
  listed(pid, 41 * kMiB);
  nvml->hidden_reads = 1;
  context_make();
  EXPECT_EQ(free_mib(), 59u);
}

TEST_F(AloneNvmlTest, WhoWasListedBeforeIsSomebodyElseWithTheSameNumber) {
  listed(pid, 41 * kMiB);
  context_make();
  EXPECT_EQ(free_mib(), 100u) << "a process of another PID namespace";
}

// The devices' memory, as a load or a context and other users of the GPU change it.
struct LoadScript {
  const char* function;             // which call takes
  unsigned long long of_call;       // so much,
  unsigned long long of_others[2];  // while others take so much, at its first time and its second
  const char* undo;                 // and which gives the call's back
  int calls, undos;
  FakeNvml* nvml;
};
LoadScript load_script;
std::mutex load_script_mutex;  // the helper's calls come here, too

void memory_move(const char* function) {
  const std::lock_guard lock(load_script_mutex);
  if (strcmp(function, load_script.function) == 0) {
    fake.used_bytes += load_script.of_call + load_script.of_others[load_script.calls < 1 ? 0 : 1];
    load_script.nvml->used_more +=
        load_script.of_call + load_script.of_others[load_script.calls < 1 ? 0 : 1];
    ++load_script.calls;
  } else if (strcmp(function, load_script.undo) == 0) {
    fake.used_bytes -= load_script.of_call;
    load_script.nvml->used_more -= load_script.of_call;
    ++load_script.undos;
  }
}

class GuestEstimateTest : public GuestNvmlTest {
 protected:
  void SetUp() override {
    GuestNvmlTest::SetUp();
    listed(kStranger, 500 * kMiB);
    cuda_start();
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(held(), 30 * kMiB);
    fake.on_enter = memory_move;
  }
  void expect(unsigned long long of_call, unsigned long long first, unsigned long long second) {
    const std::lock_guard lock(load_script_mutex);
    load_script = {"cuModuleLoadData", of_call, {first, second}, "cuModuleUnload", 0, 0, nvml};
  }
  CUmodule module = reinterpret_cast<CUmodule>(0x77);
};

TEST_F(GuestEstimateTest, AModuleTakesWhatTheDeviceHasLessAfterIt) {
  expect(50 * kMiB, 0, 0);
  ASSERT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  EXPECT_EQ(held(), 80 * kMiB);
  EXPECT_EQ(broker->account().measured.load(), 0u);
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(held(), 30 * kMiB);
}

TEST_F(GuestEstimateTest, WhatOthersTookIsFoundOutBeforeALoadIsRefused) {
  expect(50 * kMiB, 2 * kGiB, 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(load_script.calls, 2);
  EXPECT_EQ(load_script.undos, 1);
  EXPECT_EQ(held(), 80 * kMiB);
  EXPECT_EQ(broker->account().refused.load(), 0u);
}

// The driver answers some options in place; the second try must not begin with those answers.
TEST_F(GuestEstimateTest, TheSecondTryHasTheOptionsOfTheFirst) {
  static void* value[1];
  static std::vector<void*> seen;
  expect(50 * kMiB, 2 * kGiB, 0);
  load_script.function = "cuModuleLoadDataEx";
  fake.on_enter = [](const char* function) {
    memory_move(function);
    if (strcmp(function, "cuModuleLoadDataEx") != 0) return;
    seen.push_back(value[0]);
    value[0] = reinterpret_cast<void*>(7);  // bytes of the log that were written
  };
  CUjit_option option[] = {CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  value[0] = reinterpret_cast<void*>(4096);
  ASSERT_EQ(cuModuleLoadDataEx(&module, "", 1, option, value), CUDA_SUCCESS);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1], reinterpret_cast<void*>(4096));
  EXPECT_EQ(value[0], reinterpret_cast<void*>(7));
}

TEST_F(GuestEstimateTest, ALoadThatIsTooMuchBothTimesIsRefused) {
  expect(50 * kMiB, 2 * kGiB, 2 * kGiB);
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(module, reinterpret_cast<CUmodule>(0x77));
  EXPECT_EQ(load_script.calls, 2);
  EXPECT_EQ(load_script.undos, 2);
  EXPECT_EQ(held(), 30 * kMiB);
  EXPECT_EQ(broker->account().refused.load(), 1u);
  expect(2 * kGiB, 0, 0);
  EXPECT_EQ(cuModuleLoadData(&module, ""), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(load_script.calls, 1) << "all of it came back: it was the module's";
  EXPECT_EQ(held(), 30 * kMiB);
}

TEST_F(AloneNvmlTest, WhereNobodyIsListedTheFirstContextCostsWhatComesIntoUse) {
  load_script = {
      "cuDevicePrimaryCtxRetain", 41 * kMiB, {0, 0}, "cuDevicePrimaryCtxRelease_v2", 0, 0, nvml};
  fake.on_enter = memory_move;
  context_make();
  EXPECT_EQ(free_mib(), 59u);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(free_mib(), 100u);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(free_mib(), 59u) << "what the first one cost";
}

TEST_F(AloneNvmlTest, AContextThatIsEstimatedAboveTheLimitIsNotMade) {
  load_script = {
      "cuDevicePrimaryCtxRetain", 101 * kMiB, {0, 0}, "cuDevicePrimaryCtxRelease_v2", 0, 0, nvml};
  fake.on_enter = memory_move;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(context, nullptr);
}

TEST_F(AloneNvmlTest, MoreThanAContextEverTakesIsNotBelieved) {
  load_script = {"cuDevicePrimaryCtxRetain",
                 41 * kMiB,
                 {3 * kGiB, 0},
                 "cuDevicePrimaryCtxRelease_v2",
                 0,
                 0,
                 nvml};
  fake.on_enter = memory_move;
  context_make();
  EXPECT_EQ(free_mib(), 100u);
}

TEST_F(AloneNvmlTest, WhereNobodyIsListedAndNothingComesIntoUseContextsCostNothing) {
  context_make();
  EXPECT_EQ(free_mib(), 100u);
}

TEST_F(AloneNvmlTest, SamplesOfANamesakeAreNotTheTenants) {
  listed(pid, 41 * kMiB, 50);
  context_make();
  const auto of_processes =
      function<decltype(nvmlDeviceGetProcessUtilization)>("nvmlDeviceGetProcessUtilization");
  nvmlProcessUtilizationSample_t samples[4] = {};
  unsigned count = 4;
  EXPECT_EQ(of_processes(nullptr, samples, &count, 0), 6u) << "not found";
}

TEST_F(AloneNvmlTest, SamplesOfTheOwnPidAreSeenOnceItIsProven) {
  listed(pid, 41 * kMiB, 50);
  nvml->hidden_reads = 1;
  context_make();
  const auto of_processes =
      function<decltype(nvmlDeviceGetProcessUtilization)>("nvmlDeviceGetProcessUtilization");
  nvmlProcessUtilizationSample_t samples[4] = {};
  unsigned count = 4;
  ASSERT_EQ(of_processes(nullptr, samples, &count, 0), 0u);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(samples[0].pid, pid);
}

}  // namespace

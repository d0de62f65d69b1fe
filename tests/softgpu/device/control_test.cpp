// What softgpu-ctl does to devices while programs work on them, as the programs see it: faults,
// events, settings, timed kernels; and that the clocks of kernels tell modelled time.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "softgpu/nvml/nvml.h"
#include "tests/softgpu/driver/fixture.h"

namespace {

using softgpu_test::InChild;

struct Answer {
  int status = -1;
  std::string text;  // both outputs
};

Answer ctl(const std::string& arguments) {
  Answer answer;
  std::FILE* out = popen((SOFTGPU_CTL " " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), out)) > 0;)
    answer.text.append(part.data(), got);
  const int status = pclose(out);
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return answer;
}

void ctl_good(const std::string& arguments) {
  const Answer answer = ctl(arguments);
  EXPECT_EQ(answer.status, 0) << arguments << ": " << answer.text;
}

void ctl_refuses(const std::string& arguments, const std::string& text) {
  const Answer answer = ctl(arguments);
  EXPECT_NE(answer.status, 0) << arguments;
  EXPECT_NE(answer.text.find(text), std::string::npos) << arguments << ": " << answer.text;
}

class Control : public softgpu_test::Driver {
 protected:
  ~Control() override { unsetenv("SOFTGPU_TIMED"); }
};

CUresult spin(CUfunction function, unsigned turns, unsigned grid = 16) {
  void* arguments[] = {&turns};
  return cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr);
}

/// Modelled milliseconds of what `work` submits to the default stream.
template <typename Work>
float once(const Work& work) {
  CUevent begin = nullptr, end = nullptr;
  float ms = -1;
  EXPECT_CU(cuEventCreate(&begin, 0));
  EXPECT_CU(cuEventCreate(&end, 0));
  EXPECT_CU(cuEventRecord(begin, nullptr));
  work();
  EXPECT_CU(cuEventRecord(end, nullptr));
  EXPECT_CU(cuEventSynchronize(end));
  EXPECT_CU(cuEventElapsedTime(&ms, begin, end));
  EXPECT_CU(cuEventDestroy(begin));
  EXPECT_CU(cuEventDestroy(end));
  return ms;
}

/// The least of some tries, because a host that is busy submits late.
template <typename Work>
float milliseconds(const Work& work) {
  float least = 1e9;
  for (int i = 0; i < 4; ++i) least = std::min(least, once(work));
  return least;
}

TEST_F(Control, AWordThatACommandDoesNotKnowIsRefused) {
  WithContext([](CUcontext) {
    ctl_refuses("list now", "takes no \"now\"");
    ctl_refuses("reset gpu0", "takes no \"gpu0\"");
    ctl_refuses("reset --gpu 1", "takes no --gpu");
    ctl_refuses("accounts --factor 2", "takes no --factor");
    ctl_refuses("clear --json", "takes no --json");
  });
}

TEST_F(Control, ThatThereAreNoGpusIsSaid) {
  const std::string own = std::getenv("SOFTGPU_DIR");
  const auto look = [&](const std::string& directory, std::string* said) {
    const int status = std::system(
        (std::string(SOFTGPU_CTL " list --dir ") + directory + " 2>" + own + "/said >/dev/null")
            .c_str());
    std::ifstream in(own + "/said");
    *said = std::string(std::istreambuf_iterator<char>(in), {});
    return WEXITSTATUS(status);
  };
  std::string said;
  EXPECT_EQ(look(own, &said), 0);
  EXPECT_THAT(said, ::testing::HasSubstr("no software GPU in " + own));
  EXPECT_EQ(look(own + "/nosuch", &said), 0) << "a program may be about to make it";
  EXPECT_THAT(said, ::testing::HasSubstr("there is no directory " + own + "/nosuch"));
}

TEST_F(Control, AnAnswerThatCannotBeWrittenIsAFailure) {
  WithContext([](CUcontext) {
    for (const char* command : {"list", "accounts", "list --json", "--version", "help"}) {
      const int status = std::system((std::string(SOFTGPU_CTL " ") + command + " >/dev/full 2>" +
                                      std::getenv("SOFTGPU_DIR") + "/said")
                                         .c_str());
      EXPECT_EQ(WEXITSTATUS(status), 1) << command;
      std::ifstream said(std::string(std::getenv("SOFTGPU_DIR")) + "/said");
      EXPECT_THAT(std::string(std::istreambuf_iterator<char>(said), {}),
                  ::testing::HasSubstr("No space left"))
          << command;
    }
  });
}

TEST_F(Control, TheNthAllocationFails) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ctl_good("inject allocation --after 3 --times 2");
    EXPECT_CU(cuMemAlloc(&p, 16));
    EXPECT_CU(cuMemAlloc(&p, 16));
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_CU(cuMemAlloc(&p, 16));
    EXPECT_EQ(ctl("faults").text, "") << "it has happened";
  });
}

TEST_F(Control, AFaultOfAnotherProcessIsNotOurs) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ctl_good("inject allocation --pid 1");
    EXPECT_CU(cuMemAlloc(&p, 16));
    EXPECT_NE(ctl("faults").text.find("allocation after 1 times 1 pid 1"), std::string::npos);
    ctl_good("clear 0");
    EXPECT_EQ(ctl("faults").text, "");
    ctl_refuses("clear 0", "has no fault 0");
  });
}

TEST_F(Control, CopiesBecomeSlow) {
  WithContext([](CUcontext) {
    constexpr std::size_t kBytes = 64 << 20;
    CUdeviceptr p = 0;
    void* host = nullptr;
    ASSERT_CU(cuMemAlloc(&p, kBytes));
    ASSERT_CU(cuMemAllocHost(&host, kBytes));
    const auto copy = [&] { EXPECT_CU(cuMemcpyHtoDAsync(p, host, kBytes, nullptr)); };
    const float before = milliseconds(copy);
    ctl_good("inject slow-copy --factor 20");
    const float slow = milliseconds(copy);
    ctl_good("clear");
    const float after = milliseconds(copy);
    EXPECT_GT(slow, 10 * before);
    EXPECT_GT(slow, 10 * after);
  });
}

TEST_F(Control, AKernelHangsUntilItIsCleared) {
  WithContext([](CUcontext) {
    const CUfunction function = Driver::function("spin");
    ctl_good("inject hang");
    ASSERT_CU(spin(function, 10));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    ctl_good("clear");
    EXPECT_CU(cuCtxSynchronize());
  });
}

TEST_F(Control, AnXidEndsAHang) {
  WithContext([](CUcontext) {
    const CUfunction function = Driver::function("spin");
    ctl_good("inject hang");
    ASSERT_CU(spin(function, 10));
    ctl_good("inject xid 43");
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  });
}

TEST_F(Control, AnXidIsAnErrorThatStays) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ctl_good("inject xid 63");
    EXPECT_CU(cuMemAlloc(&p, 16)) << "which only informs";
    ctl_good("inject xid 48 --pid " + std::to_string(getpid()));
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_ECC_UNCORRECTABLE);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ECC_UNCORRECTABLE);
    CUcontext fresh = nullptr;
    ASSERT_CU(cuCtxCreate(&fresh, nullptr, 0, 0)) << "a new context is well";
    EXPECT_CU(cuMemAlloc(&p, 16));
    ctl_refuses("inject xid 48 --pid 1", "process 1 does not use GPU 0");
  });
}

TEST_F(Control, ALostDeviceIsGoneUntilItIsCleared) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    CUcontext fresh = nullptr;
    nvmlDevice_t device = nullptr;
    unsigned mode = 0;
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    ctl_good("inject lost");
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(cuCtxCreate(&fresh, nullptr, 0, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(nvmlDeviceGetComputeMode(device, &mode), NVML_ERROR_GPU_IS_LOST);
    EXPECT_NE(ctl("list").text.find("LOST"), std::string::npos);
    ctl_good("clear");
    EXPECT_EQ(cuMemAlloc(&p, 16), CUDA_ERROR_UNKNOWN) << "the old context is lost for ever";
    EXPECT_CU(cuCtxCreate(&fresh, nullptr, 0, 0));
    EXPECT_CU(cuMemAlloc(&p, 16));
    EXPECT_EQ(nvmlDeviceGetComputeMode(device, &mode), NVML_SUCCESS);
  });
}

TEST_F(Control, AnInjectedXidIsAnEvent) {
  WithContext([](CUcontext) {
    nvmlDevice_t device = nullptr;
    nvmlEventSet_t set = nullptr;
    nvmlEventData_t data{};
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    ASSERT_EQ(nvmlEventSetCreate(&set), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceRegisterEvents(device, NVML_EVENT_XID_CRITICAL_ERROR, set), NVML_SUCCESS);
    std::thread later([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ctl_good("inject xid 94");
    });
    EXPECT_EQ(nvmlEventSetWait_v2(set, &data, 20000), NVML_SUCCESS);
    EXPECT_EQ(data.eventData, 94U);
    later.join();
  });
}

TEST_F(Control, SettingsChangeWhileTheDeviceWorks) {
  WithContext([this](CUcontext) {
    const CUfunction function = Driver::function("spin");
    const auto work = [&] { EXPECT_CU(spin(function, 100000)); };
    const float before = milliseconds(work);
    ctl_good("set rate=4e6");
    EXPECT_NEAR(milliseconds(work), 10 * before, before);
    const std::string profile = devices.path() + "/profile";
    std::FILE* file = std::fopen(profile.c_str(), "w");
    std::fputs("# as at first\nrate = 40e6\nslice_us = 500\n", file);
    std::fclose(file);
    ctl_good("set --profile " + profile + " launch_us=7");
    EXPECT_NEAR(milliseconds(work), before, before / 4);
    EXPECT_NE(ctl("list").text.find("slice 500000 ns"), std::string::npos);
    EXPECT_NE(ctl("list").text.find("launch 7000 ns"), std::string::npos);
  });
}

TEST_F(Control, EveryKernelCostsItsLaunch) {
  WithContext([](CUcontext) {
    const CUfunction function = Driver::function("spin");
    ASSERT_CU(spin(function, 1));
    ASSERT_CU(cuCtxSynchronize());
    ctl_good("set launch_us=20000");
    EXPECT_NEAR(milliseconds([&] { EXPECT_CU(spin(function, 1)); }), 20, 5);
  });
}

TEST_F(Control, TimedKernelsTakeTheTimeGiven) {
  setenv("SOFTGPU_TIMED", "sp*=50ms, add_one=80ms/skip", 1);
  WithContext([](CUcontext) {
    const CUfunction function = Driver::function("spin"), add = Driver::function("add_one");
    CUdeviceptr p = 0;
    unsigned count = 1, value = 9;
    void* arguments[] = {&p, &count};
    ASSERT_CU(cuMemAlloc(&p, 4));
    ASSERT_CU(cuMemsetD32(p, 9, 1));
    ASSERT_CU(cuCtxSynchronize());
    const auto add_one = [&] {
      EXPECT_CU(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    };
    EXPECT_NEAR(milliseconds([&] { EXPECT_CU(spin(function, 10)); }), 50, 10);
    EXPECT_NEAR(milliseconds(add_one), 80, 10);
    ASSERT_CU(cuMemcpyDtoH(&value, p, 4));
    EXPECT_EQ(value, 9U) << "skipped";
    EXPECT_NE(ctl("list").text.find("timed sp*=50000us,add_one=80000us/skip"), std::string::npos);
    ctl_good("set timed=add_*=30ms");
    EXPECT_NEAR(milliseconds(add_one), 30, 10);
    ASSERT_CU(cuMemcpyDtoH(&value, p, 4));
    EXPECT_GT(value, 9U) << "executed";
    ctl_good("set timed=");
    EXPECT_LT(milliseconds(add_one), 20);
  });
}

TEST_F(Control, WhatTheHostCannotKeepUpWithIsLag) {
  setenv("SOFTGPU_PACING", "1", 1);
  setenv("SOFTGPU_TIMED", "spin=1us", 1);
  WithContext([](CUcontext) {
    ASSERT_CU(spin(Driver::function("spin"), 100'000));
    ASSERT_CU(cuCtxSynchronize());
    const std::string json = ctl("accounts --json").text;
    const auto at = json.find("\"lag_ns\": ");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(std::stod(json.substr(at + 10)), 100e3) << "millions of instructions in 1 us";
  });
}

TEST_F(Control, WrongWordsAreNamed) {
  WithContext([](CUcontext) {
    ctl_refuses("set", "nothing to set");
    ctl_refuses("set colour=red", "unknown setting COLOUR");
    ctl_refuses("set rate=fast", "\"fast\" is no value for RATE");
    ctl_refuses("set memory=1GiB", "MEMORY cannot be changed while the GPUs exist");
    ctl_refuses("set timed=gemm", "is no timed kernel");
    ctl_refuses("set weight=2", "a weight is of a process");
    ctl_refuses("set --pid 1 weight=2", "process 1 uses none of these GPUs");
    ctl_refuses("set --pid x weight=2", "--pid \"x\" is no whole number");
    ctl_refuses("inject", "needs a fault");
    ctl_refuses("inject flood", "unknown fault \"flood\"");
    ctl_refuses("inject slow-copy", "needs --factor");
    ctl_refuses("inject slow-copy --factor 0.5", "no number of at least 1");
    ctl_refuses("inject allocation --after 0", "no whole number of at least 1");
    ctl_refuses("inject xid", "xid needs its number");
    ctl_refuses("inject hang --gpu 3", "there is no GPU 3");
    ctl_refuses("frobnicate", "unknown command \"frobnicate\"");
    ctl_refuses("--frobnicate", "unknown option --frobnicate");
    for (const char* command : {"list", "accounts", "set", "inject", "faults", "clear"}) {
      const Answer help = ctl(std::string(command) + " --help");
      EXPECT_EQ(help.status, 0);
      EXPECT_TRUE(help.text.starts_with(std::string("softgpu-ctl ") + command)) << help.text;
    }
  });
}

TEST_F(Control, TheListShowsWhoIsThere) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc(&p, 10 << 20));
    const std::string pid = std::to_string(getpid());
    EXPECT_NE(ctl("list").text.find(pid), std::string::npos);
    const std::string json = ctl("list --json").text;
    EXPECT_NE(json.find("\"pid\": " + pid), std::string::npos) << json;
    EXPECT_NE(json.find("\"used_bytes\": " + std::to_string(42 << 20)), std::string::npos) << json;
    ctl_good("set --pid " + pid + " weight=2.5");
    EXPECT_NE(ctl("list").text.find("weight 2.5"), std::string::npos);
  });
}

constexpr char kClocks[] = R"(
.version 9.0
.target sm_75
.address_size 64
.visible .entry clocks(.param .u64 out, .param .u32 n)
{
  .reg .pred %q<2>;
  .reg .b32 %r<4>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [out];
  ld.param.u32 %r1, [n];
  cvta.to.global.u64 %d2, %d1;
  mov.u64 %d3, %globaltimer;
  mov.u64 %d4, %clock64;
  mov.u32 %r2, 0;
LOOP:
  add.s32 %r2, %r2, 1;
  setp.ne.u32 %q1, %r2, %r1;
  @%q1 bra LOOP;
  mov.u64 %d5, %globaltimer;
  mov.u64 %d6, %clock64;
  st.global.u64 [%d2], %d3;
  st.global.u64 [%d2+8], %d4;
  st.global.u64 [%d2+16], %d5;
  st.global.u64 [%d2+24], %d6;
  ret;
}
)";

/// What the events around a kernel and the clocks in it say that it took, in milliseconds.
struct Told {
  double events = 1e9, timer = 0, clock = 0;
};

Told clocks_ask(CUfunction function, CUdeviceptr out) {
  Told told;
  unsigned turns = 200'000;
  std::array<unsigned long long, 4> stamps{};
  void* arguments[] = {&out, &turns};
  const auto run = [&] {
    EXPECT_CU(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  };
  // A host that is busy submits late and executes late: the best of some tries says what the model
  // does.
  for (int i = 0; i < 10; ++i) {
    const double events = once(run);
    EXPECT_CU(cuMemcpyDtoH(stamps.data(), out, sizeof stamps));
    if (events >= told.events) continue;
    told = {events, static_cast<double>(stamps[2] - stamps[0]) / 1e6,
            static_cast<double>(stamps[3] - stamps[1]) / 1.41e9 * 1e3};
  }
  return told;
}

/// A kernel of 600,000 instructions at 40 million a second.
void clocks_agree(const char* pacing) {
  setenv("SOFTGPU_PACING", pacing, 1);
  setenv("SOFTGPU_SMS", "1", 1);
  InChild([] {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUdeviceptr out = 0;
    ASSERT_CU(cuInit(0));
    ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
    ASSERT_CU(cuModuleLoadData(&module, kClocks));
    ASSERT_CU(cuModuleGetFunction(&function, module, "clocks"));
    ASSERT_CU(cuMemAlloc(&out, 64));
    const Told told = clocks_ask(function, out);
    EXPECT_NEAR(told.timer, told.clock, 1);
    EXPECT_NEAR(told.timer, told.events, 4);
    EXPECT_GT(told.timer, 13) << "nothing is faster than the model";
  });
  unsetenv("SOFTGPU_SMS");
}

TEST_F(Control, ClocksTellModelledTime) { clocks_agree("1"); }
TEST_F(Control, ClocksTellModelledTimeWithoutPacing) { clocks_agree("0"); }

}  // namespace

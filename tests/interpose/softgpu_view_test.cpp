// What NVML shows to a program of the tenant, over the software GPU's NVML: the vGPU's memory, its
// own processes and none else's, and GPU time in hundredths of its slice. A stranger works on the
// same GPU, and a second GPU is none of the tenant's.
#include <dlfcn.h>

#include <algorithm>
#include <map>

#pragma GCC visibility push(default)
#include "softgpu/nvml/nvml.h"
#pragma GCC visibility pop
#include "tests/interpose/softgpu_fixture.h"
#include "tests/interpose/softgpu_partner.h"

namespace {

using namespace sluice::test;

class SoftGpuViewTest : public SoftGpuTest {
 protected:
  SoftGpuViewTest()
      : SoftGpuTest({.gpus = 2, .gpus_of_tenant = 1, .quota = 200 * kMiB, .uses_cuda = false}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    library = dlopen(SOFTGPU_NVML, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    ASSERT_EQ(function<decltype(nvmlInit_v2)>("nvmlInit_v2")(), NVML_SUCCESS);
    const auto by_index =
        function<decltype(nvmlDeviceGetHandleByIndex_v2)>("nvmlDeviceGetHandleByIndex_v2");
    ASSERT_EQ(by_index(0, &ours), NVML_SUCCESS);
    ASSERT_EQ(by_index(1, &other), NVML_SUCCESS);
    for (Partner* partner : {&a, &b}) {
      partner->start();
      ASSERT_EQ(partner->ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    }
    stranger.start(true);
    ASSERT_EQ(stranger.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    elsewhere.start(true);
    ASSERT_EQ(elsewhere.ask(PartnerOp::kInit, 1).result, CUDA_SUCCESS);
  }
  void TearDown() override {
    stranger.end(SIGKILL);
    elsewhere.end(SIGKILL);
    SoftGpuTest::TearDown();
  }
  // By dlsym, as monitors do.
  template <class F>
  F* function(const char* name) {
    void* found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<F*>(found);
  }
  // pid -> bytes of one of the calls that list processes.
  template <class Info, class F>
  std::map<int, uint64_t> listed(const char* name, nvmlDevice_t device) {
    Info infos[16];
    unsigned count = 16;
    EXPECT_EQ(function<F>(name)(device, &count, infos), NVML_SUCCESS) << name;
    std::map<int, uint64_t> result;
    for (unsigned i = 0; i < count; ++i)
      result[static_cast<int>(infos[i].pid)] = infos[i].usedGpuMemory;
    return result;
  }
  // What the device itself counted for a process since it began, in per cent of the GPU.
  double used_percent(int pid) {
    for (const auto& use : devices[0]->uses(0)) {
      if (use.pid == pid) return use.ratio * 100;
    }
    return 0;
  }
  void* library = nullptr;
  nvmlDevice_t ours = nullptr, other = nullptr;
  Partner a, b, stranger, elsewhere;
};

TEST_F(SoftGpuViewTest, MemoryIsTheVgpus) {
  ASSERT_EQ(a.ask(PartnerOp::kAlloc, 10 * kMiB).result, CUDA_SUCCESS);
  ASSERT_EQ(stranger.ask(PartnerOp::kAlloc, 20 * kMiB).result, CUDA_SUCCESS);
  nvmlMemory_t memory{};
  ASSERT_EQ(function<decltype(nvmlDeviceGetMemoryInfo)>("nvmlDeviceGetMemoryInfo")(ours, &memory),
            NVML_SUCCESS);
  EXPECT_EQ(memory.total, 200 * kMiB);
  EXPECT_EQ(memory.used, 2 * kContext + 10 * kMiB);
  EXPECT_EQ(memory.free, memory.total - memory.used);
  nvmlMemory_v2_t second{};
  second.version = NVML_MEMORY_V2;
  const auto info2 = function<decltype(nvmlDeviceGetMemoryInfo_v2)>("nvmlDeviceGetMemoryInfo_v2");
  ASSERT_EQ(info2(ours, &second), NVML_SUCCESS);
  EXPECT_EQ(second.total, memory.total);
  EXPECT_EQ(second.used, memory.used);
  EXPECT_EQ(second.free, memory.free);
  EXPECT_EQ(second.reserved, 0u);
  ASSERT_EQ(info2(other, &second), NVML_SUCCESS);
  EXPECT_EQ(second.total, 256 * kMiB) << "not the tenant's: as it is";
  second.version = 1;
  EXPECT_EQ(info2(ours, &second), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

TEST_F(SoftGpuViewTest, ProcessesAreTheTenantsOwnWithWhatTheyAreCharged) {
  ASSERT_EQ(a.ask(PartnerOp::kAlloc, 10 * kMiB).result, CUDA_SUCCESS);
  ASSERT_EQ(b.ask(PartnerOp::kModuleLoad, 3 * kMiB).result, CUDA_SUCCESS);
  const std::map<int, uint64_t> own = {{a.pid(), kContext + 10 * kMiB},
                                       {b.pid(), kContext + 3 * kMiB}};
  const std::map<int, uint64_t> theirs = {{elsewhere.pid(), kContext}};
  using V1 = decltype(nvmlDeviceGetComputeRunningProcesses);
  using V2 = decltype(nvmlDeviceGetComputeRunningProcesses_v2);
  EXPECT_EQ((listed<nvmlProcessInfo_v1_t, V1>("nvmlDeviceGetComputeRunningProcesses", ours)), own);
  EXPECT_EQ((listed<nvmlProcessInfo_t, V2>("nvmlDeviceGetComputeRunningProcesses_v2", ours)), own);
  EXPECT_EQ((listed<nvmlProcessInfo_t, V2>("nvmlDeviceGetComputeRunningProcesses_v3", ours)), own);
  EXPECT_EQ((listed<nvmlProcessInfo_v1_t, V1>("nvmlDeviceGetComputeRunningProcesses", other)),
            theirs);
  EXPECT_EQ((listed<nvmlProcessInfo_t, V2>("nvmlDeviceGetComputeRunningProcesses_v3", other)),
            theirs);
  EXPECT_TRUE(
      (listed<nvmlProcessInfo_v1_t, V1>("nvmlDeviceGetGraphicsRunningProcesses", ours)).empty());
  EXPECT_TRUE(
      (listed<nvmlProcessInfo_t, V2>("nvmlDeviceGetGraphicsRunningProcesses_v3", ours)).empty());
  EXPECT_TRUE(
      (listed<nvmlProcessInfo_t, V2>("nvmlDeviceGetMPSComputeRunningProcesses_v3", ours)).empty());
}

TEST_F(SoftGpuViewTest, ListsAreGivenAsNvmlGivesThem) {
  const auto list = function<decltype(nvmlDeviceGetComputeRunningProcesses_v3)>(
      "nvmlDeviceGetComputeRunningProcesses_v3");
  nvmlProcessInfo_t infos[2] = {};
  unsigned count = 0;
  EXPECT_EQ(list(ours, &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  count = 1;
  EXPECT_EQ(list(ours, &count, infos), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(infos[1].pid, 0u) << "written beyond the room that was given";
  EXPECT_EQ(list(ours, &count, infos), NVML_SUCCESS);
  EXPECT_EQ(list(ours, nullptr, infos), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(list(ours, &count, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  devices[0]->lose();
  EXPECT_EQ(list(ours, &count, infos), NVML_ERROR_GPU_IS_LOST);
  devices[0]->faults_clear();
}

TEST_F(SoftGpuViewTest, UtilizationOfProcessesIsInHundredthsOfTheSlice) {
  broker->lease().gpus[0].sm_percent = 40;
  ASSERT_EQ(a.ask(PartnerOp::kSpin, 3, 50000).result, CUDA_SUCCESS);
  ASSERT_EQ(stranger.ask(PartnerOp::kSpin, 3, 50000).result, CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return used_percent(a.pid()) > 0; }));
  const auto samples_of =
      function<decltype(nvmlDeviceGetProcessUtilization)>("nvmlDeviceGetProcessUtilization");
  nvmlProcessUtilizationSample_t samples[8] = {};
  unsigned count = 8;
  const double before = used_percent(a.pid());
  ASSERT_EQ(samples_of(ours, samples, &count, 0), NVML_SUCCESS);
  const double after = used_percent(a.pid());
  // Only the window of the history moves on between the readings.
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(samples[0].pid, static_cast<unsigned>(a.pid()));
  EXPECT_LE(samples[0].smUtil, std::min(100.0, before / 0.4 + 2.5));
  EXPECT_GE(samples[0].smUtil, std::min(100.0, after / 0.4 - 2.5));
  EXPECT_GT(samples[0].smUtil, 0u);
  count = 0;
  EXPECT_EQ(samples_of(ours, nullptr, &count, 0), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 1u);

  nvmlProcessUtilizationInfo_v1_t infos[8] = {};
  nvmlProcessesUtilizationInfo_t all{};
  all.version = NVML_PROCESSES_UTILIZATION_V1;
  all.processSamplesCount = 8;
  all.procUtilArray = infos;
  const auto info = function<decltype(nvmlDeviceGetProcessesUtilizationInfo)>(
      "nvmlDeviceGetProcessesUtilizationInfo");
  const double before_info = used_percent(a.pid());
  ASSERT_EQ(info(ours, &all), NVML_SUCCESS);
  const double after_info = used_percent(a.pid());
  ASSERT_EQ(all.processSamplesCount, 1u);
  EXPECT_EQ(infos[0].pid, static_cast<unsigned>(a.pid()));
  EXPECT_LE(infos[0].smUtil, std::min(100.0, before_info / 0.4 + 2.5));
  EXPECT_GE(infos[0].smUtil, std::min(100.0, after_info / 0.4 - 2.5));
}

TEST_F(SoftGpuViewTest, UtilizationOfTheDeviceIsTheTenantsOwn) {
  broker->lease().gpus[0].sm_percent = 50;
  const auto rates_of =
      function<decltype(nvmlDeviceGetUtilizationRates)>("nvmlDeviceGetUtilizationRates");
  nvmlUtilization_t rates{};
  ASSERT_EQ(stranger.ask(PartnerOp::kSpin, 3, 50000).result, CUDA_SUCCESS);
  ASSERT_TRUE(eventually([&] { return used_percent(stranger.pid()) > 0; }));
  ASSERT_EQ(rates_of(ours, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 0u) << "only a stranger works";
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(a.ask(PartnerOp::kSpin, 3, 50000).result, CUDA_SUCCESS);
    return rates_of(ours, &rates) == NVML_SUCCESS && rates.gpu > 0;
  }));
  EXPECT_LE(rates.gpu, 100u);
  EXPECT_EQ(rates_of(ours, nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

// A program under limits of its own, without a broker, on a host with more GPUs than such limits
// reach. NVML shows all of them, CUDA the ones that the user names.
class SoftGpuViewAloneTest : public ::testing::Test {
 protected:
  static constexpr unsigned kCount = 10;
  void SetUp() override {
    char name[] = "/tmp/sluice-softgpu-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory = name;
    setenv("SOFTGPU_DIR", name, 1);
    setenv("SOFTGPU_COUNT", std::to_string(kCount).c_str(), 1);
    setenv("SOFTGPU_MEMORY", "256MiB", 1);
    setenv("SOFTGPU_CONTEXT", "32MiB", 1);
    setenv("SLUICE_MEMORY", "100MiB", 1);
    setenv("SLUICE_SM", "50", 1);
    setenv("CUDA_VISIBLE_DEVICES", "9", 1);
    library = dlopen(SOFTGPU_NVML, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    ASSERT_EQ(function<decltype(nvmlInit_v2)>("nvmlInit_v2")(), NVML_SUCCESS);
  }
  void TearDown() override { EXPECT_EQ(system(("rm -rf " + directory).c_str()), 0); }
  template <class F>
  F* function(const char* name) {
    void* found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<F*>(found);
  }
  nvmlDevice_t device(unsigned index) {
    nvmlDevice_t out = nullptr;
    EXPECT_EQ(function<decltype(nvmlDeviceGetHandleByIndex_v2)>("nvmlDeviceGetHandleByIndex_v2")(
                  index, &out),
              NVML_SUCCESS);
    return out;
  }
  nvmlMemory_t memory(unsigned index) {
    nvmlMemory_t out{};
    EXPECT_EQ(
        function<decltype(nvmlDeviceGetMemoryInfo)>("nvmlDeviceGetMemoryInfo")(device(index), &out),
        NVML_SUCCESS);
    return out;
  }
  void use_the_last() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&pointer, 10 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&pointer, 70 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  }
  std::string directory;
  void* library = nullptr;
};

TEST_F(SoftGpuViewAloneTest, AMonitorTakesNoGpuFromTheProgram) {
  for (unsigned index = 0; index < kCount; ++index) {
    EXPECT_EQ(memory(index).total, 100 * kMiB) << index;
    EXPECT_EQ(memory(index).used, 0U) << index;
    nvmlUtilization_t rates{77, 77};
    EXPECT_EQ(function<decltype(nvmlDeviceGetUtilizationRates)>("nvmlDeviceGetUtilizationRates")(
                  device(index), &rates),
              NVML_SUCCESS);
    EXPECT_EQ(rates.gpu, 0U) << index;
    nvmlProcessInfo_t infos[4];
    unsigned count = 4;
    EXPECT_EQ(function<decltype(nvmlDeviceGetComputeRunningProcesses_v3)>(
                  "nvmlDeviceGetComputeRunningProcesses_v3")(device(index), &count, infos),
              NVML_SUCCESS);
    EXPECT_EQ(count, 0U) << index;
  }
  use_the_last();
  EXPECT_EQ(memory(9).total, 100 * kMiB);
  EXPECT_EQ(memory(9).used, 42 * kMiB);
  EXPECT_EQ(memory(3).used, 0U);
}

}  // namespace

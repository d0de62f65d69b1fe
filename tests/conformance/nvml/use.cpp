// Rows of family `nvml`: memory, processes and utilization.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "tests/conformance/nvml/library.h"

namespace conformance {
namespace {

constexpr std::size_t kBytes = 256u << 20;

nvmlMemory_t memory_of(nvmlDevice_t device) {
  nvmlMemory_t memory{};
  EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo)(device, &memory), NVML_SUCCESS);
  return memory;
}

ROW(nvml, memory_adds_up) {
  const Library library;
  const nvmlMemory_t memory = memory_of(library.first());
  EXPECT_EQ(memory.free + memory.used, memory.total);
}

ROW(nvml, memory_v2_adds_up) {
  const Library library;
  nvmlMemory_v2_t memory{};
  memory.version = NVML_MEMORY_V2;
  NVML_MUST(NVML(nvmlDeviceGetMemoryInfo_v2)(library.first(), &memory));
  EXPECT_EQ(memory.free + memory.used + memory.reserved, memory.total);
  EXPECT_EQ(memory.total, memory_of(library.first()).total);
  observe("reserved_bytes", static_cast<long long>(memory.reserved));
}

ROW(nvml, memory_v2_needs_its_version) {
  const Library library;
  nvmlMemory_v2_t memory{};
  NVML_ANSWERS(NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
               NVML(nvmlDeviceGetMemoryInfo_v2)(library.first(), &memory));
}

ROW(nvml, memory_holds_what_the_driver_offers) {
  const Library library;
  const Context context;
  std::size_t total = 0;
  MUST(cuDeviceTotalMem(&total, context.device()));
  EXPECT_GE(memory_of(library.device()).total, total);
}

ROW(nvml, memory_follows_allocations) {
  const Library library;
  const Context context;
  const auto before = memory_of(library.device()).used;
  CUdeviceptr p = 0;
  MUST(cuMemAlloc(&p, kBytes));
  EXPECT_GE(memory_of(library.device()).used, before + kBytes);
  MUST(cuMemFree(p));
  EXPECT_LT(memory_of(library.device()).used, before + kBytes);
}

ROW(nvml, a_context_makes_a_process) {
  const Library library;
  const nvmlDevice_t device = library.device();
  const std::size_t before = processes(device).size();
  const Context context;
  const auto after = processes(device);
  EXPECT_EQ(after.size(), before + 1);
  if (!pid_is_global()) return;
  EXPECT_EQ(std::count_if(after.begin(), after.end(),
                          [](const auto& p) { return p.pid == static_cast<unsigned>(getpid()); }),
            1);
}

ROW(nvml, looking_makes_no_process) {
  const Library library;
  const nvmlDevice_t device = library.first();
  const std::size_t before = processes(device).size();
  (void)memory_of(device);
  EXPECT_EQ(processes(device).size(), before);
}

ROW(nvml, processes_have_their_memory) {
  const Library library;
  const nvmlDevice_t device = library.device();
  const Context context;
  const auto sum = [&] {
    unsigned long long bytes = 0;
    for (const auto& process : processes(device)) bytes += process.usedGpuMemory;
    return bytes;
  };
  const auto before = sum();
  CUdeviceptr p = 0;
  MUST(cuMemAlloc(&p, kBytes));
  EXPECT_GE(sum(), before + kBytes);
  MUST(cuMemFree(p));
}

ROW(nvml, processes_tell_how_many) {
  const Library library;
  const nvmlDevice_t device = library.device();
  const Context context;
  unsigned count = 0;
  NVML_ANSWERS(NVML_ERROR_INSUFFICIENT_SIZE,
               NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, nullptr));
  EXPECT_GE(count, processes(device).size()) << "room for all of them";
}

ROW(nvml, processes_need_a_count) {
  const Library library;
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetComputeRunningProcesses_v3)(library.first(), nullptr, nullptr));
}

ROW(nvml, older_process_lists_say_the_same) {
  const Library library;
  const nvmlDevice_t device = library.device();
  const Context context;
  nvmlProcessInfo_v1_t first[64];
  nvmlProcessInfo_t second[64];
  unsigned firsts = 64, seconds = 64;
  NVML_MUST(NVML(nvmlDeviceGetComputeRunningProcesses)(device, &firsts, first));
  NVML_MUST(NVML(nvmlDeviceGetComputeRunningProcesses_v2)(device, &seconds, second));
  const auto third = processes(device);
  ASSERT_EQ(firsts, third.size());
  ASSERT_EQ(seconds, third.size());
  for (unsigned i = 0; i < firsts; ++i) {
    EXPECT_EQ(first[i].pid, third[i].pid);
    EXPECT_EQ(first[i].usedGpuMemory, third[i].usedGpuMemory);
    EXPECT_EQ(second[i].pid, third[i].pid);
  }
}

ROW(nvml, processes_are_of_no_instance) {
  const Library library;
  const Context context;
  for (const auto& process : processes(library.device())) {
    EXPECT_EQ(process.gpuInstanceId, NVML_NO_INSTANCE);
    EXPECT_EQ(process.computeInstanceId, NVML_NO_INSTANCE);
  }
}

ROW(nvml, compute_is_not_graphics) {
  const Library library;
  const Context context;
  nvmlProcessInfo_t infos[64];
  unsigned count = 64;
  NVML_MUST(NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(library.device(), &count, infos));
  for (unsigned i = 0; i < count; ++i) EXPECT_NE(infos[i].pid, static_cast<unsigned>(getpid()));
}

ROW(nvml, a_killed_process_leaves_the_list) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const Context context;
    CUdeviceptr p = 0;
    const char good = cuMemAlloc(&p, kBytes) == CUDA_SUCCESS ? 1 : 0;
    if (write(ready[1], &good, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char good = 0;
  ASSERT_EQ(read(ready[0], &good, 1), 1);
  const Library library;
  const nvmlDevice_t device = library.first();
  const std::size_t with = processes(device).size();
  const auto used = memory_of(device).used;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ASSERT_EQ(good, 1);
  EXPECT_GE(with, 1U);
  EXPECT_TRUE(becomes_true([&] { return processes(device).size() < with; }));
  EXPECT_TRUE(becomes_true([&] { return memory_of(device).used + kBytes <= used; }));
}

nvmlUtilization_t utilization_of(nvmlDevice_t device) {
  nvmlUtilization_t utilization{};
  EXPECT_EQ(NVML(nvmlDeviceGetUtilizationRates)(device, &utilization), NVML_SUCCESS);
  EXPECT_LE(utilization.gpu, 100U);
  EXPECT_LE(utilization.memory, 100U);
  return utilization;
}

ROW(nvml, utilization_rises_with_work) {
  settings_soft({{"SOFTGPU_PACING", "1"}});
  const Library library;
  const Context context;
  const Busy busy;
  EXPECT_TRUE(becomes_true([&] { return utilization_of(library.device()).gpu >= 90; }))
      << "a kernel ran all the time";
}

ROW(nvml, utilization_falls_without_work) {
  settings_soft({{"SOFTGPU_PACING", "1"}});
  const Library library;
  const Context context;
  {
    const Busy busy;
    ASSERT_TRUE(becomes_true([&] { return utilization_of(library.device()).gpu >= 50; }));
  }
  EXPECT_TRUE(becomes_true([&] { return utilization_of(library.device()).gpu == 0; }));
}

unsigned long long wall_us() {
  return static_cast<unsigned long long>(std::chrono::duration_cast<std::chrono::microseconds>(
                                             std::chrono::system_clock::now().time_since_epoch())
                                             .count());
}

ROW(nvml, process_utilization_names_who_works) {
  settings_soft({{"SOFTGPU_PACING", "1"}});
  const Library library;
  const Context context;
  const Busy busy;
  nvmlProcessUtilizationSample_t samples[64] = {};
  unsigned count = 64;
  ASSERT_TRUE(becomes_true([&] {
    count = 64;
    return NVML(nvmlDeviceGetProcessUtilization)(library.device(), samples, &count, 0) ==
               NVML_SUCCESS &&
           std::any_of(samples, samples + count, [](const auto& s) { return s.smUtil >= 50; });
  }));
  for (unsigned i = 0; i < count; ++i) EXPECT_LE(samples[i].smUtil, 100U);
  if (!pid_is_global()) return;
  EXPECT_TRUE(std::any_of(samples, samples + count,
                          [](const auto& s) { return s.pid == static_cast<unsigned>(getpid()); }));
}

ROW(nvml, process_utilization_is_stamped) {
  settings_soft({{"SOFTGPU_PACING", "1"}});
  const Library library;
  const Context context;
  const unsigned long long begin = wall_us();
  const Busy busy;
  nvmlProcessUtilizationSample_t samples[64] = {};
  unsigned count = 64;
  ASSERT_TRUE(becomes_true([&] {
    count = 64;
    return NVML(nvmlDeviceGetProcessUtilization)(library.device(), samples, &count, begin) ==
           NVML_SUCCESS;
  }));
  for (unsigned i = 0; i < count; ++i) {
    EXPECT_GT(samples[i].timeStamp, begin) << "only what came after the time given";
    EXPECT_LE(samples[i].timeStamp, wall_us() + 1'000'000);
  }
}

ROW(nvml, process_utilization_of_the_future) {
  const Library library;
  const Context context;
  nvmlProcessUtilizationSample_t samples[64];
  unsigned count = 64;
  NVML_ANSWERS(NVML_ERROR_NOT_FOUND,
               NVML(nvmlDeviceGetProcessUtilization)(library.device(), samples, &count,
                                                     wall_us() + 3'600'000'000ULL));
}

ROW(nvml, process_utilization_needs_a_count) {
  const Library library;
  nvmlProcessUtilizationSample_t samples[1];
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetProcessUtilization)(library.first(), samples, nullptr, 0));
}

}  // namespace
}  // namespace conformance

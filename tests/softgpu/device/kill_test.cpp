// Processes that are killed at any instant of anything they do with a device: nothing of theirs
// stays, nobody waits for them, and the others go on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/driver/fixture.h"

namespace {

using namespace softgpu::device;
using softgpu_test::TemporaryDevices;

constexpr int kKills = 1000;
constexpr int kVictims = 6;          // alive at once
constexpr int kLookEvery = 100;      // kills between two looks at a device without victims
constexpr int kLifeMaxUs = 100'000;  // of a victim, beginning with its fork
constexpr std::size_t kBytes = 1 << 20;

/// One context and what is done with it, over and over.
class Worker {
 public:
  bool start() {
    return cuInit(0) == CUDA_SUCCESS && cuCtxCreate(&context_, nullptr, 0, 0) == CUDA_SUCCESS &&
           cuModuleLoadData(&module_, softgpu_test::kKernels) == CUDA_SUCCESS &&
           cuModuleGetFunction(&add_, module_, "add_one") == CUDA_SUCCESS &&
           cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
  }
  /// Plain memory: allocate, fill, launch, copy back, free.
  bool plain() {
    CUdeviceptr p = 0;
    std::vector<unsigned> words(256);
    const bool good = cuMemAlloc(&p, kBytes) == CUDA_SUCCESS &&
                      cuMemsetD32Async(p, 6, words.size(), stream_) == CUDA_SUCCESS && launch(p) &&
                      cuStreamSynchronize(stream_) == CUDA_SUCCESS &&
                      cuMemcpyDtoH(words.data(), p, words.size() * 4) == CUDA_SUCCESS;
    return good && cuMemFree(p) == CUDA_SUCCESS && all(words, 7);
  }
  /// The same in stream order, out of the pool.
  bool pooled() {
    CUdeviceptr p = 0;
    std::vector<unsigned> words(256);
    const bool good =
        cuMemAllocAsync(&p, kBytes, stream_) == CUDA_SUCCESS &&
        cuMemsetD32Async(p, 1, words.size(), stream_) == CUDA_SUCCESS && launch(p) &&
        cuMemcpyDtoHAsync(words.data(), p, words.size() * 4, stream_) == CUDA_SUCCESS &&
        cuMemFreeAsync(p, stream_) == CUDA_SUCCESS && cuStreamSynchronize(stream_) == CUDA_SUCCESS;
    return good && all(words, 2);
  }
  /// Two launches of a captured graph of three kernels.
  bool graphed() {
    CUdeviceptr p = 0;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    std::vector<unsigned> words(256);
    bool good = cuMemAlloc(&p, kBytes) == CUDA_SUCCESS &&
                cuMemsetD32Async(p, 0, words.size(), stream_) == CUDA_SUCCESS &&
                cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS;
    for (int i = 0; i < 3; ++i) good = good && launch(p);
    good = good && cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS &&
           cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS;
    for (int i = 0; i < 2; ++i) good = good && cuGraphLaunch(exec, stream_) == CUDA_SUCCESS;
    good = good && cuStreamSynchronize(stream_) == CUDA_SUCCESS &&
           cuMemcpyDtoH(words.data(), p, words.size() * 4) == CUDA_SUCCESS &&
           cuGraphExecDestroy(exec) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS;
    return good && cuMemFree(p) == CUDA_SUCCESS && all(words, 6);
  }
  /// A piece of virtual memory, which is an object that others could hold.
  bool mapped() {
    constexpr std::size_t kPiece = 2 << 20;
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle piece = 0;
    CUdeviceptr at = 0;
    const bool good = cuMemCreate(&piece, kPiece, &prop, 0) == CUDA_SUCCESS &&
                      cuMemAddressReserve(&at, kPiece, 0, 0, 0) == CUDA_SUCCESS &&
                      cuMemMap(at, kPiece, 0, piece, 0) == CUDA_SUCCESS &&
                      cuMemSetAccess(at, kPiece, &access, 1) == CUDA_SUCCESS && launch(at) &&
                      cuStreamSynchronize(stream_) == CUDA_SUCCESS;
    return good && cuMemUnmap(at, kPiece) == CUDA_SUCCESS &&
           cuMemAddressFree(at, kPiece) == CUDA_SUCCESS && cuMemRelease(piece) == CUDA_SUCCESS;
  }
  /// The number of the part that failed, 0 when all was well.
  int round() { return !plain() ? 1 : !pooled() ? 2 : !graphed() ? 3 : !mapped() ? 4 : 0; }

 private:
  bool launch(CUdeviceptr p) {
    unsigned count = 256;
    void* arguments[] = {&p, &count};
    return cuLaunchKernel(add_, 4, 1, 1, 64, 1, 1, 0, stream_, arguments, nullptr) == CUDA_SUCCESS;
  }
  static bool all(const std::vector<unsigned>& words, unsigned value) {
    return std::all_of(words.begin(), words.end(), [&](unsigned word) { return word == value; });
  }

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction add_ = nullptr;
  CUstream stream_ = nullptr;
};

/// What the others tell the test.
struct Progress {
  std::atomic<long> rounds{0};         // of the survivor
  std::atomic<long> victim_rounds{0};  // of all victims
  std::atomic<int> failed{0};          // Worker::round()
};

pid_t survivor_start(Progress& progress) {
  const pid_t child = fork();
  if (child != 0) return child;
  Worker worker;
  if (!worker.start()) progress.failed = -1;
  while (progress.failed == 0) {
    progress.failed = worker.round();
    ++progress.rounds;
  }
  _exit(1);
}

/// Nobody tells a victim from outside whether it got far; out of memory is no failure of its own.
pid_t victim_start(Progress& progress) {
  const pid_t child = fork();
  if (child != 0) return child;
  Worker worker;
  if (!worker.start()) _exit(1);
  for (;; ++progress.victim_rounds) (void)worker.round();
}

struct Victim {
  pid_t pid = 0;
  std::chrono::steady_clock::time_point end;
};

class Kill : public ::testing::Test {
 protected:
  Kill()
      : devices({{"SOFTGPU_COUNT", "1"},
                 {"SOFTGPU_MEMORY", "1GiB"},
                 {"SOFTGPU_RATE", "4e9"},
                 {"SOFTGPU_COPY_RATE", "100e9"},
                 {"SOFTGPU_CONTEXT", "8MiB"},
                 {"SOFTGPU_PACING", "1"}}) {}
  ~Kill() override {
    for (const char* name : {"SOFTGPU_COUNT", "SOFTGPU_MEMORY", "SOFTGPU_RATE", "SOFTGPU_PACING",
                             "SOFTGPU_COPY_RATE", "SOFTGPU_CONTEXT"})
      unsetenv(name);
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(devices.path()))
      names.insert(entry.path().filename());
    return names;
  }
  TemporaryDevices devices;
};

/// Only the survivor is left: its memory, its queues, its objects.
void nothing_left(Segment& segment, pid_t survivor) {
  Device device(&segment);
  const Snapshot now = device.snapshot();
  ASSERT_EQ(device.users(), 1U);
  std::uint64_t owned = 0;
  for (const auto& process : now.processes)
    if (process.alive && process.account.pid == survivor) owned += process.account.memory_bytes;
  EXPECT_EQ(now.used_bytes, owned);
  bits_each(segment.taken, kQueuesMax / 64, [&](std::uint32_t queue) {
    EXPECT_EQ(segment.clients[queue_client(queue)].pid, survivor);
  });
}

TEST_F(Kill, AThousandProcessesAtAnyInstant) {
  std::string error;
  const auto segments = directory_open(devices.path(), error);
  ASSERT_EQ(segments.size(), 1U) << error;
  auto* const progress = new (mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Progress;
  const pid_t survivor = survivor_start(*progress);
  std::mt19937 random(20251122);
  std::array<Victim, kVictims> victims;
  long rounds_before = 0;
  int kills = 0, looks = 0;
  while (kills < kKills) {
    const bool looking = kills >= (looks + 1) * kLookEvery;
    for (Victim& victim : victims) {
      const auto now = std::chrono::steady_clock::now();
      if (victim.pid != 0 && now < victim.end) continue;
      if (victim.pid != 0) {
        kill(victim.pid, SIGKILL);
        ASSERT_EQ(waitpid(victim.pid, nullptr, 0), victim.pid);
        ++kills;
      }
      victim = {0, now};
      if (!looking)
        victim = {victim_start(*progress), now + std::chrono::microseconds(random() % kLifeMaxUs)};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    const bool alone = std::all_of(victims.begin(), victims.end(),
                                   [](const Victim& victim) { return victim.pid == 0; });
    if (!looking || !alone) continue;
    nothing_left(*segments[0], survivor);
    ++looks;
    ASSERT_EQ(progress->failed, 0) << "after " << kills << " kills";
    const auto goes_on = [&] { return progress->rounds > rounds_before; };
    for (int i = 0; i < 30'000 && !goes_on(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(goes_on()) << "the survivor is stuck after " << kills << " kills";
    rounds_before = progress->rounds;
  }
  for (const Victim& victim : victims) {
    if (victim.pid == 0) continue;
    kill(victim.pid, SIGKILL);
    waitpid(victim.pid, nullptr, 0);
  }
  EXPECT_EQ(progress->failed, 0);
  kill(survivor, SIGKILL);
  waitpid(survivor, nullptr, 0);
#ifdef __SANITIZE_THREAD__
  constexpr int kRoundsLeast = kKills / 10;  // everything takes several times as long
#else
  constexpr int kRoundsLeast = kKills;
#endif
  EXPECT_GT(progress->victim_rounds, kRoundsLeast) << "they came to do something";
  Device device(segments[0]);
  EXPECT_EQ(device.used_bytes(), 0U);
  EXPECT_EQ(device.users(), 0U);
  for (const std::uint64_t word : segments[0]->active) EXPECT_EQ(word, 0U);
  for (const Shared& object : segments[0]->shared) EXPECT_EQ(object.inode, 0U);
  EXPECT_EQ(files(), std::set<std::string>{"gpu0"});
}

TEST_F(Kill, WhileTheDevicesAreMade) {
  setenv("SOFTGPU_COUNT", "4", 1);
  std::mt19937 random(7);
  std::string error;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      directory_open(devices.path(), error);
      pause();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (const std::string& name : files())
      EXPECT_TRUE(name.size() == 4 && name.starts_with("gpu")) << name;
    ASSERT_EQ(directory_open(devices.path(), error).size(), 4U) << error;
    ASSERT_TRUE(directory_remove(devices.path(), error)) << error;
    EXPECT_TRUE(files().empty());
  }
}

}  // namespace

// A random program (random_world.h): random_program SEED STEPS [WITHOUT]. WITHOUT lists steps that
// are left out ("3,7-9"). The trace is on stdout. Every thirty steps or so the program comes to
// rest: captures are ended and contexts waited for, which is where ledger_points.c has the accounts
// compared. RANDOM_QUOTA ("bytes" or "bytes,bytes") is the quota of each device that it runs under;
// then what the program is shown of its memory must be the device's own account at these points,
// and at its end the most that a device ever held within the quota. The exit code is 1 for whatever
// is wrong by itself.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

/// A thread that does what it is handed, and who waits for it.
class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  ~Worker() {
    hand(nullptr);
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  void does(const std::function<void()>& work) {
    if (std::this_thread::get_id() == thread_.get_id())
      work();
    else
      hand(&work);
  }

 private:
  void hand(const std::function<void()>* work) {
    std::unique_lock lock(mutex_);
    work_ = work;
    handed_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !handed_; });
  }
  void serve() {
    std::unique_lock lock(mutex_);
    for (bool more = true; more;) {
      changed_.wait(lock, [this] { return handed_; });
      more = work_ != nullptr;
      if (more) (*work_)();
      handed_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  bool handed_ = false;
  std::thread thread_;
};

constexpr char kCode[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry empty()
{
  ret;
}
.visible .entry fill(.param .u64 out)
{
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], 7;
  ret;
}
)";

class Program : public Threads {
 public:
  explicit Program(std::uint64_t seed) : seed_(seed) {
    if (const char* quota = getenv("RANDOM_QUOTA"); quota != nullptr) {
      limit_.quota[0] = limit_.quota[1] = strtoull(quota, nullptr, 10);
      if (const char* comma = strchr(quota, ','); comma != nullptr)
        limit_.quota[1] = strtoull(comma + 1, nullptr, 10);
    }
    // Nobody has measured what a context takes: the first one on a GPU may be too much, and undone.
    if (getenv("SLUICE_MEMORY") != nullptr) limit_.step_most = kContextBytes;
    Random random(seed, 0);
    kinds_choose(random);
    const std::size_t threads = 1 + random.below(3);
    for (std::size_t i = 0; i < threads; ++i) workers_.emplace_back();
  }
  void everywhere(const std::function<void()>& work) override {
    for (Worker& worker : workers_) worker.does(work);
  }

  void begin();
  void step(std::size_t number);
  void rest(std::size_t number);
  void end();
  bool faulty() const { return faulty_; }

 private:
  void kinds_choose(Random& random);
  void make(std::size_t number, const char* name, Worker& worker, Random& random,
            const std::function<void(Step&)>& work);
  void captures_end(Step& step);
  void account_look(Step& step);
  void all_free(Step& step);
  void peaks_look();

  const std::uint64_t seed_;
  World world_;
  Limit limit_;
  std::deque<Worker> workers_;
  StepKinds kinds_;
  unsigned weights_ = 0;
  bool faulty_ = false;
};

// What lies between devices is in programs from this seed on: what one of a smaller seed does
// stays, whatever is added there.
constexpr std::uint64_t kSeedOfDevices = 10000;

/// Families are in a program more or less, or not at all.
void Program::kinds_choose(Random& random) {
  StepKinds all;
  for (const auto steps : {memory_steps, pool_steps, virtual_steps, graph_steps, stream_steps,
                           context_steps, module_steps})
    steps(all);
  const char* families = getenv("RANDOM_FAMILIES");
  std::map<std::string, unsigned> factors;
  for (const StepKind& kind : all) {
    if (!factors.contains(kind.family)) factors[kind.family] = random.of({0u, 1u, 1u, 4u});
  }
  if (seed_ >= kSeedOfDevices) {
    device_steps(all);
    factors["devices"] = random.of({1u, 1u, 3u});
  }
  for (StepKind kind : all) {
    kind.weight *= factors[kind.family];
    if (strcmp(kind.name, "context_back") == 0 || strcmp(kind.name, "primary_retain") == 0 ||
        strcmp(kind.name, "stream_create") == 0)
      kind.weight = std::max(kind.weight, 5u);
    if (families != nullptr && strstr(families, kind.family) == nullptr) kind.weight = 0;
    weights_ += kind.weight;
    kinds_.push_back(kind);
  }
}

void Program::make(std::size_t number, const char* name, Worker& worker, Random& random,
                   const std::function<void(Step&)>& work) {
  Step step(world_, limit_, *this, random);
  worker.does([&] { work(step); });
  printf("%zu %s%s\n", number, name, step.line.c_str());
  fflush(stdout);
  faulty_ |= step.faulty;
}

void Program::begin() {
  Random random(seed_, 1);
  make(0, "begin", workers_[0], random, [this](Step& step) {
    CALL(step, cuInit, 0);
    CALL(step, cuLibraryLoadData, &world_.library, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0);
    CALL(step, cuLibraryGetKernel, &world_.empty, world_.library, "empty");
    CALL(step, cuLibraryGetKernel, &world_.fill, world_.library, "fill");
    CUcontext context = nullptr;
    if (CALL(step, cuDevicePrimaryCtxRetain, &context, 0) != CUDA_SUCCESS) return;
    world_.contexts[0] = {{true, -1}, context, 0, 1};
    CALL(step, cuCtxSetCurrent, context);
  });
}

void Program::step(std::size_t number) {
  Random random(seed_, 2 * number + 2);
  Worker& worker = workers_[random.chance(60) ? 0 : random.below(workers_.size())];
  auto chosen = static_cast<unsigned>(random.below(weights_));
  const StepKind* kind = kinds_.data();
  while (chosen >= kind->weight) chosen -= kind++->weight;
  make(number, kind->name, worker, random, kind->make);
}

void Program::captures_end(Step& step) {
  for (StreamSlot& slot : world_.streams) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!slot.live || cuStreamIsCapturing(slot.handle, &status) != CUDA_SUCCESS ||
        status == CU_STREAM_CAPTURE_STATUS_NONE)
      continue;
    step.say("s" + std::to_string(world_.streams.number(slot)));
    capture_end_of(step, slot.handle);
    if (cuStreamIsCapturing(slot.handle, &status) == CUDA_SUCCESS &&
        status != CU_STREAM_CAPTURE_STATUS_NONE &&
        CALL(step, cuStreamDestroy, slot.handle) == CUDA_SUCCESS)
      slot.live = false;
  }
  // And of the threads' own streams.
  everywhere([&] {
    for (const ContextSlot& slot : world_.contexts) {
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      if (!slot.live || cuCtxPushCurrent(slot.handle) != CUDA_SUCCESS) continue;
      if (cuStreamIsCapturing(CU_STREAM_PER_THREAD, &status) == CUDA_SUCCESS &&
          status != CU_STREAM_CAPTURE_STATUS_NONE)
        capture_end_of(step, CU_STREAM_PER_THREAD);
      CUcontext popped = nullptr;
      cuCtxPopCurrent(&popped);
    }
  });
}

/// What a limited program is shown, once it has come to rest.
void Program::account_look(Step& step) {
  const int device = step.device_here();
  if (limit_.quota[device] == 0) return;
  size_t free = 0, total = 0;
  std::uint64_t used = 0;
  const char* patience = getenv("LEDGER_PATIENCE_MS");
  for (int i = patience == nullptr ? 5000 : atoi(patience); i > 0; --i) {
    if (cuMemGetInfo(&free, &total) != CUDA_SUCCESS) return;
    used = Accounts::get().used(device);
    if (total - free == std::min<std::uint64_t>(used, total)) return;
    usleep(1000);
  }
  step.fault("of " + std::to_string(total) + " bytes of GPU " + std::to_string(device) + " " +
             std::to_string(free) + " are shown as free, and " + std::to_string(used) +
             " are in use");
}

void Program::rest(std::size_t number) {
  Random random(seed_, 2 * number + 3);
  make(number, "rest", workers_[0], random, [this](Step& step) {
    captures_end(step);
    world_.capturing = false;
    for (const ContextSlot& slot : world_.contexts) {
      if (!slot.live || cuCtxPushCurrent(slot.handle) != CUDA_SUCCESS) continue;
      CALL(step, cuCtxSynchronize);
      account_look(step);
      CUcontext popped = nullptr;
      cuCtxPopCurrent(&popped);
    }
  });
}

/// Gives back all that is not a context's.
void Program::all_free(Step& step) {
  for (GraphSlot& slot : world_.graphs)
    if (slot.live) CALL(step, cuGraphDestroy, slot.handle);
  for (ExecSlot& slot : world_.execs)
    if (slot.live) CALL(step, cuGraphExecDestroy, slot.handle);
  for (BlockSlot& slot : world_.blocks)
    if (slot.live) CALL(step, cuMemFree, slot.address);
  for (PoolSlot& slot : world_.pools)
    if (slot.live) CALL(step, cuMemPoolDestroy, slot.handle);
  for (RangeSlot& slot : world_.ranges) {
    for (std::size_t at = 0; slot.live && at < slot.bytes; at += kChunk) {
      CUmemGenericAllocationHandle handle = 0;
      void* const address = reinterpret_cast<void*>(slot.address + at);
      if (cuMemRetainAllocationHandle(&handle, address) != CUDA_SUCCESS) continue;
      cuMemRelease(handle);
      for (std::size_t bytes = kChunk; bytes <= slot.bytes; bytes += kChunk)
        if (cuMemUnmap(slot.address + at, bytes) == CUDA_SUCCESS) break;
    }
  }
  for (PieceSlot& slot : world_.pieces)
    if (slot.live) CALL(step, cuMemRelease, slot.handle);
  for (ImportSlot& slot : world_.imports)
    if (slot.live) CALL(step, cuDestroyExternalMemory, slot.handle);
  for (int device = 0; device < kDevices; ++device) {
    CUmemoryPool pool = nullptr;
    cuDeviceGetDefaultMemPool(&pool, device);
    CALL(step, cuMemPoolTrimTo, pool, 0);
    CALL(step, cuDeviceGraphMemTrim, device);
  }
}

void Program::peaks_look() {
  for (int device = 0; device < kDevices; ++device) {
    const std::uint64_t peak = Accounts::get().peak(device);
    const std::size_t quota = limit_.quota[device];
    const std::uint64_t allowed = quota + limit_.step_most + limit_.unasked_sum;
    if (quota == 0 || peak <= allowed) continue;
    printf("end FAULT: GPU %d held %llu bytes, the quota is %zu, and %zu and %zu may be beyond\n",
           device, static_cast<unsigned long long>(peak), quota, limit_.step_most,
           limit_.unasked_sum);
    faulty_ = true;
  }
}

void Program::end() {
  Random random(seed_, 3);
  make(0, "end", workers_[0], random, [this](Step& step) { all_free(step); });
  rest(0);
  make(0, "ended", workers_[0], random, [this](Step& step) {
    for (std::size_t i = kDevices; i < world_.contexts.size(); ++i)
      if (world_.contexts[i].live) CALL(step, cuCtxDestroy, world_.contexts[i].handle);
    for (int device = 0; device < kDevices; ++device)
      while (world_.contexts[static_cast<std::size_t>(device)].retained-- > 0)
        CALL(step, cuDevicePrimaryCtxRelease, device);
    CALL(step, cuLibraryUnload, world_.library);
    // What was still in a stream when its context ended.
    for (int device = 0; device < kDevices; ++device) {
      CUmemoryPool pool = nullptr;
      cuDeviceGetDefaultMemPool(&pool, device);
      CALL(step, cuMemPoolTrimTo, pool, 0);
      CALL(step, cuDeviceGraphMemTrim, device);
    }
  });
  peaks_look();
}

std::set<std::size_t> steps_of(const char* list) {
  std::set<std::size_t> steps;
  while (*list != '\0') {
    char* rest = nullptr;
    const std::size_t first = strtoull(list, &rest, 10);
    const std::size_t last = *rest == '-' ? strtoull(rest + 1, &rest, 10) : first;
    for (std::size_t step = first; step <= last; ++step) steps.insert(step);
    list = *rest == ',' ? rest + 1 : rest;
    if (rest == list && *rest != '\0') exit(2);
  }
  return steps;
}

}  // namespace
}  // namespace sluice::test

int main(int argc, char** argv) {
  using namespace sluice::test;
  if (argc < 3) return 2;
  const std::uint64_t seed = strtoull(argv[1], nullptr, 10);
  const std::size_t steps = strtoull(argv[2], nullptr, 10);
  const std::set<std::size_t> without = steps_of(argc > 3 ? argv[3] : "");
  setenv("SOFTGPU_COUNT", "2", 1);
  setenv("SOFTGPU_MEMORY", "4GiB", 1);
  setenv("SOFTGPU_PACING", "0", 1);
  setenv("CUDA_MODULE_LOADING", seed % 2 == 0 ? "LAZY" : "EAGER", 1);
  Program program(seed);
  program.begin();
  for (std::size_t number = 1; number <= steps; ++number) {
    if (!without.contains(number)) program.step(number);
    if (number % 30 == 0) program.rest(number);
  }
  program.end();
  return program.faulty() ? 1 : 0;
}

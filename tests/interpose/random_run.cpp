// See random_run.h.
#include "tests/interpose/random_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace sluice::test {
namespace {

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

// What lies between devices is in programs from this seed on that are alone in their process: what
// one of a smaller seed does stays, whatever is added there.
constexpr std::uint64_t kSeedOfDevices = 10000;

}  // namespace

/// Families are in a program more or less, or not at all.
void Program::kinds_choose(Random& random) {
  StepKinds all;
  for (const auto steps : {memory_steps, pool_steps, virtual_steps, graph_steps, stream_steps,
                           context_steps, module_steps})
    steps(all);
  if (const char* also = getenv("RANDOM_ALSO"); also != nullptr) {
    if (strstr(also, "contents") != nullptr) contents_steps(all);
    world_.routes = strstr(also, "routes") != nullptr;
    if (world_.routes) route_steps(all);
    if (strstr(also, "faults") != nullptr) fault_steps(all);
  }
  const char* families = getenv("RANDOM_FAMILIES");
  std::map<std::string, unsigned> factors;
  for (const StepKind& kind : all) {
    if (!factors.contains(kind.family)) factors[kind.family] = random.of({0u, 1u, 1u, 4u});
  }
  if (seed_ >= kSeedOfDevices && !world_.shared()) {
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
  trace_ += std::to_string(number) + " " + name + step.line + "\n";
  if (world_.programs == 1) trace_print("");
  faulty_ |= step.faulty;
}

void Program::trace_print(const char* prefix) {
  std::size_t begin = 0;
  for (std::size_t end; (end = trace_.find('\n', begin)) != std::string::npos; begin = end + 1)
    printf("%s%.*s\n", prefix, static_cast<int>(end - begin), trace_.c_str() + begin);
  fflush(stdout);
  trace_.clear();
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

void Program::stretch(std::size_t first, std::size_t last, const std::set<std::size_t>& without) {
  const std::function<void()> steps = [&] {
    for (std::size_t number = first; number <= last; ++number)
      if (!without.contains(number)) step(number);
  };
  if (workers_.size() == 1)
    workers_[0].does(steps);
  else
    steps();
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

void Program::captures_end() {
  Random random(seed_, 5);
  make(0, "captures_end", workers_[0], random, [this](Step& step) { captures_end(step); });
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
}

bool peaks_exceeded(const std::deque<Program>& programs) {
  std::size_t step_most = 0, unasked_sum = 0;
  for (const Program& program : programs) {
    step_most += program.limit().step_most;
    unasked_sum += program.limit().unasked_sum;
  }
  bool exceeded = false;
  for (int device = 0; device < kDevices; ++device) {
    const std::uint64_t peak = Accounts::get().peak(device);
    const std::size_t quota = programs.front().limit().quota[device];
    if (quota == 0 || peak <= quota + step_most + unasked_sum) continue;
    printf("0 end FAULT: GPU %d held %llu bytes, the quota is %zu, and %zu and %zu may be beyond\n",
           device, static_cast<unsigned long long>(peak), quota, step_most, unasked_sum);
    exceeded = true;
  }
  return exceeded;
}

}  // namespace sluice::test

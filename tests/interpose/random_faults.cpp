// Steps of random programs: kernels that fault (RANDOM_ALSO has `faults`). Their context is of no
// use from then on, whatever is asked of it, until it ends; the others go on.
#include <algorithm>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

constexpr char kFaulty[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry stray()
{
  .reg .b64 %rd<2>;
  mov.u64 %rd1, 4096;
  st.global.u32 [%rd1], 7;
  ret;
}
.visible .entry trapped()
{
  trap;
}
)";

/// The context to which a step may do harm: of several programs in one process, none has the
/// others'.
ContextSlot* victim(Step& step) {
  // A capture may forbid the wait, and then it is a matter of time which of both is told.
  if (step.world.capturing) return nullptr;
  ContextSlot* slot = step.world.contexts.live_one(step.random);
  if (slot == nullptr) return nullptr;
  const auto number = static_cast<int>(step.world.contexts.number(*slot));
  if (slot->struck || (step.world.shared() && !World::own(number))) return nullptr;
  step.say("c" + std::to_string(number));
  return slot;
}

// In a stream of its own, so that no capture is in the way, and waited for: when a fault shows
// otherwise is a matter of time.
void fault(Step& step) {
  ContextSlot* slot = victim(step);
  if (slot == nullptr || cuCtxPushCurrent(slot->handle) != CUDA_SUCCESS) return;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUstream stream = nullptr;
  const char* const kernel = step.random.of({"stray", "trapped"});
  const CUresult loaded = CALL(step, cuModuleLoadData, &module, kFaulty);
  step.limit.step_most = std::max(step.limit.step_most, kMiBytes);
  if (loaded == CUDA_SUCCESS &&
      CALL(step, cuModuleGetFunction, &function, module, kernel) == CUDA_SUCCESS &&
      CALL(step, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
    CALL(step, cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
    // Whether the fault is known by now is a matter of time.
    for (std::size_t more = step.random.below(3); more > 0; --more)
      (void)cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
    slot->struck = CALL(step, cuStreamSynchronize, stream) != CUDA_SUCCESS;
  }
  if (loaded == CUDA_SUCCESS) CALL(step, cuModuleUnload, module);
  CUcontext popped = nullptr;
  cuCtxPopCurrent(&popped);
}

/// What is asked of a context that was struck.
void struck_ask(Step& step) {
  for (const ContextSlot& slot : step.world.contexts) {
    if (!slot.live || !slot.struck || cuCtxPushCurrent(slot.handle) != CUDA_SUCCESS) continue;
    step.say("c" + std::to_string(step.world.contexts.number(slot)));
    CUdeviceptr address = kUntouched;
    size_t free = 0, total = 0;
    CALL(step, cuMemAlloc, &address, 1 + step.random.bytes());
    CALL(step, cuMemAllocAsync, &address, 1 + step.random.bytes(), nullptr);
    if (address != kUntouched) step.say("changed");
    CALL(step, cuMemGetInfo, &free, &total);
    CALL(step, cuLaunchKernel, reinterpret_cast<CUfunction>(step.world.empty), 1, 1, 1, 1, 1, 1, 0,
         nullptr, nullptr, nullptr);
    CALL(step, cuCtxSynchronize);
    CUcontext popped = nullptr;
    cuCtxPopCurrent(&popped);
  }
}

/// Its end: a primary one is reset.
void struck_end(Step& step) {
  for (ContextSlot& slot : step.world.contexts) {
    if (!slot.live || !slot.struck || !step.random.chance(70)) continue;
    const auto number = static_cast<int>(step.world.contexts.number(slot));
    step.say("c" + std::to_string(number));
    if (step.world.shared()) step.context_leave(slot.handle);
    const CUresult result = World::own(number) ? CALL(step, cuCtxDestroy, slot.handle)
                                               : CALL(step, cuDevicePrimaryCtxReset, number);
    if (result == CUDA_SUCCESS) step.world.context_ended(number);
  }
}

}  // namespace

void fault_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"faults", "fault", 3, fault},
                             {"faults", "struck_ask", 5, struck_ask},
                             {"faults", "struck_end", 8, struck_end}});
}

}  // namespace sluice::test

// Steps of random programs: contexts of both kinds, their ends and limits, modules and libraries.
#include <algorithm>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

/// With what is loaded into every new one.
std::size_t context_bytes(const World& world) {
  std::size_t sum = kContextBytes;
  for (const LibrarySlot& slot : world.libraries) sum += slot.live ? slot.bytes : 0;
  return sum;
}

void context_say(Step& step, const ContextSlot& slot) {
  step.say("c" + std::to_string(step.world.contexts.number(slot)));
}

void context_create(Step& step) {
  ContextSlot* slot = nullptr;
  for (ContextSlot& each : step.world.contexts) {
    if (!each.live && step.world.contexts.number(each) >= kDevices) slot = &each;
  }
  if (slot == nullptr) return;
  const int device = static_cast<int>(step.random.below(kDevices));
  step.stale_forget();
  CUcontext context = untouched<CUcontext>();
  const unsigned flags =
      step.random.chance(5) ? 0x9999u : step.random.of({0u, unsigned{CU_CTX_MAP_HOST}});
  const CUresult result = CALL(step, cuCtxCreate, &context, nullptr, flags, device);
  step.refused(result, device, context_bytes(step.world));
  step.output("context", result, context, untouched<CUcontext>());
  if (result != CUDA_SUCCESS) return;
  *slot = {{true, -1}, context, device, 0};
  context_say(step, *slot);
}

void context_destroy(Step& step) {
  ContextSlot* slot = step.world.contexts.live_one(step.random);
  if (slot == nullptr) return;
  context_say(step, *slot);
  if (step.world.shared() && World::own(static_cast<int>(step.world.contexts.number(*slot))))
    step.context_leave(slot->handle);
  // A primary one is not the program's to destroy.
  if (CALL(step, cuCtxDestroy, slot->handle) == CUDA_SUCCESS)
    step.world.context_ended(static_cast<int>(step.world.contexts.number(*slot)));
}

void context_current(Step& step) {
  ContextSlot* slot = step.random.chance(90) ? step.world.contexts.live_one(step.random) : nullptr;
  const CUcontext context = slot == nullptr ? nullptr : slot->handle;
  if (slot != nullptr) context_say(step, *slot);
  CUcontext popped = untouched<CUcontext>();
  switch (step.random.below(4)) {
    case 0:
    case 1:
      CALL(step, cuCtxSetCurrent, context);
      break;
    case 2:
      CALL(step, cuCtxPushCurrent, context);
      break;
    case 3:
      if (CALL(step, cuCtxPopCurrent, &popped) == CUDA_SUCCESS) step.say(step.name_of(popped));
      break;
  }
}

// A thread without a context makes for a dull program.
void context_back(Step& step) {
  if (step.here() >= 0) return;
  const ContextSlot* slot = step.world.contexts.live_one(step.random);
  if (slot == nullptr) return;
  context_say(step, *slot);
  CALL(step, cuCtxSetCurrent, slot->handle);
}

void context_ask(Step& step) {
  CUdevice device = -1;
  if (CALL(step, cuCtxGetDevice, &device) == CUDA_SUCCESS) step.say(std::to_string(device));
  unsigned flags = 0, version = 0;
  CALL(step, cuCtxGetFlags, &flags);
  const ContextSlot* slot = step.world.contexts.live_one(step.random);
  if (slot != nullptr) CALL(step, cuCtxGetApiVersion, slot->handle, &version);
}

void context_wait(Step& step) { CALL(step, cuCtxSynchronize); }

void primary_look(Step& step, int device) {
  unsigned flags = 0;
  int active = -1;
  if (CALL(step, cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS) return;
  step.say(active != 0 ? "active" : "not active");
  if (active == 0) step.world.context_ended(device);
}

void primary_retain(Step& step) {
  const int device = static_cast<int>(step.random.below(kDevices));
  step.say("of " + std::to_string(device));
  ContextSlot& slot = step.world.contexts[static_cast<std::size_t>(device)];
  CUcontext context = untouched<CUcontext>();
  const CUresult result = CALL(step, cuDevicePrimaryCtxRetain, &context, device);
  step.refused(result, device, context_bytes(step.world));
  step.output("context", result, context, untouched<CUcontext>());
  if (result != CUDA_SUCCESS) return;
  if (!slot.live) slot = {{true, -1}, context, device, slot.retained};
  ++slot.retained;
}

void primary_release(Step& step) {
  const int device = static_cast<int>(step.random.below(kDevices));
  step.say("of " + std::to_string(device));
  ContextSlot& slot = step.world.contexts[static_cast<std::size_t>(device)];
  if (step.world.shared() && slot.retained <= 1) return;
  if (CALL(step, cuDevicePrimaryCtxRelease, device) != CUDA_SUCCESS) return;
  --slot.retained;
  primary_look(step, device);
}

void primary_reset(Step& step) {
  if (step.world.shared()) return;
  const int device = static_cast<int>(step.random.below(kDevices));
  step.say("of " + std::to_string(device));
  if (CALL(step, cuDevicePrimaryCtxReset, device) == CUDA_SUCCESS) step.world.context_ended(device);
  primary_look(step, device);
}

void limit_change(Step& step) {
  if (step.world.shared() && !World::own(step.here())) return;
  // Heap and printf buffer are charged before the device has them: softgpu_limits_test.cpp.
  const CUlimit limit = step.random.of({CU_LIMIT_STACK_SIZE, CU_LIMIT_SHMEM_SIZE});
  const std::size_t value = step.random.of(
      {std::size_t{1024}, std::size_t{2048}, kMiBytes / 1024, std::size_t{1500}, kMiBytes});
  const int device = step.device_here();
  step.say(std::to_string(limit) + " " + std::to_string(value));
  const CUresult result = CALL(step, cuCtxSetLimit, limit, value);
  step.refused(result, device, limit == CU_LIMIT_STACK_SIZE ? value * 2048 * 16 : 0);
  if (limit == CU_LIMIT_STACK_SIZE) {
    step.limit.step_most = std::max(step.limit.step_most, value * 2048 * 16);
  }
  size_t now = 0;
  if (CALL(step, cuCtxGetLimit, &now, limit) == CUDA_SUCCESS) step.say(std::to_string(now));
}

void peer_access(Step& step) {
  const ContextSlot* slot = step.world.contexts.live_one(step.random);
  if (slot == nullptr || (step.world.shared() && !World::own(step.here()))) return;
  context_say(step, *slot);
  if (step.random.chance(60))
    CALL(step, cuCtxEnablePeerAccess, slot->handle, 0);
  else
    CALL(step, cuCtxDisablePeerAccess, slot->handle);
}

// --- code ---

std::string text_of(std::size_t bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 room[" +
         std::to_string(bytes) +
         "];\n.visible .entry first()\n{\n  ret;\n}\n.visible .entry second()\n{\n  ret;\n}\n";
}

std::size_t room_of(Step& step) { return 4 + step.random.bytes() / 4; }

void module_load(Step& step) {
  ModuleSlot* slot = step.world.modules.free_one(step.random);
  if (slot == nullptr) return;
  const std::size_t bytes = room_of(step);
  step.say(std::to_string(bytes));
  const std::string text = step.random.chance(5) ? ".version nonsense" : text_of(bytes);
  CUmodule module = untouched<CUmodule>();
  const int device = step.device_here();
  const CUresult result =
      step.random.chance(70)
          ? CALL(step, cuModuleLoadData, &module, text.c_str())
          : CALL(step, cuModuleLoadDataEx, &module, text.c_str(), 0, nullptr, nullptr);
  step.refused(result, device, bytes + kMiBytes);
  step.limit.step_most = std::max(step.limit.step_most, bytes + kMiBytes);
  step.output("module", result, module, untouched<CUmodule>());
  if (result == CUDA_SUCCESS) *slot = {{true, step.here()}, module, bytes};
}

void module_unload(Step& step) {
  ModuleSlot* slot = step.world.modules.live_one(step.random);
  if (slot == nullptr) return;
  step.say("code " + std::to_string(step.world.modules.number(*slot)));
  if (CALL(step, cuModuleUnload, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

void module_use(Step& step) {
  const ModuleSlot* slot = step.world.modules.live_one(step.random);
  if (slot == nullptr) return;
  step.say("code " + std::to_string(step.world.modules.number(*slot)));
  CUfunction function = untouched<CUfunction>();
  // Wherever it is asked for from.
  const int device =
      slot->context < 0 ? -1 : step.world.contexts[static_cast<std::size_t>(slot->context)].device;
  const char* name = step.random.of({"first", "second", "third"});
  const CUresult found = CALL(step, cuModuleGetFunction, &function, slot->handle, name);
  step.withheld(found, device);
  step.output("function", found, function, untouched<CUfunction>());
  CUdeviceptr address = kUntouched;
  size_t bytes = 0;
  const CUresult variable = CALL(step, cuModuleGetGlobal, &address, &bytes, slot->handle, "room");
  step.withheld(variable, device);
  if (variable == CUDA_SUCCESS) step.say(std::to_string(bytes));
  int registers = 0;
  if (found != CUDA_SUCCESS) return;
  CALL(step, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
  step.withheld(CALL(step, cuFuncLoad, function), device);
  // In the function's own context only: nobody knows when another one's stream will have run it.
  if (step.here() == slot->context && step.capture_of(nullptr) == nullptr)
    CALL(step, cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}

/// There is a device on which its contexts have no room for it.
void library_refused(Step& step, std::size_t bytes) {
  if (!step.limit.exact) return;
  for (int device = 0; device < kDevices; ++device) {
    std::size_t copies = 0;
    for (const ContextSlot& slot : step.world.contexts)
      copies += slot.live && slot.device == device ? 1 : 0;
    const std::size_t quota = step.limit.quota[device];
    if (quota == 0 || Accounts::get().used(device) + copies * (bytes + kMiBytes) > quota) return;
  }
  step.fault("refused, though it fits into all contexts");
}

void library_load(Step& step) {
  LibrarySlot* slot = step.world.libraries.free_one(step.random);
  if (slot == nullptr) return;
  const std::size_t bytes = room_of(step);
  step.say(std::to_string(bytes));
  CUlibrary library = untouched<CUlibrary>();
  const std::string text = text_of(bytes);
  const CUresult result = CALL(step, cuLibraryLoadData, &library, text.c_str(), nullptr, nullptr, 0,
                               nullptr, nullptr, 0);
  // It is loaded into every context there is, or late into any.
  if (result == CUDA_ERROR_OUT_OF_MEMORY) library_refused(step, bytes);
  step.limit.unasked_sum += step.world.programs * step.world.contexts.size() * (bytes + kMiBytes);
  step.output("library", result, library, untouched<CUlibrary>());
  if (result == CUDA_SUCCESS) *slot = {{true, -1}, library, bytes};
}

void library_unload(Step& step) {
  LibrarySlot* slot = step.world.libraries.live_one(step.random);
  if (slot == nullptr) return;
  step.say("library " + std::to_string(step.world.libraries.number(*slot)));
  if (CALL(step, cuLibraryUnload, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

void library_use(Step& step) {
  const LibrarySlot* slot = step.world.libraries.live_one(step.random);
  if (slot == nullptr) return;
  step.say("library " + std::to_string(step.world.libraries.number(*slot)));
  CUkernel kernel = untouched<CUkernel>();
  const int device = step.here() < 0 ? -1 : step.device_here();
  const CUresult found = CALL(step, cuLibraryGetKernel, &kernel, slot->handle,
                              step.random.of({"first", "second", "third"}));
  const std::size_t takes = slot->bytes + kMiBytes;  // what a first use is asked for, at most
  step.refused(found, device, takes);
  if (found != CUDA_SUCCESS) return;
  CUfunction function = nullptr;
  CUdeviceptr address = kUntouched;
  size_t bytes = 0;
  int value = 0;
  switch (step.random.below(4)) {
    case 0:
      step.refused(CALL(step, cuKernelGetFunction, &function, kernel), device, takes);
      break;
    case 1:
      step.refused(CALL(step, cuLibraryGetGlobal, &address, &bytes, slot->handle, "room"), device,
                   takes);
      break;
    case 2:
      CALL(step, cuKernelGetAttribute, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel,
           step.device_here());
      break;
    case 3:
      if (step.here() >= 0 && step.capture_of(nullptr) == nullptr)
        CALL(step, cuLaunchKernel, reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0,
             nullptr, nullptr, nullptr);
      break;
  }
}

}  // namespace

void context_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"contexts", "context_create", 4, context_create},
                             {"contexts", "context_destroy", 3, context_destroy},
                             {"contexts", "context_current", 8, context_current},
                             {"contexts", "context_back", 20, context_back},
                             {"contexts", "context_ask", 2, context_ask},
                             {"contexts", "context_wait", 5, context_wait},
                             {"contexts", "primary_retain", 5, primary_retain},
                             {"contexts", "primary_release", 4, primary_release},
                             {"contexts", "primary_reset", 1, primary_reset},
                             {"contexts", "limit_change", 3, limit_change},
                             {"contexts", "peer_access", 2, peer_access}});
}

void module_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"modules", "module_load", 6, module_load},
                             {"modules", "module_unload", 4, module_unload},
                             {"modules", "module_use", 6, module_use},
                             {"modules", "library_load", 3, library_load},
                             {"modules", "library_unload", 2, library_unload},
                             {"modules", "library_use", 6, library_use}});
}

}  // namespace sluice::test

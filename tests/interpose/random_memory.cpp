// Steps of random programs: memory of every kind that is taken by one call and given back by
// another, arrays, and what is asked about addresses.
#include <algorithm>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

void block_taken(Step& step, CUresult result, CUdeviceptr address, std::size_t bytes,
                 BlockKind kind = BlockKind::kLinear) {
  if (result != CUDA_SUCCESS) return;
  BlockSlot* slot = step.world.blocks.free_one(step.random);
  if (slot == nullptr) {
    CALL(step, cuMemFree, address);
    return;
  }
  *slot = {{true, step.here()}, address, bytes, kind};
  step.say("b" + std::to_string(step.world.blocks.number(*slot)));
}

void allocate(Step& step) {
  const std::size_t bytes = step.random.bytes();
  step.say(std::to_string(bytes));
  CUdeviceptr address = kUntouched;
  const int device = step.device_here();
  const CUresult result = CALL(step, cuMemAlloc, &address, bytes);
  step.refused(result, device, bytes);
  step.output("address", result, address, CUdeviceptr{kUntouched});
  block_taken(step, result, address, bytes);
}

void allocate_wrongly(Step& step) {
  CUdeviceptr address = kUntouched;
  size_t pitch = kUntouched;
  switch (step.random.below(8)) {
    case 0:
      CALL(step, cuMemAlloc, nullptr, 4096);
      break;
    case 1:
      CALL(step, cuMemAlloc, &address, 0);
      break;
    case 2:
      // Above a quota that is the answer, also where a capture forbids the call.
      if (!step.world.capturing) CALL(step, cuMemAlloc, &address, SIZE_MAX - 100);
      break;
    case 3:
      CALL(step, cuMemAllocPitch, &address, &pitch, 0, 10, 4);
      break;
    case 4:
      CALL(step, cuMemAllocPitch, &address, &pitch, 100, 10, 3);
      break;
    case 5:
      CALL(step, cuMemAllocPitch, &address, nullptr, 100, 10, 4);
      break;
    case 6:
      CALL(step, cuMemAllocManaged, &address, 4096, 77);
      break;
    case 7:
      CALL(step, cuMemAllocManaged, &address, 0, CU_MEM_ATTACH_GLOBAL);
      break;
  }
  if (address != kUntouched || pitch != kUntouched) step.say("changed");
}

void allocate_pitch(Step& step) {
  const std::size_t width = 1 + step.random.below(5000), height = 1 + step.random.below(1000);
  step.say(std::to_string(width) + "x" + std::to_string(height));
  CUdeviceptr address = kUntouched;
  size_t pitch = kUntouched;
  const int device = step.device_here();
  const CUresult result =
      CALL(step, cuMemAllocPitch, &address, &pitch, width, height, step.random.of({4u, 8u, 16u}));
  step.refused(result, device, (width + 512) * height);
  step.limit.step_most = std::max(step.limit.step_most, 512 * height);
  step.output("address", result, address, CUdeviceptr{kUntouched});
  if (result == CUDA_SUCCESS) step.say("pitch " + std::to_string(pitch));
  block_taken(step, result, address, pitch * height);
}

void allocate_managed(Step& step) {
  const std::size_t bytes = step.random.bytes();
  step.say(std::to_string(bytes));
  CUdeviceptr address = kUntouched;
  const int device = step.device_here();
  const CUresult result =
      CALL(step, cuMemAllocManaged, &address, bytes,
           step.random.of({CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE}));
  step.refused(result, device, bytes);
  step.output("address", result, address, CUdeviceptr{kUntouched});
  block_taken(step, result, address, bytes, BlockKind::kManaged);
}

void give_back(Step& step) {
  BlockSlot* slot = step.world.blocks.live_one(step.random);
  if (slot == nullptr) return;
  step.say("b" + std::to_string(step.world.blocks.number(*slot)));
  const CUdeviceptr address = slot->address;
  if (CALL(step, cuMemFree, address) != CUDA_SUCCESS) return;
  slot->live = false;
  if (step.random.chance(10) && !step.world.shared()) CALL(step, cuMemFree, address);  // again
}

void give_back_wrongly(Step& step) {
  BlockSlot* slot = step.world.blocks.live_one(step.random);
  switch (step.random.below(4)) {
    case 0:
      CALL(step, cuMemFree, 0);
      break;
    case 1:
      CALL(step, cuMemFree, 0x1234);
      break;
    case 2:
      if (slot != nullptr && slot->bytes > 300) CALL(step, cuMemFree, slot->address + 256);
      break;
    case 3:
      CALL(step, cuMemFreeAsync, 0x1234, step.stream());
      break;
  }
}

void array_create(Step& step) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = 1 + step.random.below(700);
  shape.Height = step.random.below(400);
  shape.Depth = shape.Height == 0 ? 0 : step.random.chance(50) ? 0 : step.random.below(6);
  shape.Format =
      step.random.of({CU_AD_FORMAT_FLOAT, CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_HALF});
  shape.NumChannels = step.random.of({1u, 2u, 4u, 3u});
  ArraySlot* slot = step.world.arrays.free_one(step.random);
  if (slot == nullptr) return;
  CUarray array = untouched<CUarray>();
  const int device = step.device_here();
  CUresult result;
  if (shape.Depth == 0 && step.random.chance(60)) {
    const CUDA_ARRAY_DESCRIPTOR plane{shape.Width, shape.Height, shape.Format, shape.NumChannels};
    result = CALL(step, cuArrayCreate, &array, &plane);
  } else {
    result = CALL(step, cuArray3DCreate, &array, &shape);
  }
  // Rows may be padded.
  step.refused(result, device,
               (shape.Width * 16 + 1024) * (shape.Height + 1) * (shape.Depth + 1) + kChunk);
  step.output("array", result, array, untouched<CUarray>());
  if (result != CUDA_SUCCESS) return;
  *slot = {{true, step.here()}, array};
  step.say("a" + std::to_string(step.world.arrays.number(*slot)));
}

void array_destroy(Step& step) {
  ArraySlot* slot = step.world.arrays.live_one(step.random);
  if (slot == nullptr) return;
  step.say("a" + std::to_string(step.world.arrays.number(*slot)));
  if (CALL(step, cuArrayDestroy, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

void array_ask(Step& step) {
  ArraySlot* slot = step.world.arrays.live_one(step.random);
  if (slot == nullptr) return;
  step.say("a" + std::to_string(step.world.arrays.number(*slot)));
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  if (CALL(step, cuArray3DGetDescriptor, &shape, slot->handle) == CUDA_SUCCESS)
    step.say(std::to_string(shape.Width) + "x" + std::to_string(shape.Height));
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  if (CALL(step, cuArrayGetMemoryRequirements, &needs, slot->handle, step.device_here()) ==
      CUDA_SUCCESS)
    step.say(std::to_string(needs.size));
}

void levels_create(Step& step) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = 1 + step.random.below(300);
  shape.Height = 1 + step.random.below(300);
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = step.random.of({1u, 2u, 4u});
  LevelsSlot* slot = step.world.levels.free_one(step.random);
  if (slot == nullptr) return;
  CUmipmappedArray levels = untouched<CUmipmappedArray>();
  const int device = step.device_here();
  const CUresult result = CALL(step, cuMipmappedArrayCreate, &levels, &shape,
                               static_cast<unsigned>(step.random.below(5)));
  step.refused(result, device, (shape.Width * 16 + 1024) * (shape.Height + 1) * 2 + kChunk);
  step.output("levels", result, levels, untouched<CUmipmappedArray>());
  if (result == CUDA_SUCCESS) *slot = {{true, step.here()}, levels};
}

void levels_destroy(Step& step) {
  LevelsSlot* slot = step.world.levels.live_one(step.random);
  if (slot == nullptr) return;
  if (step.random.chance(40)) {
    CUarray level = nullptr;
    if (CALL(step, cuMipmappedArrayGetLevel, &level, slot->handle, 0) == CUDA_SUCCESS &&
        step.random.chance(50))
      CALL(step, cuArrayDestroy, level);  // is not its own
    return;
  }
  if (CALL(step, cuMipmappedArrayDestroy, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

// What the driver says of an address, its base by the name of the block.
void address_ask(Step& step) {
  BlockSlot* slot = step.world.blocks.live_one(step.random);
  if (slot == nullptr) return;
  step.say("b" + std::to_string(step.world.blocks.number(*slot)));
  const CUdeviceptr inside = slot->address + step.random.below(slot->bytes);
  CUdeviceptr base = kUntouched;
  size_t bytes = kUntouched;
  if (CALL(step, cuMemGetAddressRange, &base, &bytes, inside) == CUDA_SUCCESS)
    step.say((base == slot->address ? "its base, " : "another base, ") + std::to_string(bytes));
  int ordinal = -1;
  unsigned managed = 77;
  CUcontext context = nullptr;
  if (CALL(step, cuPointerGetAttribute, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside) ==
      CUDA_SUCCESS)
    step.say(std::to_string(ordinal));
  if (CALL(step, cuPointerGetAttribute, &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, inside) ==
      CUDA_SUCCESS)
    step.say(std::to_string(managed & 0xFF));
  if (CALL(step, cuPointerGetAttribute, &context, CU_POINTER_ATTRIBUTE_CONTEXT, inside) ==
      CUDA_SUCCESS)
    step.say(step.name_of(context));
}

void memory_ask(Step& step) {
  size_t free = kUntouched, total = kUntouched;
  const CUresult result = CALL(step, cuMemGetInfo, &free, &total);
  if (result == CUDA_SUCCESS && free > total) step.fault("more is free than there is");
  CALL(step, cuDeviceTotalMem, &total, step.device_here());
  CALL(step, cuMemGetInfo, nullptr, &total);
}

std::size_t copied_bytes(const BlockSlot& to, const BlockSlot& from) {
  return std::min({to.bytes, from.bytes, std::size_t{1} << 16});
}
char host_bytes[1 << 16];

/// Copies on the device and settings of it are not waited for by these calls either.
void copy_or_set(Step& step) {
  BlockSlot* to = step.world.blocks.live_one(step.random);
  BlockSlot* from = step.world.blocks.live_one(step.random);
  if (to == nullptr) return;
  const std::size_t bytes = copied_bytes(*to, *from);
  step.say("b" + std::to_string(step.world.blocks.number(*to)));
  if (step.random.chance(30)) {
    CALL(step, cuMemcpyDtoH, host_bytes, to->address, bytes);
    return;
  }
  for (BlockSlot* block : {to, from}) {
    const bool mine = block->context >= 0 && block->context == step.here();
    if (!mine || block->kind == BlockKind::kPooled || block->kind == BlockKind::kGraph) return;
    block->busy = true;
  }
  to->pattern = 0;
  switch (step.random.below(5)) {
    case 0:
      CALL(step, cuMemsetD8, to->address, 1, bytes);
      break;
    case 1:
      CALL(step, cuMemcpyHtoD, to->address, host_bytes, bytes);
      break;
    case 2:
      CALL(step, cuMemcpyDtoD, to->address, from->address, bytes);
      break;
    case 3:
      CALL(step, cuMemcpy, to->address, from->address, bytes);
      break;
    case 4:
      CALL(step, cuMemsetD32, to->address + 1, 1, 1);  // an address of no word
      break;
  }
}

void copy_or_set_async(Step& step) {
  BlockSlot* to = step.world.blocks.live_one(step.random);
  CUstream stream = nullptr;
  if (to == nullptr || !step.stream_for(*to, &stream)) return;
  const std::size_t bytes = copied_bytes(*to, *to);
  step.say("b" + std::to_string(step.world.blocks.number(*to)));
  switch (step.random.below(3)) {
    case 0:
      CALL(step, cuMemsetD8Async, to->address, 1, bytes, stream);
      break;
    case 1:
      CALL(step, cuMemcpyDtoDAsync, to->address, to->address + bytes / 2, bytes / 2, stream);
      break;
    case 2:
      CALL(step, cuMemcpyHtoDAsync, to->address, host_bytes, bytes, stream);
      break;
  }
}

void host_memory(Step& step) {
  void* p = untouched<void*>();
  const CUresult result = step.random.chance(50)
                              ? CALL(step, cuMemAllocHost, &p, step.random.bytes())
                              : CALL(step, cuMemHostAlloc, &p, step.random.bytes(), 0);
  step.output("host", result, p, untouched<void*>());
  if (result == CUDA_SUCCESS) CALL(step, cuMemFreeHost, p);
}

void export_block(Step& step) {
  BlockSlot* slot = step.world.blocks.live_one(step.random);
  if (slot == nullptr || step.world.movable) return;
  step.say("b" + std::to_string(step.world.blocks.number(*slot)));
  CUipcMemHandle handle{};
  if (CALL(step, cuIpcGetMemHandle, &handle, slot->address) != CUDA_SUCCESS) return;
  CUdeviceptr opened = kUntouched;  // its own process may not
  CALL(step, cuIpcOpenMemHandle, &opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

}  // namespace

void memory_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"memory", "allocate", 10, allocate},
                             {"memory", "allocate_pitch", 4, allocate_pitch},
                             {"memory", "allocate_managed", 4, allocate_managed},
                             {"memory", "allocate_wrongly", 3, allocate_wrongly},
                             {"memory", "give_back", 14, give_back},
                             {"memory", "give_back_wrongly", 3, give_back_wrongly},
                             {"memory", "address_ask", 4, address_ask},
                             {"memory", "memory_ask", 3, memory_ask},
                             {"memory", "copy_or_set", 10, copy_or_set},
                             {"memory", "copy_or_set_async", 6, copy_or_set_async},
                             {"memory", "host_memory", 1, host_memory},
                             {"memory", "export_block", 2, export_block},
                             {"arrays", "array_create", 5, array_create},
                             {"arrays", "array_destroy", 5, array_destroy},
                             {"arrays", "array_ask", 1, array_ask},
                             {"arrays", "levels_create", 2, levels_create},
                             {"arrays", "levels_destroy", 3, levels_destroy}});
}

}  // namespace sluice::test

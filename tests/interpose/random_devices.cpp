// Steps of random programs that lie between devices: copies from one to the other, what managed
// memory is told of them, memory that comes back by another name, and anything at all with another
// context current for its length.
#include <unistd.h>

#include <algorithm>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

/// Work between them uses both, and the other one's context may end before it has been done: then
/// it is waited for.
void copy_between(Step& step) {
  BlockSlot* to = step.world.blocks.live_one(step.random);
  BlockSlot* from = step.world.blocks.live_one(step.random);
  CUstream stream = nullptr;
  if (to == nullptr || from->context < 0 || from->kind == BlockKind::kPooled ||
      from->kind == BlockKind::kGraph || !step.stream_for(*to, &stream))
    return;
  from->busy = true;
  step.say("b" + std::to_string(step.world.blocks.number(*to)) + " from b" +
           std::to_string(step.world.blocks.number(*from)));
  const std::size_t bytes = std::min({to->bytes, from->bytes, std::size_t{1} << 16});
  const CUcontext to_context = step.world.contexts[static_cast<std::size_t>(to->context)].handle,
                  from_context =
                      step.world.contexts[static_cast<std::size_t>(from->context)].handle;
  switch (step.random.below(4)) {
    case 0:
      CALL(step, cuMemcpyPeerAsync, to->address, to_context, from->address, from_context, bytes,
           stream);
      break;
    case 1:
      CALL(step, cuMemcpyAsync, to->address, from->address, bytes, stream);
      break;
    case 2:
      CALL(step, cuMemcpyDtoDAsync, to->address, from->address, bytes, stream);
      break;
    case 3:  // of the wrong contexts
      CALL(step, cuMemcpyPeerAsync, to->address, from_context, from->address, to_context, bytes,
           stream);
      break;
  }
  if (step.capture_of(stream) == nullptr) CALL(step, cuStreamSynchronize, stream);
}

void peer_ask(Step& step) {
  const int device = static_cast<int>(step.random.below(kDevices));
  int can = -1;
  if (CALL(step, cuDeviceCanAccessPeer, &can, device, 1 - device) == CUDA_SUCCESS)
    step.say(std::to_string(can));
  const ContextSlot* slot = step.world.contexts.live_one(step.random);
  if (slot == nullptr) return;
  step.say("c" + std::to_string(step.world.contexts.number(*slot)));
  if (step.random.chance(70))
    CALL(step, cuCtxEnablePeerAccess, slot->handle, 0);
  else
    CALL(step, cuCtxDisablePeerAccess, slot->handle);
}

CUmemLocation place_any(Step& step) {
  if (step.random.chance(20)) return {CU_MEM_LOCATION_TYPE_HOST, {0}};
  return {CU_MEM_LOCATION_TYPE_DEVICE,
          {step.random.chance(3) ? 55 : static_cast<int>(step.random.below(kDevices))}};
}

/// Of managed memory; of other memory it is refused.
void managed_place(Step& step) {
  BlockSlot* block = nullptr;
  for (int i = 0; i < 8 && (block == nullptr || block->kind != BlockKind::kManaged); ++i)
    block = step.world.blocks.live_one(step.random);
  CUstream stream = nullptr;
  if (block == nullptr || !step.stream_for(*block, &stream)) return;
  step.say("b" + std::to_string(step.world.blocks.number(*block)));
  const CUmemLocation place = place_any(step);
  step.say(std::to_string(place.type) + " " + std::to_string(place.id));
  if (step.random.chance(40))
    CALL(step, cuMemAdvise, block->address, block->bytes,
         step.random.of({CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY,
                         CU_MEM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY}),
         place);
  const std::size_t bytes = step.random.chance(80) ? block->bytes : block->bytes / 2;
  CALL(step, cuMemPrefetchAsync, block->address, bytes, place, 0, stream);
  int last = 77;
  if (CALL(step, cuMemRangeGetAttribute, &last, sizeof last,
           CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, block->address,
           block->bytes) == CUDA_SUCCESS)
    step.say(std::to_string(last));
}

// --- memory by another name ---

void import_external(Step& step) {
  PieceSlot* from = step.world.pieces.live_one(step.random);
  ImportSlot* to = step.world.imports.free_one(step.random);
  if (from == nullptr || to == nullptr) return;
  step.say("m" + std::to_string(step.world.pieces.number(*from)));
  int file = -1;
  if (CALL(step, cuMemExportToShareableHandle, &file, from->handle,
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
    return;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = file;
  what.size = step.random.chance(90) ? from->bytes : from->bytes + kChunk;
  CUexternalMemory memory = untouched<CUexternalMemory>();
  const CUresult result = CALL(step, cuImportExternalMemory, &memory, &what);
  step.withheld(result, from->device);
  step.limit.unasked_sum += from->bytes;
  step.output("import", result, memory, untouched<CUexternalMemory>());
  if (result != CUDA_SUCCESS) {
    close(file);  // else it is the driver's
    return;
  }
  *to = {{true, -1}, memory, from->bytes, from->device};
  step.say("i" + std::to_string(step.world.imports.number(*to)));
  if (step.random.chance(40) && CALL(step, cuMemRelease, from->handle) == CUDA_SUCCESS)
    from->live = false;
}

void import_map(Step& step) {
  ImportSlot* import = step.world.imports.live_one(step.random);
  BlockSlot* slot = step.world.blocks.free_one(step.random);
  if (import == nullptr || slot == nullptr) return;
  step.say("i" + std::to_string(step.world.imports.number(*import)));
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC what{};
  what.offset = step.random.chance(70) ? 0 : import->bytes / 2;
  what.size = step.random.chance(50) ? import->bytes / 2 : import->bytes;
  CUdeviceptr address = kUntouched;
  const CUresult result =
      CALL(step, cuExternalMemoryGetMappedBuffer, &address, import->handle, &what);
  step.withheld(result, import->device);
  step.output("address", result, address, CUdeviceptr{kUntouched});
  if (result != CUDA_SUCCESS) return;
  *slot = {{true, step.here()}, address, what.size, BlockKind::kPooled};
  step.say("b" + std::to_string(step.world.blocks.number(*slot)));
}

void import_end(Step& step) {
  ImportSlot* import = step.world.imports.live_one(step.random);
  if (import == nullptr) return;
  step.say("i" + std::to_string(step.world.imports.number(*import)));
  if (CALL(step, cuDestroyExternalMemory, import->handle) == CUDA_SUCCESS) import->live = false;
}

// --- anything, with another context current ---

void elsewhere(Step& step) {
  static const StepKinds kinds = [] {
    StepKinds all;
    for (const auto steps : {memory_steps, pool_steps, graph_steps, module_steps}) steps(all);
    return all;
  }();
  const ContextSlot* slot = step.world.contexts.live_one(step.random);
  if (slot == nullptr) return;
  step.say("c" + std::to_string(step.world.contexts.number(*slot)));
  if (CALL(step, cuCtxPushCurrent, slot->handle) != CUDA_SUCCESS) return;
  unsigned weights = 0;
  for (const StepKind& kind : kinds) weights += kind.weight;
  auto chosen = static_cast<unsigned>(step.random.below(weights));
  const StepKind* kind = kinds.data();
  while (chosen >= kind->weight) chosen -= kind++->weight;
  step.say(std::string("(") + kind->name);
  kind->make(step);
  CUcontext popped = nullptr;
  cuCtxPopCurrent(&popped);
  step.say(")");
}

}  // namespace

void device_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"devices", "copy_between", 6, copy_between},
                             {"devices", "peer_ask", 3, peer_ask},
                             {"devices", "managed_place", 6, managed_place},
                             {"devices", "import_external", 3, import_external},
                             {"devices", "import_map", 4, import_map},
                             {"devices", "import_end", 2, import_end},
                             {"devices", "elsewhere", 20, elsewhere}});
}

}  // namespace sluice::test

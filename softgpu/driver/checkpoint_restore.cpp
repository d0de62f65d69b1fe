// Restore of this process, on its own GPUs or on others; see checkpoint.h. Nothing of the process
// changes until everything has been taken on all of the target devices.
#include <algorithm>
#include <cstring>

#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/checkpoint_state.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

using device::Segment;

/// Where each GPU of the process goes.
struct Move {
  Gpu* gpu = nullptr;
  Segment* to = nullptr;
  std::uint32_t client = device::kNone;  // there
};

bool is(const Segment& segment, const CUuuid& uuid) {
  return std::memcmp(segment.uuid, uuid.bytes, sizeof segment.uuid) == 0;
}

const CUcheckpointGpuPair* pair_find(const CheckpointRequest& request, const Gpu& gpu) {
  for (std::uint32_t i = 0; i < request.pair_count; ++i)
    if (is(gpu.model.settings(), request.pairs[i].oldUuid)) return &request.pairs[i];
  return nullptr;
}

Segment* segment_find(const CUuuid& uuid) {
  for (Segment* segment : Process::get().segments())
    if (is(*segment, uuid)) return segment;
  return nullptr;
}

bool goes(const std::vector<Move>& moves, const Segment* segment) {
  return std::any_of(moves.begin(), moves.end(), [&](const Move& m) { return m.to == segment; });
}

/// A GPU that no pair names stays, or takes the place of the one that comes to it.
bool rest_place(std::vector<Move>& moves) {
  for (Move& move : moves) {
    if (move.to != nullptr) continue;
    Segment* own = move.gpu->model.segment();
    for (const Move& other : moves)
      if (goes(moves, own) && !goes(moves, other.gpu->model.segment()))
        own = other.gpu->model.segment();
    if (goes(moves, own)) return false;
    move.to = own;
  }
  return true;
}

/// Every checkpointed GPU has a target of its own. False: the pairs do not say so.
bool moves_plan(const CheckpointRequest& request, std::vector<Move>& moves) {
  for (const auto& gpu : Process::get().gpus()) {
    Move move{gpu.get(), nullptr, device::kNone};
    if (request.pair_count == 0) move.to = gpu->model.segment();
    if (const CUcheckpointGpuPair* pair = pair_find(request, *gpu)) {
      move.to = segment_find(pair->newUuid);
      if (move.to == nullptr || goes(moves, move.to)) return false;
    }
    if (move.to == nullptr && gpu->client != device::kNone) return false;
    moves.push_back(move);
  }
  return rest_place(moves);
}

bool move_take(Move& move) {
  Gpu& gpu = *move.gpu;
  if (gpu.client == device::kNone) return true;
  if (move.to == gpu.model.segment()) {
    if (!gpu.model.client_resume(gpu.client)) return false;
    move.client = gpu.client;
    return true;
  }
  device::Device to(move.to);
  move.client = to.client_open();
  if (move.client == device::kNone) return false;
  return device::Device::client_move(gpu.model, gpu.client, to, move.client) &&
         to.client_resume(move.client);
}

void move_undo(const Move& move) {
  if (move.client == device::kNone) return;
  if (move.to == move.gpu->model.segment())
    move.gpu->model.client_suspend(move.client);
  else
    device::Device(move.to).client_close(move.client);
}

void move_commit(Move& move) {
  Gpu& gpu = *move.gpu;
  if (move.to == gpu.model.segment()) return;
  if (gpu.client != device::kNone) gpu.model.client_close(gpu.client);
  const std::lock_guard lock(gpu.mutex);
  gpu.model.rebind(move.to);
  gpu.client = move.client;
  for (const ContextRef& context : Registry<Context>::all().list()) {
    if (&context->gpu != &gpu) continue;
    for (const StreamRef& stream : context->streams_all()) stream->queue_forget();
    context->alarm_watch();
  }
}

}  // namespace

CUresult checkpoint_restore(const CheckpointRequest& request) {
  CheckpointState& progress = checkpoint_progress();
  if (progress.state != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  if (progress.broken) return CUDA_ERROR_OPERATING_SYSTEM;
  std::vector<Move> moves;
  if (!moves_plan(request, moves)) return CUDA_ERROR_INVALID_VALUE;
  for (Move& move : moves) {
    if (move_take(move)) continue;
    for (const Move& taken : moves) move_undo(taken);
    progress.broken = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (Move& move : moves) move_commit(move);
  progress.state = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver

// See random_world.h.
#include "tests/interpose/random_world.h"

#include "softgpu/device/directory.h"

namespace sluice::test {

std::uint64_t Random::next() {
  state_ += 0x9E3779B97F4A7C15ull;
  std::uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

std::size_t Random::bytes() {
  const std::size_t most = std::size_t{1} << (4 + below(21));  // 16 bytes to 16 MiB
  return chance(30) ? most : 1 + below(most);
}

namespace {

template <class List>
void ended(List& list, int context) {
  for (auto& slot : list) {
    if (slot.context == context) slot.live = false;
  }
}

}  // namespace

void World::context_ended(int context) {
  contexts[static_cast<std::size_t>(context)].live = false;
  contexts[static_cast<std::size_t>(context)].struck = false;
  ended(streams, context);
  ended(events, context);
  ended(blocks, context);
  ended(arrays, context);
  ended(levels, context);
  ended(modules, context);
  const auto spoil = [&](GraphDeeds& deeds) {
    if ((deeds.contexts >> context & 1) != 0) deeds.spoiled = true;
  };
  for (GraphSlot& slot : graphs) spoil(slot.deeds);
  for (ExecSlot& slot : execs) spoil(slot.deeds);
  for (auto& [id, deeds] : captures) spoil(deeds);
}

std::size_t GraphDeeds::chunk_bytes(int device) const {
  std::size_t sum = 0;
  for (const Allocation& allocation : allocations) {
    if (allocation.device < 0 || allocation.device == device)
      sum += (allocation.bytes + kChunk - 1) / kChunk * kChunk;
  }
  return sum;
}

CUresult Step::note(const char* call, CUresult result) {
  const char* text = nullptr;
  cuGetErrorName(result, &text);
  say(std::string(call) + "=" + (text == nullptr ? std::to_string(result) : text + 5));
  return result;
}

void Step::refused(CUresult result, int device, std::size_t bytes) {
  if (result != CUDA_ERROR_OUT_OF_MEMORY || device < 0 || !limit.exact) return;
  const std::size_t quota = limit.quota[device];
  const std::uint64_t used = Accounts::get().used(device);
  if (quota != 0 && used + bytes <= quota)
    fault("refused, though it fits: " + std::to_string(used) + " used and " +
          std::to_string(bytes) + " more of " + std::to_string(quota) + " of GPU " +
          std::to_string(device));
}

int Step::here() {
  CUcontext current = nullptr;
  if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr) return -1;
  for (const ContextSlot& slot : world.contexts) {
    if (slot.live && slot.handle == current) return static_cast<int>(world.contexts.number(slot));
  }
  return -1;
}

int Step::device_here() {
  const int context = here();
  return context < 0 ? 0 : world.contexts[static_cast<std::size_t>(context)].device;
}

int Step::device_of(CUstream stream) {
  for (const StreamSlot& slot : world.streams) {
    if (slot.live && slot.handle == stream && slot.context >= 0)
      return world.contexts[static_cast<std::size_t>(slot.context)].device;
  }
  const bool special =
      stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  return special && here() >= 0 ? device_here() : -1;
}

std::string Step::name_of(CUcontext context) const {
  if (context == nullptr) return "none";
  for (const ContextSlot& slot : world.contexts) {
    if (slot.live && slot.handle == context)
      return "c" + std::to_string(world.contexts.number(slot));
  }
  return "unknown";
}

void Step::stale_forget() {
  threads.everywhere([this] {
    std::vector<CUcontext> kept;
    CUcontext context = nullptr;
    while (cuCtxPopCurrent(&context) == CUDA_SUCCESS) {
      bool primary = false;
      for (std::size_t i = 0; i < kDevices; ++i) primary |= world.contexts[i].handle == context;
      if (primary || name_of(context) != "unknown") kept.push_back(context);
    }
    for (; !kept.empty(); kept.pop_back()) cuCtxPushCurrent(kept.back());
  });
}

void Step::context_leave(CUcontext context) {
  threads.everywhere([context] {
    std::vector<CUcontext> kept;
    CUcontext popped = nullptr;
    while (cuCtxPopCurrent(&popped) == CUDA_SUCCESS) {
      if (popped != context) kept.push_back(popped);
    }
    for (; !kept.empty(); kept.pop_back()) cuCtxPushCurrent(kept.back());
  });
}

namespace {

/// The id of the capture that the stream is in, 0: of none. The question needs a context.
cuuint64_t capture_id(CUstream stream, CUcontext context) {
  const bool pushed = context != nullptr && cuCtxPushCurrent(context) == CUDA_SUCCESS;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUresult result =
      cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr);
  if (pushed) cuCtxPopCurrent(&context);
  return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

}  // namespace

int Step::context_of(CUstream stream) {
  for (const StreamSlot& slot : world.streams) {
    if (slot.live && slot.handle == stream) return slot.context;
  }
  return here();
}

GraphDeeds* Step::capture_of(CUstream stream) {
  stream = null_named(stream);
  int context = -1;
  for (const StreamSlot& slot : world.streams) {
    if (slot.live && slot.handle == stream) context = slot.context;
  }
  const auto place = static_cast<std::size_t>(context);
  const cuuint64_t id = capture_id(stream, context < 0 ? nullptr : world.contexts[place].handle);
  if (id == 0) return nullptr;
  GraphDeeds& deeds = world.captures[id];
  if (context >= 0) deeds.contexts |= 1u << context;
  return &deeds;
}

CUstream Step::stream() {
  const StreamSlot* slot = random.chance(75) ? world.streams.live_one(random) : nullptr;
  if (slot != nullptr) {
    say("on s" + std::to_string(world.streams.number(*slot)));
    return slot->handle;
  }
  const CUstream handle =
      random.of({CUstream{}, CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD});
  say(handle == nullptr ? "on null" : handle == CU_STREAM_LEGACY ? "on legacy" : "on thread's");
  return handle;
}

bool Step::stream_for(BlockSlot& block, CUstream* stream) {
  if (block.kind != BlockKind::kLinear && block.kind != BlockKind::kManaged) return false;
  const StreamSlot* slot = world.streams.live_one(random);
  if (slot != nullptr && slot->context == block.context) {
    say("on s" + std::to_string(world.streams.number(*slot)));
    *stream = slot->handle;
  } else if (here() == block.context) {
    say("on null");
    *stream = nullptr;
  } else {
    return false;
  }
  block.busy = true;
  block.pattern = 0;
  // A graph that has such a node is not launched: the block may be gone by then.
  if (GraphDeeds* deeds = capture_of(*stream); deeds != nullptr) deeds->spoiled = true;
  return true;
}

Accounts& Accounts::get() {
  static Accounts accounts;
  return accounts;
}

namespace {

softgpu::device::Snapshot snapshot(std::vector<std::unique_ptr<softgpu::device::Device>>& devices,
                                   int device) {
  if (devices.empty()) {
    std::string error;
    for (auto* segment : softgpu::device::directory_open(getenv("SOFTGPU_DIR"), error))
      devices.push_back(std::make_unique<softgpu::device::Device>(segment));
  }
  return devices.at(static_cast<std::size_t>(device))->snapshot();
}

}  // namespace

std::uint64_t Accounts::used(int device) { return snapshot(devices_, device).used_bytes; }
std::uint64_t Accounts::peak(int device) { return snapshot(devices_, device).peak_bytes; }

}  // namespace sluice::test

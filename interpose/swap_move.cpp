// Moving a GPU's movable memory to the host and back, as the orders of a hold say (swap.h). The
// helper's thread does it, when nothing of the program touches the device. Host memory is plain and
// nameless: whatever ends the process ends it too.
//
// Out: copy everything, unmap everything, and only then give memory back: until the last of the
// first two steps has gone well nothing is lost. In: take all memory, then copy; the host's copy
// goes last.
#include <string.h>
#include <sys/mman.h>

#include "broker/protocol/messages.h"
#include "interpose/swap_state.h"

namespace sluice::interpose {
namespace {

constexpr uint64_t kPieceBytes = 8 << 20;
constexpr unsigned kSlots = 4;  // pieces under way: the device is not kept waiting by a busy host
constexpr CUresult kStopped = CUDA_ERROR_DEINITIALIZED;  // the process is ending

enum class Way : bool { kOut, kIn };

bool is_on(const Block& block, int gpu) { return device_gpu(block.device) == gpu; }
bool goes_out(const Block& block, int gpu) {
  return is_on(block, gpu) && block.mapped && !block.pinned && !block.is_out();
}
bool comes_in(const Block& block, int gpu) { return is_on(block, gpu) && block.is_out(); }

// Copies piece by piece through a few page-locked buffers, so that the device copies some while the
// host copies another. Without them, one piece after the other.
class Copier {
 public:
  explicit Copier(Way way) : way_(way) {
    for (Slot& slot : slots_) staged_ = staged_ && begin(slot);
  }
  ~Copier() {
    for (Slot& slot : slots_) {
      if (slot.stream != nullptr) driver.cuStreamDestroy_v2(slot.stream);
      if (slot.buffer != nullptr) driver.cuMemFreeHost(slot.buffer);
    }
  }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  CUresult copy(const Block& block, char* host, const uint32_t* stop) {
    for (uint64_t at = 0; at < block.bytes; at += kPieceBytes) {
      if (load_acquire(*stop) != 0) return kStopped;
      const uint64_t left = block.bytes - at;
      const CUresult result =
          piece(block.address + at, host + at, left < kPieceBytes ? left : kPieceBytes);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }
  /// Before the copies are believed.
  CUresult finish() {
    CUresult result = CUDA_SUCCESS;
    for (Slot& slot : slots_) {
      const CUresult one = finish(slot);
      if (result == CUDA_SUCCESS) result = one;
    }
    return result;
  }

 private:
  struct Slot {
    CUstream stream;
    void* buffer;
    char* host;
    uint64_t bytes;  // under way; 0 = none
  };

  static bool begin(Slot& slot) {
    return driver.cuStreamCreate(&slot.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           driver.cuMemHostAlloc(&slot.buffer, kPieceBytes, 0) == CUDA_SUCCESS;
  }
  CUresult finish(Slot& slot) {
    if (slot.bytes == 0) return CUDA_SUCCESS;
    const CUresult result = driver.cuStreamSynchronize(slot.stream);
    if (result == CUDA_SUCCESS && way_ == Way::kOut) memcpy(slot.host, slot.buffer, slot.bytes);
    slot.bytes = 0;
    return result;
  }
  CUresult piece(CUdeviceptr device, char* host, uint64_t bytes) {
    if (!staged_) {
      return way_ == Way::kOut ? driver.cuMemcpyDtoH_v2(host, device, bytes)
                               : driver.cuMemcpyHtoD_v2(device, host, bytes);
    }
    Slot& slot = slots_[next_++ % kSlots];
    CUresult result = finish(slot);
    if (result != CUDA_SUCCESS) return result;
    if (way_ == Way::kOut) {
      result = driver.cuMemcpyDtoHAsync_v2(slot.buffer, device, bytes, slot.stream);
    } else {
      memcpy(slot.buffer, host, bytes);
      result = driver.cuMemcpyHtoDAsync_v2(device, slot.buffer, bytes, slot.stream);
    }
    if (result != CUDA_SUCCESS) return result;
    slot.host = host;
    slot.bytes = bytes;
    return CUDA_SUCCESS;
  }

  Way way_;
  bool staged_ = true;
  unsigned next_ = 0;
  Slot slots_[kSlots] = {};
};

// By unified addressing any context of the device can copy what is mapped for it.
template <class Which>
CUresult context_choose(Which which) {
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    const Block& block = swap_blocks[i];
    if (block.context == nullptr || !which(block)) continue;
    return driver.cuCtxSetCurrent(static_cast<CUcontext>(const_cast<void*>(block.context)));
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

template <class Which>
uint64_t bytes_sum(Which which) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    if (which(swap_blocks[i])) bytes += swap_blocks[i].bytes;
  }
  return bytes;
}

uint64_t bytes_out(int gpu) {
  return bytes_sum([=](const Block& b) { return is_on(b, gpu) && !b.is_on_device(); });
}

void swapped_store(int gpu) { process.account(gpu).swapped_bytes.store(bytes_out(gpu)); }

// Host memory for one order: promised, so that there is no surprise half-way, and not a child's.
char* host_take(uint64_t bytes) {
  void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (host == MAP_FAILED) return nullptr;
  madvise(host, bytes, MADV_DONTFORK);
  madvise(host, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(host);
}

// `host` has the contents, and the driver has the memory still: puts it back behind its addresses.
void map_again(Block& block, char* host) {
  if (block_map(block) == CUDA_SUCCESS) {
    munmap(host, block.bytes);
  } else {
    block.host = host;  // out, as it turned out
  }
}

CUresult copy_out(int gpu, char* host, const uint32_t* stop) {
  Copier copier(Way::kOut);
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < swap_blocks.count() && result == CUDA_SUCCESS; ++i) {
    const Block& block = swap_blocks[i];
    if (!goes_out(block, gpu)) continue;
    result = copier.copy(block, host, stop);
    host += block.bytes;
  }
  const CUresult finished = copier.finish();
  return result != CUDA_SUCCESS ? result : finished;
}

// Unmaps all that goes out, and says where the contents of each are. On failure the ones before are
// mapped again.
CUresult unmap_all(int gpu, char* host, uint64_t bytes) {
  CUresult result = CUDA_SUCCESS;
  uint32_t end = 0;
  for (; end < swap_blocks.count(); ++end) {
    Block& block = swap_blocks[end];
    if (!goes_out(block, gpu)) continue;
    result = block_unmap(block);
    if (result != CUDA_SUCCESS) break;
    block.host = host;
    host += block.bytes;
    bytes -= block.bytes;
  }
  if (result == CUDA_SUCCESS) return result;
  munmap(host, bytes);
  for (uint32_t i = 0; i < end; ++i) {
    Block& block = swap_blocks[i];
    char* contents = block.host;
    if (!comes_in(block, gpu) || block.mapped || !block.is_on_device()) continue;
    block.host = nullptr;
    map_again(block, contents);
  }
  return result;
}

// Gives the memory of all that is unmapped back. What the driver keeps is mapped again.
SwapMoved release_all(int gpu) {
  SwapMoved moved{CUDA_SUCCESS, 0};
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    Block& block = swap_blocks[i];
    if (!comes_in(block, gpu) || !block.is_on_device()) continue;
    const CUresult result = block_release(block);
    if (result == CUDA_SUCCESS) {
      moved.bytes += block.bytes;
      continue;
    }
    moved.result = result;
    char* contents = block.host;
    block.host = nullptr;
    map_again(block, contents);
  }
  // With some of it gone the order counts as carried out.
  if (moved.bytes != 0) moved.result = CUDA_SUCCESS;
  return moved;
}

void give_back(Block& block) {
  if (block.mapped && block_unmap(block) != CUDA_SUCCESS) return;
  if (block.is_on_device()) (void)block_release(block);
}

CUresult fill_all(int gpu) {
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    Block& block = swap_blocks[i];
    if (!comes_in(block, gpu)) continue;
    const CUresult result = block.is_on_device() ? block_map(block) : block_fill(block);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult copy_in(int gpu, const uint32_t* stop) {
  Copier copier(Way::kIn);
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < swap_blocks.count() && result == CUDA_SUCCESS; ++i) {
    const Block& block = swap_blocks[i];
    if (comes_in(block, gpu)) result = copier.copy(block, block.host, stop);
  }
  const CUresult finished = copier.finish();
  return result != CUDA_SUCCESS ? result : finished;
}

}  // namespace

SwapMoved swap_out(int gpu, const uint32_t* stop) {
  const LockScope scope(swap_lock);
  const auto which = [=](const Block& b) { return goes_out(b, gpu); };
  const uint64_t bytes = bytes_sum(which);
  if (bytes == 0) return {CUDA_SUCCESS, 0};
  CUresult result = context_choose(which);
  if (result != CUDA_SUCCESS) return {result, 0};
  char* host = host_take(bytes);
  if (host == nullptr) return {protocol::kMovedNoHostMemory, 0};
  result = copy_out(gpu, host, stop);
  if (result != CUDA_SUCCESS) {
    munmap(host, bytes);
    return {result, 0};
  }
  result = unmap_all(gpu, host, bytes);
  if (result != CUDA_SUCCESS) return {result, 0};
  const SwapMoved moved = release_all(gpu);
  swapped_store(gpu);
  return moved;
}

SwapMoved swap_in(int gpu, const uint32_t* stop) {
  const LockScope scope(swap_lock);
  const auto which = [=](const Block& b) { return comes_in(b, gpu); };
  const uint64_t bytes = bytes_sum(which);
  if (bytes == 0) return {CUDA_SUCCESS, 0};
  CUresult result = context_choose(which);
  if (result == CUDA_SUCCESS) result = fill_all(gpu);
  if (result == CUDA_SUCCESS) result = copy_in(gpu, stop);
  for (uint32_t i = 0; i < swap_blocks.count(); ++i) {
    Block& block = swap_blocks[i];
    if (!comes_in(block, gpu)) continue;
    if (result != CUDA_SUCCESS) {
      give_back(block);
    } else {
      munmap(block.host, block.bytes);
      block.host = nullptr;
    }
  }
  swapped_store(gpu);
  return {result, result == CUDA_SUCCESS ? bytes : 0};
}

uint64_t swap_bytes_out(int gpu) {
  const LockScope scope(swap_lock);
  return bytes_sum([=](const Block& b) { return comes_in(b, gpu); });
}

uint64_t swap_bytes_out() {
  if (load_acquire(swap_used) == 0) return 0;
  const LockScope scope(swap_lock);
  return bytes_sum([](const Block& b) { return b.is_out(); });
}

}  // namespace sluice::interpose

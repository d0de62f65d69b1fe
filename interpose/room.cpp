// See room.h.
#include "interpose/room.h"

#include "interpose/activity.h"
#include "interpose/captures.h"
#include "interpose/gate.h"

namespace sluice::interpose {
namespace {

constexpr uint64_t kRoomSliceNs = 50'000'000;
// MemoryWant is said again after so many slices: a restarted broker knows nothing of the first.
constexpr int kWantAgainSlices = 20;
// A load of some GiB is on the device for 100 to 300 ms before it is taken back. A program that the
// device has no room for learns so this much later.
constexpr uint64_t kPromiseWaitNs = 400'000'000;
// Between two questions to the driver: the first soon, because most loads are small; later ones so
// far apart that the questions cost the driver nothing.
constexpr uint64_t kRetryMinNs = 1'000'000;
constexpr int kRetryDoublings = 4;  // to 16 ms

// Whether this thread may wait at all. Not while this process captures: another thread may wait for
// the end of that capture, or for this one.
bool may_wait() { return process_mode() == Mode::kActive && load_acquire(captures_active) == 0; }

// Whether a broker may answer.
bool room_may_come() {
  return may_wait() && load_acquire(process.alone) == 0 && load_acquire(process.lost) == 0 &&
         !lease_is_void();
}

// Whether the tenant would have no more than it is guaranteed on the GPU.
bool is_promised(int gpu, uint64_t bytes) {
  const uint64_t total = process.ledger.total(static_cast<uint32_t>(gpu));
  const uint64_t promised = process.entry(gpu).memory_min_bytes;
  return bytes <= promised && total <= promised - bytes;
}

// Waits until the broker has answered since `word`. False: nobody will.
bool answer_wait(int gpu, uint32_t word, uint64_t bytes) {
  const protocol::LeaseEntry& entry = process.entry(gpu);
  const WaitScope told(protocol::WaitReason::kMemory);
  bool answered = false;
  for (int slices = 0; room_may_come(); ++slices) {
    answered = entry.room.load() != word;
    if (answered) break;
    if (slices % kWantAgainSlices == 0) memory_want_say(gpu, word, bytes);
    futex_wait(&entry.room.raw, word, kRoomSliceNs, true);
  }
  return answered;
}

}  // namespace

bool RoomWait::again() {
  const ErrnoGuard guard;
  const int gpu = gpu_;
  gpu_ = -1;
  if (gpu < 0) return false;
  if (room_comes(gpu) || promise_waits(gpu)) return true;
  process.claims->slots[process.slot].refused_full.add(1);
  return false;
}

// Whether it is worth asking the driver once more.
bool RoomWait::room_comes(int gpu) {
  if (!room_may_come()) return false;
  // What came before the first look at the word is no answer to this: ask the driver once more.
  if (rounds_++ == 0) {
    word_ = process.entry(gpu).room.load();
    return true;
  }
  if (rounds_ > 2 && (word_ & protocol::kRoomNone) != 0) return false;
  if (!answer_wait(gpu, word_, bytes_)) return false;
  word_ = process.entry(gpu).room.load();
  return true;
}

// Whether to ask the driver once more for what the tenant is guaranteed. Waits.
bool RoomWait::promise_waits(int gpu) {
  if (!may_wait() || !is_promised(gpu, bytes_)) return false;
  const uint64_t now_ns = clock_now_ns();
  if (until_ns_ == 0) until_ns_ = now_ns + kPromiseWaitNs;
  if (now_ns >= until_ns_) return false;
  const WaitScope told(protocol::WaitReason::kMemory);
  const protocol::LeaseEntry& entry = process.entry(gpu);
  const uint64_t slice_ns = kRetryMinNs
                            << (retries_ < kRetryDoublings ? retries_ : kRetryDoublings);
  ++retries_;
  // A broker that makes room after all ends the wait.
  futex_wait(&entry.room.raw, entry.room.load(), slice_ns, true);
  return true;
}

}  // namespace sluice::interpose

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

// Somebody may answer. Not while this process captures: another thread may wait for the end of that
// capture, or for this one.
bool room_may_come() {
  return process_mode() == Mode::kActive && load_acquire(process.alone) == 0 &&
         load_acquire(process.lost) == 0 && !lease_is_void() && load_acquire(captures_active) == 0;
}

// Waits until the broker has answered since `word`. False: nobody will.
bool answer_wait(int gpu, uint32_t word, uint64_t bytes) {
  const protocol::LeaseEntry& entry = process.entry(gpu);
  const uint64_t start_ns = clock_now_ns();
  const WaitScope told(protocol::WaitReason::kMemory);
  bool answered = false;
  for (int slices = 0; room_may_come(); ++slices) {
    answered = entry.room.load() != word;
    if (answered) break;
    if (slices % kWantAgainSlices == 0) memory_want_say(gpu, word, bytes);
    futex_wait(&entry.room.raw, word, kRoomSliceNs, true);
  }
  gate_wait_tell(gpu, clock_now_ns() - start_ns);
  return answered;
}

}  // namespace

bool RoomWait::again() {
  const ErrnoGuard guard;
  const int gpu = gpu_;
  gpu_ = -1;
  if (gpu < 0) return false;
  if (room_comes(gpu)) return true;
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

}  // namespace sluice::interpose

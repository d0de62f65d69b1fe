// See gate.h. Entering is a store to a word of the thread's own and a load of the gate's; closing
// stores the gate's word and then reads the threads'. Both are sequentially consistent, so that
// one of the two sees the other.
#include "softgpu/driver/gate.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

namespace softgpu::driver {
namespace {

/// Of one thread, and after its end of another. Two threads may share one at exit: it counts.
struct alignas(64) Place {
  std::atomic<int> inside{0};
};

std::atomic<int> closed{0};

/// Never destroyed: threads may call while the process exits.
struct Places {
  std::mutex mutex;
  std::deque<Place> all;
  std::vector<Place*> free;
};

Places& places() {
  static auto* instance = new Places;
  return *instance;
}

/// A thread's place and how deep it is in calls. The pointer outlives the holder, for calls from
/// destructors of other thread-local objects.
thread_local Place* own_place = nullptr;
thread_local int gate_depth = 0;

struct PlaceHolder {
  PlaceHolder() {
    Places& p = places();
    const std::lock_guard lock(p.mutex);
    if (p.free.empty()) {
      own_place = &p.all.emplace_back();
      return;
    }
    own_place = p.free.back();
    p.free.pop_back();
  }
  ~PlaceHolder() {
    Places& p = places();
    const std::lock_guard lock(p.mutex);
    p.free.push_back(own_place);
  }
  PlaceHolder(const PlaceHolder&) = delete;
  PlaceHolder& operator=(const PlaceHolder&) = delete;
};

Place& place() {
  if (own_place == nullptr) {
    static thread_local const PlaceHolder holder;
    (void)holder;
  }
  return *own_place;
}

}  // namespace

Call::Call() {
  if (gate_depth++ > 0) return;
  Place& mine = place();
  for (;;) {
    mine.inside.fetch_add(1);
    if (closed.load() == 0) return;
    mine.inside.fetch_sub(1);
    closed.wait(1);
  }
}

Call::~Call() {
  if (--gate_depth == 0) own_place->inside.fetch_sub(1, std::memory_order_release);
}

void gate_close() { closed.store(1); }

void gate_open() {
  closed.store(0);
  closed.notify_all();
}

bool gate_empty() {
  Places& p = places();
  const std::lock_guard lock(p.mutex);
  for (const Place& at : p.all)
    if (at.inside.load() != 0) return false;
  return true;
}

void gate_exempt() { ++gate_depth; }

void gate_fork_begin() { places().mutex.lock(); }

void gate_fork_parent() { places().mutex.unlock(); }

void gate_fork_child() {
  for (Place& at : places().all) at.inside.store(0);
  closed.store(0);
  places().mutex.unlock();
}

}  // namespace softgpu::driver

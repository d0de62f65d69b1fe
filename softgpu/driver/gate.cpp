// See gate.h. Entering is a store to a word of the thread's own and a load of the gate's; closing
// stores the gate's word and then reads the threads'. Both are sequentially consistent, so that
// one of the two sees the other.
#include "softgpu/driver/gate.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "softgpu/thread_object.h"

namespace softgpu::driver {
namespace {

/// Of one thread, and after its end of another.
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

/// How deep a thread is in calls.
thread_local int gate_depth = 0;

/// Holds a place for one thread.
class PlaceHolder {
 public:
  PlaceHolder() {
    Places& p = places();
    const std::lock_guard lock(p.mutex);
    if (p.free.empty()) {
      place_ = &p.all.emplace_back();
      return;
    }
    place_ = p.free.back();
    p.free.pop_back();
  }
  ~PlaceHolder() {
    Places& p = places();
    const std::lock_guard lock(p.mutex);
    p.free.push_back(place_);
  }
  PlaceHolder(const PlaceHolder&) = delete;
  PlaceHolder& operator=(const PlaceHolder&) = delete;
  Place& place() { return *place_; }

 private:
  Place* place_;
};

Place& own_place() { return ThreadObject<PlaceHolder>::get().place(); }

}  // namespace

Call::Call() {
  if (gate_depth++ > 0) return;
  Place& mine = own_place();
  for (;;) {
    mine.inside.fetch_add(1);
    if (closed.load() == 0) return;
    mine.inside.fetch_sub(1);
    closed.wait(1);
  }
}

Call::~Call() {
  if (--gate_depth == 0) own_place().inside.fetch_sub(1, std::memory_order_release);
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

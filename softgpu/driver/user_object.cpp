// See user_object.h.
#include "softgpu/driver/user_object.h"

#include "softgpu/driver/thread.h"

namespace softgpu::driver {
namespace {

/// Runs destructors one after another, off every thread of the program and of the driver.
class Undertaker {
 public:
  static Undertaker& get() {
    static auto* undertaker = new Undertaker;  // never destroyed: its thread may run at exit
    return *undertaker;
  }
  void take(CUhostFn destroy, void* data) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(destroy, data);
    if (!started_) start_locked();
    changed_.notify_one();
  }

 private:
  void start_locked() {
    started_ = thread_start("softgpu-objects", [this] { run(); }) == 0;
  }
  void run() {
    thread_state().in_callback = true;
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      const auto [destroy, data] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      destroy(data);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<CUhostFn, void*>> waiting_;
  bool started_ = false;
};

}  // namespace

bool UserObject::release(std::uint64_t count) {
  std::uint64_t present = references_;
  do {
    if (present < count) return false;
  } while (!references_.compare_exchange_weak(present, present - count));
  if (present == count) {
    Registry<UserObject>::all().take(this);
    Undertaker::get().take(destroy_, data_);
  }
  return true;
}

UserReferences::~UserReferences() {
  for (const auto& [object, count] : counts_) object->release(count);
}

UserReferences::UserReferences(const UserReferences& other) { add(other); }

bool UserReferences::release(const UserObjectRef& object, std::uint64_t count) {
  const auto owned = counts_.find(object);
  if (owned == counts_.end() || owned->second < count) return false;
  owned->second -= count;
  if (owned->second == 0) counts_.erase(owned);
  return object->release(count);
}

void UserReferences::add(const UserReferences& other) {
  for (const auto& [object, count] : other.counts_) {
    object->retain(count);
    own(object, count);
  }
}

void UserReferences::replace(const UserReferences& other) {
  UserReferences copy(other);
  counts_.swap(copy.counts_);
}

}  // namespace softgpu::driver

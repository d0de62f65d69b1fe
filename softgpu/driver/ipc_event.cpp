// See ipc_event.h.
#include "softgpu/driver/ipc_event.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <new>

#include "softgpu/device/own_file.h"

namespace softgpu::driver {
namespace {

constexpr std::size_t kSlotBytes = 64;  // a cache line each
constexpr std::size_t kEventsMax = 16384;
constexpr long kLookNs = 5'000'000;  // how often a waiter looks whether the recorder still lives

/// The file of this process's own events.
class EventFile {
 public:
  static EventFile& get() {
    static auto* file = new EventFile;
    return *file;
  }
  void* take(std::uint64_t& offset) {
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr && !map_locked()) return nullptr;
    if (!free_.empty()) {
      offset = free_.back();
      free_.pop_back();
    } else {
      if (next_ == kEventsMax * kSlotBytes) return nullptr;
      offset = next_;
      next_ += kSlotBytes;
    }
    return base_ + offset;
  }
  void give(std::uint64_t offset) {
    const std::lock_guard lock(mutex_);
    free_.push_back(offset);
  }
  const device::OwnFile& file() const { return file_; }

 private:
  bool map_locked() {
    file_ = device::OwnFile::in_memory("softgpu-events", kEventsMax * kSlotBytes);
    void* p = file_.map(nullptr, kEventsMax * kSlotBytes, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    if (p == MAP_FAILED) return false;
    base_ = static_cast<char*>(p);
    return true;
  }

  std::mutex mutex_;
  device::OwnFile file_;
  char* base_ = nullptr;
  std::uint64_t next_ = 0;
  std::vector<std::uint64_t> free_;
};

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void futex_sleep(const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec limit{0, kLookNs};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace

struct alignas(kSlotBytes) IpcEvent::Slot {
  std::atomic<std::uint32_t> issued{0};
  std::atomic<std::uint32_t> done{0};
  std::atomic<std::uint32_t> recorder{0};  // its life
};

/// Goes with the operation that records: executed or given up, the record has been come to.
struct IpcEvent::Arrival {
  Arrival(std::shared_ptr<IpcEvent> of, std::uint32_t record)
      : event(std::move(of)), number(record) {}
  ~Arrival() {
    std::atomic<std::uint32_t>& done = event->slot_->done;
    std::uint32_t seen = done.load();
    while (static_cast<std::int32_t>(number - seen) > 0 &&
           !done.compare_exchange_weak(seen, number)) {
    }
    futex_wake(done);
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  std::shared_ptr<IpcEvent> event;
  std::uint32_t number;
};

std::shared_ptr<IpcEvent> IpcEvent::create(const Gpu& gpu) {
  std::uint64_t offset = 0;
  void* place = EventFile::get().take(offset);
  if (place == nullptr) return nullptr;
  std::shared_ptr<IpcEvent> event(new IpcEvent(gpu.model.lives()));
  event->slot_ = new (place) Slot;
  event->offset_ = offset;
  return event;
}

std::shared_ptr<IpcEvent> IpcEvent::open(const IpcHandle& handle, Gpu& gpu) {
  if (handle.offset % kSlotBytes != 0 || handle.offset >= kEventsMax * kSlotBytes) return nullptr;
  void* page = ipc_file_open(handle, gpu)
                   .map(nullptr, kHostPage, PROT_READ | PROT_WRITE, MAP_SHARED,
                        handle.offset / kHostPage * kHostPage);
  if (page == MAP_FAILED) return nullptr;
  std::shared_ptr<IpcEvent> event(new IpcEvent(gpu.model.lives()));
  event->page_ = page;
  event->slot_ = reinterpret_cast<Slot*>(static_cast<char*>(page) + handle.offset % kHostPage);
  event->imported_ = true;
  return event;
}

IpcEvent::~IpcEvent() {
  if (imported_)
    munmap(page_, kHostPage);
  else
    EventFile::get().give(offset_);
}

bool IpcEvent::describe(IpcHandle& handle) const {
  handle.offset = offset_;
  handle.bytes = kSlotBytes;
  return ipc_file_tell(EventFile::get().file(), handle);
}

OpRef IpcEvent::record(const StreamRef& stream) {
  slot_->recorder = lives_.own();
  const auto arrival = std::make_shared<Arrival>(shared_from_this(), ++slot_->issued);
  return stream->submit([arrival](Stream& on, Op&) { on.work_drain(); });
}

std::uint32_t IpcEvent::target() const { return slot_->issued.load(); }

bool IpcEvent::reached(std::uint32_t target) const {
  if (static_cast<std::int32_t>(slot_->done.load() - target) >= 0) return true;
  return lives_.ended(slot_->recorder);
}

bool IpcEvent::wait(std::uint32_t target, const std::atomic<bool>& stop) const {
  for (;;) {
    const std::uint32_t seen = slot_->done.load();
    if (reached(target)) return true;
    if (stop) return false;
    futex_sleep(slot_->done, seen);
  }
}

bool IpcEvent::recorded_elsewhere() const {
  const std::uint32_t recorder = slot_->recorder;
  return recorder != 0 && recorder != lives_.own();
}

void IpcEvent::hold(const StreamRef& stream) {
  stream->submit([event = shared_from_this(), until = target()](Stream& on, Op& op) {
    event->wait(until, on.owner().stop);
    op.floor_ns = on.owner().gpu.now_ns();
  });
}

}  // namespace softgpu::driver

// See life.h.
#include "softgpu/device/life.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

/// Locks lie beyond the contents of the file, where nothing else locks.
constexpr off_t kLockBase = off_t{1} << 40;
/// Numbers tried before a process gives up: one is taken only after the counter went all round.
constexpr int kTriesMax = 64;
constexpr std::size_t kPage = 4096;

std::atomic<Lives*> all{nullptr};

struct flock byte_of(std::uint32_t number) {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = kLockBase + number;
  range.l_len = 1;
  return range;
}

bool byte_locked(int file, std::uint32_t number) {
  struct flock range = byte_of(number);
  return fcntl(file, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

}  // namespace

Lives::Lives(Segment* segment, std::string path) : segment_(segment), path_(std::move(path)) {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) return;
  identity_ = {status.st_dev, status.st_ino};
}

bool Lives::add(Segment* segment, const std::string& path, std::string& error) {
  static const int handlers = pthread_atfork(forks, has_forked, forked);
  (void)handlers;
  std::error_code ignored;
  auto* lives = new Lives(segment, std::filesystem::absolute(path, ignored).string());
  lives->next_ = all.load();
  while (!all.compare_exchange_weak(lives->next_, lives)) {
  }
  if (lives->own() != kLifeUntold) return true;
  error = "cannot lock a byte of " + path + ": " + std::strerror(lives->error_) +
          " (the lock tells others that this process lives); give SOFTGPU_DIR a directory of tmpfs";
  return false;
}

Lives& Lives::of(const Segment* segment) {
  Lives* lives = all.load();
  while (lives != nullptr && lives->segment_ != segment) lives = lives->next_;
  assert(lives != nullptr);
  return *lives;
}

/// No page is mapped while the process forks: between mmap and MADV_DONTFORK a child would get it.
void Lives::forks() {
  for (Lives* lives = all.load(); lives != nullptr; lives = lives->next_) lives->mutex_.lock();
}

void Lives::has_forked() {
  for (Lives* lives = all.load(); lives != nullptr; lives = lives->next_) lives->mutex_.unlock();
}

/// The child of a fork is another process: it has no number yet, and the parent's lock must not
/// last as long as the child does.
void Lives::forked() {
  for (Lives* lives = all.load(); lives != nullptr; lives = lives->next_) {
    lives->own_ = 0;
    if (lives->identity_.is(lives->kept_)) close(lives->kept_);
    lives->kept_ = -1;
    new (&lives->mutex_) std::mutex;  // locked by forks()
  }
}

/// A new descriptor of the file; -1 where its path no longer leads to it.
int Lives::reopen(int mode) const {
  const int file = above_standard(open(path_.c_str(), mode | O_CLOEXEC));
  if (file < 0 || identity_.is(file)) return file;
  close(file);
  errno = ENOENT;
  return -1;
}

/// A descriptor to ask with, which cannot write. The program may have closed it, or given its
/// number to another file.
int Lives::look() {
  const int known = look_.load(std::memory_order_acquire);
  if (identity_.is(known)) return known;
  const std::lock_guard lock(mutex_);
  return look_locked();
}

int Lives::look_locked() {
  if (!identity_.is(look_)) look_ = reopen(O_RDONLY);
  if (look_ < 0) error_ = errno;
  return look_;
}

/// Locks the byte of `number` through an open file of its own, kept open by a page of mapping or by
/// a descriptor. False with `error_`: EAGAIN if a living process has the number.
bool Lives::hold_locked(std::uint32_t number, bool mapped) {
  const int file = reopen(O_RDWR);
  struct flock range = byte_of(number);
  if (file < 0 || fcntl(file, F_OFD_SETLK, &range) != 0) {
    error_ = errno;
    if (file >= 0) close(file);
    return false;
  }
  if (!mapped) {
    kept_ = file;
    return true;
  }
  void* page = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED || madvise(page, kPage, MADV_DONTFORK) != 0) error_ = errno;
  close(file);
  return page != MAP_FAILED;
}

std::uint32_t Lives::take_locked() {
  for (int tries = 0; tries < kTriesMax; ++tries) {
    const std::uint32_t number =
        __atomic_add_fetch(&segment_->lives, 1, __ATOMIC_RELAXED) & kLifeMask;
    if (number <= kLifeUntold) continue;
    bool held = hold_locked(number, true);
    if (held && look_locked() < 0) return kLifeUntold;
    if (held && !byte_locked(look_, number)) held = hold_locked(number, false);
    if (held) return number;
    if (error_ != EAGAIN && error_ != EACCES) break;
  }
  return kLifeUntold;
}

std::uint32_t Lives::take() {
  const std::lock_guard lock(mutex_);
  if (own_ != 0) return own_;
  const std::uint32_t number = take_locked();
  if (number == kLifeUntold) return number;  // it is tried again
  const ProcessName self = process_named(getpid());
  name_ = {number, self.pid, self.space, process_start_ticks(getpid())};
  own_ = number;
  return number;
}

bool Lives::ended(std::uint32_t number) {
  if (number <= kLifeUntold || number == own_) return false;
  const int file = look();
  return file >= 0 && !byte_locked(file, number);
}

}  // namespace softgpu::device

#include "trainer/load/meeting.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

constexpr long kAskEveryNs = 50'000'000;  // whether it is over: a bench's end may wait so long

[[noreturn]] void fail(const std::string& file, const char* what) {
  throw Failure("--meeting " + file + ": " + what + ": " + strerror(errno));
}

}  // namespace

LoadMeeting::LoadMeeting(const std::string& file, std::uint32_t ranks) : ranks_(ranks) {
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) fail(file, "cannot be opened");
  const bool sized = ftruncate(fd, sizeof(Page)) == 0;
  void* at =
      sized ? mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (at == MAP_FAILED) fail(file, "cannot be mapped");
  page_ = static_cast<Page*>(at);
}

LoadMeeting::~LoadMeeting() { munmap(page_, sizeof(Page)); }

bool LoadMeeting::wait(const std::function<bool()>& over) {
  auto* word = reinterpret_cast<std::uint32_t*>(&page_->count);
  const std::uint32_t now = page_->count;
  if (++page_->came == ranks_) {
    page_->came = 0;
    ++page_->count;
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
    return true;
  }
  const timespec timeout{0, kAskEveryNs};
  while (page_->count == now) {
    if (over()) return false;
    syscall(SYS_futex, word, FUTEX_WAIT, now, &timeout, nullptr, 0);
  }
  return true;
}

}  // namespace sluice::train

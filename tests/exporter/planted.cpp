#include "planted.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <new>

namespace sluice::exporter {

Planted::Planted(Body body) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) abort();
  told_ = new (page) Told;
  int ends[2];
  if (pipe(ends) != 0) abort();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[1]);
    char c;
    if (read(ends[0], &c, 1) != 1) _exit(0);
    told_->begin_ns = now_ns();
    body(*told_);
    told_->end_ns = now_ns();
    (void)!read(ends[0], &c, 1);
    _exit(0);
  }
  close(ends[0]);
  go_ = ends[1];
}

Planted::~Planted() {
  end();
  munmap(told_, 4096);
}

void Planted::go() {
  if (write(go_, "g", 1) != 1) abort();
}

bool Planted::done_wait(int seconds) const {
  return soon([&] { return told_->end_ns.load() != 0; }, seconds);
}

void Planted::end() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(go_);
  pid_ = -1;
}

std::uint32_t thread_number() { return static_cast<std::uint32_t>(syscall(SYS_gettid)); }

std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

void nap_ms(unsigned milliseconds) { usleep(milliseconds * 1000); }

pid_t child_start(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
  }
  return pid;
}

bool soon(const std::function<bool()>& condition, int seconds) {
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(seconds) * 1'000'000'000U;
  while (!condition()) {
    if (now_ns() > end) return false;
    nap_ms(2);
  }
  return true;
}

Connection loopback_connect() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  Connection made;
  if (bind(listener, raw, size) != 0 || listen(listener, 1) != 0) abort();
  if (getsockname(listener, raw, &size) != 0) abort();
  made.there = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(made.there, raw, size) != 0) abort();
  made.here = accept(listener, nullptr, nullptr);
  close(listener);
  return made;
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t old) {
  while (word.load() == old)
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, old, nullptr);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 1, nullptr);
}

}  // namespace sluice::exporter

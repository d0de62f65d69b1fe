// See pool.h.
#include "softgpu/ptx/run/pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace softgpu::ptx {

class Pool {
 public:
  explicit Pool(unsigned helpers) {
    // Signals belong to the program's own threads, from the helpers' first instruction; they open
    // themselves to the faults of kernels.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    helpers_start(helpers);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void offer(PoolJob& job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(&job);
    }
    work_.notify_all();
  }

  void withdraw(PoolJob& job) {
    std::unique_lock lock(mutex_);
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
    idle_.wait(lock, [&] { return job.helpers_ == 0; });
  }

 private:
  /// As many as the system makes: whoever offers a job works on it as well.
  void helpers_start(unsigned count) {
    try {
      for (unsigned k = 0; k < count; ++k) std::thread([this] { run(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  PoolJob* pick() {
    for (PoolJob* job : jobs_) {
      if (job->wants_help()) return job;
    }
    return nullptr;
  }

  void run() {
    sigset_t faults;
    sigemptyset(&faults);
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) sigaddset(&faults, number);
    pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
    std::unique_lock lock(mutex_);
    for (;;) {
      PoolJob* job = nullptr;
      work_.wait(lock, [&] { return (job = pick()) != nullptr; });
      ++job->helpers_;
      lock.unlock();
      job->help();
      lock.lock();
      if (--job->helpers_ == 0) idle_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::deque<PoolJob*> jobs_;
};

namespace {

std::mutex g_start;
std::atomic<Pool*> g_pool{nullptr};

void forget_in_child() {
  // Its threads are not here; its memory is left alone, for the parent's locks may be held in it.
  g_pool.store(nullptr);
  new (&g_start) std::mutex;
}

Pool& pool() {
  if (Pool* there = g_pool.load(std::memory_order_acquire)) return *there;
  static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)registered;
  const std::lock_guard lock(g_start);
  if (g_pool.load() == nullptr) g_pool.store(new Pool(pool_width() - 1));
  return *g_pool.load();
}

}  // namespace

unsigned pool_width() {
  static const unsigned width = [] {
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    const char* asked = std::getenv("SOFTGPU_THREADS");
    const long wish = asked != nullptr ? std::strtol(asked, nullptr, 10) : 0;
    return wish > 0 ? std::min(cores, static_cast<unsigned>(std::min(wish, 1024L))) : cores;
  }();
  return width;
}

void pool_offer(PoolJob& job) { pool().offer(job); }
void pool_withdraw(PoolJob& job) { pool().withdraw(job); }

}  // namespace softgpu::ptx

// See loader.h.
#include "trainer/data/loader.h"

#include <signal.h>

#include <cassert>
#include <chrono>
#include <utility>

namespace sluice::train {

Loader::Loader(std::vector<LoadedBatch> slots, const LoaderOptions& options, Fill fill)
    : slots_(std::move(slots)), options_(options), fill_(std::move(fill)) {
  assert(!slots_.empty());
  if (ahead()) thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

const LoadedBatch& Loader::next() {
  assert(taken_ < options_.steps);
  const Nanos begin = now_ns();
  if (ahead()) {
    wait_filled();
  } else {
    if (options_.delay_ns > 0) sleep_until(begin + options_.delay_ns);
    fill_(taken_, slot_of(taken_));
  }
  stall_ns_ = now_ns() - begin;
  return slot_of(taken_++);
}

void Loader::wait_filled() {
  std::unique_lock lock(mutex_);
  released_ = taken_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return filled_ > taken_ || failure_; });
  if (filled_ <= taken_) std::rethrow_exception(failure_);
}

void Loader::run() {
  // Signals are the training thread's: it waits for the wish to stop.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (std::uint64_t step = 0; step < options_.steps && turn_await(step); ++step) {
    std::exception_ptr failure;
    try {
      fill_(step, slot_of(step));
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    if (!failure_) filled_ = step + 1;
    changed_.notify_all();
    if (failure_) return;
  }
}

bool Loader::turn_await(std::uint64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ending_ || step < released_ + slots_.size(); });
  if (options_.delay_ns > 0) {
    changed_.wait_for(lock, std::chrono::nanoseconds(options_.delay_ns), [&] { return ending_; });
  }
  return !ending_;
}

}  // namespace sluice::train

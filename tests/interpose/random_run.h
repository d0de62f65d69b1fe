// A random program (random_world.h) and the threads that it has: begun, made step by step, brought
// to rest and ended. Several may be at work at once in one process, each with slots of its own.
#pragma once

#include <string.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "tests/interpose/random_world.h"

namespace sluice::test {

/// A thread that does what it is handed, and who waits for it.
class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  ~Worker() {
    hand(nullptr);
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  void does(const std::function<void()>& work) {
    if (std::this_thread::get_id() == thread_.get_id())
      work();
    else
      hand(&work);
  }

 private:
  void hand(const std::function<void()>* work) {
    std::unique_lock lock(mutex_);
    work_ = work;
    handed_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !handed_; });
  }
  void serve() {
    std::unique_lock lock(mutex_);
    for (bool more = true; more;) {
      changed_.wait(lock, [this] { return handed_; });
      more = work_ != nullptr;
      if (more) (*work_)();
      handed_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  bool handed_ = false;
  std::thread thread_;
};

class Program : public Threads {
 public:
  /// One of `programs` that are at work at once in this process.
  explicit Program(std::uint64_t seed, std::size_t programs = 1) : seed_(seed) {
    world_.programs = programs;
    world_.movable = getenv("RANDOM_MOVABLE") != nullptr;
    // What others have, or what is on the host, is in no account that a program could look at.
    limit_.exact = programs == 1 && !world_.movable;
    if (const char* quota = getenv("RANDOM_QUOTA"); quota != nullptr) {
      limit_.quota[0] = limit_.quota[1] = strtoull(quota, nullptr, 10);
      if (const char* comma = strchr(quota, ','); comma != nullptr)
        limit_.quota[1] = strtoull(comma + 1, nullptr, 10);
    }
    // Nobody has measured what a context takes: the first one on a GPU may be too much, and undone.
    if (getenv("SLUICE_MEMORY") != nullptr) limit_.step_most = kContextBytes;
    Random random(seed, 0);
    kinds_choose(random);
    // Of several programs most have one thread, which then waits for no other.
    const std::size_t threads = programs > 1 && random.chance(70) ? 1 : 1 + random.below(3);
    for (std::size_t i = 0; i < threads; ++i) workers_.emplace_back();
  }
  void everywhere(const std::function<void()>& work) override {
    for (Worker& worker : workers_) worker.does(work);
  }

  void begin();
  void step(std::size_t number);
  /// Those steps from first to last that are not left out, on the program's only thread if it has
  /// one: nothing is handed over between them then.
  void stretch(std::size_t first, std::size_t last, const std::set<std::size_t>& without);
  /// Ends what captures: before any of several programs comes to rest.
  void captures_end();
  void rest(std::size_t number);
  void end();
  /// What it has done since the last time, in lines that begin with `prefix`.
  void trace_print(const char* prefix);
  bool faulty() const { return faulty_; }
  const Limit& limit() const { return limit_; }

 private:
  void kinds_choose(Random& random);
  void make(std::size_t number, const char* name, Worker& worker, Random& random,
            const std::function<void(Step&)>& work);
  void captures_end(Step& step);
  void account_look(Step& step);
  void all_free(Step& step);

  const std::uint64_t seed_;
  World world_;
  Limit limit_;
  std::deque<Worker> workers_;
  StepKinds kinds_;
  unsigned weights_ = 0;
  bool faulty_ = false;
  std::string trace_;
};

/// Whether a device ever held more than what the programs may together; says so.
bool peaks_exceeded(const std::deque<Program>& programs);

}  // namespace sluice::test

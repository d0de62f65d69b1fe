// The observer without privileges: looks at every watched thread from time to time and draws lines
// between the looks (timeline.h). What lies between two looks is known in sum and guessed in order;
// a sleep that is shorter than the interval gets the kind of its neighbour.
//
// Bounded: at most kThreadsMax threads are looked at (those of lower process numbers first), and
// the interval stretches so that looking takes at most one kCostShare-th of a core.
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "exporter/clock.h"
#include "exporter/idle/proc.h"
#include "exporter/idle/proc_wait.h"
#include "exporter/idle/thread_watch.h"
#include "exporter/idle/timeline.h"

namespace sluice::exporter {
namespace {

constexpr std::size_t kThreadsMax = 2048;
constexpr std::size_t kEndedMax = 1U << 16;
constexpr std::uint64_t kCostShare = 50;
constexpr std::uint64_t kDescendantsEveryNs = 1'000'000'000;

std::uint64_t thread_cpu_ns() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<std::uint64_t>(spent.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(spent.tv_nsec);
}

struct Sampled {
  std::uint32_t process;
  std::uint64_t sleeps;  // as of the last look at which it could run
  Timeline line;
};

class ProcThreads : public ThreadWatch {
 public:
  explicit ProcThreads(std::uint64_t interval_ns)
      : interval_ns_(interval_ns), sampler_([this] { sample(); }) {}

  ~ProcThreads() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    sampler_.join();
  }

  void processes_set(const std::vector<std::uint32_t>& processes) override {
    const std::lock_guard lock(mutex_);
    listed_.assign(processes.begin(), processes.end());
    const std::set<std::uint32_t> wanted(listed_.begin(), listed_.end());
    std::erase_if(roots_, [&](const auto& row) { return wanted.count(row.second) == 0; });
    for (const std::uint32_t process : wanted) roots_[process] = process;
    std::erase_if(threads_, [&](const auto& row) { return roots_.count(row.second.process) == 0; });
    descendants_at_ns_ = 0;
    pass();
  }

  std::uint64_t periods_read(std::vector<OffCpu>& out) override {
    const std::lock_guard lock(mutex_);
    out.insert(out.end(), ended_.begin(), ended_.end());
    ended_.clear();
    for (const auto& [number, thread] : threads_) {
      if (thread.line.open()) out.push_back(*thread.line.open());
    }
    return complete_ns_;
  }

  std::uint64_t lost() const override {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

  std::uint32_t root_of(std::uint32_t process) override {
    const std::lock_guard lock(mutex_);
    const auto found = roots_.find(process);
    return found == roots_.end() ? 0 : found->second;
  }

  char letter_of(HostThread thread) override {
    return thread_letter(thread.process, thread.thread);
  }

  bool is_coarse() const override { return true; }

 private:
  void sample() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      const std::uint64_t before = thread_cpu_ns();
      pass();
      const std::uint64_t pause = std::max(interval_ns_, (thread_cpu_ns() - before) * kCostShare);
      wake_.wait_for(lock, std::chrono::nanoseconds(pause), [this] { return stop_; });
    }
  }

  void pass() {
    const std::uint64_t now = monotonic_ns();
    if (!listed_.empty() && now >= descendants_at_ns_) {
      // Those found before stay, though the parents between may have ended.
      for (const auto& [process, root] : processes_descended(listed_)) roots_[process] = root;
      descendants_at_ns_ = now + kDescendantsEveryNs;
    }
    std::set<std::uint32_t> alive;
    for (auto at = roots_.begin(); at != roots_.end();) {
      const auto threads = proc_numbers("/proc/" + std::to_string(at->first) + "/task");
      for (const std::uint32_t thread : threads) {
        if (alive.size() < kThreadsMax && thread_seen(at->first, thread)) alive.insert(thread);
      }
      at = threads.empty() ? roots_.erase(at) : std::next(at);
    }
    for (auto at = threads_.begin(); at != threads_.end();) {
      const bool lives = alive.count(at->first) != 0;
      if (!lives) at->second.line.gone(ended_);
      at = lives ? std::next(at) : threads_.erase(at);
    }
    if (ended_.size() > kEndedMax) {
      lost_ += ended_.size() - kEndedMax;
      ended_.resize(kEndedMax);
    }
    complete_ns_ = now;
  }

  /// False where it has ended.
  bool thread_seen(std::uint32_t process, std::uint32_t thread) {
    ThreadSeen now;
    if (!thread_look(process, thread, now.look)) return false;
    auto found = threads_.find(thread);
    if (found != threads_.end() && found->second.process != process) {
      found->second.line.gone(ended_);
      threads_.erase(found);
      found = threads_.end();
    }
    const ThreadSeen* last = found == threads_.end() ? nullptr : &found->second.line.last();
    std::uint64_t sleeps = 0;
    if (now.look.letter == 'R') {
      sleeps = thread_sleeps(process, thread);
      now.never_slept =
          last != nullptr && last->kind == WaitKind::kNone && sleeps == found->second.sleeps;
    } else if (last != nullptr && last->kind != WaitKind::kNone &&
               last->look.turns == now.look.turns && last->look.run_ns == now.look.run_ns &&
               last->look.letter == now.look.letter) {
      now.kind = last->kind;  // it has not been on a CPU: still the same
    } else {
      now.kind = wait_read(process, thread, now.look.letter);
    }
    if (last == nullptr) {
      threads_.emplace(thread, Sampled{process, sleeps, Timeline(process, thread, now)});
    } else {
      found->second.sleeps = sleeps;
      found->second.line.seen(now, ended_);
    }
    return true;
  }

  const std::uint64_t interval_ns_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<std::uint32_t> listed_;
  std::map<std::uint32_t, std::uint32_t> roots_;  // of each watched process, itself or an ancestor
  std::map<std::uint32_t, Sampled> threads_;
  std::vector<OffCpu> ended_;
  std::uint64_t complete_ns_ = 0;
  std::uint64_t descendants_at_ns_ = 0;
  std::uint64_t lost_ = 0;
  std::thread sampler_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<ThreadWatch> thread_watch_proc(std::uint64_t interval_ns) {
  return std::make_unique<ProcThreads>(interval_ns);
}

}  // namespace sluice::exporter

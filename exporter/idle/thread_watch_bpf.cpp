// The exact observer: loads exporter/bpf/threads.bpf.c, tells it which processes to watch, and
// reads what it saw. New threads and processes of watched ones the programs find by themselves;
// what was there before is read from /proc once, when a process is new in the list.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "exporter/bpf/loading.h"
#include "exporter/bpf/threads_shared.h"
#include "exporter/idle/proc.h"
#include "exporter/idle/proc_wait.h"
#include "exporter/idle/thread_watch.h"
#include "threads.skel.h"

namespace sluice::exporter {
namespace {

static_assert(static_cast<int>(WaitKind::kNone) == THREAD_WAIT_NONE);
static_assert(static_cast<int>(WaitKind::kDisk) == THREAD_WAIT_DISK);
static_assert(static_cast<int>(WaitKind::kNetwork) == THREAD_WAIT_NETWORK);
static_assert(static_cast<int>(WaitKind::kLocal) == THREAD_WAIT_LOCAL);
static_assert(static_cast<int>(WaitKind::kLock) == THREAD_WAIT_LOCK);
static_assert(static_cast<int>(WaitKind::kTimer) == THREAD_WAIT_TIMER);
static_assert(static_cast<int>(WaitKind::kDevice) == THREAD_WAIT_DEVICE);
static_assert(static_cast<int>(WaitKind::kOther) == THREAD_WAIT_OTHER);

constexpr std::uint64_t kNotYetNs = UINT64_MAX;
// How long a program in the kernel may take before the reader gives up waiting for it: only a CPU
// that a hypervisor has taken away takes longer than microseconds.
constexpr std::uint64_t kSectionWaitNs = 5'000'000;

struct UnloadThreads {
  void operator()(threads_bpf* skeleton) const { threads_bpf__destroy(skeleton); }
};
using ThreadsSkeleton = std::unique_ptr<threads_bpf, UnloadThreads>;

struct FreeRing {
  void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
};
using Ring = std::unique_ptr<ring_buffer, FreeRing>;

std::uint64_t counter_read(const __u64& counter) {
  return __atomic_load_n(&counter, __ATOMIC_ACQUIRE);
}

/// All entries of a hash map, many at a time.
template <typename Value>
std::vector<std::pair<std::uint32_t, Value>> map_read(int fd) {
  constexpr std::uint32_t kAtATime = 1024;
  std::vector<std::pair<std::uint32_t, Value>> entries;
  std::vector<std::uint32_t> keys(kAtATime);
  std::vector<Value> values(kAtATime);
  std::uint32_t position = 0;
  for (bool first = true, more = true; more; first = false) {
    std::uint32_t count = kAtATime;
    more = bpf_map_lookup_batch(fd, first ? nullptr : &position, &position, keys.data(),
                                values.data(), &count, nullptr) == 0;
    if (!more && errno != ENOENT) break;  // ENOENT: these were the last
    for (std::uint32_t i = 0; i < count; ++i) entries.emplace_back(keys[i], values[i]);
  }
  return entries;
}

OffCpu period_of(const thread_period& seen) {
  OffCpu period;
  period.thread = seen.thread;
  period.process = seen.process;
  period.left_ns = seen.left_ns;
  period.woken_ns = seen.woken_ns;
  period.back_ns = seen.back_ns;
  period.kind = static_cast<WaitKind>(seen.kind);
  period.waker_thread = seen.waker_thread;
  period.waker_process = seen.waker_process;
  return period;
}

/// A period that still goes on.
OffCpu period_open(std::uint32_t thread, const thread_now& now) {
  OffCpu period;
  period.thread = thread;
  period.process = now.process;
  period.left_ns = now.left_ns;
  period.back_ns = kNotYetNs;
  const bool woken = now.asleep == 0 || now.waking_ns >= now.left_ns;
  period.woken_ns = !woken ? kNotYetNs : now.asleep == 0 ? now.left_ns : now.waking_ns;
  if (now.asleep != 0 && woken) {
    period.waker_thread = now.waker_thread;
    period.waker_process = now.waker_process;
  }
  const bool local = woken && now.waker_process != 0;
  period.kind = now.kind != THREAD_WAIT_MIXED ? static_cast<WaitKind>(now.kind)
                : local                       ? WaitKind::kLocal
                                              : WaitKind::kNetwork;
  return period;
}

struct PeriodHash {
  std::size_t operator()(const std::pair<std::uint32_t, std::uint64_t>& key) const {
    return key.first ^ static_cast<std::size_t>(key.second);
  }
};

class BpfThreads : public ThreadWatch {
 public:
  explicit BpfThreads(ThreadsSkeleton skeleton)
      : skeleton_(std::move(skeleton)),
        processes_fd_(bpf_map__fd(skeleton_->maps.processes)),
        threads_fd_(bpf_map__fd(skeleton_->maps.threads)),
        ring_(ring_buffer__new(bpf_map__fd(skeleton_->maps.periods), record_take, this, nullptr)) {}

  bool is_ready() const { return ring_ != nullptr; }

  void processes_set(const std::vector<std::uint32_t>& processes) override {
    const std::set<std::uint32_t> listed(processes.begin(), processes.end());
    std::map<std::uint32_t, std::uint32_t> known = processes_keep(listed);
    std::vector<std::uint32_t> fresh;
    bool changed = false;
    for (const std::uint32_t process : listed) {
      const thread_process entry{process};
      const auto found = known.find(process);
      if (found == known.end()) {
        if (process_add(process, process)) fresh.push_back(process);
      } else if (found->second != process) {  // was watched as a descendant; it must still be there
        bpf_map_update_elem(processes_fd_, &process, &entry, BPF_EXIST);
        changed = true;
      }
    }
    if (fresh.empty() && !changed) return;
    // A process may start others while its own are being listed; new ones of those that are already
    // in the map the programs find.
    constexpr int kRoundsMax = 8;
    const std::vector<std::uint32_t> roots(listed.begin(), listed.end());
    for (int round = 0; changed || round == 0; ++round) {
      if (round == kRoundsMax) break;
      changed = false;
      for (const auto& [process, root] : processes_descended(roots)) {
        if (known.count(process) != 0) continue;
        known[process] = root;
        if (!process_add(process, root)) continue;
        fresh.push_back(process);
        changed = true;
      }
    }
    for (const std::uint32_t process : fresh) threads_add(process);
  }

  std::uint64_t periods_read(std::vector<OffCpu>& out) override {
    const std::uint64_t now = complete_wait();
    // First what goes on, then what has ended: what ends in between is in both, not in neither.
    std::vector<OffCpu> open;
    for (const auto& [thread, state] : map_read<thread_now>(threads_fd_)) {
      if (state.left_ns != 0 && state.left_ns < now) open.push_back(period_open(thread, state));
    }
    out_ = &out;
    const std::size_t first = out.size();
    ring_buffer__consume(ring_.get());
    out_ = nullptr;
    std::unordered_set<std::pair<std::uint32_t, std::uint64_t>, PeriodHash> ended;
    for (std::size_t i = first; i < out.size(); ++i) {
      if (out[i].back_ns >= now) ended.emplace(out[i].thread, out[i].left_ns);
    }
    for (const OffCpu& period : open) {
      if (ended.count({period.thread, period.left_ns}) == 0) out.push_back(period);
    }
    return now;
  }

  std::uint64_t lost() const override {
    return counter_read(skeleton_->bss->lost_periods) + counter_read(skeleton_->bss->lost_threads) +
           not_added_;
  }

  bool is_coarse() const override { return false; }

 private:
  static int record_take(void* self, void* record, std::size_t) {
    static_cast<BpfThreads*>(self)->out_->push_back(
        period_of(*static_cast<const thread_period*>(record)));
    return 0;
  }

  /// The time up to which all is written. Programs that have taken the time and have not yet
  /// written what they say are waited for.
  std::uint64_t complete_wait() {
    const std::uint64_t now = monotonic_ns();
    for (const auto& section : skeleton_->bss->sections) {
      const std::uint64_t count = counter_read(section.count);
      if (count % 2 == 0) continue;
      while (counter_read(section.count) == count) {
        if (monotonic_ns() - now > kSectionWaitNs) return complete_ns_;
        sched_yield();
      }
    }
    complete_ns_ = now;
    return now;
  }

  /// Forgets what is no longer wanted; what remains, with the root of each.
  std::map<std::uint32_t, std::uint32_t> processes_keep(const std::set<std::uint32_t>& listed) {
    std::map<std::uint32_t, std::uint32_t> kept;
    bool left = false;
    for (const auto& [process, entry] : map_read<thread_process>(processes_fd_)) {
      if (listed.count(entry.root) != 0 || listed.count(process) != 0) {
        kept[process] = entry.root;
      } else {
        bpf_map_delete_elem(processes_fd_, &process);
        left = true;
      }
    }
    if (!left) return kept;
    for (const auto& [thread, state] : map_read<thread_now>(threads_fd_)) {
      if (kept.count(state.process) == 0) bpf_map_delete_elem(threads_fd_, &thread);
    }
    return kept;
  }

  bool process_add(std::uint32_t process, std::uint32_t root) {
    const thread_process entry{root};
    if (access(("/proc/" + std::to_string(process)).c_str(), F_OK) != 0) return false;
    const int rc = bpf_map_update_elem(processes_fd_, &process, &entry, BPF_NOEXIST);
    if (rc != 0 && errno != EEXIST) ++not_added_;
    return rc == 0;
  }

  /// The threads that a process has. Those that it starts from now on the programs add.
  void threads_add(std::uint32_t process) {
    bool lives = false;
    for (const std::uint32_t thread : proc_numbers("/proc/" + std::to_string(process) + "/task")) {
      lives |= thread_add(process, thread);
    }
    if (!lives) bpf_map_delete_elem(processes_fd_, &process);
  }

  bool thread_add(std::uint32_t process, std::uint32_t thread) {
    ThreadLook before, after;
    if (!thread_look(process, thread, before)) return false;
    thread_now now{};
    now.process = process;
    if (before.letter != 'R') {  // asleep since some time: for this watch, since now
      now.kind = static_cast<__u8>(wait_read(process, thread, before.letter));
      now.asleep = 1;
      now.left_ns = before.at_ns;
    }
    if (bpf_map_update_elem(threads_fd_, &thread, &now, BPF_NOEXIST) != 0) {
      if (errno != EEXIST) ++not_added_;
      return true;
    }
    // What happened between look and entry the programs have not seen.
    if (!thread_look(process, thread, after)) {
      bpf_map_delete_elem(threads_fd_, &thread);
      return false;
    }
    if (now.asleep != 0 && after.turns != before.turns) {
      const thread_now running{0, 0, process, 0, 0, THREAD_WAIT_NONE, 0, 0};
      bpf_map_update_elem(threads_fd_, &thread, &running, BPF_EXIST);
    }
    return true;
  }

  ThreadsSkeleton skeleton_;
  int processes_fd_;
  int threads_fd_;
  Ring ring_;
  std::vector<OffCpu>* out_ = nullptr;  // during periods_read
  std::uint64_t complete_ns_ = 0;
  std::uint64_t not_added_ = 0;  // processes and threads for which the maps had no room
};

/// Opened and loaded; `counted` chooses which of the two programs watches wakings.
ThreadsSkeleton skeleton_load(bool counted, std::string* reason) {
  ThreadsSkeleton skeleton(threads_bpf__open());
  if (skeleton == nullptr) {
    *reason = bpf_failure("open", errno);
    return nullptr;
  }
  bpf_program__set_autoload(skeleton->progs.threads_waking_counted, counted);
  bpf_program__set_autoload(skeleton->progs.threads_waking, !counted);
  if (const int rc = threads_bpf__load(skeleton.get()); rc != 0) {
    *reason = bpf_failure("load", -rc);
    return nullptr;
  }
  return skeleton;
}

}  // namespace

std::unique_ptr<ThreadWatch> thread_watch_bpf(std::string* reason) {
  if (!bpf_possible(reason)) return nullptr;
  ThreadsSkeleton skeleton = skeleton_load(true, reason);
  if (skeleton == nullptr) skeleton = skeleton_load(false, reason);
  if (skeleton == nullptr) return nullptr;
  if (const int rc = threads_bpf__attach(skeleton.get()); rc != 0) {
    *reason = bpf_failure("attach", -rc);
    return nullptr;
  }
  auto watch = std::make_unique<BpfThreads>(std::move(skeleton));
  if (!watch->is_ready()) {
    *reason = bpf_failure("map the ring of", errno);
    return nullptr;
  }
  *reason = "loaded";
  return watch;
}

}  // namespace sluice::exporter

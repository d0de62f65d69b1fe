// The exact observer: loads exporter/bpf/threads.bpf.c, tells it which processes to watch, and
// reads what it saw. New threads and processes of watched ones the programs find by themselves;
// what was there before is told by an iterator over all threads, when a process is new in the list.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>

#include "exporter/bpf/loading.h"
#include "exporter/bpf/threads_shared.h"
#include "exporter/clock.h"
#include "exporter/idle/proc.h"
#include "exporter/idle/thread_watch.h"
#include "threads.skel.h"
#include "threads_counted.skel.h"
#include "threads_hot.skel.h"

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

/// The programs in the kernel, attached until destroyed.
class Programs {
 public:
  Programs() = default;
  ~Programs() {
    for (bpf_link* link : links_) bpf_link__destroy(link);
    if (shared_ != nullptr) munmap(const_cast<thread_shared*>(shared_), sizeof(thread_shared));
    bpf_object__close(object_);
  }
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  bool load(const void* bytes, std::size_t size, std::string* reason) {
    object_ = bpf_object__open_mem(bytes, size, nullptr);
    if (object_ == nullptr) return failed("open", errno, reason);
    if (const int rc = bpf_object__load(object_); rc != 0) return failed("load", -rc, reason);
    return true;
  }

  bool attach(std::string* reason) {
    void* shared = mmap(nullptr, sizeof(thread_shared), PROT_READ, MAP_SHARED, map_fd(".bss"), 0);
    if (shared == MAP_FAILED) return failed("map the variables of", errno, reason);
    shared_ = static_cast<thread_shared*>(shared);
    bpf_program* program = nullptr;
    bpf_object__for_each_program(program, object_) {
      bpf_link* link = bpf_program__attach(program);
      if (link == nullptr) return failed("attach", errno, reason);
      links_.push_back(link);
      if (bpf_program__type(program) == BPF_PROG_TYPE_TRACING &&
          bpf_program__expected_attach_type(program) == BPF_TRACE_ITER)
        list_fd_ = bpf_link__fd(link);
    }
    return true;
  }

  /// Of a map whose name ends so: those of variables have the object's name before it.
  int map_fd(std::string_view name) const {
    bpf_map* map = nullptr;
    bpf_object__for_each_map(map, object_) {
      if (std::string_view(bpf_map__name(map)).ends_with(name)) return bpf_map__fd(map);
    }
    return -1;
  }
  /// Of the iterator over all threads.
  int list_fd() const { return list_fd_; }
  const thread_shared& shared() const { return *shared_; }

 private:
  static bool failed(const char* step, int error, std::string* reason) {
    *reason = bpf_failure(step, error);
    return false;
  }

  bpf_object* object_ = nullptr;
  std::vector<bpf_link*> links_;
  int list_fd_ = -1;
  const thread_shared* shared_ = nullptr;
};

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
  explicit BpfThreads(std::unique_ptr<Programs> programs)
      : programs_(std::move(programs)),
        processes_fd_(programs_->map_fd("processes")),
        threads_fd_(programs_->map_fd("threads")),
        ring_(ring_buffer__new(programs_->map_fd("periods"), record_take, this, nullptr)) {}

  bool is_ready() const { return ring_ != nullptr; }

  void processes_set(const std::vector<std::uint32_t>& processes) override {
    const std::set<std::uint32_t> listed(processes.begin(), processes.end());
    bool changed = false;
    const std::map<std::uint32_t, std::uint32_t> known = processes_keep(listed, &changed);
    for (const std::uint32_t process : listed) {
      const auto found = known.find(process);
      if (found != known.end() && found->second == process) continue;
      changed = true;
      // Known as a descendant of another it is alive, unless it has ended since.
      const bool descendant = found != known.end();
      const thread_process entry{process, descendant ? 1U : 0U};
      const int rc = bpf_map_update_elem(processes_fd_, &process, &entry,
                                         descendant ? BPF_EXIST : BPF_NOEXIST);
      if (rc != 0 && errno == E2BIG) ++not_added_;
    }
    if (!changed) return;
    threads_list();
    for (const auto& [process, entry] : map_read<thread_process>(processes_fd_)) {
      if (entry.alive == 0) bpf_map_delete_elem(processes_fd_, &process);
    }
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
    const thread_shared& shared = programs_->shared();
    return counter_read(shared.lost_periods) + counter_read(shared.lost_threads) + not_added_;
  }

  // From what the programs know: /proc may hide other users' processes.
  std::uint32_t root_of(std::uint32_t process) override {
    thread_process entry{};
    return bpf_map_lookup_elem(processes_fd_, &process, &entry) == 0 ? entry.root : 0;
  }

  char letter_of(HostThread thread) override {
    thread_now state{};
    if (bpf_map_lookup_elem(threads_fd_, &thread.thread, &state) != 0) return '\0';
    if (state.process != thread.process) return '\0';
    return state.left_ns == 0 || state.asleep == 0 ? 'R' : 'S';
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
    for (const auto& section : programs_->shared().sections) {
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
  std::map<std::uint32_t, std::uint32_t> processes_keep(const std::set<std::uint32_t>& listed,
                                                        bool* left) {
    std::map<std::uint32_t, std::uint32_t> kept;
    for (const auto& [process, entry] : map_read<thread_process>(processes_fd_)) {
      if (listed.count(entry.root) != 0 || listed.count(process) != 0) {
        kept[process] = entry.root;
      } else {
        bpf_map_delete_elem(processes_fd_, &process);
        *left = true;
      }
    }
    if (!*left) return kept;
    for (const auto& [thread, state] : map_read<thread_now>(threads_fd_)) {
      if (kept.count(state.process) == 0) bpf_map_delete_elem(threads_fd_, &thread);
    }
    return kept;
  }

  /// Adds the threads there are of the processes in the map, and their descendants. What those
  /// start from now on the programs add.
  void threads_list() {
    constexpr int kRoundsMax = 16;  // a parent may have a greater number than its child
    for (int round = 0; round < kRoundsMax; ++round) {
      const std::uint64_t before = counter_read(programs_->shared().found_processes);
      const int fd = bpf_iter_create(programs_->list_fd());
      if (fd < 0) return;
      char none[64];
      while (read(fd, none, sizeof none) > 0) {
      }
      close(fd);
      if (counter_read(programs_->shared().found_processes) == before) return;
    }
  }

  std::unique_ptr<Programs> programs_;
  int processes_fd_;
  int threads_fd_;
  Ring ring_;
  std::vector<OffCpu>* out_ = nullptr;  // during periods_read
  std::uint64_t complete_ns_ = 0;
  std::uint64_t not_added_ = 0;  // processes and threads for which the maps had no room
};

/// The first of the three builds of the programs that this kernel takes; threads.bpf.c says how
/// they differ. Null, and what it said of the last, where it takes none.
std::unique_ptr<Programs> programs_load(std::string* reason) {
  for (const auto elf :
       {threads_counted_bpf__elf_bytes, threads_hot_bpf__elf_bytes, threads_bpf__elf_bytes}) {
    auto programs = std::make_unique<Programs>();
    std::size_t size = 0;
    const void* bytes = elf(&size);
    if (programs->load(bytes, size, reason)) return programs;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<ThreadWatch> thread_watch_bpf(std::string* reason) {
  if (!bpf_possible(reason)) return nullptr;
  auto programs = programs_load(reason);
  if (programs == nullptr || !programs->attach(reason)) return nullptr;
  auto watch = std::make_unique<BpfThreads>(std::move(programs));
  if (!watch->is_ready()) {
    *reason = bpf_failure("map the ring of", errno);
    return nullptr;
  }
  *reason = "loaded";
  return watch;
}

}  // namespace sluice::exporter

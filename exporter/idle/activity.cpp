#include "exporter/idle/activity.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "exporter/idle/proc.h"

namespace sluice::exporter {
namespace {

using protocol::ActivityGpu;
using protocol::ClaimsPage;

constexpr std::uint64_t kListEveryNs = 1'000'000'000;
constexpr std::size_t kListedMax = 1024;  // in that time, of all processes of the page

template <class T>
T load(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

// The number, in its own PID namespace, of a thread that the host knows by `host`; 0 = it is gone.
std::uint32_t inner_number(std::uint32_t process, std::uint32_t host) {
  constexpr char kField[] = "\nNSpid:";
  const std::string status = proc_file(proc_thread_path(process, host) + "/status");
  const auto at = status.find(kField);
  if (at == std::string::npos) return 0;
  std::istringstream numbers(status.substr(at + sizeof kField - 1, status.find('\n', at + 1) - at));
  std::uint32_t number = 0, last = 0;
  while (numbers >> number) last = number;
  return last;
}

}  // namespace

std::unique_ptr<ActivityPage> ActivityPage::open(int fd) {
  struct stat status {};
  void* address = MAP_FAILED;
  if (fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_size) == sizeof(ClaimsPage))
    address = mmap(nullptr, sizeof(ClaimsPage), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (address == MAP_FAILED) return nullptr;
  auto out = std::make_unique<ActivityPage>(*static_cast<const ClaimsPage*>(address));
  out->mapped_ = true;
  const bool sane =
      out->page_->magic == protocol::kClaimsPageMagic && out->page_->version == protocol::kVersion;
  return sane ? std::move(out) : nullptr;
}

ActivityPage::~ActivityPage() {
  if (mapped_) munmap(const_cast<ClaimsPage*>(page_), sizeof(ClaimsPage));
}

std::vector<ProcessNews> ActivityPage::news(std::uint64_t now_ns) {
  std::vector<ProcessNews> out;
  now_ns_ = now_ns;
  for (std::uint32_t i = 0; i < protocol::kTenantProcessesMax; ++i) {
    const protocol::ClaimsSlot& claims = page_->slots[i];
    Seen& seen = seen_[i];
    const std::uint32_t process = load(claims.pid.raw);
    const std::uint32_t own = load(claims.own_pid.raw);
    // Not there, or not there as a whole yet.
    if (process == 0 || own == 0) {
      seen = Seen{};
      continue;
    }
    const protocol::ActivitySlot& slot = page_->activity[i];
    if (seen.process != process) {
      seen = Seen{};
      seen.process = process;
      seen.waits = load(slot.waits.raw);
      for (std::size_t gpu = 0; gpu < seen.gaps.size(); ++gpu)
        seen.gaps[gpu] = load(slot.gpus[gpu].gaps.raw);
    }
    ProcessNews& one = out.emplace_back();
    one.process = process;
    waits_read(slot, seen, now_ns, own, one);
    for (std::size_t gpu = 0; gpu < one.gpus.size(); ++gpu)
      gpu_read(slot.gpus[gpu], gpu, seen, own, one.gpus[gpu]);
  }
  return out;
}

void ActivityPage::waits_read(const protocol::ActivitySlot& slot, Seen& seen, std::uint64_t now_ns,
                              std::uint32_t own, ProcessNews& out) {
  const auto told = [&](std::uint32_t thread, std::uint32_t reason, std::uint64_t begin_ns,
                        std::uint64_t end_ns) {
    if (reason < 1 || reason > 3 || end_ns <= begin_ns || end_ns > now_ns) return;
    constexpr Cause kCause[] = {Cause::kGate, Cause::kMemory, Cause::kSync};
    const HostThread name{seen.process, host_thread(seen, own, thread)};
    out.waits.push_back({name, begin_ns, end_ns, kCause[reason - 1]});
  };
  const std::uint64_t written = load(slot.waits.raw);
  std::uint64_t at = std::max(
      seen.waits, written > protocol::kWaitsMax ? written - protocol::kWaitsMax : std::uint64_t{0});
  for (; at < written; ++at) {
    const protocol::ThreadWait& entry = slot.ring[at % protocol::kWaitsMax];
    const std::uint64_t serial = load(entry.serial.raw);
    if (serial < at + 1) break;  // still being written: next time
    const std::uint32_t thread = load(entry.thread.raw), reason = load(entry.reason.raw);
    const std::uint64_t begin_ns = load(entry.begin_ns.raw), end_ns = load(entry.end_ns.raw);
    if (serial == at + 1 && load(entry.serial.raw) == serial)
      told(thread, reason, begin_ns, end_ns);
  }
  // Who dies while it writes must not stop the others.
  const bool stuck = at < written && written - at > protocol::kWaitsMax / 2;
  seen.waits = stuck ? written : std::max(at, seen.waits);
  for (const protocol::OpenWait& open : slot.open) {
    const std::uint64_t since_ns = load(open.since_ns.raw);
    if (since_ns == 0) continue;
    const std::uint32_t thread = load(open.thread.raw), reason = load(open.reason.raw);
    if (load(open.since_ns.raw) == since_ns) told(thread, reason, since_ns, now_ns);
  }
  std::stable_sort(out.waits.begin(), out.waits.end(),
                   [](const ToldWait& a, const ToldWait& b) { return a.begin_ns < b.begin_ns; });
}

void ActivityPage::gpu_read(const ActivityGpu& gpu, std::size_t index, Seen& seen,
                            std::uint32_t own, GpuTold& out) {
  // In this order: a gap that is told after these were read is read all the same, and nothing
  // before settled_ns is missed.
  out.idle = load(gpu.idle.raw) == 1;
  out.settled_ns = load(gpu.settled_ns.raw);
  out.short_ns = load(gpu.short_ns.raw);
  if (out.settled_ns == 0) return;
  if (const std::uint32_t thread = load(gpu.thread.raw); thread != 0)
    out.thread = host_thread(seen, own, thread);
  const std::uint64_t written = load(gpu.gaps.raw);
  std::uint64_t at = seen.gaps[index];
  std::uint64_t& last_end_ns = seen.last_end_ns[index];
  bool& lost = seen.lost[index];
  if (written - at > protocol::kGapsMax) {
    lost = true;
    at = written - protocol::kGapsMax;
  }
  for (; at < written; ++at) {
    const protocol::Gap& entry = gpu.ring[at % protocol::kGapsMax];
    GpuTold::Gap gap;
    const std::uint64_t serial = load(entry.serial.raw);
    gap.begin_ns = load(entry.begin_ns.raw);
    gap.end_ns = load(entry.end_ns.raw);
    const std::uint32_t thread = load(entry.thread.raw);
    if (serial != at + 1 || load(entry.serial.raw) != serial) {
      lost = true;  // overtaken while it was read
      continue;
    }
    if (lost && last_end_ns != 0 && last_end_ns < gap.begin_ns)
      out.gaps.push_back({last_end_ns, gap.begin_ns, 0, true});
    lost = false;
    gap.thread = host_thread(seen, own, thread);
    out.gaps.push_back(gap);
    last_end_ns = gap.end_ns;
  }
  seen.gaps[index] = written;
}

// Most processes see themselves as the host does. Others may tell ever new numbers: /proc is looked
// through once a second at most, and only what it lists is remembered.
std::uint32_t ActivityPage::host_thread(Seen& seen, std::uint32_t own, std::uint32_t thread) {
  if (own == seen.process || thread == 0) return thread;
  if (thread == own) return seen.process;
  const bool due = seen.listed_ns == 0 || now_ns_ - seen.listed_ns >= kListEveryNs;
  if (due && !seen.host_threads.contains(thread)) threads_list(seen);
  // Where /proc does not show it, the first thread stands for it: never a stranger's of that
  // number.
  const auto known = seen.host_threads.find(thread);
  return known != seen.host_threads.end() ? known->second : seen.process;
}

void ActivityPage::threads_list(Seen& seen) {
  seen.listed_ns = now_ns_;
  seen.host_threads.clear();
  if (now_ns_ - listed_since_ns_ >= kListEveryNs) {
    listed_since_ns_ = now_ns_;
    listed_ = 0;
  }
  for (const std::uint32_t host : proc_numbers("/proc/" + std::to_string(seen.process) + "/task")) {
    if (listed_++ >= kListedMax) return;
    if (const std::uint32_t inner = inner_number(seen.process, host); inner != 0)
      seen.host_threads[inner] = host;
  }
}

}  // namespace sluice::exporter

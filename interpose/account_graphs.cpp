// Memory of graphs' allocation nodes. The driver reserves it when an executable graph is first
// launched or uploaded and keeps it for the next launch of any graph, until it is trimmed; what
// counts is what it has reserved, read after every call that may change it. A driver trims by
// itself when the device is full, and tells nobody which graphs have lost their memory: it is seen
// by what is reserved, and then each of them is asked for again. Whatever the driver took, the
// account is looked at behind the call: near the quota a launch is uploaded first, for an upload
// can be taken back.
#include <string.h>

#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/say.h"

namespace sluice::interpose {

uint32_t graph_memory_seen;

namespace {

// Of the launches that are on their way, on a device. What one of them needs no other may find as
// room in what is reserved, until it has ended: the driver may have given it that or not yet.
struct Ways {
  uint64_t needed;    // by the graphs that have to take memory first
  uint64_t growth;    // of what the driver has reserved, for that
  uint64_t expected;  // of the growth, what the ledger has reserved
  uint64_t gone;      // of what is charged, what the driver has given back
};

uintptr_t trims = 1;  // a graph whose record says the same has run since the last one
uint64_t charged[kDevicesMax];
Ways ways[kDevicesMax];
uint32_t launching;  // how many; each moves the mark, when it knows what became of its own graph
uint32_t begun;      // how many there ever were
bool trimmed_meanwhile;
Lock lock;         // of all above
Lock asking;       // who asks for a graph's memory is alone in that
uint32_t granted;  // how many were given it and have not ended

// How long a launch that does not fit waits for others, which the driver may keep for as long as a
// kernel takes.
constexpr uint64_t kPatienceNs = 1'000'000'000;
constexpr uint64_t kGrantedLookNs = 10'000'000;
// What a driver is expected to take beyond what was asked for at the most, in steps of its own: as
// much as the largest step that a pool is believed to have (account_pools.cpp).
constexpr uint64_t kSurplusMax = 64u << 20;

// One record for each device on which an executable graph allocates.
uint64_t key_of(CUgraphExec exec, int device) {
  return reinterpret_cast<uint64_t>(exec) * kDevicesMax + static_cast<uint64_t>(device);
}

const void* mark_of(uintptr_t mark) { return reinterpret_cast<const void*>(mark); }

bool reserved_read(int device, uint64_t* bytes) {
  cuuint64_t reserved = 0;
  const bool known = driver.cuDeviceGetGraphMemAttribute(
                         device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS;
  *bytes = reserved;
  return known;
}

// What is free on the device, if that is the thread's.
uint64_t room_on(int device) {
  size_t bytes = 0;
  const bool here = thread_context(this_thread) && this_thread->device == device;
  return here && driver.cuMemGetInfo_v2(&bytes, nullptr) == CUDA_SUCCESS ? bytes : 0;
}

// With the lock held.
void trim_seen() {
  if (launching != 0) {
    trimmed_meanwhile = true;
  } else {
    ++trims;
  }
}

// What a graph that needs `bytes` adds to what is reserved, with all that are on their way. What is
// reserved is read before and behind what is in use, for the driver may be changing both.
uint64_t growth_expected(int device, uint64_t bytes) {
  uint64_t before = 0, behind = 0;
  cuuint64_t in_use = 0;
  if (!reserved_read(device, &before) ||
      driver.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &in_use) !=
          CUDA_SUCCESS ||
      !reserved_read(device, &behind)) {
    return bytes;
  }
  const uint64_t wanted = in_use + ways[device].needed + bytes;
  const uint64_t reserved = (before < behind ? before : behind) + ways[device].growth;
  return wanted > reserved ? wanted - reserved : 0;
}

// With the lock held, when no launch is on its way any more: gives back what was reserved for those
// that were. The devices, a bit each, of which there is more to give back.
uint64_t ways_end() {
  uint64_t devices = 0;
  for (int device = 0; device < process.device_count; ++device) {
    Ways& way = ways[device];
    if (way.expected != 0) charge_abort(device, way.expected);
    way.expected = 0;
    if (way.gone != 0) devices |= uint64_t{1} << device;
  }
  return devices;
}

// With the lock held. What the driver has given back may be that of a launch on its way, which
// found it there and takes it anew: nobody else gets it before all that are on their way have
// ended.
// True: the driver has more than was asked for, which is charged.
bool settle_locked(int device, int gpu) {
  uint64_t reserved;
  if (!reserved_read(device, &reserved)) return false;
  const auto index = static_cast<uint32_t>(gpu);
  Ways& way = ways[device];
  const uint64_t known = charged[device] + way.expected;
  const uint64_t gone = reserved < charged[device] ? charged[device] - reserved : 0;
  const bool has_more = reserved > known;
  if (has_more) {
    process.ledger.hold_unasked(index, reserved - known);
    charged[device] += reserved - known;
  }
  if (gone > way.gone) trim_seen();
  way.gone = gone;
  if (gone == 0 || launching != 0) return has_more;
  process.ledger.release(index, gone);
  charged[device] = reserved;
  way.gone = 0;
  return has_more;
}

bool settle_with_surplus(int device) {
  const int gpu = device_gpu(device);
  if (gpu < 0) return false;
  const LockScope scope(lock);
  return settle_locked(device, gpu);
}

// Whether a launch on its way needs more than it makes the driver reserve.
bool room_is_claimed() {
  const LockScope scope(lock);
  bool claimed = false;
  for (int device = 0; device < process.device_count; ++device)
    claimed |= ways[device].needed != ways[device].growth;
  return claimed;
}

// Waits for those that were given memory, which may need less of it than was asked for.
void granted_wait() {
  const ErrnoGuard guard;
  const uint64_t until_ns = clock_now_ns() + kPatienceNs;
  for (uint32_t count = load_acquire(granted); count != 0; count = load_acquire(granted)) {
    if (clock_now_ns() >= until_ns) return;
    futex_wait(&granted, count, kGrantedLookNs, false);
  }
}

}  // namespace

bool graph_memory_learn(CUgraphExec exec, CUgraph graph) {
  graph_memory_forget(exec);  // one with this handle may have ended with its context
  uint64_t bytes[kDevicesMax] = {};
  bool whole = graph_nodes_sum(graph, bytes);
  for (int device = 0; device < kDevicesMax; ++device) {
    if (bytes[device] == 0) continue;
    store_release(graph_memory_seen, 1u);
    whole &= process.records.insert(
        Record{key_of(exec, device), bytes[device], nullptr, RecordKind::kGraphExec, device});
  }
  if (SLUICE_LIKELY(whole)) return true;
  unrecorded_say("what a graph allocates (its nodes, or more than 128 graphs within each other)");
  graph_memory_forget(exec);
  return false;
}

void graph_memory_forget(CUgraphExec exec) {
  if (!graph_memory_used()) return;
  Record record;
  for (int device = 0; device < process.device_count; ++device)
    (void)process.records.remove(RecordKind::kGraphExec, key_of(exec, device), &record);
}

GraphMemoryEnd::GraphMemoryEnd(CUgraphExec exec) {
  if (!graph_memory_used()) return;
  for (int device = 0; device < process.device_count; ++device) {
    if (process.records.remove(RecordKind::kGraphExec, key_of(exec, device), &records_[count_]))
      ++count_;
  }
}

void GraphMemoryEnd::undo() const {
  for (int i = 0; i < count_; ++i) (void)process.records.insert(records_[i]);
}

GraphMemoryScope::GraphMemoryScope(CUgraphExec exec) : exec_(exec) {
  uint64_t needed[kDevicesMax] = {};
  Record record;
  for (int device = 0; device < process.device_count; ++device) {
    if (process.records.find(RecordKind::kGraphExec, key_of(exec, device), &record))
      devices_ |= uint64_t{1} << device;
  }
  settle_all();
  if (!has_memory_and_enters(needed)) refusal_ = ask(needed);
}

GraphMemoryScope::GraphMemoryScope(CUgraph graph) : exec_(nullptr) {
  uint64_t needed[kDevicesMax] = {};
  (void)graph_nodes_sum(graph, needed);  // what cannot be looked at is refused when it is learned
  for (int device = 0; device < process.device_count; ++device) {
    if (needed[device] == 0) continue;
    devices_ |= uint64_t{1} << device;
    store_release(graph_memory_seen, 1u);
  }
  settle_all();
  if (devices_ != 0) refusal_ = ask(needed);
}

// The driver may have trimmed since.
void GraphMemoryScope::settle_all() {
  for (int device = 0; device < process.device_count; ++device) {
    if (is_on(device)) graph_memory_settle(device);
  }
}

// With the lock held: from here on what the driver gives back is kept for it.
void GraphMemoryScope::enter() {
  company_ = launching++ != 0;
  begun_ = ++begun;
  mark_ = trims;
  on_way_ = true;
}

// A graph that ran since the last trim has its memory, which is among what is in use, and is on its
// way. Any other enters when it has room for all that it needs: what is kept for those on their way
// would never be given back if those that ask were among them.
bool GraphMemoryScope::has_memory_and_enters(uint64_t* needed) {
  const LockScope scope(lock);
  bool has_memory = true;
  Record record;
  for (int device = 0; device < process.device_count; ++device) {
    if (!is_on(device)) continue;
    if (!process.records.find(RecordKind::kGraphExec, key_of(exec_, device), &record)) continue;
    needed[device] = record.bytes;
    has_memory &= record.context == mark_of(trims);
  }
  if (has_memory) enter();
  return has_memory;
}

// Who is on his way into room that was reserved already may have it by now or not, so that it could
// be counted twice; and who grows may need less than he asked for. So nobody asks beside the one,
// or is refused beside the other, before he has waited for them.
CUresult GraphMemoryScope::ask(const uint64_t* needed) {
  const LockScope scope(asking);
  const bool waits = room_is_claimed();
  if (waits) granted_wait();
  int missing = ask_now(needed);
  if (missing >= 0 && !waits && load_acquire(granted) != 0) {
    granted_wait();
    missing = ask_now(needed);
  }
  return missing < 0 ? CUDA_SUCCESS : charge_refuse(missing, missing_bytes_);
}

// On all devices or on none: the one that has no room, or -1.
int GraphMemoryScope::ask_now(const uint64_t* needed) {
  for (int device = 0; device < process.device_count; ++device) {
    if (needed[device] == 0 || ask_on(device, needed[device])) continue;
    for (int other = 0; other < device; ++other) withdraw(other);
    return device;
  }
  grant();
  return -1;
}

bool GraphMemoryScope::ask_on(int device, uint64_t bytes) {
  Asked asked{bytes, 0, 0};
  {
    const LockScope scope(lock);
    asked.growth = growth_expected(device, bytes);
  }
  if (asked.growth != 0) {
    missing_bytes_ = asked.growth;
    if (!charge_room(device, asked.growth)) return false;
    asked.room = room_on(device);
  }
  near_ |= !charge_has_room(device, bytes + kSurplusMax);
  asked_[device] = asked;
  return true;
}

void GraphMemoryScope::grant() {
  __atomic_add_fetch(&granted, 1, __ATOMIC_ACQ_REL);
  granted_ = true;
  const LockScope scope(lock);
  enter();
  for (int device = 0; device < process.device_count; ++device) {
    ways[device].needed += asked_[device].needed;
    ways[device].growth += asked_[device].growth;
    ways[device].expected += asked_[device].growth;
  }
}

void GraphMemoryScope::withdraw(int device) {
  if (asked_[device].growth != 0) charge_abort(device, asked_[device].growth);
  asked_[device] = Asked{};
}

// What was reserved for the launch becomes what the driver took, without being free in between.
// True: it took less than the launch needed, on a device without room for that: it may have
// trimmed. Then what was trimmed may be that of others on their way, who take it anew: nothing is
// given back before they have ended.
bool GraphMemoryScope::settle(int device) {
  const Asked asked = asked_[device];
  if (asked.needed == 0) return false;
  const uint64_t room_now = asked.growth == 0 ? 0 : room_on(device);
  const LockScope scope(lock);
  Ways& way = ways[device];
  way.needed -= asked.needed;
  way.growth -= asked.growth;
  uint64_t reserved;
  const bool known = reserved_read(device, &reserved);
  const uint64_t grown = known && reserved > charged[device] ? reserved - charged[device] : 0;
  const uint64_t took = grown < asked.growth ? grown : asked.growth;
  const uint64_t rest = asked.growth - took;
  const bool full = asked.room < asked.growth || room_now + took < asked.growth;
  const uint64_t back = full && launching > 1 ? 0 : rest;
  if (took > 0) charge_commit(device, took);
  if (back > 0) charge_abort(device, back);
  charged[device] += took;
  way.expected -= took + back;
  asked_[device] = Asked{};
  return rest > 0 && full;
}

bool GraphMemoryScope::holds() {
  uint64_t over = 0;
  for (int device = 0; device < process.device_count; ++device) {
    if (is_on(device) && settle_with_surplus(device)) over |= uint64_t{1} << device;
  }
  for (int device = 0; device < process.device_count; ++device) {
    if ((over >> device & 1) == 0) continue;
    const uint64_t bytes = asked_[device].needed;
    trimmed_ |= settle(device);
    if (charge_within(device)) continue;
    if (relaxed_call([&] { return driver.cuDeviceGraphMemTrim(device); }) == CUDA_SUCCESS)
      graph_memory_trimmed(device);
    charge_refused(device_gpu(device), bytes);
    return false;
  }
  return true;
}

GraphMemoryScope::~GraphMemoryScope() {
  for (int device = 0; device < process.device_count; ++device) {
    if (!is_on(device)) continue;
    trimmed_ |= settle(device);
    graph_memory_settle(device);
  }
  const uint64_t late = end(trimmed_);
  for (int device = 0; device < process.device_count; ++device) {
    if ((late >> device & 1) != 0) graph_memory_settle(device);
    if (taken_ && is_on(device)) remember(device);
  }
  if (granted_) {
    __atomic_sub_fetch(&granted, 1, __ATOMIC_ACQ_REL);
    futex_wake_all(&granted, false);
  }
}

// The devices, a bit each, of which something was kept for launches on their way, if this was the
// last of them.
uint64_t GraphMemoryScope::end(bool trimmed) {
  const LockScope scope(lock);
  if (!on_way_) return 0;
  const bool last = --launching == 0;
  company_ |= !last || begun != begun_;
  if (trimmed || trimmed_meanwhile) {
    const bool unasked = trims == mark_;
    ++trims;
    trimmed_meanwhile = false;
    // This graph is the one that it was trimmed for, if there was no other.
    if (unasked && !company_) mark_ = trims;
  }
  return last ? ways_end() : 0;
}

void GraphMemoryScope::remember(int device) const {
  Record record;
  if (!process.records.find(RecordKind::kGraphExec, key_of(exec_, device), &record)) return;
  if (record.context == mark_of(mark_)) return;
  record.context = mark_of(mark_);
  (void)process.records.insert(record);
}

void graph_memory_trimmed(int device) {
  const int gpu = device_gpu(device);
  const LockScope scope(lock);
  ++trims;
  if (gpu >= 0 && graph_memory_used()) (void)settle_locked(device, gpu);
}

// The driver trims by itself when the device is full.
void graph_memory_settle(int device) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || !graph_memory_used()) return;
  const LockScope scope(lock);
  (void)settle_locked(device, gpu);
}

void graph_memory_settle() {
  for (int device = 0; device < process.device_count; ++device) graph_memory_settle(device);
}

void graph_memory_sum(uint64_t* bytes_by_device) {
  for (int device = 0; device < kDevicesMax; ++device) bytes_by_device[device] += charged[device];
}

GraphMemoryPause::GraphMemoryPause() { lock.acquire(); }
GraphMemoryPause::~GraphMemoryPause() { lock.release(); }

void graph_memory_reset_after_fork() {
  graph_memory_seen = 0;
  memset(charged, 0, sizeof charged);
  memset(ways, 0, sizeof ways);
  launching = begun = granted = 0;
  trimmed_meanwhile = false;
  lock.reset_after_fork();
  asking.reset_after_fork();
}

}  // namespace sluice::interpose

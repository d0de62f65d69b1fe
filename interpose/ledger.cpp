// See ledger.h for the protocol. Stores to the own slot are plain release stores under the
// process's own lock; the one full fence is in the ask.
#include "interpose/ledger.h"

// Behind every store that other processes can see; a test ends the process there.
#ifndef SLUICE_LEDGER_STEP
#define SLUICE_LEDGER_STEP() static_cast<void>(0)
#endif

namespace sluice::interpose {

using protocol::AtomicU64;
using protocol::ClaimsGpu;
using protocol::ClaimsPage;
using protocol::kTenantGpusMax;
using protocol::kTenantProcessesMax;

namespace {

void add(AtomicU64& word, uint64_t bytes) {
  __atomic_store_n(&word.raw, __atomic_load_n(&word.raw, __ATOMIC_RELAXED) + bytes,
                   __ATOMIC_RELEASE);
  SLUICE_LEDGER_STEP();
}

// A change of reserved and held that readers see whole: odd, change, even.
class Change {
 public:
  explicit Change(ClaimsGpu& account) : account_(account) { bump(); }
  ~Change() { bump(); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  void bump() {
    uint32_t& raw = account_.version.raw;
    __atomic_store_n(&raw, __atomic_load_n(&raw, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
    // The even-to-odd store must be seen before the change; x86 keeps stores in order, others need
    // the fence.
    __atomic_thread_fence(__ATOMIC_RELEASE);
    SLUICE_LEDGER_STEP();
  }
  ClaimsGpu& account_;
};

uint32_t slots_used(const ClaimsPage& page) {
  const uint32_t used = page.slots_used.load();
  return used == 0 || used > kTenantProcessesMax ? kTenantProcessesMax : used;
}

void pause_randomly(uint32_t round) {
  const ErrnoGuard guard;
  static uint32_t seed = 0x9e3779b9u;
  uint32_t x = load_relaxed(seed) + static_cast<uint32_t>(reinterpret_cast<uintptr_t>(&round));
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  store_relaxed(seed, x);
  const uint32_t spins = x % (16u << (round < 8 ? round : 8));
  for (uint32_t i = 0; i < spins; ++i) __builtin_ia32_pause();
  if (round > 4) sched_yield();
  if (round > 64) sleep_ns(50000);
}

}  // namespace

uint64_t claims_total(const ClaimsPage& page, uint32_t gpu) {
  uint64_t sum = 0;
  for (uint32_t i = 0, n = slots_used(page); i < n; ++i) {
    const ClaimsGpu& account = page.slots[i].gpus[gpu];
    sum += account.reserved_bytes.load() + account.held_bytes.load();
  }
  return sum;
}

uint64_t claims_held(const ClaimsPage& page, uint32_t gpu) {
  uint64_t sum = 0;
  for (uint32_t i = 0, n = slots_used(page); i < n; ++i)
    sum += page.slots[i].gpus[gpu].held_bytes.load();
  return sum;
}

static void slot_use(ClaimsPage& page, uint32_t slot) {
  uint32_t used = page.slots_used.load();
  while (used < slot + 1 &&
         !__atomic_compare_exchange_n(&page.slots_used.raw, &used, slot + 1, false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
}

void Ledger::attach(ClaimsPage* page, uint32_t slot) {
  second_ = Place{};
  first_ = Place{page, slot};
  slot_use(*page, slot);
  for (BriefLock& lock : locks_) lock.reset_after_fork();
}

void Ledger::attach_second(ClaimsPage* page, uint32_t slot, const int8_t (&gpus)[kTenantGpusMax]) {
  uint64_t bytes[kTenantGpusMax] = {};
  for (uint32_t gpu = 0; gpu < kTenantGpusMax; ++gpu) {
    second_gpus_[gpu] = gpus[gpu];
    if (gpus[gpu] >= 0) bytes[gpus[gpu]] += held(gpu);
  }
  second_ = Place{page, slot};
  slot_use(*page, slot);
  for (uint32_t gpu = 0; gpu < kTenantGpusMax; ++gpu) {
    ClaimsGpu& account = second_.account(gpu);
    const Change whole(account);
    add(account.held_bytes, bytes[gpu] - account.held_bytes.load());
    add(account.reserved_bytes, -account.reserved_bytes.load());
  }
}

template <class Sum>
uint64_t Ledger::larger(uint32_t gpu, Sum sum) const {
  const uint64_t first = sum(*first_.page, gpu);
  const uint64_t second = has_second(gpu) ? sum(*second_.page, second_gpu(gpu)) : 0;
  return first > second ? first : second;
}

uint64_t Ledger::total(uint32_t gpu) const { return larger(gpu, claims_total); }

uint64_t Ledger::held_total(uint32_t gpu) const { return larger(gpu, claims_held); }

bool Ledger::reserve(uint32_t gpu, uint64_t bytes, uint64_t quota_bytes) {
  if (quota_bytes == 0) quota_bytes = ~uint64_t{0};
  if (bytes > quota_bytes) return false;
  if (!reserve_on(first_, gpu, locks_[gpu], bytes, quota_bytes)) return false;
  if (SLUICE_LIKELY(!has_second(gpu))) return true;
  if (reserve_on(second_, second_gpu(gpu), locks_[gpu], bytes, quota_bytes)) return true;
  const LockScope scope(locks_[gpu]);
  const Change change(mine(gpu));
  add(mine(gpu).reserved_bytes, -bytes);
  return false;
}

bool Ledger::reserve_on(const Place& place, uint32_t gpu, BriefLock& lock, uint64_t bytes,
                        uint64_t quota_bytes) {
  uint64_t start_ns = 0;
  for (uint32_t round = 0;; ++round) {
    Outcome outcome;
    {
      const LockScope scope(lock);
      outcome = attempt(place, gpu, bytes, quota_bytes);
    }
    if (outcome == Outcome::kTaken) return true;
    // Nothing always fits, also above a quota that was lowered: what is wrong with it the driver
    // says.
    if (bytes == 0) return true;
    if (outcome == Outcome::kTooMuch) return false;
    pause_randomly(round);
    if (round == 16) start_ns = clock_now_ns();
    if (round > 16 && clock_now_ns() - start_ns > (patience_ns != 0 ? patience_ns : kPatienceNs))
      return false;
  }
}

static bool surely_too_much(const ClaimsPage& page, uint32_t gpu, uint64_t bytes,
                            uint64_t quota_bytes) {
  uint32_t versions[kTenantProcessesMax];
  const uint32_t count = slots_used(page);
  uint64_t sum = bytes;
  for (uint32_t i = 0; i < count; ++i) {
    const ClaimsGpu& account = page.slots[i].gpus[gpu];
    versions[i] = account.version.load();
    if ((versions[i] & 1) != 0) return false;
    if (__builtin_add_overflow(sum, account.reserved_bytes.load(), &sum) ||
        __builtin_add_overflow(sum, account.held_bytes.load(), &sum)) {
      return true;
    }
  }
  if (sum <= quota_bytes) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (page.slots[i].gpus[gpu].version.load() != versions[i]) return false;
  }
  return true;
}

Ledger::Outcome Ledger::attempt(const Place& place, uint32_t gpu, uint64_t bytes,
                                uint64_t quota_bytes) {
  ClaimsGpu& account = place.account(gpu);
  account.asked_bytes.store(
      bytes);  // sequentially consistent: the ask is out before the first look
  SLUICE_LEDGER_STEP();
  uint64_t sum = 0;
  bool over = false;
  for (uint32_t i = 0, n = slots_used(*place.page); i < n && !over; ++i) {
    const ClaimsGpu& other = place.page->slots[i].gpus[gpu];
    const uint64_t asked = other.asked_bytes.load();
    const uint64_t reserved = other.reserved_bytes.load();
    const uint64_t held = other.held_bytes.load();
    // A slot written with nonsense must not wrap the sum round to something small.
    over = __builtin_add_overflow(sum, asked, &sum) ||
           __builtin_add_overflow(sum, reserved, &sum) || __builtin_add_overflow(sum, held, &sum) ||
           sum > quota_bytes;
  }
  if (over) {
    const bool refused = surely_too_much(*place.page, gpu, bytes, quota_bytes);
    __atomic_store_n(&account.asked_bytes.raw, 0, __ATOMIC_RELEASE);
    SLUICE_LEDGER_STEP();
    return refused ? Outcome::kTooMuch : Outcome::kCollision;
  }
  {
    const Change change(account);
    add(account.reserved_bytes, bytes);
  }
  __atomic_store_n(&account.asked_bytes.raw, 0, __ATOMIC_RELEASE);
  SLUICE_LEDGER_STEP();
  return Outcome::kTaken;
}

// Changes the account on each page that it is kept on, seen whole by readers of that page.
template <class Changes>
SLUICE_ALWAYS_INLINE void Ledger::change(uint32_t gpu, Changes changes) {
  const LockScope scope(locks_[gpu]);
  {
    const Change whole(mine(gpu));
    changes(mine(gpu));
  }
  if (SLUICE_LIKELY(!has_second(gpu))) return;
  ClaimsGpu& account = second_.account(second_gpu(gpu));
  const Change whole(account);
  changes(account);
}

static void peak_raise(ClaimsGpu& account) {
  if (account.held_bytes.raw > account.peak_bytes.raw) {
    store_relaxed(account.peak_bytes.raw, account.held_bytes.raw);
  }
}

void Ledger::hold(uint32_t gpu, uint64_t bytes) {
  change(gpu, [bytes](ClaimsGpu& account) {
    // To the right first, so that a reader of reserved and then held never misses the bytes.
    add(account.held_bytes, bytes);
    add(account.reserved_bytes, -bytes);
    peak_raise(account);
  });
}

void Ledger::abort(uint32_t gpu, uint64_t bytes) {
  change(gpu, [bytes](ClaimsGpu& account) { add(account.reserved_bytes, -bytes); });
}

void Ledger::release(uint32_t gpu, uint64_t bytes) {
  change(gpu, [bytes](ClaimsGpu& account) { add(account.held_bytes, -bytes); });
}

void Ledger::hold_unasked(uint32_t gpu, uint64_t bytes) {
  change(gpu, [bytes](ClaimsGpu& account) {
    add(account.held_bytes, bytes);
    peak_raise(account);
  });
}

void Ledger::restate(uint32_t gpu, uint64_t held_bytes, uint64_t context_bytes) {
  change(gpu, [=](ClaimsGpu& account) {
    add(account.held_bytes, held_bytes - account.held_bytes.load());
    add(account.reserved_bytes, -account.reserved_bytes.load());
    peak_raise(account);
  });
  const LockScope scope(locks_[gpu]);
  add(mine(gpu).context_bytes, context_bytes - mine(gpu).context_bytes.load());
}

void Ledger::context_add(uint32_t gpu, uint64_t bytes) {
  const LockScope scope(locks_[gpu]);
  add(mine(gpu).context_bytes, bytes);
}

void Ledger::context_sub(uint32_t gpu, uint64_t bytes) {
  const LockScope scope(locks_[gpu]);
  add(mine(gpu).context_bytes, -bytes);
}

}  // namespace sluice::interpose

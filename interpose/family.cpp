// See family.h. Directories of /proc are read by system calls of our own: opendir allocates, and
// the program's malloc may be anybody's. Others are called directly, too, whose functions carry
// symbol versions of their own, which the loader of every program would have to compare.
#include "interpose/family.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/clock.h"
#include "interpose/share.h"

namespace sluice::interpose {

using namespace protocol;

namespace {

constexpr char kName[] = "sluice-limits";
constexpr char kLink[] = "/memfd:sluice-limits";  // as /proc/PID/fd shows it
constexpr uint32_t kMagic = 0x34464c53;           // "SLF4"
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kAncestorsMax = 4096;  // none has as many; the numbers of dead ones are given again
// Without /proc the process's own descriptors are tried by number, below this one: a family is at
// the lowest free number from 1000 on, or lower (descriptor_move_up).
constexpr int kDescriptorsTriedMax = 4096;

// What a descriptor is looked at for.
struct Head {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  FamilyTenant tenant;
  FamilyTenant outer;      // of the job in which it was founded; all 0 = in none
  AtomicU32 knows_tenant;  // its limits are the tenant's as well
};

// Also read by a libsluice.so of another build: the layout is part of the magic number.
struct Family {
  Head head;
  char socket[kSocketPathBytes];  // where the founder asks for a broker
  Limits own;                     // what the founder was started with
  Limits limits;                  // what is kept without a broker
  uint64_t context_bytes;         // what a context takes by the broker; 0 = unknown
  AtomicU32 exclusive;            // the GPUs are the tenant's alone
  pthread_mutex_t gpus_lock;      // robust; held while limits or GPUs of the lease page are changed
  ShareBucket buckets[kTenantGpusMax];
  pthread_mutex_t slots[kTenantProcessesMax];  // robust; held by the processes that own the slots
  // What of a slot's busy time has been set against the buckets.
  AtomicU64 settled_ns[kTenantProcessesMax][kTenantGpusMax];
  // Since when a slot is known to be of a process that has ended; 0 = it is not.
  AtomicU64 ended_ns[kTenantProcessesMax];
};
constexpr size_t kFamilyBytes = page_round(sizeof(Family));
constexpr size_t kBytes = kFamilyBytes + kLeaseBytes + kClaimsBytes;

unsigned char* base;

Family& family() { return *reinterpret_cast<Family*>(base); }
LeasePage& lease() { return *reinterpret_cast<LeasePage*>(base + kFamilyBytes); }
ClaimsPage& claims() { return *reinterpret_cast<ClaimsPage*>(base + kFamilyBytes + kLeaseBytes); }

bool mutex_prepare(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  if (pthread_mutexattr_init(&attributes) != 0) return false;
  const bool good = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                    pthread_mutex_init(mutex, &attributes) == 0;
  pthread_mutexattr_destroy(&attributes);
  return good;
}

// True when the lock is held now; *died = its holder had ended.
bool mutex_held(pthread_mutex_t* mutex, int result, bool* died) {
  *died = result == EOWNERDEAD;
  if (*died) pthread_mutex_consistent(mutex);
  return result == 0 || *died;
}

bool head_read(int fd, Head* head) {
  struct stat status;
  return fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
         static_cast<uint64_t>(status.st_size) == kBytes &&
         (fcntl(fd, F_GET_SEALS) & kSeals) == kSeals &&
         pread(fd, static_cast<void*>(head), sizeof *head, 0) == sizeof *head &&
         head->magic == kMagic && head->version == kVersion;
}

bool is_same(const FamilyTenant& a, const FamilyTenant& b) {
  return a.id == b.id && a.key == b.key;
}

bool base_map(int fd) {
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return false;
  base = static_cast<unsigned char*>(mapped);
  return true;
}

// A memfd beyond the program's limit on the size of files raises SIGXFSZ, which ends the program,
// so it is not tried.
bool file_size_set(int fd, size_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    errno = EFBIG;
    return false;
  }
  return ftruncate(fd, static_cast<off_t>(bytes)) == 0;
}

bool number_read(const char* text, int* out) {
  long value = 0;
  if (*text == '\0') return false;
  for (; *text != '\0'; ++text) {
    if (*text < '0' || *text > '9') return false;
    value = value * 10 + (*text - '0');
    if (value > INT_MAX) return false;
  }
  *out = static_cast<int>(value);
  return true;
}

struct DirectoryEntry {  // of getdents64(2)
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[1];
};

// How well a family serves a search: the best one that is seen is kept.
enum class Rank : int { kNone, kUnconfirmed, kJob, kInnerJob, kIt };

struct Search {
  bool any_job;         // else that of `tenant` is looked for
  FamilyTenant tenant;  // afterwards the job of `fd`
  Rank rank = Rank::kNone;
  int fd = -1;
  bool blind = false;  // a directory could not be opened for lack of descriptors
};

Rank rank_of(const Head& head, const Search& search) {
  if (!search.any_job && is_same(head.tenant, search.tenant)) return Rank::kIt;
  if (head.tenant.id == 0) return Rank::kNone;
  if (head.outer.id == 0) return Rank::kJob;
  return head.knows_tenant.load() != 0 ? Rank::kInnerJob : Rank::kUnconfirmed;
}

FamilyTenant outer_seen;  // the job that the last search for one tenant's family came across

// Owns the descriptor.
void candidate_take(Search& search, int fd) {
  Head head;
  const Rank rank = head_read(fd, &head) ? rank_of(head, search) : Rank::kNone;
  if (rank <= search.rank) {
    close(fd);
    return;
  }
  if (search.fd >= 0) close(search.fd);
  search.fd = fd;
  search.rank = rank;
  if (rank < Rank::kIt && !search.any_job) outer_seen = head.tenant;
}

void descriptors_search(int directory, Search& search) {
  alignas(8) char bytes[1024];  // on a thread of the program's, which may have little stack
  while (search.rank != Rank::kIt) {
    const long read = syscall(SYS_getdents64, directory, bytes, sizeof bytes);
    if (read <= 0) return;
    for (long at = 0; at < read;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(bytes + at);
      at += entry->length;
      char target[64] = {};
      if (syscall(SYS_readlinkat, directory, entry->name, target, sizeof target - 1) < 0 ||
          strncmp(target, kLink, sizeof kLink - 1) != 0) {
        continue;
      }
      // Opened anew, so that what is looked at is what is used.
      const int fd =
          static_cast<int>(syscall(SYS_openat, directory, entry->name, O_RDWR | O_CLOEXEC));
      if (fd >= 0) candidate_take(search, fd);
    }
  }
}

// Without /proc, or a descriptor to read it with.
void numbers_search(Search& search) {
  for (int number = 0; number < kDescriptorsTriedMax && search.rank != Rank::kIt; ++number) {
    const int seals = fcntl(number, F_GET_SEALS);
    if (seals < 0 || (seals & kSeals) != kSeals) continue;
    const int fd = fcntl(number, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) {
      candidate_take(search, fd);
    } else {
      search.blind = true;
    }
  }
}

void process_search(const char* pid, Search& search) {
  char path[64] = "/proc/";
  strncat(path, pid, 16);
  strcat(path, "/fd");
  const int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    descriptors_search(directory, search);
    close(directory);
    return;
  }
  search.blind |= errno == EMFILE || errno == ENFILE;
  if (strcmp(pid, "self") == 0) numbers_search(search);
}

// The parent of a process as text; false at the end of the line.
bool parent_of(const char* pid, char out[16]) {
  char path[64] = "/proc/";
  strncat(path, pid, 16);
  strcat(path, "/stat");
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[512] = {};
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  // "PID (NAME) STATE PPID ...": a name may hold anything, so from the last bracket on.
  const char* at = n > 0 ? strrchr(text, ')') : nullptr;
  if (at == nullptr || strlen(at) < 5) return false;
  at += 4;
  size_t length = 0;
  for (; length < 15 && at[length] >= '0' && at[length] <= '9'; ++length) out[length] = at[length];
  out[length] = '\0';
  int number = 0;
  return number_read(out, &number) && number > 0;
}

// All of one account but the number of its version, which readers compare.
void account_zero(ClaimsGpu& gpu) {
  gpu.held_bytes.store(0);
  gpu.reserved_bytes.store(0);
  gpu.asked_bytes.store(0);
  gpu.context_bytes.store(0);
  gpu.peak_bytes.store(0);
  gpu.busy_ns.store(0);
  gpu.launches.store(0);
  gpu.graph_launches.store(0);
  gpu.gate_wait_ns.store(0);
  gpu.gate_waits.store(0);
  gpu.refused.store(0);
  gpu.in_flight.store(0);
  gpu.drained_epoch.store(0);
  // Even again, and another number than before.
  gpu.version.store((gpu.version.load() + 2) & ~1u);
  gpu.held_epoch.store(0);
  gpu.measured.store(0);
  gpu.moved_word.store(0);
  gpu.movable_bytes.store(0);
  gpu.swapped_bytes.store(0);
}

// What was of one process is nothing to the next one in the slot. The pid is last: a slot that has
// one is looked at by all sweeps. (Who is idle is told to brokers alone: there is nothing in the
// activity slots.)
void claims_zero(ClaimsSlot& slot) {
  for (AtomicU64& kept : claims().released_bytes[&slot - claims().slots]) kept.store(0);
  for (ClaimsGpu& gpu : slot.gpus) account_zero(gpu);
  slot.unhooked_seen.store(0);
  slot.own_pid.store(0);
  slot.leaving.store(0);
  for (AtomicU64& count : slot.gate_wait_counts) count.store(0);
  slot.refused_full.store(0);
  for (protocol::AtomicU32& pages : slot.limits_pages) pages.store(0);
  slot.end_seen.store(0);
  slot.pid.store(0);
}

// The GPU time that a process had used and not paid for when it ended. Marked as paid first: who is
// killed in between leaves a little of it unpaid, and nothing paid twice.
void debt_settle(uint32_t slot, uint32_t gpu) {
  const uint64_t busy_ns = claims().slots[slot].gpus[gpu].busy_ns.load();
  const uint64_t settled_ns = family().settled_ns[slot][gpu].load();
  family().settled_ns[slot][gpu].store(busy_ns);
  const uint32_t percent = family().limits.sm_percent;
  if (busy_ns <= settled_ns || percent >= 100) return;
  const uint64_t now_ns = clock_common_ns(clock_now_ns());
  ShareUse use{settled_ns, 0, now_ns - (busy_ns - settled_ns), false};
  (void)share_step(family().buckets[gpu], lease().gpus[gpu].lease, use, percent, busy_ns, false,
                   now_ns);
}

void slot_clear(uint32_t index) {
  ClaimsSlot& slot = claims().slots[index];
  for (uint32_t gpu = 0; gpu < kTenantGpusMax; ++gpu) {
    if (slot.pid.load() != 0) debt_settle(index, gpu);
    family().settled_ns[index][gpu].store(0);
  }
  family().ended_ns[index].store(0);
  claims_zero(slot);
}

// With the slot's lock held: since when its process has ended, 0 = it has not. `died`: the lock
// says so now.
uint64_t slot_ended_ns(uint32_t index, bool died) {
  AtomicU64& ended_ns = family().ended_ns[index];
  if (died && ended_ns.load() == 0) ended_ns.store(clock_common_ns(clock_now_ns()));
  return ended_ns.load();
}

bool slot_is_charged(uint32_t index, uint32_t gpu) {
  const ClaimsGpu& account = claims().slots[index].gpus[gpu];
  return account.held_bytes.load() != 0 || account.reserved_bytes.load() != 0;
}

bool slot_is_charged(uint32_t index) {
  for (uint32_t gpu = 0; gpu < kTenantGpusMax; ++gpu) {
    if (slot_is_charged(index, gpu)) return true;
  }
  return false;
}

}  // namespace

bool family_is_there() { return base != nullptr; }

namespace {

// Maps what the search finds, which is what it wants at least.
bool search_map(Search& search, FamilyFind where, Rank least) {
  process_search("self", search);
  const bool own = search.rank >= least;
  char pid[16] = "self";
  if (where == FamilyFind::kOwnAndAncestors) {
    for (int i = 0; search.rank < least && i < kAncestorsMax && parent_of(pid, pid); ++i) {
      process_search(pid, search);
    }
  }
  if (search.fd < 0) return false;
  const bool mapped = search.rank >= least && base_map(search.fd);
  if (own || !mapped) {
    close(search.fd);
  } else {
    (void)descriptor_move_up(search.fd, true);
  }
  return mapped;
}

}  // namespace

bool family_find(FamilyFind where, const FamilyTenant& tenant) {
  if (base != nullptr) return true;
  outer_seen = {};
  Search search{false, tenant};
  return search_map(search, where, Rank::kIt);
}

FamilyAdoption family_adopt() {
  Search search{true, {}};
  if (base != nullptr || search_map(search, FamilyFind::kOwnAndAncestors, Rank::kUnconfirmed)) {
    return family().head.tenant.id != 0 ? FamilyAdoption::kAdopted : FamilyAdoption::kNone;
  }
  return search.blind ? FamilyAdoption::kBlind : FamilyAdoption::kNone;
}

bool family_leave() {
  if (base == nullptr || !family_is_inner() || family_knows_tenant()) return false;
  unsigned char* const inner = base;
  const FamilyTenant outer = family().head.outer;
  base = nullptr;
  if (!family_find(FamilyFind::kOwnAndAncestors, outer)) {
    base = inner;
    return false;
  }
  munmap(inner, kBytes);
  return true;
}

bool family_found(const Limits& limits, const FamilyTenant& tenant, const char* socket) {
  const int fd =
      static_cast<int>(syscall(SYS_memfd_create, kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return false;
  if (!file_size_set(fd, kBytes) || fcntl(fd, F_ADD_SEALS, kSeals) != 0 || !base_map(fd)) {
    close(fd);
    return false;
  }
  Family& made = family();
  made.head.tenant = tenant;
  if (tenant.id != 0) made.head.outer = outer_seen;
  if (socket != nullptr) strncpy(made.socket, socket, sizeof made.socket - 1);
  made.own = made.limits = limits;
  mutex_prepare(&made.gpus_lock);
  for (pthread_mutex_t& slot : made.slots) mutex_prepare(&slot);
  lease().magic = kLeasePageMagic;
  lease().version = kVersion;
  lease().tenant_class = TenantClass::kBatch;
  lease().sm_mode = SmMode::kFixed;
  claims().magic = kClaimsPageMagic;
  claims().version = kVersion;
  claims().slot_count = kTenantProcessesMax;
  claims().gpu_count = kTenantGpusMax;
  made.head.version = kVersion;
  store_release(made.head.magic, kMagic);
  (void)descriptor_move_up(fd, true);
  return true;
}

const Limits& family_limits_own() { return family().own; }
const Limits& family_limits() { return family().limits; }
FamilyTenant family_tenant() { return family().head.tenant; }
bool family_is_inner() { return family().head.outer.id != 0; }
bool family_socket(char (&out)[kSocketPathBytes]) {
  if (base == nullptr) return false;
  memcpy(out, family().socket, sizeof out);
  out[sizeof out - 1] = '\0';  // other processes may write to it
  return out[0] != '\0';
}
bool family_knows_tenant() { return base != nullptr && family().head.knows_tenant.load() != 0; }
ClaimsPage* family_claims() { return &claims(); }
uint32_t family_gpu_count() { return load_acquire(lease().gpu_count); }
void family_context_cost_set(int gpu, uint64_t bytes) {
  store_relaxed(lease().gpus[gpu].context_bytes, bytes);
}
ShareBucket& family_bucket(int gpu) { return family().buckets[gpu]; }
AtomicU32& family_gate(int gpu) { return lease().gpus[gpu].lease; }
bool family_pages_install() {
  if (pages_install_mapped(base + kFamilyBytes)) return true;
  Search search{false, family().head.tenant};
  process_search("self", search);
  if (search.fd < 0) return false;
  const bool installed = search.rank == Rank::kIt && pages_install_file(search.fd, kFamilyBytes);
  close(search.fd);
  return installed;
}

namespace {

class GpusLock {
 public:
  GpusLock() {
    bool died;
    held_ = mutex_held(&family().gpus_lock, pthread_mutex_lock(&family().gpus_lock), &died);
  }
  ~GpusLock() {
    if (held_) pthread_mutex_unlock(&family().gpus_lock);
  }
  GpusLock(const GpusLock&) = delete;
  GpusLock& operator=(const GpusLock&) = delete;
  bool held() const { return held_; }

 private:
  bool held_;
};

// The limits of a GPU's entry, with the lock held. The window bounds what is in flight also where
// the whole time is the tenant's: a broker that comes back waits for that.
void entry_limit(LeaseEntry& entry) {
  const Limits& limits = family().limits;
  store_relaxed(entry.memory_max_bytes, limits.memory_bytes);
  store_relaxed(entry.memory_min_bytes, limits.memory_bytes);
  store_relaxed(entry.sm_percent, limits.sm_percent);
  const bool windowed =
      limits.sm_percent < 100 || (family().head.tenant.id != 0 && family().exclusive.load() == 0);
  entry.window_ns.store(windowed ? share_window_ns(limits.sm_percent) : 0);
}

// With the lock held.
int gpu_add(const GpuUuid& uuid) {
  const int found = family_gpu_find(uuid);
  const uint32_t count = lease().gpu_count;
  if (found >= 0 || count >= kTenantGpusMax) return found;
  LeaseEntry& entry = lease().gpus[count];
  entry.gpu = uuid;
  entry.context_bytes = family().context_bytes;
  entry_limit(entry);
  const uint32_t exclusive = family().exclusive.load() != 0 ? kLeaseExclusive : 0;
  entry.lease.store(lease_word(1, kLeaseOpen | exclusive));
  store_release(lease().gpu_count, count + 1);
  return static_cast<int>(count);
}

void limits_lower(const Limits& limits) {
  family().limits = limits_narrow(family().limits, limits);
  for (uint32_t i = 0; i < lease().gpu_count && i < kTenantGpusMax; ++i) {
    entry_limit(lease().gpus[i]);
  }
}

}  // namespace

int family_gpu_find(const GpuUuid& uuid) {
  const uint32_t count = family_gpu_count();
  for (uint32_t i = 0; i < count && i < kTenantGpusMax; ++i) {
    if (lease().gpus[i].gpu == uuid) return static_cast<int>(i);
  }
  return -1;
}

const GpuUuid& family_gpu_uuid(uint32_t gpu) { return lease().gpus[gpu].gpu; }

int family_gpu(const GpuUuid& uuid) {
  const GpusLock lock;
  return lock.held() ? gpu_add(uuid) : -1;
}

void family_narrow(const Limits& limits) {
  const GpusLock lock;
  if (lock.held()) limits_lower(limits);
}

void family_learn(const TenantLimits& admitted) {
  if (family_knows_tenant()) return;
  const GpusLock lock;
  if (!lock.held() || family_knows_tenant()) return;
  family().exclusive.store(admitted.exclusive ? 1 : 0);
  if (admitted.exclusive) lease().tenant_class = TenantClass::kExclusive;
  Limits limits;
  limits.memory_bytes = admitted.memory_max_bytes;
  limits.sm_percent = admitted.sm_percent;
  limits_lower(limits);
  family().context_bytes = admitted.context_bytes;
  for (uint32_t i = 0; i < admitted.gpu_count && i < kTenantGpusMax; ++i) {
    (void)gpu_add(admitted.gpus[i]);
  }
  family().head.knows_tenant.store(1);
}

namespace {

// Of processes that have ended and are charged still, only those that ended by then count as free;
// the first of all the others is told.
int slot_take(uint64_t ended_by_ns, uint64_t* oldest_ns) {
  for (uint32_t i = 0; i < kTenantProcessesMax; ++i) {
    pthread_mutex_t* mutex = &family().slots[i];
    bool died;
    if (!mutex_held(mutex, pthread_mutex_trylock(mutex), &died)) continue;
    ClaimsSlot& slot = claims().slots[i];
    const uint64_t ended_ns = slot_ended_ns(i, died);
    if (ended_ns > ended_by_ns && slot_is_charged(i)) {
      if (ended_ns < *oldest_ns) *oldest_ns = ended_ns;
      pthread_mutex_unlock(mutex);
      continue;
    }
    slot_clear(i);
    const auto pid = static_cast<uint32_t>(getpid());
    slot.own_pid.store(pid);
    slot.pid.store(pid);
    return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

int family_slot_take() {
  uint64_t oldest_ns = UINT64_MAX;
  const int slot = slot_take(0, &oldest_ns);
  return slot >= 0 || oldest_ns == UINT64_MAX ? slot : slot_take(oldest_ns, &oldest_ns);
}

void family_slot_give(int slot) {
  slot_clear(static_cast<uint32_t>(slot));
  pthread_mutex_unlock(&family().slots[slot]);
}

void family_settled(uint32_t slot, int gpu, uint64_t busy_ns) {
  family().settled_ns[slot][gpu].store(busy_ns);
}

namespace {

// Since when the slot's process has ended; 0 = it has not, or another one looks at the slot. With
// `clears_ns`: one that has ended since then is zeroed.
uint64_t slot_look(uint32_t index, uint64_t clears_ns) {
  pthread_mutex_t* mutex = &family().slots[index];
  bool died;
  if (!mutex_held(mutex, pthread_mutex_trylock(mutex), &died)) return 0;
  const uint64_t ended_ns = slot_ended_ns(index, died);
  if (ended_ns != 0 && ended_ns == clears_ns) slot_clear(index);
  pthread_mutex_unlock(mutex);
  return ended_ns;
}

}  // namespace

// The device is asked without the slot's lock: a member that is stopped meanwhile keeps nothing.
void family_sweep(EndedIsOver is_over) {
  const uint32_t used = claims().slots_used.load();
  for (uint32_t i = 0; i < used && i < kTenantProcessesMax; ++i) {
    if (claims().slots[i].pid.load() == 0) continue;
    const uint64_t ended_ns = slot_look(i, 0);
    if (ended_ns == 0) continue;
    const uint64_t now_ns = clock_common_ns(clock_now_ns());
    const uint64_t ago_ns = now_ns > ended_ns ? now_ns - ended_ns : 0;
    if (!slot_is_charged(i) || is_over(i, ago_ns)) (void)slot_look(i, ended_ns);
  }
}

bool family_slot_has_ended(uint32_t slot) { return slot_look(slot, 0) != 0; }

bool family_ended_is_charged(uint32_t gpu) {
  const uint32_t used = claims().slots_used.load();
  for (uint32_t i = 0; i < used && i < kTenantProcessesMax; ++i) {
    if (family().ended_ns[i].load() != 0 && slot_is_charged(i, gpu)) return true;
  }
  return false;
}

}  // namespace sluice::interpose

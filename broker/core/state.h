// The core's memory: GPUs, tenants, their shares of GPUs, and the queue. Plain data; the rules live
// beside it (admission, lease, schedule, usage) and in the policies (policy.h).
//
// It must not know sockets, pids or pages: a process is a number that the caller chose, a lease is
// a word that the caller stores. It exists as its own file so that every rule reads the same few
// structures.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "broker/core/core.h"

namespace sluice::core {

using Actions = std::vector<Action>;

inline constexpr Nanos kNever = INT64_MAX;

struct Tenant;

/// One tenant's part of one GPU: its lease word, its account, and what the policies remember about
/// it.
struct Share {
  Tenant* tenant = nullptr;
  std::uint32_t gpu = 0;    // index into State::gpus
  std::uint32_t index = 0;  // index into Tenant::shares, the "gpu_index" of events and actions

  // Lease word as last told.
  std::uint32_t epoch = 1;
  bool open = false;
  bool contended = false;
  Nanos window_ns = 0;

  // Account. lease_ns grows while the share is on the GPU (open, or closed and not yet drained);
  // busy_ns is what the meter said of it, never more. provisional_ns is the part of lease_ns
  // charged in full because no measure of it has come yet.
  bool on = false;
  Nanos accounted_at = 0;
  Nanos lease_ns = 0;
  Nanos busy_ns = 0;
  Nanos busy_seen_ns = 0;
  Nanos provisional_ns = 0;
  Nanos settled_at = 0;
  Nanos episode_contended_ns = 0;  // of the present lease: open while others waited,
  Nanos episode_busy_ns = 0;       // measured,
  Nanos episode_charged_ns = 0;    // and charged so far
  Nanos held_ns = 0;               // time open
  std::uint64_t overruns = 0;

  // What the policies keep.
  double vtime = 0;      // fair.cpp: charged time over weight
  double tokens_ns = 0;  // budget.cpp: GPU time a fixed share may still use
  Nanos tokens_at = 0;
  bool capped = false;  // budget.cpp: waits until the budget is worth an opening
  bool turn = false;    // schedule.cpp: a waiting gang's turn has come on this GPU
};

/// One registered process of a tenant. The masks have one bit per GPU index of the tenant.
struct Process {
  ProcessId id = 0;
  std::uint8_t wants = 0;   // a thread waits at the gate
  std::uint8_t active = 0;  // waited when the lease was opened: it is using it
  std::uint8_t idle = 0;    // said so under the present lease
  std::uint8_t drains = 0;  // Drained is still to come
};

enum class Phase : std::uint8_t {
  kClosed,   // nothing of it is on the GPU
  kOpen,     // holds its GPUs
  kClosing,  // closed, drain under way; still holds its GPUs
  kRunaway,  // did not drain in time; its GPUs went on without it
};

struct Tenant {
  TenantId id = 0;
  std::uint32_t uid = 0;
  TenantClass tenant_class = TenantClass::kBatch;
  SmMode sm_mode = SmMode::kBestEffort;
  std::uint32_t sm_percent = 100;
  Bytes memory_max = 0;
  Bytes memory_min = 0;
  Nanos window_ns = 0;
  std::string name;
  Nanos asked_at = 0;
  Nanos admitted_at = 0;

  std::vector<Share> shares;  // never resized after admission: GPUs point into it
  std::vector<Process> processes;
  bool founder_alive = true;
  bool released = false;  // the job said that it is over
  bool charged = true;    // its promises count on its GPUs (a released exclusive tenant's do not)
  bool runaway = false;
  bool waiting = false;  // listed in Gpu::waiting of its GPUs

  Phase phase = Phase::kClosed;
  Nanos opened_at = 0;
  Nanos slice_end = kNever;   // when others may have their turn; kNever while alone
  bool slice_asked = false;   // usage was asked for at the end of this slice ...
  Nanos asked_usage_at = 0;   // ... at this time
  Nanos protected_until = 0;  // an opening that even the latency band does not cut short
  Nanos closed_at = 0;
  Nanos runaway_at = 0;
  Nanos next_let_at = kNever;  // closing gang: when to look for members locked out mid-collective
  Nanos let_until = kNever;    // closing gang: end of the window let through
  int lets = 0;                // since it was closed
  Nanos waiting_since = 0;

  double gang_vtime = 0;  // order between gangs
  double owed_ns = 0;     // gang: guaranteed time not received while it wanted to run

  bool exclusive() const { return tenant_class == TenantClass::kExclusive; }
  bool inference() const { return tenant_class == TenantClass::kInference; }
  bool gang() const { return shares.size() > 1 && !exclusive(); }
};

struct Gpu {
  GpuUuid uuid{};
  Bytes capacity = 0;
  Bytes context_bytes = 0;
  Bytes promised_min = 0;
  Bytes promised_max = 0;
  Bytes limit_max(double oversell) const {
    return static_cast<Bytes>(static_cast<double>(capacity) * oversell);
  }

  std::vector<Share*> shares;   // of admitted tenants
  std::vector<Share*> waiting;  // want the GPU and do not hold it
  std::vector<Share*> on;       // the holder and runaways: what is on the device
  Tenant* holder = nullptr;     // open or closing
  Tenant* reserved = nullptr;   // a gang whose turn has come everywhere: nobody else is opened
  Share* best = nullptr;        // memory of best_single: within one step, or for as long as nothing
  bool best_known = false;      // changes where the order does not depend on time (see schedule)
  bool draining = false;        // kept free for an exclusive request at the head of the queue

  std::uint32_t inference_count = 0;
  std::uint32_t inference_equal = 0;  // of them in equal mode
  std::uint64_t inference_plain = 0;  // sum of sm_percent of the others of them
  std::uint64_t plain_weight = 0;     // sum of sm_percent of all shares that are not in equal mode
  std::uint32_t plain_count = 0;
  std::uint32_t fixed_count = 0;  // shares in fixed mode

  // What the policies keep.
  double vclock = 0;          // fair.cpp: virtual time of the GPU
  double band_credit_ns = 0;  // band.cpp: how far inference may go before it queues like everybody
  Nanos band_at = 0;

  Nanos busy_ns = 0;       // living and dead
  Nanos dead_busy_ns = 0;  // of tenants that are gone
  std::uint64_t leases_granted = 0;
  std::uint64_t leases_revoked = 0;
  Nanos overrun_ns = 0;
  std::uint64_t overruns = 0;
};

/// One request that waits for admission.
struct Waiter {
  TenantAsked ask;  // defaults filled in
  Nanos asked_at = 0;
  Nanos deadline = kNever;
  std::uint32_t position = 0;  // as last announced; 0 = not yet
  QueueReason reason = QueueReason::kNone;
};

/// A share whose tenant ended in this step, so that the measure asked for last still reaches the
/// GPU's total.
struct Ghost {
  TenantId tenant = 0;
  std::uint32_t index = 0;
  std::uint32_t gpu = 0;
  Nanos busy_seen_ns = 0;
  Nanos allowance_ns = 0;
};

struct UserCount {
  std::uint32_t admitted = 0;
  std::uint32_t queued = 0;
};

class State {
 public:
  explicit State(const Policy& p) : policy(p) {}

  Policy policy;
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::unordered_map<TenantId, std::unique_ptr<Tenant>> tenants;
  std::unordered_map<ProcessId, Tenant*> processes;
  std::unordered_map<std::uint32_t, UserCount> users;
  std::deque<Waiter> queue;
  std::vector<bool> kept;      // per GPU: kept for a request in the queue
  std::vector<Tenant*> gangs;  // admitted, several GPUs, not exclusive
  std::vector<Ghost> ghosts;
  TenantId next_tenant = 1;
  bool queue_dirty = false;  // something that the queue waits for may have changed
  Nanos queue_deadline = kNever;
  Nanos alarm_at = kNever;  // as last told
  double gang_vclock = 0;
  Nanos gangs_at = 0;
};

/// The tenant's process entry, or null.
Process* process_find(Tenant& tenant, ProcessId id);
Tenant* tenant_find(State& state, TenantId id);

/// Weight of a share under contention: sm_percent; in equal mode the mean weight of the GPU's other
/// kind of shares, which makes it 1/n of the whole whatever the others weigh.
double share_weight(const Gpu& gpu, const Share& share);
double equal_weight(const Gpu& gpu);
/// Sum of the weights of all shares admitted to the GPU, and of the inference shares among them.
double admitted_weight(const Gpu& gpu);
double inference_weight(const Gpu& gpu);

/// Enters or removes a tenant in the books of its GPUs (promises, windows' inputs, weights).
void tenant_book(State& state, Tenant& tenant);
void tenant_unbook(State& state, Tenant& tenant);
/// Other limits for a tenant that is in the books.
void tenant_rebook(State& state, Tenant& tenant, std::uint32_t sm_percent, Bytes memory_max,
                   Bytes memory_min);
/// Its share of each of these GPUs, with nothing used yet.
void tenant_shares_add(const State& state, Tenant& tenant, const std::vector<std::uint32_t>& gpus,
                       Nanos now);

/// GPU indexes that the tenant's processes wait for at the gate.
std::uint8_t tenant_wants(const Tenant& tenant);

}  // namespace sluice::core

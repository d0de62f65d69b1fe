// The core's memory: GPUs, tenants, their shares of GPUs, and the queue. Plain data; the rules live
// beside it (admission, lease, schedule, usage) and in the policies (policy.h).
//
// It must not know sockets, pids or pages: a process is a number that the caller chose, a lease is
// a word that the caller stores. It exists as its own file so that every rule reads the same few
// structures.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "broker/core/core.h"
#include "broker/core/share_heap.h"

namespace sluice::core {

using Actions = std::vector<Action>;

inline constexpr Nanos kNever = INT64_MAX;

struct Tenant;

/// What a gang misses of its guarantee on one GPU (turn.cpp).
struct Missed {
  double ns = 0;                        // guaranteed time less what it was charged, ever
  double least = 0;                     // the least of ns since the latest part began
  std::array<double, 16> least_then{};  // the least in each part of two seconds in which it wanted
};

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
  bool fills = false;  // opened while a gang pauses
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
  Nanos episode_withheld_ns = 0;   // of a gang's: not drained while others waited,
  Nanos episode_unsettled_ns = 0;  // charged as it passed since the meter told last,
  Nanos episode_busy_ns = 0;       // measured,
  Nanos episode_charged_ns = 0;    // and charged so far,
  Nanos episode_gang_ns = 0;       // of a gang: against its guarantee
  Nanos episode_device_ns = 0;     // the most that the device can have done for it,
  bool episode_divided = false;    // a runaway had a part of that time,
  bool episode_lost = false;       // a process was killed under it: its meter tells no more,
  Nanos episode_overrun_ns = 0;    // and what it did after the lease was closed
  Nanos episode_late_ns = 0;       // as measured
  Nanos episode_delayed_ns = 0;    // while others waited for its drain,
  Nanos episode_silent_ns = 0;     // and what of that no meter accounts for
  Nanos before_ns = 0;  // charged for the lease before; the meter has not told since that drained
  Nanos answer_grace_ns = 0;  // usage.cpp: silence for which it is not charged,
  Nanos answer_grace_at = 0;  // as of this time
  Nanos held_ns = 0;          // time open
  std::uint64_t overruns = 0;

  // What the policies keep.
  double vtime = 0;      // fair.cpp: charged time over weight
  double tokens_ns = 0;  // budget.cpp: GPU time a fixed share may still use
  Nanos tokens_at = 0;
  double clipped_ns = 0;    // budget.cpp: what it waited for and could not save,
  double repaid_ns = 0;     // and what of that it gets back, beside its tokens
  bool capped = false;      // budget.cpp, fair.cpp: may not run yet
  double debt_ns = 0;       // fair.cpp: GPU time overrun and not paid back,
  Nanos debt_at = 0;        // as of this time
  Nanos left_at = 0;        // when it last stopped using the GPU or waiting for it
  Nanos place_at = kNever;  // turns.h: came into line then; kNever = comes anew
  Nanos turn_from_ns = 0;   // turns.h: lease_ns when its turn began
  bool turn = false;        // schedule.cpp: a waiting gang's turn has come on this GPU
  Missed missed;
  HeapPlace heap;  // line.cpp: its place among those that wait

  // Memory (memory.cpp), as the claims said last, bounded; and the words as last told.
  Bytes held = 0;
  Bytes movable = 0;
  Bytes swapped = 0;
  Bytes left = 0;  // by ended processes: no move takes it off its GPU
  Nanos memory_seen_at = -1;
  std::uint32_t hold_word = 0;
  std::uint32_t room_word = 0;
  Bytes host_bytes = 0;   // charged to its user
  Bytes claim = 0;        // room granted to its allocation and not seen used yet,
  Bytes claim_held = 0;   // when so much was held,
  Nanos claim_until = 0;  // as long as this
  Nanos claim_since = 0;  // and when it had asked: a grant that others took counts as asked then
  Nanos told_room_until = 0;  // refusal.cpp: a want before this time says that there was none
  TenantId aside_by = 0;      // the tenant with whole GPUs for which its promise rests
  bool booked = false;        // its promise counts on its GPU
  Nanos elsewhere_ns = 0;     // of busy_ns: on the GPU from which it was moved here
  Bytes moved_out_bytes = 0;
  Bytes moved_in_bytes = 0;
};

/// One registered process of a tenant. The masks have one bit per GPU index of the tenant.
struct Process {
  ProcessId id = 0;
  std::uint8_t wants = 0;   // a thread waits at the gate
  std::uint8_t active = 0;  // waited when the lease was opened: it is using it
  std::uint8_t idle = 0;    // said so under the present lease
  std::uint8_t drains = 0;  // Drained is still to come
  std::uint8_t acks = 0;    // HoldAcked is still to come
  std::uint8_t moves = 0;   // MoveDone is still to come
  bool lost = false;        // by the driver, in a checkpoint: nothing can be done with it
};

HeapPlace& heap_place(Share& share);

enum class Phase : std::uint8_t {
  kClosed,   // nothing of it is on the GPU
  kOpen,     // holds its GPUs
  kClosing,  // closed, drain under way; still holds its GPUs
  kRunaway,  // did not drain in time; its GPUs went on without it
};

/// Where the memory of a tenant is, all its GPUs together (stay.cpp).
enum class Residence : std::uint8_t {
  kIn,             // on its GPUs; the only one in which it may run
  kLeaving,        // to be held: its lease is draining
  kHeld,           // hold set, acknowledgements to come
  kSwappingOut,    // ordered out
  kCheckpointing,  // the driver's checkpoint is under way
  kOut,            // what can be moved is in the host (some of it, after a failure)
  kRestoring,      // the driver's restore is under way
  kSwappingIn,     // ordered in
};
inline constexpr std::uint32_t kNoGpu = UINT32_MAX;

struct Tenant {
  TenantId id = 0;
  std::uint32_t uid = 0;
  TenantClass tenant_class = TenantClass::kBatch;
  SmMode sm_mode = SmMode::kBestEffort;
  std::uint32_t sm_percent = 100;
  SmKind sm_kind = SmKind::kWeight;  // what sm_percent is
  Bytes memory_max = 0;
  Bytes memory_min = 0;
  Nanos window_ns = 0;
  Bytes memory_most = 0;  // memory_max, or more: what it still holds of a quota that was lowered
  Nanos lowered_at = 0;   // the last time
  Bytes promised = 0;     // what admission counts: swappable memory_min, otherwise memory_most
  Bytes quota_most = 0;   // the highest memory_max it ever had: more than this is not believed
  bool swap = false;
  std::string name;
  std::string group;
  std::vector<GpuUuid> pinned;  // no rule moves it off these; empty = it may be anywhere
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
  Nanos drain_from = 0;  // the drain is timed from then
  Nanos runaway_at = 0;
  Nanos delayed_ns = 0;        // runaway.cpp: others have waited for its drain for so long,
  Nanos delayed_at = 0;        // as of this time,
  bool delays = false;         // and do now
  bool turn_came = false;      // a gang's, since it ran away
  Nanos end_at = kNever;       // its processes are killed then; set while it is in State::ending
  Nanos next_let_at = kNever;  // closing gang: when to look for members locked out mid-collective
  Nanos let_until = kNever;    // closing gang: end of the window let through
  int lets = 0;                // since it was closed
  Nanos waiting_since = 0;

  // Where its memory is (stay.cpp), and why it is to be out.
  Residence residence = Residence::kIn;
  bool victim = false;             // makes room for another; comes back when it wants
  bool suspended = false;          // by command, until it is resumed,
  std::uint32_t suspended_by = 0;  // of this user; its own where it was not suspended
  bool rests = false;              // it was idle; out until it wants its GPUs
  bool vacated = false;            // its promises are free for others (vacate.cpp)
  bool steps_aside = false;        // makes room for an exclusive request that waits
  std::uint32_t move_to = kNoGpu;
  bool yields = false;            // it moves, or has just moved, for an exclusive request
  bool due_back = false;          // to be brought back without being asked
  bool frozen = false;            // in the driver's checkpoint
  std::int32_t order_result = 0;  // of a process that could not carry out the present order
  bool reverting = false;         // the present order undoes one that failed
  bool restored = false;          // its claims may tell of memory that is out since another broker
  std::vector<GpuMove> restore_to;  // of a frozen one: where its GPUs were and are to be
  std::uint32_t move_failures = 0;  // in a row
  Nanos restored_at = 0;
  Nanos retry_at = 0;  // not tried again before
  Nanos in_since = 0;  // kIn, since then
  Nanos out_since = 0;
  Nanos back_since = 0;   // its place in the queue for room, where it found none; 0 = none
  Nanos aside_since = 0;  // it was to step aside for an exclusive request and is not back; 0 = no
  Nanos rest_until = 0;   // not to step aside for another one before; kNever = first it comes back
  Nanos idle_since = 0;   // closed and drained, since then
  Nanos hold_since = 0;
  Nanos step_since = 0;     // the present order, or wait for acknowledgements
  Nanos moving_ns = 0;      // under holds, of which:
  Nanos suspending_ns = 0;  // on the way out: stopping, copying, the driver's checkpoint
  Nanos restoring_ns = 0;   // on the way in
  Nanos way_booked_at = 0;  // the two, as of this time
  std::uint64_t moves = 0;  // times out
  std::uint64_t moves_failed = 0;

  // Gangs (gang.cpp).
  double weight = 1;      // on the GPU where it is least
  double guarantee = 0;   // part of its GPUs' time that it is guaranteed
  double gang_vtime = 0;  // order between gangs: lease time over weight,
  double owed_ns = 0;     // guaranteed time not received while it wanted to run,
  Nanos owed_at = 0;      // both as of this time
  double overran_ns = 0;  // drains that others waited for, and that it has not paid back yet
  std::uint32_t missed_next = 0;  // turn.cpp: the oldest part in Missed::least_then,
  Nanos wanted_ns = 0;            // and for how long it has wanted to run since the latest
  Nanos change_from = 0;          // its turn has come everywhere, since then; 0 = it has not
  Nanos change_ns = 0;            // how long after that its GPUs were free, as learned
  Nanos urgent_at = kNever;       // while it waits: when it is to go before everything else
  Nanos paused_at = 0;            // it gave its GPUs back within its turn; 0 = it did not
  Nanos pause_ns = 10'000'000;    // how long after that it wants them again, as learned
  Nanos paused_ns = 0;            // the pause after its last lease; 0 = there was none
  double step_use = 1;            // part of its time, pauses included, that it uses
  Nanos gap_ns = 0;               // what singles had before its turn, drain_timeout at most,
  Nanos turn_ns = 0;              // length of that,
  Nanos turn_left_ns = 0;         // and what is left of it if it was interrupted
  Nanos wide_until = 0;           // its windows are not narrow until then; 0 = they are
  bool turn_ending = false;       // the turn ends with the step

  bool exclusive() const { return tenant_class == TenantClass::kExclusive; }
  bool inference() const { return tenant_class == TenantClass::kInference; }
  bool guaranteed() const { return sm_kind == SmKind::kGuaranteed; }
  bool gang() const { return shares.size() > 1 && !exclusive(); }
};

/// Wants of a user are believed without a proof (refusal.cpp).
struct Belief {
  Nanos at = 0;     // the last time,
  Nanos until = 0;  // and until then, if they go on
};

/// What else is admitted to a tenant's GPU.
enum class Company : std::uint8_t { kNone, kOthers, kInference };

/// Which singles stand in order together.
inline constexpr std::size_t kInferenceLane = 0;
inline constexpr std::size_t kGuaranteedLane = 1;  // and not inference
inline constexpr std::size_t kWeightLane = 2;

struct Gpu {
  const Policy* policy = nullptr;  // the state's
  GpuUuid uuid{};
  Bytes capacity = 0;
  Bytes context_bytes = 0;
  Bytes promised_min = 0;
  Bytes promised_max = 0;
  Bytes limit_max(double oversell) const {
    return static_cast<Bytes>(static_cast<double>(capacity) * oversell);
  }

  std::vector<Share*> shares;  // booked: of admitted tenants
  std::vector<Share*>
      unbooked;  // here without a promise: put aside for whole-GPU use, vacated, or handed back
  std::vector<Share*> waiting;        // want the GPU and do not hold it; kept in order by line.cpp:
  std::vector<Share*> waiting_gangs;  // those of them that are gangs'
  std::array<ShareHeap<double, heap_place>, 3> ready;  // singles that may run, by lane
  ShareHeap<Nanos, heap_place> capped;                 // whom a cap holds back, by its end
  std::uint64_t waiting_plain = 0;  // weights of those that may run and are not inference, but for
  std::uint32_t waiting_equal = 0;  // so many in equal mode,
  std::uint64_t waiting_guaranteed = 0;  // and what of the former is guaranteed
  std::uint64_t waiting_count = 0;       // how many have ever begun to wait
  std::vector<Share*> on;                // the holder and runaways: what is on the device
  Tenant* holder = nullptr;              // open or closing
  Tenant* reserved = nullptr;  // a gang that has its turn everywhere: no other tenant is opened
  Tenant* reserved_before = nullptr;  // in the last decision
  Nanos urgent_from = 0;              // turn.cpp: no gang goes before everything until then
  Nanos gang_left_at = 0;             // when the last turn of a gang ended
  bool claimed = false;               // gang.cpp, within one decision: an earlier gang waits for it
  bool draining = false;              // kept free for an exclusive request at the head of the queue
  bool step_aside = false;     // for a request with none before it there: shared tenants go out
  bool closed_to_new = false;  // by command,
  GpuDrain drain;              // and why
  bool lost = false;
  std::uint32_t swap_count = 0;      // swappable shares
  const Tenant* room_for = nullptr;  // whose want for room is being served: the holder is contended
  Bytes hidden = 0;                  // taken by what no claims tell of: the driver said no where
  Nanos hidden_until = 0;            // room was expected; believed as long as this
  Nanos looked_at = kNever;          // claims were asked for; kNever = never

  // refusal.cpp
  Bytes size = 0;                           // what the device's figure is a part of
  Bytes used = 0;                           // that figure,
  Nanos used_at = kNever;                   // and when it came; kNever = it has none
  std::map<std::uint32_t, Belief> beliefs;  // per user

  // returning.cpp
  bool figures = false;       // the device says how much is in use
  Bytes foreign = 0;          // of that what no claims tell of, while nothing is on its way back
  Bytes returning = 0;        // of processes that are gone, not seen free yet
  Nanos returning_since = 0;  // no progress since
  Nanos device_look_at = 0;   // when the device is asked again
  bool lowered = false;       // a tenant may hold more than its quota, which was lowered
  Nanos claims_look_at = 0;   // when claims beyond the quotas are looked at again

  /// In whole-GPU use: that tenant is alone there (invariant).
  bool exclusive() const { return shares.size() == 1 && shares.front()->tenant->exclusive(); }

  /// At most one tenant is admitted.
  bool alone() const { return shares.size() < 2; }
  Company company = Company::kNone;  // what windows are made for

  std::uint32_t inference_count = 0;
  std::uint32_t inference_equal = 0;  // of them in equal mode
  std::uint64_t inference_plain = 0;  // sum of sm_percent of the others of them
  std::uint64_t plain_weight = 0;     // sum of sm_percent of all shares that are not in equal mode
  std::uint32_t plain_count = 0;
  std::uint32_t fixed_count = 0;  // shares in fixed mode
  std::uint64_t guaranteed = 0;  // sum of sm_percent of the shares that are guaranteed: 100 at most
  std::uint64_t inference_guaranteed = 0;  // of those of class inference

  // load.cpp
  double load = 0;         // part of the last seconds for which it was busy
  Nanos load_busy_ns = 0;  // busy_ns when that was looked at

  // What the policies keep.
  double vclock = 0;         // fair.cpp: virtual time of the GPU,
  std::vector<Share*> left;  // and the singles that count for it though they have just drained
  // fair.cpp: weights of the shares that compete and owe nothing, and when they were summed up.
  mutable double rivals_weight = 0;
  mutable Nanos rivals_at = kNever;
  // turn.cpp, of singles but inference:
  Nanos drain_ns = 0;         // the longest drain of late,
  Nanos filler_ns = 0;        // and what those took that were opened while a gang paused;
  Nanos pause_until = 0;      // a gang pauses within its turn until then, as learned
  double band_credit_ns = 0;  // band.cpp: how far inference may go before it queues like everybody
  double band_rate = 1;       // at which that grows while no inference is admitted: as it did last
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
  std::uint32_t position = 0;  // 0 = not yet known
  QueueReason reason = QueueReason::kNone;
  protocol::QueueLimit limit = protocol::QueueLimit::kNone;  // with QueueReason::kUserLimit
  int roomiest = -1;  // the GPU with most of what it waits for, as of when it was looked at
  bool news = false;  // position or reason are others than it was told

  // backfill.cpp
  bool first = false;               // of those of its user that wait for these GPUs
  Nanos hold_until = 0;             // it keeps `held` from the requests behind it; 0 = it does not
  std::vector<std::uint32_t> held;  // GPU indexes
  std::uint32_t holds = 0;          // that have ended without room for it
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

/// What the requests that keep a GPU from others want there.
struct KeptFor {
  bool more_than_share = false;  // some of them lack more than a guaranteed share
  Bytes most = 0;                // the sum of their quotas,
  Bytes promise = 0;             // and of what of them has to be on the GPU
};

struct UserCount {
  std::uint32_t admitted = 0;
  std::uint32_t queued = 0;
  Bytes host_bytes = 0;           // in host memory, or on the way there
  GpuFlags kept;                  // backfill.cpp: per GPU, a request of its own waits for it,
  std::vector<KeptFor> kept_for;  // and what those want there,
  std::uint64_t kept_with = 0;    // as of this look through the queue
};
/// What tenants of a group have together (limits.cpp).
struct Sum {
  std::uint32_t tenants = 0;
  Bytes memory = 0;
  bool operator==(const Sum&) const = default;
};

/// GPU time that the clock pays back.
struct PaidByClock {
  double ns = 0;
  double rate = 0;  // paid back per nanosecond
  Nanos at = 0;     // `ns` is of this time
};

/// What a user's tenants have left on a GPU (runaway.cpp): the most of each.
struct UserDebt {
  PaidByClock overrun;     // and not paid back
  bool budget = false;     // of a fixed share, which owes it under each order
  PaidByClock ahead;       // of gangs: had beyond what they were guaranteed
  double vtime = 0;        // where the last one was in virtual time; counts
  double vtime_until = 0;  // until the GPU's virtual time is this
};

/// A wish for memory on the GPUs, first come first served (room.cpp): of an allocation that waits,
/// or of a tenant that is out and wants to come back.
struct Want {
  TenantId tenant = 0;
  bool back = false;
  std::uint32_t index = 0;  // of its GPU; not for `back`
  Bytes bytes = 0;
  Nanos since = 0;
  std::vector<ProcessId> askers;

  // refusal.cpp
  Nanos came_at = 0;
  bool doubted = false;   // the claims show room for it
  bool again = false;     // its asker has just been told that there is room
  bool unproven = false;  // only by its asker's word is something hidden there
};

/// A command whose answer is to come (command.cpp).
struct PendingCommand {
  RequestId request = 0;
  protocol::CommandVerb verb{};
  TenantId tenant = 0;
  Nanos asked_at = 0;
  Bytes moved_before = 0;
  Nanos restoring_before = 0;
};

class State {
 public:
  explicit State(const Policy& p) : policy(p) {}

  Policy policy;
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::unordered_map<TenantId, std::unique_ptr<Tenant>> tenants;
  std::unordered_map<ProcessId, Tenant*> processes;
  std::unordered_map<std::uint32_t, UserCount> users;
  std::vector<std::unique_ptr<Waiter>> queue;
  GpuFlags planned;               // per GPU: a request in the queue plans to get it
  GpuFlags kept;                  // per GPU: no request behind the one that holds it gets it
  std::vector<KeptFor> kept_for;  // per GPU: what those want there
  std::vector<Tenant*> gangs;     // admitted, several GPUs, not exclusive
  std::vector<Ghost> ghosts;
  std::vector<TenantId> ending;  // runaways that have been warned
  bool any_drains = false;       // runaway.cpp: some tenant drained when that was last looked at
  std::map<std::pair<std::uint32_t, std::uint32_t>, UserDebt> debts;  // by user and GPU
  std::size_t debts_sweep_at = 0;     // with so many of them, those that are paid are removed
  std::map<std::string, Sum> groups;  // by group
  std::map<std::pair<std::string, std::uint32_t>, Sum> members;  // by group and user
  std::vector<Tenant*> moving;                                   // in order of arrival: not kIn
  std::deque<Want> wants;  // in the order in which they are served
  std::vector<PendingCommand> commands;
  bool room_dirty = false;  // something that bears on memory has changed
  Nanos room_at = kNever;   // when to look after memory again if nothing happens
  Nanos now = 0;            // time never goes back
  Nanos loads_at = 0;       // load.cpp: when Gpu::load was looked at
  TenantId next_tenant = 1;
  bool queue_dirty = false;  // something that the queue waits for may have changed
  // What a step leaves of the queue to the next one, which comes at once (admission.cpp).
  bool queue_cut = false;        // not all of it was looked at
  std::size_t queue_told = 0;    // who waits in front of here has been told where it stands
  std::uint32_t admissions = 0;  // out of the queue, in this step
  std::uint32_t notes = 0;       // to those in it, in this step
  Nanos queue_deadline = kNever;
  // backfill.cpp
  bool kept_unseen = false;        // all GPUs are kept for requests that were not looked at
  std::uint64_t queue_looks = 1;   // how often the queue was looked through
  Nanos holds_since = kNever;      // requests hold GPUs since then
  Nanos holds_next = 0;            // none does again before
  Nanos holds_at = kNever;         // when a hold can begin or end
  Nanos alarm_at = kNever;         // as last told
  std::vector<Tenant*> gang_line;  // gangs that wait, by gang_vtime
  double gang_vclock = 0;
  bool gangs_stale = false;  // weights of their GPUs have changed since theirs were taken
  Nanos gangs_settled_at = -1;
  Nanos gangs_at = kNever;  // when gangs_decide has to look again, though nothing happens
};

/// The tenant's process entry, or null.
Process* process_find(Tenant& tenant, ProcessId id);
Tenant* tenant_find(State& state, TenantId id);

/// Forgets a user of whom nothing is counted any more.
void user_forget(State& state, std::uint32_t uid);

/// Weight of a share under contention: sm_percent; in equal mode the mean weight of the GPU's other
/// kind of shares, which makes it 1/n of the whole whatever the others weigh. What is not
/// guaranteed is scaled down so far that all of it together takes no more than the guarantees
/// leave.
double share_weight(const Gpu& gpu, const Share& share);
double equal_weight(const Gpu& gpu);
/// Sum of the weights of all shares admitted to the GPU, and of the inference shares among them.
double admitted_weight(const Gpu& gpu);
/// Sum of the weights that are not guaranteed, as asked for.
double weights_asked(const Gpu& gpu);
/// What a weight of one counts for beside the guarantees.
double weights_scale(const Gpu& gpu);
/// The weight of shares that sum up to `all` as asked for, `guaranteed` of which is guaranteed.
double guarantees_scaled(const Gpu& gpu, double all, std::uint64_t guaranteed);
/// What is guaranteed to the tenant on each of its GPUs, in per cent.
inline std::uint32_t guarantee_of(const Tenant& tenant) {
  return tenant.guaranteed() ? tenant.sm_percent : 0;
}
/// True if the GPU can guarantee so much beside what it guarantees already. A weight always fits.
inline bool share_fits(const Gpu& gpu, SmKind kind, std::uint32_t percent) {
  return kind == SmKind::kWeight || gpu.guaranteed + percent <= 100;
}
double inference_weight(const Gpu& gpu);

/// Enters or removes a tenant in the books of its GPUs (promises, windows' inputs, weights). One
/// that has vacated them is listed there without a promise.
void tenant_book(State& state, Tenant& tenant, Nanos now);
void tenant_unbook(State& state, Tenant& tenant, Nanos now);
/// The same for one of its GPUs. What is not booked is listed in Gpu::unbooked until the tenant's
/// end.
void share_book(State& state, Share& share);
void share_unbook(State& state, Share& share);
/// Takes the share off every list of its GPU.
void share_forget(State& state, Share& share);
/// Other limits for a tenant that is in the books. Its promise does not fall below memory_most.
void tenant_rebook(State& state, Tenant& tenant, SmKind sm_kind, std::uint32_t sm_percent,
                   Bytes memory_max, Bytes memory_min, Nanos now);
/// Its share of each of these GPUs, with nothing used yet.
void tenant_shares_add(const State& state, Tenant& tenant, const std::vector<std::uint32_t>& gpus,
                       Nanos now);

/// Calls `what` for every share that has or had something on the GPU, booked or not.
template <class What>
void gpu_shares_each(const Gpu& gpu, What what) {
  for (Share* share : gpu.shares) what(*share);
  for (Share* share : gpu.unbooked) what(*share);
}

/// A tenant for whose whole-GPU use a promise of this one rests; 0 = none does.
inline TenantId tenant_aside_by(const Tenant& tenant) {
  for (const Share& share : tenant.shares)
    if (share.aside_by != 0) return share.aside_by;
  return 0;
}

/// GPU indexes that the tenant's processes wait for at the gate.
std::uint8_t tenant_wants(const Tenant& tenant);

}  // namespace sluice::core

// The broker's pure core: step(state, event, now) -> actions.
//
// It decides who is admitted, who may submit work when, and what a death means. It makes no system
// call, reads no clock, opens no file: the daemon, the unit tests and the simulator feed it the
// same events and carry out the same actions. Time is whatever the caller says it is
// (CLOCK_MONOTONIC nanoseconds in the daemon, virtual time in the simulator).
//
// Thread safety: none; one caller at a time. Failure: an event that refers to something unknown is
// ignored (a tenant may have died while the event travelled); a broken invariant is a bug and
// asserts.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "broker/protocol/messages.h"
#include "broker/protocol/snapshot.h"

namespace sluice::core {

using protocol::GpuUuid;
using protocol::QueueReason;
using protocol::RefusalCode;
using protocol::SmKind;
using protocol::SmMode;
using protocol::TenantClass;
using protocol::TenantId;

using Nanos = std::int64_t;
using Bytes = std::uint64_t;
/// One flag for each GPU, by its index. Not vector<bool>: its bits cost more than the placement
/// itself.
using GpuFlags = std::vector<std::uint8_t>;
using ProcessId =
    std::uint64_t;  // the caller's own number for one registered process, never reused
using RequestId = std::uint64_t;  // the caller's own number for one Admit request (its connection)

/// What the percentages of a class are.
enum class SmRule : std::uint8_t {
  kWeight,      // weights
  kAsked,       // guaranteed where the request names one; the class's default is a weight
  kGuaranteed,  // guaranteed
};

/// Which of the GPUs that have room a shared tenant with one GPU gets. Gangs are always packed.
enum class PlacementRule : std::uint8_t {
  kSpread,  // least promised, then least busy, then most room
  kPack,    // least room
};

/// What one kind of tenant gets; the daemon fills it from the configuration.
struct ClassPolicy {
  Nanos window_ns = 0;             // in-flight window; 0 = unbounded
  std::uint32_t sm_percent = 100;  // default share
  SmMode sm_mode = SmMode::kBestEffort;
  Bytes memory_max = 0;  // default quota; 0 = must be asked for
  SmRule sm = SmRule::kWeight;
  PlacementRule placement = PlacementRule::kSpread;
};

enum class RunawayPolicy : std::uint8_t { kReport, kEnd };

/// The rule by which those follow each other whom the latency band does not put first (policy.h).
enum class Order : std::uint8_t { kFair, kRoundRobin, kFifo };
inline constexpr std::size_t kOrders = 3;
/// "fair", "round-robin" or "fifo".
std::optional<Order> order_named(std::string_view name);

/// What an exclusive request does about the shared tenants on the GPUs that it waits for.
enum class ExclusiveRoom : std::uint8_t {
  kWait,     // waits until they have ended
  kSuspend,  // they are suspended (swap or checkpoint; who cannot be is waited for) and come back
             // after its end
  kMove,     // they go on, on another GPU that has room; for whom there is none is suspended
};

/// What the loss of a process of an exclusive tenant means to the others.
enum class RankLoss : std::uint8_t { kKeep, kEnd };

/// Bounds of sums over tenants that are admitted; 0 = no bound. Memory counts once per GPU.
struct SumLimits {
  std::uint32_t tenants_max = 0;
  Bytes memory_max = 0;  // of their quotas
};
/// What the tenants of one group (the caller's word: a profile) may have together: each user's, and
/// all of them. What is beyond waits.
struct GroupPolicy {
  SumLimits per_user;
  SumLimits all;
};

struct Policy {
  std::array<ClassPolicy, 4> classes{};  // by TenantClass
  Order order = Order::kFair;
  Nanos quantum_ns = 10'000'000;  // lease quantum (design: 5-10 ms or more)
  Nanos drain_timeout_ns = 1'000'000'000;
  Nanos idle_grace_ns = 500'000;
  Nanos inference_window_ns =
      1'000'000;  // everybody's window while an inference tenant shares the GPU
  Nanos inference_burst_ns = 100'000'000;  // how far inference may exceed its guaranteed share
                                           // before it queues by fairness
  double oversell_memory = 1.0;  // sum of memory_max over capacity; memory_min is never oversold
  RunawayPolicy runaway = RunawayPolicy::kEnd;
  /// A runaway is ended once it has kept others waiting for so long; drain_timeout_ns at least.
  Nanos runaway_after_ns = 4'000'000'000;
  std::uint32_t tenants_per_user_max = 64;
  std::uint32_t tenants_max = 4096;
  std::map<std::string, GroupPolicy> groups;  // by TenantAsked::group; not listed = no bounds

  // Making room. `swap` off: nobody who asks from now on is swappable (who is, stays it).
  bool swap = false;
  Nanos swap_quantum_ns = 1'000'000'000;   // a tenant that works is not moved out before it was in
                                           // for so long
  Bytes swap_host_bytes_per_user = 0;      // in host memory at a time; 0 = no bound
  Nanos hold_timeout_ns = 5'000'000'000;   // a hold not acknowledged for so long is given up
  Nanos move_timeout_ns = 60'000'000'000;  // a move not answered for so long is waited for by
                                           // nobody but its tenant
  ExclusiveRoom exclusive_room = ExclusiveRoom::kWait;
  RankLoss rank_loss = RankLoss::kKeep;
};

// ---- events
// -------------------------------------------------------------------------------------------------------

struct GpuAdded {
  GpuUuid uuid;
  Bytes capacity =
      0;  // what tenants together may be promised (total less what the device itself keeps)
  Bytes context_bytes =
      0;  // cost of one context; a quota below it is refused with this number as the minimum
  Bytes size = 0;  // what DeviceSeen::used is a part of; 0 = the capacity
};
/// Somebody asks for a tenant. `uid` is the kernel's word.
struct TenantAsked {
  RequestId request = 0;
  std::uint32_t uid = 0;
  TenantClass tenant_class = TenantClass::kBatch;
  SmMode sm_mode = SmMode::kBestEffort;
  bool sm_mode_given = false;
  std::uint32_t sm_percent = 0;      // 0 = class default
  bool sm_default = false;           // sm_percent is a default of the caller's, not asked for
  bool sm_weight = false;            // it wants no guarantee
  SmKind sm_kind = SmKind::kWeight;  // set by the core
  Bytes memory_max = 0;              // 0 = class default
  Bytes memory_min = 0;              // 0 = memory_max
  Nanos window_ns = 0;               // 0 = class default
  Nanos wait_ns_max = 0;             // 0 = for ever
  std::uint32_t gpu_count = 1;
  std::vector<GpuUuid> pinned;
  bool no_wait = false;
  bool dry_run = false;
  bool swap = false;  // its movable memory may go to the host; counts only where Policy::swap does.
                      // memory_min then defaults to one context, otherwise it is memory_max
  bool joins = false;  // a program that runs already: its GPU is not the broker's choice
  std::string name;
  std::string group;     // see Policy::groups
  TenantId returns = 0;  // set by the core: this tenant asks for its own GPUs again (vacate.cpp)
};
/// A tenant that a broker before this one admitted, and that may still live: it is taken in as it
/// was, without a queue and whatever the limits are now. Its founder counts as alive until
/// FounderGone says otherwise. To be fed before anybody asks. Of its guarantee it keeps what fits
/// (GPUs may have become smaller); where it cannot be taken in at all (a GPU is gone, or whole-GPU
/// use meets another tenant) the answer is TenantEnded.
struct TenantRestored {
  TenantId tenant = 0;
  std::uint32_t uid = 0;
  TenantClass tenant_class = TenantClass::kBatch;
  SmMode sm_mode = SmMode::kBestEffort;
  SmKind sm_kind = SmKind::kWeight;  // a guarantee that does not fit any more becomes a weight
  std::uint32_t sm_percent = 100;
  Bytes memory_max = 0;
  Bytes memory_min = 0;
  Nanos window_ns = 0;  // as asked; 0 = the class's
  Nanos asked_at = 0;
  Nanos admitted_at = 0;
  bool released = false;  // it had said that it was over
  std::vector<GpuUuid> gpus;
  std::string name;
  std::string group;
  // As StayNoted told last. HoldSet follows at once, before any of its processes can register:
  // swapped with kHoldOut, suspended or frozen with the hold alone. It is brought back when its
  // processes have come and there is room (suspended: when it is resumed; resting: when it wants
  // its GPUs).
  bool swap = false;
  bool suspended = false;
  bool rests = false;
  bool returns = false;
  bool swapped = false;
  bool frozen = false;
  std::vector<GpuUuid> frozen_on;             // empty = on `gpus`
  std::optional<std::uint32_t> suspended_by;  // the user of that command; nothing = its own user
};
/// Numbers below `next` were given to tenants by a broker before this one.
struct TenantsNumbered {
  TenantId next = 1;
};
/// New limits for a tenant that runs: lowered at once, raised as far as the promises to others
/// allow. Answered by LimitsSet where something changed. Whole-GPU tenants have none.
struct LimitsChanged {
  TenantId tenant = 0;
  std::uint32_t sm_percent = 100;
  Bytes memory_max = 0;
  Bytes memory_min = 0;
  bool sm_default = false;  // as in TenantAsked
  bool sm_weight = false;
};
/// The asker is gone before admission, or the tenant's founder process ended.
struct RequestGone {
  RequestId request = 0;
};
struct FounderGone {
  TenantId tenant = 0;
};
/// A registered process became another program by exec after the founder had ended: it lives on
/// without a registration and stands in for the founder until it ends too.
struct FounderAdopted {
  TenantId tenant = 0;
};
struct ProcessJoined {
  TenantId tenant = 0;
  ProcessId process = 0;
};
struct ProcessGone {
  ProcessId process = 0;
  bool lost = false;             // it did not end in good order
  std::vector<Bytes> held = {};  // by its claims on each GPU of its tenant, what was out included;
                                 // the claims told before (MemorySeen) are without it
};
/// Its socket has closed and it lives: it is unregistered until it comes back as the same process.
struct ProcessDetached {
  ProcessId process = 0;
};
struct GateWanted {
  ProcessId process = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t epoch = 0;
};
struct GateIdle {
  ProcessId process = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t epoch = 0;
};
struct Drained {
  ProcessId process = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t epoch = 0;
};
/// Cumulative GPU-busy time of a tenant on one of its GPUs (sum of its claims slots, dead processes
/// included).
struct UsageSeen {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  Nanos busy_ns = 0;
};
/// It has used none of its GPUs for as long as its class allows before it has to leave them. To be
/// fed as long as that is so: what it does not find possible now it tries later. Only a tenant
/// that swap can move leaves.
struct TenantIdle {
  TenantId tenant = 0;
};
/// The claims of its tenant are told before (MemorySeen).
struct JobReleased {
  TenantId tenant = 0;
};

// Memory. The claims are the tenants' own word: the core bounds it, and what it believes of one
// tenant never makes it move another one for nothing but that tenant's own want.

/// A tenant's claims on one of its GPUs, summed over its processes: everything charged, the part of
/// that which can be moved, the part of that which is in host memory. To be fed for every tenant of
/// a GPU before a MemoryWanted and before a MoveDone of that GPU, and in answer to
/// MemoryLookWanted.
struct MemorySeen {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  Bytes held = 0;
  Bytes movable = 0;
  Bytes swapped = 0;
  Bytes left =
      0;  // of held: ended processes left it on the GPU; neither swap nor checkpoint has it
};
/// The driver has no room for an allocation that the quota allows. `room` is the room word that the
/// thread has read: when another one has been set since, the answer has been given and this is
/// ignored. Answered by RoomSet: at once, when the device has said that it has room, or when room
/// has been made.
struct MemoryWanted {
  ProcessId process = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t room = 0;
  Bytes bytes = 0;
};
/// The process touches nothing of the GPU until the hold of this epoch is cleared.
struct HoldAcked {
  ProcessId process = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t epoch = 0;
};
/// The process has carried out the order of this hold word, or could not (`result`, see
/// protocol::Moved): then everything of it is as it was before.
struct MoveDone {
  ProcessId process = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t word = 0;
  std::int32_t result = 0;
  Bytes bytes = 0;
  Nanos taken_ns = 0;
};
enum class CheckpointStep : std::uint8_t {
  kOut,   // lock and checkpoint: nothing of the tenant stays on its GPUs
  kBack,  // restore (to other GPUs where `gpus` says so) and unlock
};
/// The answer to CheckpointWanted, for all processes of the tenant. Ok: all that live and are not
/// lost are where the step was to bring them. Not ok: all of them are as they were before it, but
/// for the lost, and, where `undone` is false, for some that could not be put back: they are to be
/// returned by a kBack. `text` is the reason for people.
struct CheckpointDone {
  TenantId tenant = 0;
  CheckpointStep step = CheckpointStep::kOut;
  bool ok = false;
  Nanos taken_ns = 0;
  std::string text;
  bool undone = true;  // of kOut that is not ok
  /// Whom the driver has lost (CU_PROCESS_STATE_FAILED): each can only be ended, and keeps its
  /// tenant from being moved until it has.
  std::vector<ProcessId> lost = {};
};
/// `sluice suspend` and its kin. `uid` is the kernel's word; `root`: root, or whom the broker
/// belongs to. Answered by CommandAnswered, when it is done. With `dry_run` nothing changes, and
/// the answer says what would happen.
/// Why a GPU takes no new tenants. The texts are for people.
struct GpuDrain {
  std::uint32_t uid = 0;     // whose command it was
  std::string reason;        // empty = none was given
  std::int64_t until_s = 0;  // seconds of the epoch; 0 = until it is opened by command
  std::string until_text;    // the same, as people write it
  bool operator==(const GpuDrain&) const = default;
};
struct CommandAsked {
  RequestId request = 0;
  protocol::CommandVerb verb = protocol::CommandVerb::kSuspend;
  TenantId tenant = 0;
  GpuUuid gpu{};
  std::uint32_t uid = 0;
  bool root = false;
  bool dry_run = false;
  GpuDrain drain{};  // of kDrain
};
/// The device is gone for good (fallen off the bus, taken out of service). Each of its tenants is
/// told of by TenantLost.
struct GpuLost {
  GpuUuid uuid{};
};

/// A broker before this one had closed the GPU to new tenants by command. To be fed before anybody
/// asks.
struct GpuClosed {
  GpuUuid uuid{};
  GpuDrain drain{};
};

/// What the device itself says is in use, by whomever, and what its tenants claimed of it about the
/// same time: the least and the most that was read between question and answer. To be fed in answer
/// to DeviceLookWanted, and now and then; without it the core believes that memory is free as soon
/// as its process is gone, and cannot look whether a refused allocation would fit.
struct DeviceSeen {
  GpuUuid gpu{};
  Bytes used = 0;
  Bytes claimed_least = 0;
  Bytes claimed_most = 0;
};

struct PolicyChanged {
  Policy policy;
};
/// The alarm asked for by AlarmSet, or any later moment.
struct Tick {};

using Event =
    std::variant<GpuAdded, TenantAsked, TenantRestored, TenantsNumbered, LimitsChanged, RequestGone,
                 FounderGone, FounderAdopted, ProcessJoined, ProcessGone, ProcessDetached,
                 GateWanted, GateIdle, Drained, UsageSeen, TenantIdle, JobReleased, MemorySeen,
                 MemoryWanted, HoldAcked, MoveDone, CheckpointDone, CommandAsked, GpuLost,
                 GpuClosed, DeviceSeen, PolicyChanged, Tick>;

// ---- actions
// ------------------------------------------------------------------------------------------------------

struct TenantAdmitted {
  RequestId request = 0;
  TenantId tenant = 0;
  std::vector<GpuUuid> gpus;
  Bytes memory_max = 0;
  Bytes memory_min = 0;
  std::uint32_t sm_percent = 100;
  SmMode sm_mode = SmMode::kBestEffort;
  bool dry_run = false;
  bool swap = false;  // LeaseEntry::flags has kEntrySwap
  SmKind sm_kind = SmKind::kWeight;
};
struct TenantQueued {
  RequestId request = 0;
  std::uint32_t position = 0;
  QueueReason reason = QueueReason::kResources;
  Bytes promised = 0;
  Bytes capacity = 0;
  std::string ahead;  // the last one in front that has precedence; empty = there is none
  std::uint32_t ahead_uid = 0;
  protocol::QueueLimit limit = protocol::QueueLimit::kNone;  // for UserLimit; `promised` and
                                                             // `capacity` are then of it. For
                                                             // Share they are percentages
};
struct TenantRefused {
  RequestId request = 0;
  RefusalCode code = RefusalCode::kNone;
  Bytes minimum = 0;
  std::string text;
};
/// The tenant is over: its pages may be dropped.
struct TenantEnded {
  TenantId tenant = 0;
};
/// Store these limits into the lease page of the tenant, for each of its GPUs.
struct LimitsSet {
  TenantId tenant = 0;
  std::uint32_t sm_percent = 100;
  Bytes memory_max = 0;
  Bytes memory_min = 0;
  SmKind sm_kind = SmKind::kWeight;
};
/// Store this lease word (and window) into the lease page of the tenant for that GPU and wake its
/// waiters.
struct LeaseSet {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t word = 0;  // protocol::lease_word
  Nanos window_ns = 0;
  Nanos idle_grace_ns = 0;
};
/// Read the tenant's claims and feed UsageSeen back before the next event.
struct UsageWanted {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
};
/// A process of an exclusive tenant was lost, and others of it live. `end` = the policy says that
/// these are to be killed.
struct RankLost {
  TenantId tenant = 0;
  bool end = false;
};
enum class RunawayStep : std::uint8_t {
  kSeen,    // it has not drained within drain_timeout_ns: report it
  kWarned,  // it is about to be ended: tell its user why
  kEnded,   // kill its processes
  kSpared,  // it drained after the warning, or the policy ends none now: it is not ended
};
/// A tenant did not drain in time. kSeen and kWarned come for each GPU that it occupies, kEnded and
/// kSpared for the first of them. kSeen comes once per overrun. One kEnded or kSpared takes back
/// each warning; if the tenant still delays others after kEnded, the time to the next begins anew.
struct RunawaySeen {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  RunawayStep step = RunawayStep::kSeen;
  Nanos overrun_ns = 0;  // since its lease was closed,
  Nanos delayed_ns = 0;  // and the part of it in which others wanted the GPU
};
/// Store this hold word into the lease page of the tenant for that GPU and wake its waiters
/// (protocol/pages.h has its meaning). For a tenant with several GPUs each of them is told; they
/// are held together.
struct HoldSet {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t word = 0;  // protocol::hold_word
};
/// Store this room word and wake its waiters: the answer to MemoryWanted.
struct RoomSet {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t word = 0;  // protocol::room_next of the word before; a page begins with 0
};
/// Read the claims of every tenant of this GPU and feed MemorySeen for each before the next event
/// (UsageSeen excepted).
struct MemoryLookWanted {
  GpuUuid gpu{};
};
struct GpuMove {
  GpuUuid from{};
  GpuUuid to{};
};
/// Run this step of the driver's checkpoint for every process of the tenant, undo it where one of
/// them fails, and feed CheckpointDone. All its processes have acknowledged the hold. `gpus`: for
/// kBack, where its GPUs were at kOut and are to be (the same where nothing changes). kBack for a
/// process that is not in a checkpoint is ok: there is nothing to do.
struct CheckpointWanted {
  TenantId tenant = 0;
  CheckpointStep step = CheckpointStep::kOut;
  std::vector<GpuMove> gpus;
};
/// The tenant has another GPU from now on, in its pages, its journal entry and for people. Nothing
/// of it is on any GPU at this time.
struct TenantMoved {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  GpuUuid from{};
  GpuUuid to{};
};
/// To be remembered by the journal: where the tenant's memory is, and why it stays there.
struct StayNoted {
  TenantId tenant = 0;
  bool suspended = false;          // by command
  bool rests = false;              // out until it wants its GPUs
  bool returns = false;            // out, and in the queue to get them again
  bool swapped = false;            // its movable memory is, or may be, in the host
  bool frozen = false;             // it is, or may be, in the driver's checkpoint
  bool out = false;                // all that is to leave has left
  std::vector<GpuUuid> frozen_on;  // where its GPUs were then, when it has moved since; else empty
  bool by_other = false;           // suspended by another user's command: root's, or the broker's
};
/// Something of the tenant could not be moved, or came back late: for the log. `failures` in a row.
struct MoveFailed {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  std::uint32_t failures = 0;
  std::string text;
};
/// What became of a command. `code` is kNone when it is done; then `text` is empty, or what a dry
/// run has found.
struct CommandAnswered {
  RequestId request = 0;
  RefusalCode code = RefusalCode::kNone;
  Bytes bytes = 0;
  Nanos taken_ns = 0;
  std::string text;
};
/// The tenant's GPU is gone: report it with this text and end its processes.
struct TenantLost {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  std::string text;
};
/// To be remembered by the journal: whether a GPU is closed to new tenants by command.
struct GpuNoted {
  GpuUuid gpu{};
  bool closed = false;
  GpuDrain drain{};
};
/// Ask the device how much of its memory is in use, and feed DeviceSeen when it has answered.
struct DeviceLookWanted {
  GpuUuid gpu{};
};
/// The device has not shown so much free that processes which are gone had; from now on it counts
/// as somebody else's: for the log.
struct MemoryNotReturned {
  GpuUuid gpu{};
  Bytes bytes = 0;
  Nanos waited_ns = 0;
};
/// Call step() with a Tick at `at` (replaces the earlier alarm; only the earliest matters).
struct AlarmSet {
  Nanos at = 0;
};

using Action =
    std::variant<TenantAdmitted, TenantQueued, TenantRefused, TenantEnded, LimitsSet, LeaseSet,
                 UsageWanted, RunawaySeen, RankLost, HoldSet, RoomSet, MemoryLookWanted,
                 CheckpointWanted, TenantMoved, StayNoted, MoveFailed, CommandAnswered, TenantLost,
                 AlarmSet, GpuNoted, DeviceLookWanted, MemoryNotReturned>;

class State;  // state.h

/// The one entrance. Actions are to be carried out in order.
std::vector<Action> step(State& state, const Event& event, Nanos now);

/// Checks every invariant (promises within capacity, one holder per GPU, gangs whole, charges add
/// up); asserts with a text. Used after every step by the tests and the simulator.
void invariants_check(const State& state, Nanos now);

std::unique_ptr<State, void (*)(State*)> state_create(const Policy& policy);

/// Fills the parts of a snapshot that the core knows; the daemon adds claims, names and processes.
struct View {
  std::vector<protocol::SnapshotGpu> gpus;
  std::vector<protocol::SnapshotTenant> tenants;
  std::vector<protocol::SnapshotTenantGpu> tenant_gpus;
  // Texts for people (binding.h), empty where there is nothing to say:
  std::vector<std::string> drains;  // of each of `gpus`: why it takes no new tenants
  std::vector<std::string> stops;   // of each admitted tenant: why it does not run
  std::vector<std::string> waits;   // of each queued one: what it waits for; of the first few only
};
View state_view(const State& state, Nanos now);

/// What a queued request waits for (binding.h); empty if it is not in the queue. It looks at every
/// tenant of a GPU, so a decision does not make it: the caller asks when it tells the asker.
std::string queued_text(const State& state, RequestId request);

/// True while a MoveDone of the process for the order of this hold word is waited for. Any other
/// changes nothing, so the claims need not be read for it.
bool move_awaited(const State& state, ProcessId process, std::uint32_t gpu_index,
                  std::uint32_t word);

/// Does a thread of the tenant wait for its GPUs?
bool tenant_waits(const State& state, TenantId tenant);

}  // namespace sluice::core

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
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "broker/protocol/messages.h"
#include "broker/protocol/snapshot.h"

namespace sluice::core {

using protocol::GpuUuid;
using protocol::QueueReason;
using protocol::RefusalCode;
using protocol::SmMode;
using protocol::TenantClass;
using protocol::TenantId;

using Nanos = std::int64_t;
using Bytes = std::uint64_t;
using ProcessId =
    std::uint64_t;  // the caller's own number for one registered process, never reused
using RequestId = std::uint64_t;  // the caller's own number for one Admit request (its connection)

/// What one kind of tenant gets; the daemon fills it from the configuration.
struct ClassPolicy {
  Nanos window_ns = 0;             // in-flight window; 0 = unbounded
  std::uint32_t sm_percent = 100;  // default share
  SmMode sm_mode = SmMode::kBestEffort;
  Bytes memory_max = 0;  // default quota; 0 = must be asked for
};

enum class RunawayPolicy : std::uint8_t { kReport, kEnd };

struct Policy {
  std::array<ClassPolicy, 4> classes{};  // by TenantClass
  Nanos quantum_ns = 10'000'000;         // lease quantum (design: 5-10 ms or more)
  Nanos drain_timeout_ns = 1'000'000'000;
  Nanos idle_grace_ns = 500'000;
  Nanos inference_window_ns =
      1'000'000;  // everybody's window while an inference tenant shares the GPU
  Nanos inference_burst_ns = 100'000'000;  // how far inference may exceed its guaranteed share
                                           // before it queues by fairness
  double oversell_memory = 1.0;  // sum of memory_max over capacity; memory_min is never oversold
  RunawayPolicy runaway = RunawayPolicy::kReport;
  std::uint32_t tenants_per_user_max = 64;
  std::uint32_t tenants_max = 4096;
};

// ---- events
// -------------------------------------------------------------------------------------------------------

struct GpuAdded {
  GpuUuid uuid;
  Bytes capacity =
      0;  // what tenants together may be promised (total less what the device itself keeps)
  Bytes context_bytes =
      0;  // cost of one context; a quota below it is refused with this number as the minimum
};
/// Somebody asks for a tenant. `uid` is the kernel's word.
struct TenantAsked {
  RequestId request = 0;
  std::uint32_t uid = 0;
  TenantClass tenant_class = TenantClass::kBatch;
  SmMode sm_mode = SmMode::kBestEffort;
  bool sm_mode_given = false;
  std::uint32_t sm_percent = 0;  // 0 = class default
  Bytes memory_max = 0;          // 0 = class default
  Bytes memory_min = 0;          // 0 = memory_max
  Nanos window_ns = 0;           // 0 = class default
  Nanos wait_ns_max = 0;         // 0 = for ever
  std::uint32_t gpu_count = 1;
  std::vector<GpuUuid> pinned;
  bool no_wait = false;
  bool dry_run = false;
  std::string name;
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
  std::uint32_t sm_percent = 100;
  Bytes memory_max = 0;
  Bytes memory_min = 0;
  Nanos window_ns = 0;  // as asked; 0 = the class's
  Nanos asked_at = 0;
  Nanos admitted_at = 0;
  bool released = false;  // it had said that it was over
  std::vector<GpuUuid> gpus;
  std::string name;
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
struct JobReleased {
  TenantId tenant = 0;
};
struct PolicyChanged {
  Policy policy;
};
/// The alarm asked for by AlarmSet, or any later moment.
struct Tick {};

using Event =
    std::variant<GpuAdded, TenantAsked, TenantRestored, TenantsNumbered, LimitsChanged, RequestGone,
                 FounderGone, FounderAdopted, ProcessJoined, ProcessGone, GateWanted, GateIdle,
                 Drained, UsageSeen, JobReleased, PolicyChanged, Tick>;

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
};
struct TenantQueued {
  RequestId request = 0;
  std::uint32_t position = 0;
  QueueReason reason = QueueReason::kResources;
  Bytes promised = 0;
  Bytes capacity = 0;
  std::string ahead;
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
/// A tenant did not drain in time. `end` = the policy says that its processes are to be killed.
struct RunawaySeen {
  TenantId tenant = 0;
  std::uint32_t gpu_index = 0;
  Nanos overrun_ns = 0;
  bool end = false;
};
/// Call step() with a Tick at `at` (replaces the earlier alarm; only the earliest matters).
struct AlarmSet {
  Nanos at = 0;
};

using Action = std::variant<TenantAdmitted, TenantQueued, TenantRefused, TenantEnded, LimitsSet,
                            LeaseSet, UsageWanted, RunawaySeen, AlarmSet>;

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
};
View state_view(const State& state, Nanos now);

}  // namespace sluice::core

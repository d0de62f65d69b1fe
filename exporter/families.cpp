// The table itself. Order: as in enum Family.
#include "exporter/families.h"

#include <array>

namespace sluice::exporter {
namespace {

using prometheus::MetricType;
constexpr MetricType kGauge = MetricType::Gauge;
constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kHistogram = MetricType::Histogram;

constexpr const char* kVgpu = "gpu, tenant, user, class, profile";
constexpr const char* kTenant = "tenant, user, class, profile";

constexpr std::array<FamilyInfo, static_cast<std::size_t>(Family::kCount)> kFamilies{{
    {"sluice_up", kGauge, "",
     "Whether the last question to the broker was answered (1) or not (0)."},
    {"sluice_broker_uptime_seconds", kGauge, "", "Time since the broker started."},
    {"sluice_broker_registrations_total", kCounter, "",
     "Processes that registered with the broker."},
    {"sluice_broker_admissions_total", kCounter, "", "Tenants that the broker admitted."},
    {"sluice_broker_refusals_total", kCounter, "", "Requests that the broker refused."},
    {"sluice_broker_refused_total", kCounter, "reason",
     "Requests that the broker refused, by reason (the codes of docs/protocol.md)."},
    {"sluice_broker_protocol_errors_total", kCounter, "",
     "Messages that did not follow the protocol."},
    {"sluice_broker_protocol_faults_total", kCounter, "kind",
     "Messages that did not follow the protocol, by kind: garbage, no message at all; version, "
     "another one's; malformed; order, good in itself but not then or not there."},
    {"sluice_broker_reloads_total", kCounter, "result",
     "Reloads of the configuration, by result: success or failure."},
    {"sluice_broker_journal_faults_total", kCounter, "",
     "Writes of the broker's journal that failed; stands still at 65535."},
    {"sluice_broker_journal_lost_records", kGauge, "",
     "Records of the journal before this broker that it could not read when it started."},
    {"sluice_broker_slow_turns_total", kCounter, "",
     "Turns of the broker's loop that took longer than 100 ms; programs that start or wait for a "
     "turn wait meanwhile."},

    {"sluice_gpu_info", kGauge, "gpu, name, software",
     "Always 1; names the GPU and says whether it is a software GPU."},
    {"sluice_gpu_memory_capacity_bytes", kGauge, "gpu",
     "Memory of the GPU that tenants can be promised."},
    {"sluice_gpu_memory_promised_bytes", kGauge, "gpu",
     "Sum of the memory guaranteed to the tenants (memory_min)."},
    {"sluice_gpu_guaranteed_share_ratio", kGauge, "gpu",
     "Sum of the shares of its time that are guaranteed to tenants, at most 1."},
    {"sluice_gpu_memory_quota_bytes", kGauge, "gpu",
     "Sum of the tenants' memory limits (memory_max); more than the capacity where memory is "
     "oversold."},
    {"sluice_gpu_memory_held_bytes", kGauge, "gpu", "Memory that the tenants hold now."},
    {"sluice_gpu_context_bytes", kGauge, "gpu",
     "What one context costs on this GPU; no quota can be smaller."},
    {"sluice_gpu_busy_seconds_total", kCounter, "gpu",
     "GPU time used by all tenants, past ones included; without time in which one owned the GPU as "
     "a whole, which is not metered."},
    {"sluice_gpu_utilization_ratio", kGauge, "gpu, level",
     "How much of the GPU is used, by level: allocated, the sum of its tenants' shares, guaranteed "
     "ones and weights (at most 1); time, the fraction of the last ten seconds in which work of "
     "theirs "
     "ran, or, on a GPU that one of them owns as a whole, of the driver's last period; sm, the "
     "fraction of its SMs that had work since the look before, whoever's, where the hardware "
     "counts it (NVML, from Hopper on)."},
    {"sluice_gpu_leases_granted_total", kCounter, "gpu", "Leases that were opened."},
    {"sluice_gpu_leases_revoked_total", kCounter, "gpu", "Leases that were taken back."},
    {"sluice_gpu_lease_overruns_total", kCounter, "gpu",
     "Leases whose holder did not finish in time."},
    {"sluice_gpu_lease_overrun_seconds_total", kCounter, "gpu",
     "Time by which holders overran their leases."},
    {"sluice_gpu_exclusive", kGauge, "gpu",
     "Whether one tenant owns the whole GPU (1) or it is shared (0)."},
    {"sluice_gpu_draining", kGauge, "gpu", "Whether the GPU is being emptied for its next holder."},
    {"sluice_gpu_lost", kGauge, "gpu",
     "Whether the GPU has fallen off the bus (1): it takes no tenants any more."},
    {"sluice_gpu_memory_used_bytes", kGauge, "gpu",
     "Memory in use on the whole GPU, whoever uses it, as the driver says. Needs NVML."},
    {"sluice_gpu_unmanaged_processes", kGauge, "gpu",
     "Processes on the GPU that are registered with no tenant. Needs NVML."},
    {"sluice_gpu_unmanaged_memory_bytes", kGauge, "gpu",
     "Memory of the GPU that those processes use. Needs NVML."},
    {"sluice_gpu_ledger_drift_bytes", kGauge, "gpu",
     "Memory that the registered processes use, as the driver says, less what the broker counts "
     "for them. Needs NVML, and a driver that tells the memory of each process."},
    {"sluice_gpu_xid_errors_total", kCounter, "gpu, xid",
     "Errors that the driver reported, by Xid number, since the exporter started; the rarest "
     "beyond "
     "32 numbers are other. Needs NVML."},

    {"sluice_bypass_watcher_up", kGauge, "",
     "Whether sluice-watch, which finds programs that use a GPU without Sluice, has told its "
     "counts "
     "in the last half minute (1) or not (0)."},
    {"sluice_bypass_source", kGauge, "source",
     "Whether (1) it can look at: driver, calls of the driver library; device, opens of the "
     "driver's device; ioctl, calls of that device; held, descriptors of it that processes hold; "
     "nvml, NVML's list of processes."},
    {"sluice_unmanaged_processes", kGauge, "exempt",
     "Processes that use a GPU without Sluice, by whether [bypass] exempts them."},
    {"sluice_unmanaged_memory_bytes", kGauge, "",
     "Memory of all GPUs that those processes use, as NVML says."},
    {"sluice_unmanaged_found_total", kCounter, "source",
     "Processes that were found to use a GPU without Sluice since the watcher started, by what "
     "showed it; one process counts for each source."},
    {"sluice_unmanaged_stopped_total", kCounter, "",
     "Processes that the watcher stopped ([bypass] policy)."},

    {"sluice_tenants", kGauge, "state, class", "Tenants, by state and class."},
    {"sluice_exclusive_gangs", kGauge, "",
     "Tenants that own several whole GPUs, granted together."},
    {"sluice_queue_length", kGauge, "reason", "Tenants that wait for admission, by reason."},
    {"sluice_queue_oldest_seconds", kGauge, "reason",
     "How long the tenant that waits longest for admission has waited, by reason; 0 if none does."},
    {"sluice_admission_wait_seconds", kHistogram, "reason",
     "How long tenants waited for admission, by what they waited for last (none: they were "
     "admitted at once). Counted when they come in, since the exporter started; who comes and goes "
     "within a second may be missed."},
    {"sluice_tenant_memory_limit_bytes", kGauge, kVgpu, "Memory quota of the tenant (memory_max)."},
    {"sluice_tenant_memory_guaranteed_bytes", kGauge, kVgpu,
     "Memory guaranteed to the tenant (memory_min)."},
    {"sluice_tenant_memory_used_bytes", kGauge, kVgpu,
     "Memory that the tenant holds, contexts included."},
    {"sluice_tenant_memory_peak_bytes", kGauge, kVgpu, "The most memory that the tenant has held."},
    {"sluice_tenant_memory_movable_bytes", kGauge, kVgpu,
     "Of the memory that the tenant holds: what can be moved to the host to make room."},
    {"sluice_tenant_memory_swapped_bytes", kGauge, kVgpu,
     "Of the memory that the tenant holds: what is in the host now and not on the GPU."},
    {"sluice_tenant_memory_not_movable_bytes", kGauge, "gpu, tenant, user, class, profile, kind",
     "Of the memory that the tenant holds: what stays on the GPU whatever happens, by kind: "
     "contexts, with "
     "code and what limits take; other."},
    {"sluice_tenant_moved_bytes_total", kCounter, "gpu, tenant, user, class, profile, direction",
     "Memory of the tenant that was moved to the host (direction out) and back (in)."},
    {"sluice_tenant_moves_total", kCounter, kVgpu,
     "Times that the tenant was moved to the host, all its GPUs together."},
    {"sluice_tenant_failed_moves_total", kCounter, kVgpu,
     "Moves of the tenant, out or back, that did not come about; stands still at 65535."},
    {"sluice_tenant_moving_seconds_total", kCounter, kVgpu,
     "Time that the tenant was held for moves: stopping, copying, out, and coming back."},
    {"sluice_tenant_move_seconds_total", kCounter, "gpu, tenant, user, class, profile, direction",
     "Time that moves of the tenant took: to the host, with stopping what runs (direction out), "
     "and "
     "back (in)."},
    {"sluice_tenant_gpu_seconds_total", kCounter, kVgpu,
     "GPU time that the tenant used; not metered on a GPU that it owns as a whole."},
    {"sluice_tenant_lease_held_seconds_total", kCounter, kVgpu,
     "Time during which the tenant had the right to submit work."},
    {"sluice_tenant_guaranteed_share_ratio", kGauge, kVgpu,
     "Share of the GPU's time that the tenant gets whenever it wants it; 0 where its share is a "
     "weight."},
    {"sluice_tenant_share_weight", kGauge, kVgpu,
     "Weight of the tenant among those that divide the time which the guarantees leave; 0 where "
     "its share is guaranteed."},
    {"sluice_tenant_achieved_share_ratio", kGauge, kVgpu,
     "Share of the GPU's time that the tenant used in the last ten seconds; of a GPU that it owns "
     "as a whole, how busy the driver says it is."},
    {"sluice_tenant_share_error_ratio", kGauge, kVgpu,
     "Achieved share less the guaranteed one, where calls of the tenant waited for their turn in "
     "the last ten seconds; below 0 it got less than it is promised. Without waiting it had what "
     "it asked for, and a weight promises nothing: there is no error."},
    {"sluice_tenant_gate_waits_total", kCounter, kVgpu, "Calls that waited for a lease."},
    {"sluice_tenant_gate_wait_seconds_total", kCounter, kVgpu,
     "Time that calls waited for a lease."},
    {"sluice_tenant_turn_wait_seconds", kHistogram, kTenant,
     "How long calls of the tenant waited for their turn, for room, or for the end of a hold, on "
     "all its GPUs together."},
    {"sluice_tenant_launches_total", kCounter, kVgpu, "Kernels launched."},
    {"sluice_tenant_graph_launches_total", kCounter, kVgpu, "Graphs launched."},
    {"sluice_tenant_refused_allocations_total", kCounter, kVgpu,
     "Allocations that the memory quota refused."},
    {"sluice_tenant_refusals_total", kCounter, "tenant, user, class, profile, reason",
     "Allocations that were refused, on all GPUs of the tenant together, by reason: quota, it "
     "would have had more than its "
     "limit; gpu_full, the GPU had no room although the limit allowed it."},
    {"sluice_tenant_lease_overruns_total", kCounter, kVgpu,
     "Leases that the tenant did not give back in time."},
    {"sluice_tenant_idle_seconds_total", kCounter, "gpu, tenant, user, class, profile, cause",
     "Time in which the GPU had nothing to do for the tenant, by cause: cpu, runqueue, disk, "
     "network, lock, sync, gate, memory, no-work (docs/idle-causes.md). Since the exporter began "
     "to observe the tenant; absent for those it does not observe."},
    {"sluice_tenant_idle_unseen_seconds_total", kCounter, kVgpu,
     "Time of the tenant that was neither found busy nor idle for a cause, because gaps came "
     "faster "
     "than they were read."},
    {"sluice_tenant_waiting", kGauge, kVgpu,
     "Whether the tenant waits for a lease at this moment."},
    {"sluice_tenant_processes", kGauge, kTenant, "Registered processes of the tenant."},
    {"sluice_tenant_unregistered_processes", kGauge, kTenant,
     "Living processes of the tenant whose connection to the broker is closed."},
    {"sluice_tenant_unregistered_memory_bytes", kGauge, kTenant,
     "Memory that those processes hold, on all GPUs of the tenant; a part of what it uses."},
    {"sluice_tenant_runaway", kGauge, kTenant,
     "Whether the tenant overran its lease and has not finished since."},
    {"sluice_tenant_unhooked_entry_points", kGauge, kTenant,
     "Functions of the driver that a living process of the tenant asked for and this version of "
     "Sluice does not know: what it does by them is neither counted nor limited."},
    {"sluice_tenant_limit_not_enforced", kGauge, "tenant, user, class, profile, reason",
     "Whether (1) a limit of the tenant does not hold in full, by reason: unhooked, a process "
     "calls functions of the driver that "
     "Sluice does not know; unregistered, a process lives without a connection to the broker; "
     "over_quota, it holds more than its "
     "limit, which was lowered or did not hold before."},
    {"sluice_tenant_state", kGauge, "tenant, user, class, profile, state",
     "Whether the tenant is in this state (1): running; swapped, moved out to make room; "
     "suspended, "
     "moved out by command or for a whole-GPU tenant."},

    {"sluice_tenant_stays", kGauge, "tenant, user, class, profile, reason",
     "1 for each tenant, by why its memory that could be moved stays when somebody else needs "
     "room: goes (it does not stay), "
     "not_swappable, exclusive, runaway, failed (moving it failed three times), host_memory (its "
     "user has none left)."},

    {"sluice_training_steps_total", kCounter, kTenant, "Training steps that the job reported."},
    {"sluice_training_samples_total", kCounter, kTenant, "Training samples that the job reported."},
    {"sluice_training_tokens_total", kCounter, kTenant, "Training tokens that the job reported."},
    {"sluice_training_exposed_communication_seconds_total", kCounter, kTenant,
     "Communication time that no computation hid."},
    {"sluice_training_straggler_ratio", kGauge, kTenant,
     "Median step time of the slowest rank over the median of all; 1 is even."},

    {"sluice_bpf_enabled", kGauge, "", "Whether the kernel observers are loaded."},
    {"sluice_bpf_info", kGauge, "reason",
     "Always 1; why the kernel observers are or are not loaded."},
    {"sluice_process_exits_total", kCounter, "result",
     "Watched processes that ended, by result: success, failure or signal. A process is watched "
     "from about a second after it registered. Needs BPF."},
    {"sluice_offcpu_seconds_total", kCounter, "tenant, user, class, profile, state",
     "Time that threads of watched processes spent off the CPU, by state: sleeping, or runnable "
     "but not running. A sleep "
     "counts when it ends. Needs BPF."},
    {"sluice_sched_switches_total", kCounter, kTenant,
     "Times that threads of watched processes left a CPU. Needs BPF."},

    {"sluice_nvml_up", kGauge, "",
     "Whether NVML was found and answered within half a second (1) or not (0)."},
    {"sluice_exporter_scrape_duration_seconds", kGauge, "",
     "How long it took to gather these figures."},
    {"sluice_exporter_scrape_errors_total", kCounter, "reason",
     "Scrapes without an answer from the broker, by reason: unreachable, refused or malformed."},
    {"sluice_exporter_idle_observer", kGauge, "kind, reason",
     "Always 1; how causes of idle time are found: bpf, exactly; proc, by samples, of programs "
     "that "
     "the exporter's user could debug; none. And why so."},
    {"sluice_exporter_idle_unseen_tenants", kGauge, "reason",
     "Running tenants of which no causes of idle time are known, by reason: exclusive, they own "
     "whole GPUs, where nothing is metered; not_observed, the broker does not let the exporter "
     "look ([exporter] user), they can only be sampled and are another user's, or beyond "
     "tenants_max."},
    {"sluice_exporter_idle_lost_total", kCounter, "",
     "Periods of threads that were not read in time; what they explain is rougher by them."},
}};

static_assert(kFamilies.back().name != nullptr, "every family of the enum has its row");

}  // namespace

std::span<const FamilyInfo, static_cast<std::size_t>(Family::kCount)> families() {
  return kFamilies;
}

std::string families_describe() {
  const auto type_name = [](MetricType type) {
    return type == kGauge ? "gauge" : type == kCounter ? "counter" : "histogram";
  };
  std::string out =
      "# Metrics\n\n"
      "`sluice-exporter` serves these families on `/metrics` (by default on "
      "`http://127.0.0.1:9843/metrics`). Every scrape "
      "asks the broker anew, so a tenant that is gone leaves no series behind (what is of the last "
      "ten seconds comes from asking once a second in between); while the broker is "
      "away, `sluice_up` is 0 "
      "and only the exporter's own figures remain.\n\n"
      "Labels: `gpu` is the GPU's UUID, `tenant` the broker's number of the tenant (one admitted "
      "job, with all its processes), `user` and "
      "`profile` are those of its "
      "owner, `class` is one of inference, debug, batch, exclusive. Beyond `[exporter] "
      "tenants_max` tenants (see "
      "[config.md](config.md)) the newest are summed by class under `tenant=\"other\"`. Process "
      "numbers and command lines "
      "never appear.\n\n"
      "| family | type | labels | meaning |\n|---|---|---|---|\n";
  for (const FamilyInfo& family : kFamilies) {
    out += std::string("| `") + family.name + "` | " + type_name(family.type) + " | " +
           family.labels + " | " + family.help + " |\n";
  }
  return out;
}

}  // namespace sluice::exporter

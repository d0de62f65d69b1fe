// The JSON of `sluice status --json`. The names are a contract: they are the snapshot's own and do
// not change within a protocol version.
#include <algorithm>

#include "broker/cli/admission.h"
#include "broker/cli/json.h"
#include "broker/cli/status.h"
#include "broker/devices/uuid.h"

namespace sluice::cli {
namespace {

void broker_write(JsonWriter& json, const Snapshot& snapshot, const std::string& socket) {
  const protocol::SnapshotHeader& header = snapshot.header;
  json.object_begin("broker");
  json.value("socket", socket);
  json.value("config_path", field_text(header.config_path, sizeof header.config_path));
  json.value("protocol_version", header.version);
  json.value("taken_ns", header.taken_ns);
  json.value("started_ns", header.started_ns);
  json.value("registrations", header.registrations);
  json.value("admissions", header.admissions);
  json.value("refusals", header.refusals);
  json.value("protocol_errors", header.protocol_errors);
  json.object_begin("refusals_by_reason");
  for (std::size_t code = 1; code < protocol::kRefusalCodes; ++code)
    json.value(protocol::kRefusalNames[code], header.refused_by_code[code]);
  json.object_end();
  json.object_begin("protocol_errors_by_kind");
  for (std::size_t kind = 0; kind < protocol::kProtocolErrors; ++kind)
    json.value(protocol::kProtocolErrorNames[kind], header.protocol_errors_by_kind[kind]);
  json.object_end();
  json.value("reloads_ok", header.reloads_ok);
  json.value("reloads_failed", header.reloads_failed);
  json.value("journal_faults", header.journal_faults);
  json.value("journal_lost", header.journal_lost);
  json.value("slow_turns", header.slow_turns);
  json.value("untrusted_tenants",
             std::ranges::count_if(snapshot.tenants, [](const protocol::SnapshotTenant& tenant) {
               return tenant.distrust != 0;
             }));
  json.object_end();
}

void policy_write(JsonWriter& json, const protocol::SnapshotPolicy& policy) {
  json.object_begin("policy");
  json.value("order", protocol::policy_order_name(policy.order));
  json.value("quantum_ns", policy.quantum_ns);
  json.value("exclusive", protocol::exclusive_rule_name(policy.exclusive));
  json.value("runaway", policy.runaway_ends != 0 ? "end" : "report");
  json.value("oversell", policy.oversell_permille / 1000.0);
  json.value("swap", policy.swap_all != 0 ? "on" : "off");
  json.value("swap_quantum_ns", policy.swap_quantum_ns);
  json.value("swap_host_max_bytes", policy.swap_host_max_bytes);
  json.object_end();
}

void gpu_write(JsonWriter& json, const protocol::SnapshotGpu& gpu, std::size_t index) {
  json.object_begin();
  json.value("index", index);
  json.value("uuid", devices::uuid_format(gpu.uuid));
  json.value("name", field_text(gpu.name, sizeof gpu.name));
  json.value("software", gpu.software != 0);
  json.value("capacity_bytes", gpu.capacity_bytes);
  json.value("context_bytes", gpu.context_bytes);
  json.value("promised_bytes", gpu.promised_bytes);
  json.value("promised_max_bytes", gpu.promised_max_bytes);
  json.value("held_bytes", gpu.held_bytes);
  json.value("sm_guaranteed", gpu.sm_guaranteed);
  json.value("busy_ns", gpu.busy_ns);
  json.value("leases_granted", gpu.leases_granted);
  json.value("leases_revoked", gpu.leases_revoked);
  json.value("lease_overrun_ns", gpu.lease_overrun_ns);
  json.value("overruns", gpu.overruns);
  json.value("holder", gpu.holder);
  json.value("tenants", gpu.tenants);
  json.value("exclusive", gpu.exclusive != 0);
  json.value("draining", gpu.draining != 0);
  json.value("drained", protocol::gpu_drained(gpu));
  json.value("drain", field_text(gpu.drain, sizeof gpu.drain));
  json.value("lost", gpu.lost != 0);
  json.object_end();
}

void part_write(JsonWriter& json, const protocol::SnapshotTenantGpu& part) {
  json.object_begin();
  json.value("uuid", devices::uuid_format(part.gpu));
  json.value("memory_max_bytes", part.memory_max_bytes);
  json.value("memory_min_bytes", part.memory_min_bytes);
  json.value("held_bytes", part.held_bytes);
  json.value("peak_bytes", part.peak_bytes);
  json.value("busy_ns", part.busy_ns);
  json.value("launches", part.launches);
  json.value("graph_launches", part.graph_launches);
  json.value("gate_waits", part.gate_waits);
  json.value("gate_wait_ns", part.gate_wait_ns);
  json.value("refused", part.refused);
  json.value("lease_held_ns", part.lease_held_ns);
  json.value("movable_bytes", part.movable_bytes);
  json.value("swapped_bytes", part.swapped_bytes);
  const std::uint64_t fixed = part.held_bytes - std::min(part.held_bytes, part.movable_bytes);
  json.object_begin("not_movable");
  json.value("bytes", fixed);
  json.value("contexts_bytes", std::min(part.context_bytes, fixed));
  json.value("other_bytes", fixed - std::min(part.context_bytes, fixed));
  json.object_end();
  json.value("moved_out_bytes", part.moved_out_bytes);
  json.value("moved_in_bytes", part.moved_in_bytes);
  json.value("moving_ns", part.moving_ns);
  json.value("suspending_ns", part.suspending_ns);
  json.value("restoring_ns", part.restoring_ns);
  json.value("moves", part.moves);
  json.value("moves_failed", part.moves_failed);
  json.value("overruns", part.overruns);
  json.value("owed_ns", part.owed_ns);
  json.value("sm_percent", part.sm_percent);
  json.value("sm", sm_kind_name(part.sm_kind));
  json.value("wants", part.wants != 0);
  json.object_end();
}

void tenant_write(JsonWriter& json, const Snapshot& snapshot,
                  const protocol::SnapshotTenant& tenant) {
  json.object_begin();
  json.value("tenant", tenant.tenant);
  json.value("name", field_text(tenant.name, sizeof tenant.name));
  json.value("user", field_text(tenant.user, sizeof tenant.user));
  json.value("uid", tenant.uid);
  json.value("profile", field_text(tenant.profile, sizeof tenant.profile));
  json.value("class", class_name(tenant.tenant_class));
  json.value("sm_mode", sm_mode_name(tenant.sm_mode));
  json.value("state", state_name(tenant.state));
  json.value("reason", protocol::queue_reason_name(tenant.reason));
  const bool queued = tenant.state == protocol::TenantState::kQueued;
  json.value("queue_position", queued ? tenant.queue_position : 0);
  json.value("idle_ns", queued ? 0 : tenant.idle_s * std::uint64_t{1'000'000'000});
  json.value("ahead", field_text(tenant.ahead, sizeof tenant.ahead));
  json.value("why", field_text(tenant.why, sizeof tenant.why));
  json.value("asked_ns", tenant.asked_ns);
  json.value("admitted_ns", tenant.admitted_ns);
  json.value("unregistered", tenant.unregistered);
  json.value("unregistered_bytes", tenant.unregistered_bytes);
  json.value("runaway", tenant.runaway != 0);
  json.value("stays", protocol::stay_reason_name(tenant.stays));
  json.value("lost_processes", tenant.lost_processes);
  json.value("trusted", tenant.distrust == 0);
  json.value("distrust", distrust_text(tenant.distrust));
  json.value("steps", tenant.steps);
  json.value("samples", tenant.samples);
  json.value("tokens", tenant.tokens);
  json.value("exposed_communication_ns", tenant.exposed_communication_ns);
  json.value("straggler_score", tenant.straggler_score);
  json.value("unhooked_entry_points", tenant.unhooked);
  json.value("refused_full", tenant.refused_full);
  json.array_begin("gpus");
  for (const protocol::SnapshotTenantGpu& part : snapshot.tenant_gpus) {
    if (tenant.tenant != 0 && part.tenant == tenant.tenant) part_write(json, part);
  }
  json.array_end();
  json.array_begin("processes");
  for (const protocol::SnapshotProcess& process : snapshot.processes) {
    if (tenant.tenant == 0 || process.tenant != tenant.tenant) continue;
    json.object_begin();
    json.value("pid", process.pid);
    json.value("slot", process.slot);
    json.value("lost", process.lost != 0);
    json.value("ended", process.ended != 0);
    json.value("command", field_text(process.command, sizeof process.command));
    json.object_end();
  }
  json.array_end();
  json.object_end();
}

void ended_write(JsonWriter& json, const protocol::SnapshotEnded& ended) {
  json.object_begin();
  json.value("tenant", ended.tenant);
  json.value("name", field_text(ended.name, sizeof ended.name));
  json.value("user", field_text(ended.user, sizeof ended.user));
  json.value("uid", ended.uid);
  json.value("how", field_text(ended.how, sizeof ended.how));
  json.value("admitted_ns", ended.admitted_ns);
  json.value("ended_ns", ended.ended_ns);
  json.value("busy_ns", ended.busy_ns);
  json.object_end();
}

}  // namespace

std::string status_json(const Snapshot& snapshot, const std::string& socket) {
  JsonWriter json;
  json.object_begin();
  broker_write(json, snapshot, socket);
  policy_write(json, snapshot.header.policy);
  json.array_begin("gpus");
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) gpu_write(json, snapshot.gpus[i], i);
  json.array_end();
  json.array_begin("tenants");
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants)
    tenant_write(json, snapshot, tenant);
  json.array_end();
  json.array_begin("ended");
  for (const protocol::SnapshotEnded& ended : snapshot.ended) ended_write(json, ended);
  json.array_end();
  json.object_end();
  return json.text();
}

}  // namespace sluice::cli

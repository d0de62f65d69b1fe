// The table and the JSON of a made-up snapshot.
#include "broker/cli/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

Snapshot sample() {
  Snapshot snapshot;
  snapshot.header.taken_ns = 20'000'000'000;
  protocol::SnapshotGpu gpu{};
  std::strcpy(gpu.name, "NVIDIA H200");
  gpu.capacity_bytes = 8ull << 30;
  gpu.held_bytes = 1ull << 30;
  gpu.promised_bytes = 2ull << 30;
  gpu.sm_guaranteed = 40;
  gpu.busy_ns = 12'340'000'000;
  gpu.holder = 5;
  gpu.tenants = 1;
  snapshot.gpus.push_back(gpu);
  protocol::SnapshotTenant running{};
  running.tenant = 5;
  running.state = protocol::TenantState::kRunning;
  running.tenant_class = protocol::TenantClass::kInference;
  running.sm_mode = protocol::SmMode::kFixed;
  running.runaway = 1;
  running.stays = protocol::StayReason::kNotSwappable;
  running.processes = 2;
  std::strcpy(running.name, "serve");
  std::strcpy(running.user, "ada");
  snapshot.tenants.push_back(running);
  protocol::SnapshotTenant waiting{};
  waiting.state = protocol::TenantState::kQueued;
  waiting.queue_position = 1;
  waiting.asked_ns = 7'500'000'000;
  waiting.reason = protocol::QueueReason::kPriority;
  std::memset(waiting.name, 'n', sizeof waiting.name);  // not terminated
  std::strcpy(waiting.user, "bob");
  std::strcpy(waiting.ahead, "train");
  std::strcpy(waiting.why, "there is room, but train of user ada asked before");
  snapshot.tenants.push_back(waiting);
  protocol::SnapshotTenantGpu part{};
  part.tenant = 5;
  part.memory_max_bytes = 2ull << 30;
  part.held_bytes = 1ull << 30;
  part.busy_ns = 12'340'000'000;
  part.sm_percent = 40;
  part.sm_kind = protocol::SmKind::kGuaranteed;
  snapshot.tenant_gpus.push_back(part);
  return snapshot;
}

TEST(Table, WordForWord) {
  const std::string n(protocol::kNameBytes, 'n');
  EXPECT_EQ(
      status_table(sample()),
      "GPU  NAME         HELD / CAPACITY  PROMISED  GUARANTEED  JOBS  GPU TIME  NOW         UUID\n"
      "[0]  NVIDIA H200  1 GiB / 8 GiB    2 GiB     40 %        1     12.3 s    serve runs  "
      "GPU-00000000-0000-0000-0000-000000000000\n"
      "\n"
      "JOB  NAME   USER  CLASS      GPU  HELD / LIMIT   SHARE                   GPU TIME  PROCS  "
      "STATE\n"
      "5    serve  ada   inference  0    1 GiB / 2 GiB  40 % guaranteed, fixed  12.3 s    2      "
      "running, RUNAWAY\n"
      "\n"
      "LINE  NAME                              USER  CLASS      WAITED  REASON    BEHIND\n"
      "1st   " +
          n +
          "  bob   inference  12.5 s  Priority  train\n"
          "\n1st " +
          n + ": there is room, but train of user ada asked\n  before\n");
}

TEST(Table, ColumnsStandUnderEachOtherInEveryScript) {
  Snapshot snapshot = sample();
  std::strcpy(snapshot.tenants[0].name, "日本語");
  EXPECT_THAT(status_table(snapshot), HasSubstr("JOB  NAME    USER  CLASS"));
  EXPECT_THAT(status_table(snapshot), HasSubstr("\n5    日本語  ada   inference"));
  std::strcpy(snapshot.tenants[0].name, "größer");
  EXPECT_THAT(status_table(snapshot), HasSubstr("JOB  NAME    USER  CLASS"));
}

TEST(Table, AWeightIsCalledOne) {
  Snapshot snapshot = sample();
  EXPECT_THAT(status_json(snapshot, "s"), HasSubstr("\"sm\": \"guaranteed\""));
  EXPECT_THAT(status_json(snapshot, "s"), HasSubstr("\"sm_guaranteed\": 40"));
  snapshot.tenant_gpus[0].sm_kind = protocol::SmKind::kWeight;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  weight 40, fixed  12.3 s"));
  EXPECT_THAT(status_json(snapshot, "s"), HasSubstr("\"sm\": \"weight\""));
  snapshot.tenants[0].sm_mode = protocol::SmMode::kBestEffort;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  weight 40  12.3 s"));
  snapshot.tenants[0].sm_mode = protocol::SmMode::kEqual;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  equal  12.3 s"));
}

TEST(Table, WhatIsOutIsSaid) {
  Snapshot snapshot = sample();
  snapshot.tenants[0].runaway = 0;
  snapshot.tenant_gpus[0].movable_bytes = 1ull << 30;
  snapshot.tenant_gpus[0].swapped_bytes = 768ull << 20;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  running, 768 MiB out\n")) << "on its way";
  snapshot.tenants[0].state = protocol::TenantState::kSwapped;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  swapped, 768 MiB out\n"));
  snapshot.tenants[0].state = protocol::TenantState::kSuspended;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  suspended, 768 MiB out\n"));
}

TEST(Table, ALostProcessIsNamedAndWhatToDo) {
  Snapshot snapshot = sample();
  snapshot.tenants[0].lost_processes = 1;
  snapshot.tenants[0].stays = protocol::StayReason::kLost;
  for (const std::uint32_t pid : {41u, 42u}) {
    protocol::SnapshotProcess process{};
    process.tenant = 5;
    process.pid = pid;
    process.slot = 3;
    process.lost = pid == 42;
    std::strcpy(process.command, "serve.py");
    snapshot.processes.push_back(process);
  }
  const std::string table = status_table(snapshot);
  EXPECT_THAT(table, HasSubstr("running, RUNAWAY, 1 LOST\n"));
  EXPECT_THAT(table, HasSubstr("\njob 5 serve: the driver's checkpoint has lost process 42 "
                               "(serve.py); it can only be ended: kill 42\n"));
  EXPECT_THAT(table, Not(HasSubstr("process 41")));
  const std::string json = status_json(snapshot, "s");
  EXPECT_THAT(json, HasSubstr("\"lost_processes\": 1"));
  EXPECT_THAT(json, HasSubstr("\"stays\": \"checkpoint failed\""));
  EXPECT_THAT(json, HasSubstr("\"lost\": true"));
  EXPECT_THAT(json, HasSubstr("\"slot\": 3"));
}

TEST(Table, WhoseClaimsCannotBeTrueIsSaid) {
  Snapshot snapshot = sample();
  EXPECT_THAT(status_json(snapshot, "s"), HasSubstr("\"untrusted_tenants\": 0"));
  EXPECT_THAT(status_json(snapshot, "s"), HasSubstr("\"trusted\": true"));
  snapshot.tenants[0].distrust = protocol::kDistrustSlot | protocol::kDistrustTime;
  EXPECT_THAT(status_table(snapshot), HasSubstr("running, NOT TRUSTED (slot, time), RUNAWAY\n"));
  const std::string json = status_json(snapshot, "s");
  EXPECT_THAT(json, HasSubstr("\"untrusted_tenants\": 1"));
  EXPECT_THAT(json, HasSubstr("\"trusted\": false"));
  EXPECT_THAT(json, HasSubstr("\"distrust\": \"slot, time\""));
}

TEST(Table, WhoWaitsForTheSameIsNamedTogether) {
  Snapshot snapshot;
  for (const std::uint32_t place : {4U, 1U, 2U, 3U, 5U, 7U, 6U}) {
    protocol::SnapshotTenant tenant{};
    tenant.state = protocol::TenantState::kQueued;
    tenant.queue_position = place;
    std::strcpy(tenant.name, "sleep");
    std::strcpy(tenant.why, place == 4 ? "a limit" : place == 7 ? "a drain" : "the memory");
    snapshot.tenants.push_back(tenant);
  }
  EXPECT_THAT(status_table(snapshot), HasSubstr("\n\n1st to 3rd, 5th to 6th: the memory\n"
                                                "4th sleep: a limit\n7th sleep: a drain\n"));
}

TEST(Table, ALostGpuIsSaid) {
  Snapshot snapshot = sample();
  snapshot.gpus[0].lost = 1;
  EXPECT_THAT(status_table(snapshot), HasSubstr("12.3 s    LOST, takes no jobs  GPU-"));
  EXPECT_THAT(status_json(snapshot, "/s"), HasSubstr("\"lost\": true"));
}

TEST(Table, WhatOfAMovableJobStaysAndWhy) {
  Snapshot snapshot = sample();
  EXPECT_THAT(status_json(snapshot, "/s"), HasSubstr("\"stays\": \"not swappable\""));
  snapshot.tenants[0].stays = protocol::StayReason::kGoes;
  snapshot.tenant_gpus[0].movable_bytes = 768ull << 20;
  snapshot.tenant_gpus[0].context_bytes = 56ull << 20;
  EXPECT_THAT(
      status_table(snapshot),
      HasSubstr("\n\njob 5 serve on GPU 0: 256 MiB of 1 GiB cannot be moved: 56 MiB contexts "
                "and code, 200 MiB in pools, arrays, managed memory, graphs or mappings of "
                "its own\n"));
  const std::string json = status_json(snapshot, "/s");
  EXPECT_THAT(json, HasSubstr("\"stays\": \"\""));
  EXPECT_THAT(json, testing::ContainsRegex("\"not_movable\": *\\{[ \n]*\"bytes\": 268435456,[ \n]*"
                                           "\"contexts_bytes\": 58720256,[ \n]*"
                                           "\"other_bytes\": 209715200"));
  snapshot.tenant_gpus[0].context_bytes = 256ull << 20;
  EXPECT_THAT(status_table(snapshot), testing::Not(HasSubstr("cannot be moved")))
      << "every job has contexts";
  snapshot.tenants[0].stays = protocol::StayReason::kHostMemory;
  EXPECT_THAT(status_table(snapshot),
              HasSubstr("job 5 serve on GPU 0: all of its 1 GiB stays (host memory limit)\n"));
}

TEST(Table, ThePolicyInForce) {
  Snapshot snapshot = sample();
  snapshot.header.policy = {protocol::PolicyOrder::kRoundRobin,
                            0,
                            protocol::ExclusiveRule::kSuspend,
                            0,
                            1500,
                            10'000'000,
                            1'000'000'000,
                            31ull << 30};
  EXPECT_THAT(
      status_table(snapshot),
      HasSubstr("\n\npolicy round-robin, quantum 10 ms; exclusive suspend; oversell 1.5; swap "
                "off (on request), quantum 1 s, host memory 31 GiB per user; runaway report\n"));
  snapshot.header.policy = {
      protocol::PolicyOrder::kFifo, 1, protocol::ExclusiveRule::kMove, 1, 1000, 1, 1, 0};
  const std::string table = status_table(snapshot);
  EXPECT_THAT(table, HasSubstr("policy fifo"));
  EXPECT_THAT(table, HasSubstr("exclusive move; oversell 1.0; swap on, "));
  EXPECT_THAT(table, HasSubstr("runaway end\n"));
  const std::string json = status_json(snapshot, "/s");
  for (const char* name : {"\"order\": \"fifo\"", "\"exclusive\": \"move\"", "\"swap\": \"on\"",
                           "\"oversell\": 1", "\"swap_quantum_ns\": 1", "\"runaway\": \"end\""})
    EXPECT_THAT(json, HasSubstr(name));
}

TEST(Table, AJobThatPaysAnOverrunBack) {
  Snapshot snapshot = sample();
  snapshot.tenants[0].runaway = 0;
  snapshot.tenant_gpus[0].wants = 1;
  snapshot.tenant_gpus[0].owed_ns = 49'000'000;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  waits for GPU\n"));
  snapshot.tenant_gpus[0].owed_ns = 2'400'000'000;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  pays back 2.4 s\n"));
  EXPECT_THAT(status_json(snapshot, "/s"), HasSubstr("\"owed_ns\": 2400000000"));
  snapshot.tenant_gpus[0].wants = 0;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  running\n")) << "it does not wait";
}

TEST(Table, AJobThatUsesNoGpuIsIdle) {
  Snapshot snapshot = sample();
  snapshot.tenants[0].runaway = 0;
  snapshot.tenants[0].idle_s = 10;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  idle 10 s\n"));
  EXPECT_THAT(status_table(snapshot), HasSubstr("  serve is idle 10 s  "));
  EXPECT_THAT(status_json(snapshot, "/s"), HasSubstr("\"idle_ns\": 10000000000"));
  EXPECT_THAT(status_json(snapshot, "/s"), HasSubstr("\"queue_position\": 0"));
  snapshot.tenant_gpus[0].wants = 1;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  waits for GPU\n"));
  snapshot.tenant_gpus[0].wants = 0;
  snapshot.tenants[0].runaway = 1;
  EXPECT_THAT(status_table(snapshot), HasSubstr("  running, RUNAWAY\n"));
  EXPECT_THAT(status_table(snapshot), HasSubstr("  serve runs  "));
}

TEST(Table, AGpuWithTheContextOfASuspendedJobIsNotDrained) {
  Snapshot snapshot = sample();
  protocol::SnapshotGpu& gpu = snapshot.gpus[0];
  gpu.tenants = 0;
  gpu.holder = 0;
  gpu.closed = gpu.draining = 1;
  gpu.held_bytes = 32ull << 20;
  std::strcpy(gpu.drain, "drained by user root");
  EXPECT_THAT(status_table(snapshot), HasSubstr("free, draining"));
  EXPECT_THAT(status_table(snapshot),
              HasSubstr("no job runs on it, but suspended ones hold 32 MiB\n"
                        "  of it (contexts): a reset ends them\n"));
  EXPECT_THAT(status_json(snapshot, "/s"), HasSubstr("\"drained\": false"));
  gpu.held_bytes = 0;
  EXPECT_THAT(status_table(snapshot), HasSubstr("; nothing is left on it\n"));
  EXPECT_THAT(status_json(snapshot, "/s"), HasSubstr("\"drained\": true"));
}

TEST(Table, EmptyMachine) { EXPECT_THAT(status_table(Snapshot{}), HasSubstr("no jobs\n")); }

TEST(Json, NamesAreStable) {
  const std::string json = status_json(sample(), "/s");
  for (const char* name : {"\"socket\": \"/s\"",
                           "\"capacity_bytes\": 8589934592",
                           "\"holder\": 5",
                           "\"state\": \"queued\"",
                           "\"reason\": \"Priority\"",
                           "\"class\": \"inference\"",
                           "\"sm_mode\": \"fixed\"",
                           "\"runaway\": true",
                           "\"ahead\": \"train\"",
                           "\"why\": \"there is room, but train of user ada asked before\"",
                           "\"movable_bytes\": 0",
                           "\"swapped_bytes\": 0",
                           "\"moved_out_bytes\": 0",
                           "\"moved_in_bytes\": 0",
                           "\"moving_ns\": 0",
                           "\"suspending_ns\": 0",
                           "\"restoring_ns\": 0",
                           "\"unregistered_bytes\": 0",
                           "\"moves\": 0",
                           "\"moves_failed\": 0",
                           "\"busy_ns\": 12340000000",
                           "\"uuid\": \"GPU-00000000-0000-0000-0000-000000000000\""}) {
    EXPECT_THAT(json, HasSubstr(name));
  }
}

TEST(Names, UnknownValuesOfANewerBroker) {
  EXPECT_STREQ(class_name(static_cast<protocol::TenantClass>(9)), "unknown");
  EXPECT_STREQ(state_name(static_cast<protocol::TenantState>(9)), "unknown");
  EXPECT_STREQ(sm_mode_name(static_cast<protocol::SmMode>(9)), "unknown");
}

}  // namespace
}  // namespace sluice::cli

// The text that Prometheus reads: one golden file, and what must hold for any snapshot.
#include "exporter/collect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "exporter/collector.h"
#include "exporter/families.h"
#include "tests/exporter/crafted.h"

namespace sluice::exporter {
namespace {

using test::Crafted;
using test::example;
using testing::HasSubstr;
using testing::Not;

std::string file_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Snapshot snapshot_of(const Crafted& crafted) {
  const auto bytes = crafted.bytes();
  auto result = snapshot_parse(bytes.data(), bytes.size());
  EXPECT_TRUE(std::holds_alternative<Snapshot>(result)) << std::get<SnapshotError>(result).text;
  return std::get<Snapshot>(std::move(result));
}

WatchFigures watch_off() { return {false, "switched off with --no-bpf", {}, {}}; }

std::string text_of(const Crafted& crafted, std::uint32_t tenants_max = 200) {
  const Snapshot snapshot = snapshot_of(crafted);
  return metrics_text(metrics_collect(&snapshot, watch_off(), {}, tenants_max));
}

/// What ten seconds before the example would have shown.
RecentFigures recent_example(const Snapshot& snapshot) {
  RecentFigures recent;
  for (const auto& gpu : snapshot.gpus) recent.gpu_time[uuid_text(gpu.uuid)] = 0.625;
  for (const auto& vgpu : snapshot.tenant_gpus)
    recent.shares[{vgpu.tenant, uuid_text(vgpu.gpu)}] = {0.375, vgpu.tenant == 3};
  recent.waits[1].counts = {0, 1, 2, 0, 0, 0, 0, 0, 1};
  recent.waits[1].sum_s = 9001.5;
  return recent;
}

/// Two registered processes and a stranger on the first GPU; the second tells little.
DeviceFigures devices_example(const Snapshot& snapshot) {
  DeviceFigures devices;
  devices.up = true;
  DeviceLook& first = devices.gpus[uuid_text(snapshot.gpus[0].uuid)];
  first.used_bytes = 3'000'000'000;
  first.busy_ratio = 0.75;
  first.sm_ratio = 0.125;
  first.processes = {{4001, 1'000'000'000}, {4003, 100'000'000}, {77, 1'900'000'000}};
  first.xids = {{0, 3}, {31, 2}, {79, 0}};
  devices.gpus[uuid_text(snapshot.gpus[1].uuid)].processes = {{4002, std::nullopt}};
  devices.gpus[uuid_text(snapshot.gpus[1].uuid)].busy_ratio = 0.875;
  devices.gpus["GPU-of-nobody"].used_bytes = 5;
  return devices;
}

/// Of the training job, and of a tenant that has gone since.
IdleState idle_example(const Snapshot& snapshot) {
  IdleState idle;
  idle.kind = "bpf";
  idle.reason = "loaded";
  IdleFigures& figures = idle.table[{3, uuid_text(snapshot.gpus[0].uuid)}];
  for (std::size_t i = 0; i < kCauses; ++i) figures.idle_ns[i] = (i + 1) * 250'000'000;
  figures.unseen_ns = 125'000'000;
  idle.table[{404, uuid_text(snapshot.gpus[0].uuid)}].unseen_ns = 7;
  idle.unseen = 2;
  idle.lost = 5;
  return idle;
}

std::optional<BypassFigures> bypass_example() {
  BypassFigures out;
  out.sources[0] = out.sources[4] = true;
  out.counts = {2, 1, 300'000'000, {4, 0, 3, 2, 3}, 1};
  return out;
}

TEST(Golden, EveryByte) {
  const Snapshot snapshot = snapshot_of(example());
  WatchFigures watch{true, "loaded", {11, 12, 13}, {}};
  watch.tenants[3] = SchedFigures{1234, 5'000'000'000, 250'000};
  OwnFigures own{0.000125, {1, 2, 3}};
  const std::string text = metrics_text(
      metrics_collect(&snapshot, watch, own, 200, recent_example(snapshot),
                      devices_example(snapshot), idle_example(snapshot), bypass_example()));
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/tests/exporter/golden.metrics";
  const std::string golden = file_text(path);
  if (text == golden) return;
  std::ofstream("golden.metrics.new") << text;
  std::istringstream got(text), wanted(golden);
  for (std::string line, other; std::getline(got, line);) {
    std::getline(wanted, other);
    ASSERT_EQ(line, other) << "the scrape differs from " << path
                           << "; if that is meant, copy golden.metrics.new over it";
  }
  FAIL() << path << " has more lines than the scrape";
}

TEST(Document, IsUpToDate) {
  EXPECT_EQ(families_describe(), file_text(std::string(SLUICE_SOURCE_DIR) + "/docs/metrics.md"))
      << "run: sluice-exporter --describe > docs/metrics.md";
}

TEST(Table, NamesAreUniqueAndPrefixed) {
  std::set<std::string> names;
  for (const FamilyInfo& family : families()) {
    ASSERT_NE(family.name, nullptr);
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_EQ(std::string(family.name).rfind("sluice_", 0), 0U);
    const bool total =
        std::string(family.name).size() > 6 && std::string(family.name).ends_with("_total");
    EXPECT_EQ(total, family.type == prometheus::MetricType::Counter) << family.name;
    EXPECT_EQ(std::string(family.help).back(), '.') << family.name;
  }
}

// The golden scrape uses every family, and each sample carries exactly the labels that the table
// promises.
TEST(Table, LabelsAreAsDescribed) {
  const Snapshot snapshot = snapshot_of(example());
  WatchFigures watch{true, "loaded", {}, {{3, {}}}};
  const auto rows =
      metrics_collect(&snapshot, watch, {}, 200, recent_example(snapshot),
                      devices_example(snapshot), idle_example(snapshot), bypass_example());
  ASSERT_EQ(rows.size(), families().size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const auto& metric : rows[i].metric) {
      std::string labels;
      for (const auto& label : metric.label) labels += (labels.empty() ? "" : ", ") + label.name;
      EXPECT_EQ(labels, families()[i].labels) << rows[i].name;
    }
  }
}

TEST(Collect, BrokerDown) {
  const std::string text = metrics_text(metrics_collect(nullptr, watch_off(), {}, 200));
  EXPECT_THAT(text, HasSubstr("\nsluice_up 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsluice_bpf_enabled 0\n"));
  EXPECT_THAT(text, HasSubstr("sluice_bpf_info{reason=\"switched off with --no-bpf\"} 1\n"));
  for (const char* gone : {"tenant=", "gpu=", "sluice_broker_", "sluice_process_exits"}) {
    EXPECT_THAT(text, Not(HasSubstr(gone)));
  }
}

TEST(Collect, NeverCommandsOrProcessNumbers) {
  const std::string text = text_of(example());
  EXPECT_THAT(text, Not(HasSubstr("secret-command")));
  EXPECT_THAT(text, Not(HasSubstr("4001")));
}

TEST(Collect, HostileNamesAreEscaped) {
  Crafted crafted = example();
  crafted.tenants.clear();
  crafted.tenant_gpus.clear();
  crafted.processes.clear();
  crafted.tenant_add(1, "a\"} 1\nsluice_up 7\\", protocol::TenantClass::kDebug);
  crafted.tenant_add(2, "\xff\xfe", protocol::TenantClass::kDebug);
  const std::string text = text_of(crafted);
  EXPECT_THAT(text, HasSubstr("user=\"a\\\"} 1\\nsluice_up 7\\\\\""));
  EXPECT_THAT(text, HasSubstr("user=\"?\?\""));
  EXPECT_THAT(text, Not(HasSubstr("\nsluice_up 7")));
}

TEST(Collect, BeyondTheCapTheNewestAreOther) {
  Crafted crafted;
  crafted.gpus = example().gpus;
  for (protocol::TenantId id = 10; id < 20; ++id) {
    auto& tenant = crafted.tenant_add(
        id, "anna", id % 2 == 0 ? protocol::TenantClass::kDebug : protocol::TenantClass::kBatch);
    tenant.gate_wait_counts[1] = tenant.refused_full = id;
    auto& vgpu = crafted.vgpu_add(id, 0);
    vgpu.held_bytes = id;
    vgpu.launches = 1;
    vgpu.gate_wait_ns = 1'000'000'000;
  }
  const Snapshot snapshot = snapshot_of(crafted);
  const std::string gpu = uuid_text(crafted.gpus[0].uuid);
  IdleState idle;
  for (protocol::TenantId id = 10; id < 20; ++id)
    idle.table[{id, gpu}].idle_ns[static_cast<std::size_t>(Cause::kDisk)] = id * 1'000'000'000;
  const std::string text =
      metrics_text(metrics_collect(&snapshot, watch_off(), {}, 3, {}, {}, idle));
  const auto series = [&](const char* tenant, const char* user, const char* kind,
                          const char* profile) {
    return "{gpu=\"" + gpu + "\",tenant=\"" + tenant + "\",user=\"" + user + "\",class=\"" + kind +
           "\",profile=\"" + profile + "\"} ";
  };
  EXPECT_THAT(text, HasSubstr("used_bytes" + series("12", "anna", "debug", "student") + "12\n"));
  EXPECT_THAT(text, Not(HasSubstr("tenant=\"13\"")));
  EXPECT_THAT(text, HasSubstr("used_bytes" + series("other", "other", "debug", "other") +
                              "48\n"));  // 14+16+18
  EXPECT_THAT(text, HasSubstr("used_bytes" + series("other", "other", "batch", "other") +
                              "64\n"));  // 13+15+17+19
  EXPECT_THAT(text,
              HasSubstr("launches_total" + series("other", "other", "batch", "other") + "4\n"));
  const std::string other = "tenant=\"other\",user=\"other\",class=\"batch\",profile=\"other\"";
  EXPECT_THAT(
      text, HasSubstr("idle_seconds_total{gpu=\"" + gpu + "\"," + other + ",cause=\"disk\"} 64\n"));
  EXPECT_THAT(text, HasSubstr("turn_wait_seconds_count{" + other + "} 64\n"));
  EXPECT_THAT(text, HasSubstr("turn_wait_seconds_sum{" + other + "} 4\n"));
  EXPECT_THAT(text, HasSubstr("refusals_total{" + other + ",reason=\"gpu_full\"} 64\n"));
}

TEST(Collect, JobsWithNonsenseScoresHaveNone) {
  for (const double score : {std::nan(""), HUGE_VAL, -1.0, 0.0}) {
    Crafted crafted = example();
    crafted.tenants[0].straggler_score = score;
    EXPECT_THAT(text_of(crafted), Not(HasSubstr("straggler"))) << score;
  }
}

/// A snapshot of a broker that runs for `seconds`, with one vGPU of tenant 7 on the first GPU.
Crafted at_second(std::uint64_t seconds, std::uint64_t busy_ms, std::uint64_t waited_ms = 0) {
  Crafted crafted;
  crafted.header.started_ns = 50;
  crafted.header.taken_ns = seconds * 1'000'000'000;
  crafted.gpus = {example().gpus[0]};
  crafted.gpus[0].busy_ns = busy_ms * 2'000'000;
  crafted.tenant_add(7, "anna", protocol::TenantClass::kBatch);
  auto& vgpu = crafted.vgpu_add(7, 0);
  vgpu.busy_ns = busy_ms * 1'000'000;
  vgpu.gate_wait_ns = waited_ms * 1'000'000;
  return crafted;
}

TEST(History, SharesAreOfTheLastTenSeconds) {
  History history;
  const std::string gpu = uuid_text(example().gpus[0].uuid);
  const VgpuKey vgpu{7, gpu};
  history.look(snapshot_of(at_second(100, 5000)));
  EXPECT_TRUE(history.figures().shares.empty()) << "one look tells no share";
  // A quarter of the time for ten seconds, waiting in the first of them; then nothing.
  for (std::uint64_t s = 1; s <= 10; ++s)
    history.look(snapshot_of(at_second(100 + s, 5000 + 250 * s, 30)));
  EXPECT_DOUBLE_EQ(history.figures().shares.at(vgpu).achieved, 0.25);
  EXPECT_TRUE(history.figures().shares.at(vgpu).waited);
  EXPECT_DOUBLE_EQ(history.figures().gpu_time.at(gpu), 0.5);
  for (std::uint64_t s = 11; s <= 15; ++s) history.look(snapshot_of(at_second(100 + s, 7500, 30)));
  EXPECT_DOUBLE_EQ(history.figures().shares.at(vgpu).achieved, 0.125);
  EXPECT_FALSE(history.figures().shares.at(vgpu).waited) << "that was eleven seconds ago";
  for (std::uint64_t s = 16; s <= 21; ++s) history.look(snapshot_of(at_second(100 + s, 7500, 30)));
  EXPECT_DOUBLE_EQ(history.figures().shares.at(vgpu).achieved, 0);
}

TEST(History, LooksInQuickSuccessionAreOne) {
  History history;
  history.look(snapshot_of(at_second(100, 0)));
  Crafted soon = at_second(100, 40);
  soon.header.taken_ns += 100'000'000;
  history.look(snapshot_of(soon));
  EXPECT_TRUE(history.figures().shares.empty());
}

TEST(History, AnotherBrokerBeginsAnew) {
  History history;
  history.look(snapshot_of(at_second(100, 9000)));
  Crafted other = at_second(102, 10);
  other.header.started_ns = 101;
  history.look(snapshot_of(other));
  EXPECT_TRUE(history.figures().shares.empty());
  Crafted later = at_second(104, 510);
  later.header.started_ns = 101;
  history.look(snapshot_of(later));
  EXPECT_DOUBLE_EQ(history.figures().shares.begin()->second.achieved, 0.25);
}

TEST(History, ATenantThatCameLaterCountsFromItsFirstLook) {
  History history;
  Crafted empty = at_second(100, 0);
  empty.tenants.clear();
  empty.tenant_gpus.clear();
  history.look(snapshot_of(empty));
  history.look(snapshot_of(at_second(102, 1000)));
  EXPECT_TRUE(history.figures().shares.empty());
  history.look(snapshot_of(at_second(104, 2000)));
  EXPECT_DOUBLE_EQ(history.figures().shares.begin()->second.achieved, 0.5);
  empty.header.taken_ns = 106'000'000'000;
  history.look(snapshot_of(empty));
  EXPECT_TRUE(history.figures().shares.empty()) << "it is gone";
}

TEST(History, WaitsAreCountedOnceByWhatWasWaitedFor) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  History history;
  Crafted first = at_second(100, 0);  // tenant 7 was there before anybody looked
  auto& waiting = first.tenant_add(0, "cleo", protocol::TenantClass::kBatch);
  waiting.state = protocol::TenantState::kQueued;
  waiting.reason = protocol::QueueReason::kUserLimit;
  waiting.asked_ns = 95 * kSecond;
  history.look(snapshot_of(first));
  Crafted second = at_second(101, 0);
  auto& admitted = second.tenant_add(8, "cleo", protocol::TenantClass::kBatch);
  admitted.asked_ns = 95 * kSecond;
  admitted.admitted_ns = 95 * kSecond + kSecond * 11 / 2;
  auto& at_once = second.tenant_add(9, "cleo", protocol::TenantClass::kBatch);
  at_once.asked_ns = at_once.admitted_ns = 100 * kSecond + 5;
  history.look(snapshot_of(second));
  second.header.taken_ns += kSecond;
  history.look(snapshot_of(second));
  const RecentFigures figures = history.figures();
  const auto& limited = figures.waits[static_cast<std::size_t>(protocol::QueueReason::kUserLimit)];
  EXPECT_EQ(limited.counts[3], 1U) << "5.5 s are at most 10";
  EXPECT_DOUBLE_EQ(limited.sum_s, 5.5);
  EXPECT_EQ(figures.waits[0].counts[0], 1U);
  std::uint64_t all = 0;
  for (const auto& histogram : figures.waits)
    for (const std::uint64_t count : histogram.counts) all += count;
  EXPECT_EQ(all, 2U);
}

TEST(Collect, SharesWithoutWaitingHaveNoError) {
  const Snapshot snapshot = snapshot_of(example());
  const std::string text =
      metrics_text(metrics_collect(&snapshot, watch_off(), {}, 200, recent_example(snapshot)));
  EXPECT_THAT(
      text, HasSubstr("sluice_tenant_share_error_ratio{gpu=\"" + uuid_text(snapshot.gpus[0].uuid) +
                      "\",tenant=\"3\",user=\"anna\",class=\"batch\",profile="
                      "\"student\"} -0.125\n"));
  EXPECT_EQ(text.find("sluice_tenant_share_error_ratio{gpu=\"" + uuid_text(snapshot.gpus[0].uuid) +
                      "\",tenant=\"2\""),
            text.npos);
}

TEST(Collect, AWeightPromisesNothingThatCouldBeMissed) {
  Crafted crafted = example();
  for (auto& vgpu : crafted.tenant_gpus) vgpu.sm_kind = protocol::SmKind::kWeight;
  const Snapshot snapshot = snapshot_of(crafted);
  const std::string text =
      metrics_text(metrics_collect(&snapshot, watch_off(), {}, 200, recent_example(snapshot)));
  EXPECT_EQ(text.find("sluice_tenant_share_error_ratio{"), text.npos);
  EXPECT_EQ(
      text.find("sluice_tenant_guaranteed_share_ratio{gpu=\"" + uuid_text(snapshot.gpus[0].uuid) +
                "\",tenant=\"3\",user=\"anna\",class=\"batch\",profile=\"student\"} 0.5"),
      text.npos);
  EXPECT_THAT(text,
              HasSubstr("sluice_tenant_share_weight{gpu=\"" + uuid_text(snapshot.gpus[0].uuid) +
                        "\",tenant=\"3\",user=\"anna\",class=\"batch\",profile="
                        "\"student\"} 50\n"));
}

TEST(Collect, OfWholeGpusTheDriversFigureOrNone) {
  Crafted crafted = example();
  for (auto& one : crafted.gpus) one.exclusive = 0;
  auto& gpu = crafted.gpus[1];  // of which the driver tells most
  const std::string uuid = uuid_text(gpu.uuid);
  const auto share_of = [&](const RecentFigures& recent, protocol::TenantId tenant) {
    const auto found = recent.shares.find({tenant, uuid});
    return found == recent.shares.end() ? -1.0 : found->second.achieved;
  };
  const auto joined = [&](const DeviceFigures& devices) {
    const Snapshot snapshot = snapshot_of(crafted);
    RecentFigures recent = recent_example(snapshot);
    whole_gpus_join(recent, snapshot, devices);
    return recent;
  };
  const Snapshot before = snapshot_of(crafted);
  const DeviceFigures devices = devices_example(before);
  EXPECT_EQ(joined(devices).gpu_time.at(uuid), 0.625) << "it is shared, and metered";
  gpu.exclusive = 1;
  const auto vgpu = std::ranges::find_if(before.tenant_gpus,
                                         [&](const auto& row) { return row.gpu == gpu.uuid; });
  ASSERT_NE(vgpu, before.tenant_gpus.end());
  const protocol::TenantId owner = vgpu->tenant;
  for (auto& tenant : crafted.tenants)
    if (tenant.tenant == owner) tenant.tenant_class = protocol::TenantClass::kExclusive;
  EXPECT_EQ(joined(devices).gpu_time.at(uuid), 0.75);
  EXPECT_EQ(share_of(joined(devices), owner), 0.75);
  EXPECT_FALSE(joined({}).gpu_time.contains(uuid)) << "never 0 in its place";
  EXPECT_EQ(share_of(joined({}), owner), -1.0);
}

TEST(Collect, WithoutNvmlNothingOfItIsSaid) {
  const std::string text = text_of(example());
  EXPECT_THAT(text, HasSubstr("\nsluice_nvml_up 0\n"));
  for (const char* gone : {"unmanaged", "drift", "xid", "sluice_gpu_memory_used"})
    EXPECT_THAT(text, Not(HasSubstr(gone)));
}

TEST(Collect, GangsAreWholeGpusTogether) {
  Crafted crafted = example();
  EXPECT_THAT(text_of(crafted), HasSubstr("\nsluice_exclusive_gangs 0\n"));
  crafted.tenants[0].tenant_class = protocol::TenantClass::kExclusive;
  EXPECT_THAT(text_of(crafted), HasSubstr("\nsluice_exclusive_gangs 1\n"));
}

TEST(Collect, ClockOfTheBrokerRunningBackwards) {
  Crafted crafted = example();
  crafted.header.taken_ns = 5;
  EXPECT_THAT(text_of(crafted), HasSubstr("sluice_broker_uptime_seconds 0\n"));
}

}  // namespace
}  // namespace sluice::exporter

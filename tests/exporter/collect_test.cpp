// The text that Prometheus reads: one golden file, and what must hold for any snapshot.
#include "exporter/collect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Golden, EveryByte) {
  const Snapshot snapshot = snapshot_of(example());
  WatchFigures watch{true, "loaded", {11, 12, 13}, {}};
  watch.tenants[3] = SchedFigures{1234, 5'000'000'000, 250'000};
  OwnFigures own{0.000125, {1, 2, 3}};
  const std::string text = metrics_text(metrics_collect(&snapshot, watch, own, 200));
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
  const auto rows = metrics_collect(&snapshot, watch, {}, 200);
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
    crafted.tenant_add(id, "anna",
                       id % 2 == 0 ? protocol::TenantClass::kDebug : protocol::TenantClass::kBatch);
    auto& vgpu = crafted.vgpu_add(id, 0);
    vgpu.held_bytes = id;
    vgpu.launches = 1;
  }
  const std::string text = text_of(crafted, 3);
  const std::string gpu = uuid_text(crafted.gpus[0].uuid);
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
}

TEST(Collect, JobsWithNonsenseScoresHaveNone) {
  for (const double score : {std::nan(""), HUGE_VAL, -1.0, 0.0}) {
    Crafted crafted = example();
    crafted.tenants[0].straggler_score = score;
    EXPECT_THAT(text_of(crafted), Not(HasSubstr("straggler"))) << score;
  }
}

TEST(Collect, ClockOfTheBrokerRunningBackwards) {
  Crafted crafted = example();
  crafted.header.taken_ns = 5;
  EXPECT_THAT(text_of(crafted), HasSubstr("sluice_broker_uptime_seconds 0\n"));
}

}  // namespace
}  // namespace sluice::exporter

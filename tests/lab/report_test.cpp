#include "trainer/lab/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "trainer/lab/svg.h"

namespace sluice::lab {
namespace {

LabRun run_make() {
  LabRun run;
  run.machine.software = true;
  run.machine.gpu_names = {"Software GPU", "Software GPU"};
  run.machine.host = "<host>";
  run.settings.objective_ms = 50;
  std::string note;
  for (const ScenePlan& plan : scenes_plan(run.settings, 2, &note)) {
    SceneResult scene;
    scene.plan = plan;
    scene.window = {0, 10'000'000'000};
    scene.gpus = {{5, 0.01, 10}, {1, 0, 10}};
    for (const JobPlan& job : plan.jobs) {
      JobResult result;
      result.plan = job;
      result.gpu_seconds = {2.0, std::nullopt};
      if (job.kind == JobKind::kTraining) {
        result.training.steps = {{0, 1'000'000'000, 100'000'000, 0},
                                 {0, 2'000'000'000, 200'000'000, 0}};
      }
      scene.jobs.push_back(result);
    }
    run.scenes.push_back(scene);
  }
  return run;
}

TEST(UsageMeter, AddsUpTenantsThatComeAndGo) {
  UsageMeter meter;
  EXPECT_TRUE(meter.empty());
  meter.look(std::nullopt);
  EXPECT_TRUE(meter.empty());
  Usage begin;
  begin.gpu_count = 2;
  begin.tenants[1] = {"training", {{10, 20, 30}, {1, 2, 3}}};
  meter.look(begin);
  Usage later = begin;
  later.tenants[1].gpus[0] = {14, 25, 36};
  later.tenants[2] = {"debug", {{0.5, 1, 2}, {0, 0, 0}}};
  meter.look(later);
  later.tenants.erase(2);
  later.tenants[3] = {"debug", {{0.25, 0.5, 1}, {0, 0, 0}}};
  meter.look(later);
  EXPECT_EQ(meter.gpu_count(), 2u);
  EXPECT_DOUBLE_EQ(meter.use("training", 0).busy_s, 4);
  EXPECT_DOUBLE_EQ(meter.use("training", 0).held_s, 5);
  EXPECT_DOUBLE_EQ(meter.use("training", 0).waited_s, 6);
  EXPECT_DOUBLE_EQ(meter.use("training", 1).busy_s, 0);
  EXPECT_DOUBLE_EQ(meter.use("debug", 0).busy_s, 0.75) << "one that ended counts";
  EXPECT_DOUBLE_EQ(meter.use("debug", 0).waited_s, 3);
  EXPECT_DOUBLE_EQ(meter.use("nobody", 0).busy_s, 0);
  EXPECT_DOUBLE_EQ(meter.use("training", 7).busy_s, 0);
}

TEST(Table, TellsNotGivenFromNotAskedFor) {
  LabRun run = run_make();
  for (JobResult& job : run.scenes[3].jobs) job.leases = {{1, 3, 25}, {1, 3, 0}};
  const auto rows = share_rows(run.scenes[3]);
  EXPECT_DOUBLE_EQ(*rows[0].held, 0.3);
  EXPECT_DOUBLE_EQ(*rows[0].waited, 1) << "several threads may wait at once";
  EXPECT_FALSE(share_rows(run.scenes[2])[0].held) << "nobody granted anything";
  const std::string text = table_format(run);
  EXPECT_NE(text.find("30 %"), std::string::npos) << text;
  EXPECT_NE(text.find("waited"), std::string::npos);
}

TEST(Scenes, TheFourAndTheirReference) {
  std::string note;
  const auto plans = scenes_plan(Settings{}, 2, &note);
  ASSERT_EQ(plans.size(), 5u);
  EXPECT_TRUE(note.empty());
  EXPECT_EQ(plans[1].jobs.size(), 1u);
  EXPECT_EQ(plans[1].jobs[0].tenant_class, "exclusive");
  EXPECT_EQ(plans[2].control, Control::kNone);
  for (const JobPlan& job : plans[2].jobs)
    EXPECT_FALSE(job.sm_percent) << "no control promises nothing";
  // The same global batch everywhere.
  EXPECT_EQ(plans[1].jobs[0].batch * 2, plans[4].jobs[0].batch);
  for (const JobPlan& job : plans[4].jobs) {
    EXPECT_EQ(job.gpus, std::vector<int>{job.kind == JobKind::kTraining ? 0 : 1}) << job.name;
  }
}

TEST(Scenes, OneGpuLeavesTheSegregatedSceneOutAndSaysWhy) {
  std::string note;
  EXPECT_EQ(scenes_plan(Settings{}, 1, &note).size(), 4u);
  EXPECT_NE(note.find("needs two GPUs"), std::string::npos);
}

TEST(Json, HasTheDocumentedShape) {
  const nlohmann::json j = nlohmann::json::parse(json_format(run_make()));
  EXPECT_TRUE(j.contains("machine") && j.contains("settings") && j.contains("scenes"));
  ASSERT_EQ(j["scenes"].size(), 5u);
  for (const auto& scene : j["scenes"])
    EXPECT_TRUE(scene.contains("name") && scene.contains("jobs") && scene.contains("metrics"));
  const auto& metrics = j["scenes"][2]["metrics"];
  EXPECT_DOUBLE_EQ(metrics["training"]["relative_to_exclusive"], 1.0);
  EXPECT_DOUBLE_EQ(metrics["training"]["steps_per_s"], 0.2);
  EXPECT_DOUBLE_EQ(metrics["gpus"][0]["utilization"], 0.5);
  EXPECT_TRUE(metrics["shares"][1]["used"].is_null()) << "nobody measured it";
}

TEST(Table, LaggingScenesAreInconclusive) {
  LabRun run = run_make();
  EXPECT_EQ(table_format(run).find("inconclusive"), std::string::npos);
  run.scenes[3].gpus[0].lag_s = 0.2;
  const std::string table = table_format(run);
  EXPECT_NE(table.find("* quota is inconclusive: lag 3.3 % is above 2 %"), std::string::npos)
      << table;
}

TEST(Table, AFailedSceneSaysWhy) {
  LabRun run = run_make();
  run.scenes[2].problem = "training ended with status 1";
  EXPECT_NE(table_format(run).find("* uncontrolled is inconclusive: training ended with status 1"),
            std::string::npos);
}

TEST(Html, EscapesAndNeedsNothingFromOutside) {
  const std::string html = html_format(run_make());
  EXPECT_NE(html.find("&lt;host&gt;"), std::string::npos);
  EXPECT_EQ(html.find("<host>"), std::string::npos);
  for (const char* outside : {"<script", "http://", "https://", "src=", "@import", "url("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(html.find("<svg"), std::string::npos);
}

// As in the table: what is answered once the load is gone says nothing of the scene.
TEST(Html, AnAnswerAfterTheWindowIsNone) {
  const auto html = [](std::optional<std::int64_t> done_ns) {
    LabRun run = run_make();
    for (SceneResult& scene : run.scenes) {
      for (JobResult& job : scene.jobs) {
        if (job.plan.kind != JobKind::kInference) continue;
        job.inference.requests = {{1'000'000'000, 1'010'000'000}, {2'000'000'000, done_ns}};
      }
    }
    return html_format(run);
  };
  EXPECT_EQ(html(11'000'000'000), html(std::nullopt));
  EXPECT_NE(html(9'000'000'000), html(std::nullopt));
}

TEST(Svg, PlotsNothingWithoutFailing) {
  EXPECT_NE(svg_lines({}, "x", "y", Axis::kLog, false).find("</svg>"), std::string::npos);
  EXPECT_NE(svg_bars({}).find("</svg>"), std::string::npos);
  EXPECT_EQ(html_escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
}

}  // namespace
}  // namespace sluice::lab

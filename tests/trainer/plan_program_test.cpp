// `calibrate`, `plan` and `--plan auto` as people run them, on two software GPUs: the prediction
// within 15 % of the device's time, and a run that does what the plan says.
#include <fstream>

#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

using nlohmann::json;

constexpr double kErrorMax = 0.15;

/// The device's time of a step on rank 0, in whose stage a pipeline's steps end. In modelled time
/// whatever is above the least is this host's.
double step_ns(const std::vector<json>& steps) {
  double least = 1e300;
  for (const json& line : steps) {
    if (line["rank"] != 0) continue;
    least = std::min(least, line["device_ns"].get<double>() + line["exposed_ns"].get<double>());
  }
  return least;
}

class PlanProgramTest : public TrainProgramTest {
 protected:
  void SetUp() override {
    TrainProgramTest::SetUp();
    if (IsSkipped()) return;
    run({"calibrate", "--out", calibration_, "--quick", "--ranks", "2", "--comm", "gloo",
         "--link-gbps", "1"});
  }
  /// Runs sluice-train with these words and gives its exit code.
  int try_run(std::vector<std::string> words) {
    words.insert(words.begin(), "sluice-train");
    Child child(words, scratch_, environment_);
    const int code = child.wait(kPatience);
    out_ = child.out();
    err_ = child.err();
    return code;
  }
  void run(const std::vector<std::string>& words) { ASSERT_EQ(try_run(words), 0) << err_; }

  std::vector<std::string> job(std::vector<std::string> words, const std::string& nproc) const {
    words.insert(words.end(), {"--data", "synthetic", "--nproc", nproc, "--link-gbps", "1",
                               "--comm", "gloo", "--calibration", calibration_});
    return words;
  }

  /// The plan of a job as JSON, and a run of it by --plan auto.
  void plan_and_run(const std::vector<std::string>& words, const std::string& nproc) {
    std::vector<std::string> plan = job(words, nproc);
    plan.insert(plan.begin(), {"plan", "--json"});
    run(plan);
    plan_ = json::parse(out_, nullptr, false);
    ASSERT_FALSE(plan_.is_discarded()) << out_;
    std::vector<std::string> train = job(words, nproc);
    train.insert(train.end(),
                 {"--plan", "auto", "--steps", "6", "--eval-samples", "0", "--log", log("auto")});
    run(train);
  }

  const std::string calibration_ = scratch_.file("calibration.json");
  std::vector<std::string> environment_;
  std::string err_;
  json plan_;
};

TEST_F(PlanProgramTest, PredictsWhatRunsTake) {
  struct Cell {
    std::vector<std::string> words;
    std::string nproc;
  };
  for (const Cell& cell :
       {Cell{{"--hidden", "64,32", "--batch", "16"}, "2"},
        Cell{{"--model", "cnn", "--channels", "4", "--hidden", "16", "--batch", "4"}, "1"},
        Cell{{"--model", "gpt", "--layers", "1", "--width", "32", "--heads", "2", "--context", "16",
              "--batch", "4", "--optimizer", "adamw", "--clip", "1"},
             "2"},
        Cell{{"--model", "gpt", "--layers", "1", "--width", "32", "--heads", "2", "--context", "16",
              "--batch", "4", "--tensor", "2", "--clip", "1"},
             "2"},
        Cell{{"--model", "gpt", "--layers", "2", "--width", "32", "--heads", "2", "--context", "16",
              "--batch", "2", "--accumulate", "4", "--pipeline", "2"},
             "2"}}) {
    plan_and_run(cell.words, cell.nproc);
    const json chosen = plan_["chosen"];
    const double predicted = chosen["step_ns"];
    const std::vector<json> steps = log_events(log("auto"), "step");
    ASSERT_GE(steps.size(), 6u);
    EXPECT_NEAR(step_ns(steps) / predicted, 1, kErrorMax) << cell.words[1];
    const std::vector<json> plans = log_events(log("auto"), "plan");
    ASSERT_EQ(plans.size(), 1u);
    EXPECT_NEAR(plans[0]["predicted_step_ns"].get<double>(), predicted, 1e-3 * predicted);
    const json end = log_events(log("auto"), "end").at(0);
    EXPECT_EQ(end["predicted_step_ns"], plans[0]["predicted_step_ns"]);
    EXPECT_GT(end["measured_step_ns"].get<double>(), 0);
    EXPECT_NE(out_.find("a step was predicted to take"), std::string::npos) << out_;
    // What was chosen is what runs: the strategy shows in the plan's text, the buckets in the link.
    const bool sharded = chosen["strategy"] == "sharded";
    EXPECT_EQ(out_.find("reduce-scatter") != std::string::npos, sharded && cell.nproc == "2")
        << out_;
    // And the rank itself says what it goes by: the same grid, buckets and algorithm.
    const std::vector<json> executed = log_events(log("auto"), "executes");
    ASSERT_EQ(executed.size(), 1u);
    for (const char* what : {"data", "tensor", "pipeline", "micro_batches", "strategy"})
      EXPECT_EQ(executed[0][what], chosen[what]) << what;
    if (chosen["data"] != 1) {
      EXPECT_EQ(executed[0]["algorithm"], chosen["algorithm"]);
      EXPECT_EQ(executed[0]["overlap"], chosen["overlap"] ? "on" : "off");
    }
    if (cell.nproc != "1") {
      std::string buckets;
      for (const json& one : plan_["buckets"]) {
        buckets += (buckets.empty() ? "" : ",") + std::to_string(one["begin"].get<int>()) + "+" +
                   std::to_string(one["count"].get<int>());
      }
      EXPECT_EQ(executed[0]["buckets"], buckets);
      EXPECT_EQ(executed[0]["bucket_count"], plan_["buckets"].size());
    }
    // Of gradients alone: what the passes wait for is in the plan's other parts.
    const double collective = chosen["collective_ns"];
    EXPECT_NEAR(steps[0]["collective_ns"].get<double>() - steps[0].value("tensor_ns", 0.0) -
                    steps[0].value("stage_wait_ns", 0.0),
                collective, 0.02 * collective);
    EXPECT_EQ(steps[0].count("busy_ns"), chosen["pipeline"] == 2 ? 1u : 0u);
  }
}

// What the ranks of a grid wait for each other is modelled link time, however many cores the host
// has for them.
TEST_F(PlanProgramTest, PredictsGridsOfFour) {
  if (!std::filesystem::exists(program_path("softgpu-ctl")))
    GTEST_SKIP() << "needs four software GPUs of its own";
  environment_ = {"SOFTGPU_DIR=" + scratch_.file("softgpu"), "SOFTGPU_COUNT=4"};
  run({"calibrate", "--out", calibration_, "--quick", "--ranks", "4", "--comm", "gloo",
       "--link-gbps", "1"});
  const std::vector<std::string> model = {"--model", "gpt", "--layers",  "2",  "--width", "32",
                                          "--heads", "4",   "--context", "16", "--batch", "8"};
  EXPECT_EQ(json::parse(file_text(calibration_))["pairs"].size(), 6u);
  for (const std::vector<std::string>& grid :
       {std::vector<std::string>{"--tensor", "4"},
        {"--tensor", "2", "--pipeline", "2", "--accumulate", "2"},
        {"--pipeline", "2", "--accumulate", "4"}}) {
    std::vector<std::string> words = model;
    words.insert(words.end(), grid.begin(), grid.end());
    plan_and_run(words, "4");
    const double predicted = plan_["chosen"]["step_ns"];
    EXPECT_NEAR(step_ns(log_events(log("auto"), "step")) / predicted, 1, kErrorMax)
        << grid[0] << grid[1];
  }
}

TEST_F(PlanProgramTest, GivenOptionsStayAndTheTableHasTheRest) {
  std::vector<std::string> words =
      job({"--hidden", "32", "--strategy", "data", "--bucket", "40000"}, "2");
  words.insert(words.begin(), "plan");
  run(words);
  EXPECT_NE(out_.find("strategy   data 2"), std::string::npos) << out_;
  EXPECT_NE(out_.find("40 KiB"), std::string::npos) << out_;
  EXPECT_NE(out_.find("halving-doubling"), std::string::npos) << out_;
  EXPECT_NE(out_.find("not executed by this build"), std::string::npos) << out_;
  EXPECT_NE(out_.find("0->GPU 0 1->GPU 1"), std::string::npos) << out_;
}

TEST_F(PlanProgramTest, WithoutAFileItMeasuresFirst) {
  train({"--nproc", "2", "--plan", "auto", "--steps", "2", "--eval-samples", "0"}, "quick");
  EXPECT_EQ(log_events(log("quick"), "plan").size(), 1u);
}

TEST_F(PlanProgramTest, RefusesACalibrationOfOtherLinksOrFewerRanks) {
  EXPECT_EQ(try_run({"--plan", "auto", "--data", "synthetic", "--nproc", "2", "--calibration",
                     calibration_}),
            1);
  EXPECT_NE(err_.find("this job's are of 20 us and 10 Gbit/s"), std::string::npos) << err_;
  EXPECT_EQ(try_run(job({"--plan", "auto"}, "3")), 1);
  EXPECT_NE(err_.find("of 3 ranks; make it anew"), std::string::npos) << err_;
  std::ofstream(calibration_) << "{\"format\": 2";
  EXPECT_EQ(try_run(job({"--plan", "auto"}, "2")), 1);
  EXPECT_NE(err_.find("calibration.json is none"), std::string::npos) << err_;
}

TEST_F(PlanProgramTest, RefusesWhatItCannotPredict) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--strategy", "async"},
                                               {"--compress", "powersgd:2"},
                                               {"--offload", "optimizer"},
                                               {"--split", "3,1"}}) {
    std::vector<std::string> words = job({"--plan", "auto"}, "2");
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(try_run(words), 1);
    EXPECT_NE(err_.find("what " + more.front()), std::string::npos) << err_;
    EXPECT_NE(err_.find("cannot be predicted"), std::string::npos) << err_;
  }
}

TEST_F(PlanProgramTest, CalibrateSaysWhatItDoesAndWrote) {
  EXPECT_NE(out_.find("calibrate: kernels of "), std::string::npos);
  EXPECT_NE(out_.find("calibrate: collectives of 2 ranks"), std::string::npos);
  const json file = json::parse(file_text(calibration_), nullptr, false);
  ASSERT_FALSE(file.is_discarded());
  EXPECT_EQ(file["device"]["count"], 2);
  EXPECT_EQ(file["link"]["gbps"], 1.0);
  std::size_t lines = 0;
  for (const json& rate : file["collectives"]) {
    if (rate["operation"] != "all-reduce") continue;
    ++lines;
    // Two ranks: two messages of half the bytes, by each algorithm (comm/link.h).
    EXPECT_NEAR(rate["alpha_ns"].get<double>(), 2 * 20e3, 2e3) << rate;
    EXPECT_NEAR(rate["ns_per_byte"].get<double>(), 8.0, 0.4) << rate;
  }
  EXPECT_EQ(lines, 3u);
  // And a message between every two ranks.
  ASSERT_EQ(file["pairs"].size(), 1u);
  EXPECT_EQ(file["pairs"][0]["ranks"], (std::vector<int>{0, 1}));
  EXPECT_NEAR(file["pairs"][0]["alpha_ns"].get<double>(), 20e3, 1e3);
  EXPECT_NEAR(file["pairs"][0]["ns_per_byte"].get<double>(), 8.0, 0.4);
  EXPECT_EQ(try_run({"calibrate", "--ranks", "65"}), 2);
  EXPECT_EQ(try_run({"calibrate", "--quick", "--ranks", "1", "--out", "/proc/none/c.json"}), 1);
}

}  // namespace
}  // namespace sluice::tests

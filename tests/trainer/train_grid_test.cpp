// sluice-train on grids of ranks: what they train is what one rank trains, they send what the
// formulas say, a pipeline is idle as the formula says, and a model that is too large for one GPU
// fits when it is split.
#include <map>

#include "tests/trainer/train_fixture.h"
#include "trainer/comm/link.h"
#include "trainer/train/grid_plan.h"
#include "trainer/train/pipeline_schedule.h"

namespace sluice::tests {
namespace {

using Words = std::vector<std::string>;

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class GridProgramTest : public TrainProgramTest {
 protected:
  static inline const Words kGpt = {"--model", "gpt", "--heads",   "2",
                                    "--width", "16",  "--context", "8"};

  std::vector<double> losses_of(const std::string& name) const {
    std::vector<double> out;
    for (const auto& line : log_events(log(name), "step"))
      if (line["rank"] == 0) out.push_back(line["loss"]);
    return out;
  }

  /// The same as "one", to rounding.
  void same_expect(const std::string& name) {
    SCOPED_TRACE(name);
    EXPECT_LT(distance("one", name), 1e-6);
    const std::vector<double> one = losses_of("one");
    const std::vector<double> other = losses_of(name);
    ASSERT_EQ(one.size(), other.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i] / one[i], 1, 1e-6) << i;
    const auto expected = log_events(log("one"), "eval");
    const auto got = log_events(log(name), "eval");
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i]["accuracy"], expected[i]["accuracy"]);
      EXPECT_NEAR(got[i]["loss"], expected[i]["loss"].get<double>(), 1e-5);
    }
    EXPECT_EQ(log_events(log(name), "end").at(0)["samples"],
              log_events(log("one"), "end").at(0)["samples"]);
  }
};

// The third global batch of an epoch has one sample: most micro-batches are missing, and with two
// copies of the model one has none.
TEST_F(GridProgramTest, EveryGridTrainsWhatOneRankTrains) {
  const Words common =
      joined(kGpt, {"--layers", "4", "--steps", "3", "--lr", "0.1", "--clip", "0.1",
                    "--train-samples", "33", "--eval-samples", "7", "--eval-every", "2"});
  train(joined(common, {"--nproc", "1", "--batch", "4", "--accumulate", "4"}), "one");
  const Words whole = joined(common, {"--batch", "4", "--accumulate", "4"});
  const Words half = joined(common, {"--batch", "2", "--accumulate", "4"});
  train(joined(whole, {"--nproc", "2", "--tensor", "2"}), "tensor");
  same_expect("tensor");
  train(joined(whole, {"--nproc", "4", "--pipeline", "4"}), "pipeline");
  same_expect("pipeline");
  EXPECT_NE(out_.find("\nplan: rank 3 (data 0, stage 3, tensor 0): layers 3 to 3, 2 of 2 heads, "),
            std::string::npos)
      << out_;
  train(joined(whole, {"--nproc", "4", "--tensor", "2", "--pipeline", "2"}), "tensor-pipeline");
  same_expect("tensor-pipeline");
  train(joined(half, {"--nproc", "4", "--pipeline", "2"}), "data-pipeline");
  same_expect("data-pipeline");
  train(joined(half, {"--nproc", "4", "--tensor", "2", "--overlap", "off"}), "data-tensor");
  same_expect("data-tensor");
}

TEST_F(GridProgramTest, AnOverflowOnOnePartIsAnOverflowOnAll) {
  const Words common =
      joined(kGpt, {"--layers", "2", "--steps", "3", "--lr", "0.1", "--batch", "4", "--accumulate",
                    "2", "--precision", "fp16", "--plant-overflow", "2", "--eval-samples", "0"});
  train(joined(common, {"--nproc", "1"}), "one");
  train(joined(common, {"--nproc", "4", "--tensor", "2", "--pipeline", "2"}), "four");
  EXPECT_LT(distance("one", "four"), 1e-4) << "fp16 rounds parts of a sum";
  std::size_t seen = 0;
  for (const auto& step : log_events(log("four"), "step")) {
    EXPECT_EQ(step["skipped"], step["step"] >= 1 ? 1 : 0) << step;
    ++seen;
  }
  EXPECT_EQ(seen, 12u);
}

// The checkpoint has the whole model, whoever had which part of it.
TEST_F(GridProgramTest, ACheckpointGoesOnWithAnyGrid) {
  const auto words = [&](const Words& grid, const char* steps, const std::string& kept) {
    Words out = joined(kGpt, {"--layers", "2", "--optimizer", "adam", "--lr", "0.01", "--clip",
                              "0.1", "--train-samples", "33", "--eval-samples", "0", "--steps"});
    out = joined(joined(out, {steps}), grid);
    return kept.empty() ? out : joined(out, {"--checkpoint", kept, "--resume"});
  };
  const Words one = {"--nproc", "1", "--batch", "4", "--accumulate", "2"};
  const Words four = joined({"--nproc", "4", "--tensor", "2", "--pipeline", "2"},
                            {"--batch", "4", "--accumulate", "2"});
  const Words data = {"--nproc", "4", "--pipeline", "2", "--batch", "2", "--accumulate", "2"};
  const std::string kept = scratch_.file("kept");
  train(words(one, "6", ""), "one");
  train(words(four, "3", kept), "begun");
  std::filesystem::copy(kept, kept + "-too");
  train(words(one, "6", kept), "whole");
  EXPECT_NE(out_.find("checkpoint: going on after step 3 of " + kept + ", 4 ranks then"),
            std::string::npos)
      << out_;
  train(words(data, "6", kept + "-too"), "other");
  for (const char* name : {"whole", "other"}) {
    EXPECT_LT(distance("one", name), 1e-5) << name;
    EXPECT_EQ(log_events(log(name), "step").front()["step"], 3) << name;
  }
}

TEST_F(GridProgramTest, BytesAreThoseOfTheFormulas) {
  constexpr int steps = 2;
  const Words common = joined(kGpt, {"--layers", "2", "--steps", std::to_string(steps), "--batch",
                                     "8", "--accumulate", "3", "--eval-samples", "0"});
  sluice::train::TrainOptions options;
  options.model = sluice::train::Model::kGpt;
  options.gpt = {.vocabulary = 256, .context = 8, .width = 16, .layers = 2, .heads = 2};
  options.batch = 8;
  options.accumulate = 3;
  const auto extra = [&](const char* option, int tensor, int pipeline) {
    train(joined(common, {"--nproc", "2", option, "2"}), option);
    options.tensor = tensor;
    options.pipeline = pipeline;
    const auto traffic =
        sluice::train::grid_traffic(options, sluice::train::train_plan(options, 2, 2));
    const double formula = traffic.tensor + traffic.pipeline + traffic.ends;
    EXPECT_GT(formula, 10'000);
    return log_events(log(option), "end").at(0)["sent_bytes"].get<double>() / steps - formula;
  };
  // The loss and the wish to stop: two floats, of which Gloo's ring makes a few more.
  const double tensor = extra("--tensor", 2, 1);
  EXPECT_GE(tensor, 8);
  EXPECT_LE(tensor, 32);
  // Also the sender's time with each message, and the time of the whole step.
  const double pipeline = extra("--pipeline", 1, 2);
  EXPECT_GE(pipeline, 8 + 3 * 8 + 4);
  EXPECT_LE(pipeline, 32 + 3 * 8 + 16);
}

TEST_F(GridProgramTest, AllRanksStopAfterTheSameStep) {
  train(joined(kGpt, {"--layers", "2", "--batch", "1", "--seconds", "0.5", "--eval-samples", "0",
                      "--nproc", "4", "--tensor", "2", "--pipeline", "2"}),
        "run");
  const auto end = log_events(log("run"), "end").at(0);
  EXPECT_EQ(end["status"], "ok");
  EXPECT_EQ(log_events(log("run"), "step").size(), 4 * end["steps"].get<std::size_t>());
  EXPECT_NE(out_.find("; stages idle "), std::string::npos) << out_;
}

TEST_F(GridProgramTest, RefusesWhatIsNoGrid) {
  const auto fails = [&](const Words& words, int code, const char* why) {
    Child child(joined({"sluice-train", "--data", "synthetic"}, words), scratch_);
    EXPECT_EQ(child.wait(kPatience), code);
    EXPECT_NE(child.err().find(why), std::string::npos) << child.err();
  };
  fails(joined(kGpt, {"--nproc", "3", "--tensor", "2"}), 1,
        "3 ranks cannot be a grid of --tensor 2 x --pipeline 1");
  fails({"--model", "cnn", "--nproc", "2", "--pipeline", "2"}, 2, "--pipeline split --model gpt");
  fails(joined(kGpt, {"--nproc", "2", "--tensor", "2", "--strategy", "sharded"}), 2,
        "--strategy sharded is not for --tensor or --pipeline");
}

class SoftGridTest : public GridProgramTest {
 protected:
  void SetUp() override {
    GridProgramTest::SetUp();
    if (!std::filesystem::exists(program_path("softgpu-ctl")))
      GTEST_SKIP() << "needs software GPUs of its own";
  }

  struct Ended {
    int code;
    std::string err;
    std::vector<std::size_t> peak_bytes;  // of a process on each GPU
  };
  /// On `gpus` fresh GPUs of `memory` bytes each.
  Ended run(int gpus, std::size_t memory, const Words& words, const std::string& name) {
    const std::string segments = scratch_.file("softgpu-" + std::to_string(++runs_));
    const Words own = {"SOFTGPU_DIR=" + segments, "SOFTGPU_COUNT=" + std::to_string(gpus),
                       "SOFTGPU_MEMORY=" + std::to_string(memory)};
    Child child(joined({"sluice-train", "--data", "synthetic", "--log", log(name), "--nproc",
                        std::to_string(gpus), "--eval-samples", "0"},
                       words),
                scratch_, own);
    Ended out{child.wait(kPatience), child.err(), {}};
    Child accounts({"softgpu-ctl", "accounts", "--json", "--dir", segments}, scratch_, own);
    EXPECT_EQ(accounts.wait(kPatience), 0) << accounts.err();
    const auto said = nlohmann::json::parse(accounts.out(), nullptr, false);
    for (const auto& device : said.value("devices", nlohmann::json::array())) {
      std::size_t most = 0;
      for (const auto& process : device["processes"])
        most = std::max(most, process["memory_peak_bytes"].get<std::size_t>());
      out.peak_bytes.push_back(most);
    }
    return out;
  }

 private:
  int runs_ = 0;
};

// Stages of unequal weight make the rest of the bubble: the last has the logits. In 1F1B the
// slowest stage works through all micro-batches, while the first of them goes through all stages.
TEST_F(SoftGridTest, APipelineIsIdleAsTheFormulaSays) {
  for (const auto& [stages, micros] : {std::pair{2, 1}, {2, 4}, {4, 4}}) {
    SCOPED_TRACE(testing::Message() << stages << " stages, " << micros << " micro-batches");
    const Ended ended =
        run(stages, std::size_t{1} << 30,
            joined(kGpt, {"--layers", "4", "--steps", "6", "--batch", "1", "--link-alpha-us", "0",
                          "--link-gbps", "0", "--pipeline", std::to_string(stages), "--accumulate",
                          std::to_string(micros)}),
            "run");
    ASSERT_EQ(ended.code, 0) << ended.err;
    // The least of the steps: what a busy host adds to a waiting GPU's time is not the schedule's.
    std::map<int, double> busy;
    double span = 1e300;
    for (const auto& step : log_events(log("run"), "step")) {
      const auto one = busy.emplace(step["rank"], step["busy_ns"]).first;
      one->second = std::min(one->second, step["busy_ns"].get<double>());
      span = std::min(span, step["pipeline_ns"].get<double>());
    }
    ASSERT_EQ(busy.size(), static_cast<std::size_t>(stages));
    double sum = 0;
    double slowest = 0;
    for (const auto& [rank, ns] : busy) {
      sum += ns;
      slowest = std::max(slowest, ns);
    }
    const double each = 1.0 / micros;
    EXPECT_NEAR(span / ((sum - slowest) * each + slowest), 1, 0.02);
    EXPECT_NEAR(1 - sum / stages / span, sluice::train::pipeline_bubble(stages, micros), 0.04);
  }
}

// With a link that is slow to begin: each all-reduce of two ranks waits for it twice, and of one
// micro-batch through two stages the activations once and the gradients once.
TEST_F(SoftGridTest, MessagesTakeTheLinksTime) {
  constexpr double alpha_ns = 50e6;
  const auto least_ns = [&](const char* option, const char* alpha_us, const char* what) {
    const Ended ended =
        run(2, std::size_t{1} << 30,
            joined(kGpt, {"--layers", "2", "--steps", "4", "--batch", "1", "--link-alpha-us",
                          alpha_us, "--link-gbps", "0", option, "2"}),
            "run");
    EXPECT_EQ(ended.code, 0) << ended.err;
    double least = 1e300;
    for (const auto& step : log_events(log("run"), "step"))
      if (step["rank"] == 0) least = std::min(least, step[what].get<double>());
    return least;
  };
  for (const auto& [option, what, waits] :
       {std::tuple{"--tensor", "exposed_ns", 4 * 2 * 2}, {"--pipeline", "pipeline_ns", 2}}) {
    SCOPED_TRACE(option);
    const double more = least_ns(option, "50000", what) - least_ns(option, "0", what);
    EXPECT_NEAR(more / alpha_ns, waits, 0.02 * waits);
  }
}

// Nothing hides the sums within layers, so all of their link time is exposed communication, and
// none of it is the rank's own work.
TEST_F(SoftGridTest, SumsWithinLayersAreExposedCommunication) {
  const Words job =
      joined(kGpt, {"--layers", "2", "--steps", "4", "--batch", "2", "--accumulate", "2"});
  const Ended split = run(2, std::size_t{1} << 30, joined(job, {"--tensor", "2"}), "split");
  ASSERT_EQ(split.code, 0) << split.err;
  // Four sums a layer and micro-batch of [batch x context, width] floats.
  const std::uint64_t bytes = 2 * 8 * 16 * sizeof(float);
  const train::Nanos each = train::LinkModel().allreduce_ns(train::Algorithm::kRing, 2, bytes);
  const auto steps = log_events(log("split"), "step");
  ASSERT_EQ(steps.size(), 2 * 4u);
  for (const auto& step : steps) {
    EXPECT_EQ(step["tensor_ns"], 4 * 2 * 2 * each);
    EXPECT_EQ(step["collective_ns"], step["tensor_ns"]);
    EXPECT_EQ(step["exposed_ns"], step["tensor_ns"]);
    EXPECT_GT(step["device_ns"], 0);
    EXPECT_GT(step["communication_ns"], 0);
    EXPECT_LT(step["communication_ns"], step["duration_ns"]);
  }
  const auto end = log_events(log("split"), "end").at(0);
  EXPECT_EQ(end["tensor_ns"], 4 * 4 * 2 * 2 * each);
  EXPECT_EQ(end["overlap_ratio"], 0);
  // Two ranks: 2 (n-1)/n = 1.
  EXPECT_NEAR(end["busbw_mb_per_s"].get<double>(),
              static_cast<double>(bytes) * 1e3 / static_cast<double>(each), 0.01);
}

// A stage's own work and its waits are all of its passes.
TEST_F(SoftGridTest, WaitsForOtherStagesAreExposedCommunication) {
  const Ended split = run(2, std::size_t{1} << 30,
                          joined(kGpt, {"--layers", "2", "--steps", "4", "--batch", "1",
                                        "--accumulate", "2", "--pipeline", "2"}),
                          "split");
  ASSERT_EQ(split.code, 0) << split.err;
  for (const auto& step : log_events(log("split"), "step")) {
    const double wait = step["stage_wait_ns"];
    EXPECT_GT(wait, 0);
    EXPECT_GE(step["exposed_ns"].get<double>(), wait);
    EXPECT_GE(step["collective_ns"].get<double>(), step["exposed_ns"].get<double>());
    EXPECT_GE(step["device_ns"].get<double>(), step["busy_ns"].get<double>());
    EXPECT_LT(wait, step["pipeline_ns"].get<double>());
  }
  const auto end = log_events(log("split"), "end").at(0);
  EXPECT_GT(end["stage_wait_ns"], 0);
  EXPECT_GT(end["busbw_mb_per_s"], 0) << "of the two ends' sum";
}

TEST_F(SoftGridTest, AModelTooLargeForOneGpuFitsWhenSplit) {
  const auto words = [](int width, const Words& more) {
    return joined({"--model", "gpt", "--heads", "2", "--width", std::to_string(width), "--context",
                   "8", "--layers", "4", "--steps", "1", "--batch", "1"},
                  more);
  };
  const auto need = [](int width, int tensor, int pipeline) {
    sluice::train::TrainOptions options;
    options.model = sluice::train::Model::kGpt;
    options.gpt = {.vocabulary = 256, .context = 8, .width = width, .layers = 4, .heads = 2};
    options.batch = 1;
    options.tensor = tensor;
    options.pipeline = pipeline;
    const auto plan = sluice::train::train_plan(options, tensor * pipeline, tensor * pipeline);
    std::size_t most = 0;
    for (int rank = 0; rank < tensor * pipeline; ++rank)
      most = std::max(most, sluice::train::rank_memory(options, plan, rank).total());
    return most;
  };
  // What the driver and the kernels take for themselves.
  const Ended small = run(1, std::size_t{1} << 30, words(8, {}), "small");
  ASSERT_EQ(small.code, 0) << small.err;
  const std::size_t own = small.peak_bytes.at(0) - need(8, 1, 1);
  const std::size_t whole = need(64, 1, 1);
  const std::size_t memory = own + (whole + need(64, 2, 1)) / 2;

  const Ended one = run(1, memory, words(64, {}), "one");
  EXPECT_EQ(one.code, 1);
  EXPECT_NE(one.err.find("the GPU's memory is too small: this rank needs " + std::to_string(whole) +
                         " bytes (weights and gradients "),
            std::string::npos)
      << one.err;
  EXPECT_NE(one.err.find("split the model over more ranks (--tensor, --pipeline)"),
            std::string::npos)
      << one.err;
  for (const auto& [option, tensor, pipeline] :
       {std::tuple{"--tensor", 2, 1}, {"--pipeline", 1, 2}}) {
    SCOPED_TRACE(option);
    const Ended two = run(2, memory, words(64, {option, "2"}), "two");
    EXPECT_EQ(two.code, 0) << two.err;
    const auto most = std::max(two.peak_bytes.at(0), two.peak_bytes.at(1));
    EXPECT_NEAR(static_cast<double>(most - own) / static_cast<double>(need(64, tensor, pipeline)),
                1, 0.05)
        << "the plan says what a rank needs";
  }
}

}  // namespace
}  // namespace sluice::tests

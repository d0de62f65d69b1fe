// The cost model by itself: fits, the pipeline's schedule, what of a reduction is exposed, the work
// of the models, the search, and the file of a calibration. Machines are made up here.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "tests/trainer/process.h"
#include "trainer/plan/choose.h"
#include "trainer/plan/memory.h"
#include "trainer/plan/pipeline.h"
#include "trainer/plan/stage.h"

namespace sluice::train::planner {
namespace {

constexpr double kAlpha = 20e3, kBeta = 0.8;

/// Every kind of work costs something, and links of up to 8 ranks have the modelled link's times.
Machine made_up_machine() {
  Machine machine;
  machine.kernels.multiprocessors = 16;
  machine.kernels.launch_ns = 3000;
  for (Rate& rate : machine.kernels.rates) rate = {{40, 30, 20, 10}, 0, 0, 4};
  for (const WorkKind copy : {kUpload, kZero}) machine.kernels.rates[copy].ns = {40, 0.03};
  const LinkModel link{kAlpha / 1e3, 8 / kBeta};
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling}) {
      const auto at = [&](std::uint64_t bytes) {
        return static_cast<double>(link.allreduce_ns(algorithm, ranks, bytes));
      };
      CollectiveRate rate{Operation::kAllReduce, algorithm, ranks};
      line_fit(std::vector<LinkSample>{{1 << 12, at(1 << 12)}, {1 << 22, at(1 << 22)}}, rate);
      machine.links.rates.push_back(rate);
    }
    for (const Operation half : {Operation::kReduceScatter, Operation::kAllGather}) {
      machine.links.rates.push_back(
          {half, Algorithm::kRing, ranks, kAlpha * (ranks - 1), kBeta * (ranks - 1) / ranks});
    }
    machine.links.rates.push_back(
        {Operation::kPointToPoint, Algorithm::kRing, ranks, kAlpha, kBeta});
  }
  return machine;
}

GptShape small_gpt() { return {256, 32, 64, 4, 4}; }

TEST(RateFit, FindsWhatMadeTheTimes) {
  std::vector<RateSample> samples;
  for (const auto& [x, y] : {std::pair{1.0, 5.0}, {2.0, 1.0}, {7.0, 3.0}, {100.0, 900.0}})
    samples.push_back({{x, y, 2 * x, 0}, 3 * x + 11 * y});  // the third says nothing new
  const Rate rate = rate_fit(samples);
  EXPECT_NEAR(rate.ns[0] + 2 * rate.ns[2], 3, 1e-9);
  EXPECT_NEAR(rate.ns[1], 11, 1e-9);
  EXPECT_EQ(rate.ns[3], 0);
  EXPECT_LT(rate.residual, 1e-9);
  EXPECT_EQ(rate.samples, 4);
  samples.back().ns *= 2;
  EXPECT_GT(rate_fit(samples).residual, 0.01);
}

TEST(LineFit, IsAlphaAndBetaAndNeverBelowZero) {
  CollectiveRate line;
  line_fit(std::vector<LinkSample>{{1000, 1700}, {4000, 2300}, {100000, 21500}}, line);
  EXPECT_NEAR(line.alpha_ns, 1500, 1e-6);
  EXPECT_NEAR(line.ns_per_byte, 0.2, 1e-9);
  line_fit(std::vector<LinkSample>{{1000, 100}, {2000, 250}}, line);
  EXPECT_EQ(line.alpha_ns, 0);
  EXPECT_GT(line.ns_per_byte, 0);
  EXPECT_GT(line.residual, 0.05);
}

TEST(KernelRates, IdleMultiprocessorsDoNotHelp) {
  const KernelRates rates = made_up_machine().kernels;
  Work work{0, 4, {8, 0, 0, 0}};
  EXPECT_DOUBLE_EQ(rates.ns(work), 3000 + 8 * 40.0 / 4);
  work.blocks = 1000;
  EXPECT_DOUBLE_EQ(rates.ns(work), 3000 + 8 * 40.0 / 16);
  EXPECT_DOUBLE_EQ(rates.ns({kUpload, 1, {1, 100, 0, 0}}), 40 + 100 * 0.03)
      << "copies launch nothing";
  KernelRates unknown = rates;
  unknown.rates[0].samples = 0;
  EXPECT_THROW(unknown.ns(work), Failure);
  EXPECT_THROW(LinkRates().ns(Operation::kAllReduce, Algorithm::kRing, 2, 4), Failure);
  EXPECT_EQ(LinkRates().ns(Operation::kAllReduce, Algorithm::kRing, 1, 4), 0);
}

TEST(Pipeline, EqualStagesIdleAsTheFormulaSays) {
  for (const int stages : {1, 2, 3, 5}) {
    for (const int micro : {1, 2, 4, 8, 16}) {
      const std::vector<StageTime> times(static_cast<std::size_t>(stages), StageTime{10, 20, 0});
      const PipelineTimes played = pipeline_play(times, micro);
      EXPECT_DOUBLE_EQ(played.step_ns, 30.0 * (micro + stages - 1));
      const double idle = 1 - 30.0 * micro / played.step_ns;
      EXPECT_NEAR(idle, (stages - 1.0) / (micro + stages - 1.0), 1e-12);
    }
  }
}

TEST(Pipeline, SlowestStageAndSendsSetThePace) {
  // One micro-batch goes down and up: 1 + 5 + 2 (send), then 7 backward, 2 back, 3.
  EXPECT_DOUBLE_EQ(pipeline_play({{1, 3, 2}, {5, 7, 0}}, 1).step_ns, 1 + 2 + 5 + 7 + 2 + 3);
  // Many: the second stage is always busy.
  EXPECT_DOUBLE_EQ(pipeline_play({{1, 3, 0}, {5, 7, 0}}, 100).step_ns, 1 + 100 * 12 + 3);
  EXPECT_EQ(pipeline_kept(0, 4, 8), 4);
  EXPECT_EQ(pipeline_kept(3, 4, 8), 1);
  EXPECT_EQ(pipeline_kept(0, 4, 2), 2);
}

TEST(Pipeline, TheSlowestPairOfNeighboursCounts) {
  Machine machine = made_up_machine();
  Job job;
  job.shape = small_gpt();
  job.global_batch = 8;
  const Candidate c{.data = 1, .tensor = 1, .pipeline = 4, .micro_batches = 2};
  const double alike = predict(job, c, machine).step_ns();
  EXPECT_EQ(machine.links.stages_message_ns(1, 1, 4, 1000), kAlpha + 1000 * kBeta);
  const CollectiveRate slow{.alpha_ns = 50 * kAlpha, .ns_per_byte = 4 * kBeta};
  // Ranks 0 and 2 are neighbours in no pipeline of four, and in one of two with two tensor ranks.
  machine.links.pairs = {{0, 2, slow}};
  EXPECT_EQ(predict(job, c, machine).step_ns(), alike);
  EXPECT_EQ(machine.links.stages_message_ns(1, 2, 2, 1000), 50 * kAlpha + 4000 * kBeta);
  machine.links.pairs = {{2, 3, slow}};
  EXPECT_EQ(machine.links.stages_message_ns(1, 1, 4, 1000), 50 * kAlpha + 4000 * kBeta);
  EXPECT_GT(predict(job, c, machine).step_ns(), alike + 2 * 49 * kAlpha);
  // The last stage of one copy and the first of the next are no neighbours.
  machine.links.pairs = {{1, 2, slow}};
  EXPECT_EQ(machine.links.stages_message_ns(2, 1, 2, 1000), kAlpha + 1000 * kBeta);
}

TEST(Pipeline, RunsAreBalancedAsWellAsTheyCanBe) {
  EXPECT_EQ(runs_balance({1, 1, 1, 1}, 2), (std::vector<std::size_t>{0, 2, 4}));
  EXPECT_EQ(runs_balance({9, 1, 1, 1}, 2), (std::vector<std::size_t>{0, 1, 4}));
  EXPECT_EQ(runs_balance({1, 2, 3}, 3), (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(runs_balance({1, 2, 3}, 1), (std::vector<std::size_t>{0, 3}));
}

TEST(Reduction, BucketsWaitForGradientsAndForTheLink) {
  const std::vector<FinalMark> marks = {{10, 80}, {20, 50}, {90, 0}};
  const std::vector<Bucket> buckets = {{60, 40}, {30, 30}, {0, 30}};
  // The first is final at 20, takes 30; the other two at 90: 30 each.
  EXPECT_DOUBLE_EQ(reduction_exposed_ns(marks, buckets, {30, 30, 30}, 100, true), 50);
  EXPECT_DOUBLE_EQ(reduction_exposed_ns(marks, buckets, {30, 30, 30}, 100, false), 90);
  EXPECT_DOUBLE_EQ(reduction_exposed_ns(marks, buckets, {1, 1, 1}, 100, true), 0);
  // The link is still busy with the first when the others come.
  EXPECT_DOUBLE_EQ(reduction_exposed_ns(marks, buckets, {200, 30, 30}, 100, true), 180);
}

class Models : public testing::TestWithParam<ModelShape> {};

TEST_P(Models, EveryTensorOnceAndTheLastFinalFirst) {
  const ModelShape& shape = GetParam();
  const ModelCost model = model_cost(shape, {4, 1, Precision::kFp32, 16});
  std::size_t count = 0;
  for (const LayerCost& layer : model.layers) {
    std::map<std::size_t, int> finals;
    for (const Item& item : layer.backward)
      if (item.kind == Item::Kind::kFinal) ++finals[item.range];
    EXPECT_EQ(finals.size(), layer.ranges.size()) << layer.name;
    for (const auto& [range, times] : finals) EXPECT_EQ(times, 1) << layer.name << range;
    for (const std::size_t range : layer.ranges) count += range;
  }
  EXPECT_EQ(count, shape.parameter_count());
  Job job;
  job.shape = shape;
  job.global_batch = 4;
  const std::vector<Stage> stages = stages_make(job, {}, made_up_machine());
  ASSERT_EQ(stages.size(), 1u);
  std::size_t before = shape.parameter_count();
  for (const FinalMark& mark : stages[0].marks()) {
    EXPECT_LT(mark.begin, before) << "the order of network.h";
    before = mark.begin;
  }
  EXPECT_EQ(before, 0u);
}

INSTANTIATE_TEST_SUITE_P(Planner, Models,
                         testing::Values(ModelShape(mlp_shape({32, 16})),
                                         ModelShape(cnn_shape({4, 8}, {16})),
                                         ModelShape(small_gpt())));

TEST(TensorParallel, FourMeetingsALayerAndAPartOfTheWeights) {
  const GptShape shape = small_gpt();
  Job job;
  job.shape = shape;
  job.global_batch = 4;
  const Machine machine = made_up_machine();
  Candidate c;
  c.tensor = 2;
  const Prediction split = predict(job, c, machine);
  const double bytes = 4.0 * shape.context * shape.width * sizeof(float);
  EXPECT_NEAR(split.tensor_ns, 4 * shape.layers * (2 * kAlpha + kBeta * bytes), 100);
  EXPECT_EQ(split.exposed_ns, 0);
  const Prediction whole = predict(job, {}, machine);
  EXPECT_LT(split.memory_bytes, whole.memory_bytes);
  const Stage stage = stages_make(job, c, machine).front();
  const auto w = static_cast<std::size_t>(shape.width);
  // QKV with bias, projection, expansion with bias, contraction: half of them is elsewhere.
  const std::size_t away = (3 * w * w + 3 * w + w * w + 8 * w * w + 4 * w) / 2;
  EXPECT_EQ(stage.parameters(), shape.parameter_count() - away * 4);
  c.tensor = 8;
  EXPECT_THROW(predict(job, c, machine), Failure) << "four heads";
  job.shape = mlp_shape({32});
  c.tensor = 2;
  EXPECT_THROW(predict(job, c, machine), Failure);
}

TEST(PipelineParallel, BubbleShrinksWithMicroBatches) {
  Job job;
  job.shape = small_gpt();
  job.global_batch = 16;
  Machine machine = made_up_machine();
  for (Rate& rate : machine.kernels.rates)
    for (double& ns : rate.ns) ns *= 1000;  // so that sending counts for little
  double before = 1;
  for (const int micro : {1, 4, 16}) {
    Candidate c;
    c.pipeline = 2;
    c.micro_batches = micro;
    const Prediction p = predict(job, c, machine);
    const double part = p.bubble_ns / p.step_ns();
    EXPECT_LT(part, before) << micro;
    before = part;
  }
  Candidate c;
  c.pipeline = 2;
  EXPECT_LT(predict(job, c, machine).memory_bytes, predict(job, {}, machine).memory_bytes);
  c.micro_batches = 3;
  EXPECT_THROW(predict(job, c, machine), Failure) << "16 samples do not divide";
}

TEST(DataParallel, AddsExposedCommunicationAndShardsTheState) {
  Job job;
  job.shape = mlp_shape({512});
  job.global_batch = 64;
  job.optimizer.method = Method::kAdam;
  const Machine machine = made_up_machine();
  Candidate data;
  data.data = 4;
  data.bucket_bytes = 1 << 26;
  Candidate sharded = data;
  sharded.strategy = Strategy::kSharded;
  const Prediction d = predict(job, data, machine);
  const Prediction s = predict(job, sharded, machine);
  const auto parameters = static_cast<double>(job.shape.parameter_count());
  EXPECT_NEAR(d.exposed_ns, 6 * kAlpha + kBeta * 1.5 * 4 * (parameters + kExtraCount), 50)
      << "one bucket, so nothing is hidden";
  EXPECT_NEAR(d.memory_bytes - s.memory_bytes, 4 * 2 * parameters * 3 / 4, 4000);
  EXPECT_LT(s.update_ns, d.update_ns / 2);
  job.shape = mlp_shape({32, 512, 512});  // most gradients are final early
  data.overlap = false;
  data.bucket_bytes = 1 << 16;
  Candidate overlapped = data;
  overlapped.overlap = true;
  EXPECT_LT(predict(job, overlapped, machine).exposed_ns, predict(job, data, machine).exposed_ns);
  Machine shared = machine;
  shared.ranks_per_gpu = 2;
  EXPECT_DOUBLE_EQ(predict(job, data, shared).compute_ns,
                   2 * predict(job, data, machine).compute_ns);
}

TEST(Search, TriesEveryGridAndTakesWhatCanBeDone) {
  Job job;
  job.shape = small_gpt();
  job.global_batch = 16;
  SearchOptions options;
  options.ranks = 4;
  options.memory_bytes = 1 << 30;
  const std::vector<Ranked> all = search(job, made_up_machine(), options);
  std::map<std::array<int, 3>, int> grids;
  for (const Ranked& one : all) {
    const Candidate& c = one.candidate;
    EXPECT_EQ(c.ranks(), 4);
    EXPECT_EQ(job.global_batch % (c.data * c.micro_batches), 0);
    EXPECT_EQ(one.executable, executable(job, options, c));
    ++grids[{c.data, c.tensor, c.pipeline}];
  }
  for (const std::array<int, 3>& grid :
       {std::array{4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {1, 4, 1}, {1, 2, 2}, {1, 1, 4}})
    EXPECT_EQ(grids.count(grid), 1u) << grid[0] << grid[1] << grid[2];
  EXPECT_EQ(grids.size(), 6u);
  const Ranked* best = best_of(all);
  ASSERT_NE(best, nullptr);
  for (const Ranked& one : all) {
    if (!one.executable) continue;
    EXPECT_LE(best->prediction.step_ns(), one.prediction.step_ns());
  }

  const auto grid_of = [](const Candidate& c) { return c.tensor * c.pipeline; };
  options.split_possible = false;
  EXPECT_EQ(grid_of(best_of(search(job, made_up_machine(), options))->candidate), 1);
  options.split_possible = true;
  options.fixed.grid = true;
  options.given.pipeline = 2;
  for (const Candidate& c : candidates(job, options)) {
    EXPECT_EQ(c.pipeline, 2);
    EXPECT_EQ(c.data, 2);
  }
  EXPECT_EQ(grid_of(best_of(search(job, made_up_machine(), options))->candidate), 2);
  options.given.pipeline = 1;

  options.fixed = {true, true, true, false};
  options.given.strategy = Strategy::kSharded;
  options.given.bucket_bytes = 12345;
  for (const Candidate& c : candidates(job, options)) {
    if (c.data == 1) continue;
    EXPECT_EQ(c.strategy, Strategy::kSharded);
    EXPECT_EQ(c.bucket_bytes, 12345u);
  }
  // A replica's batch that no kernel could count is no candidate; the ranks' own is.
  job.global_batch = 1 << 18;
  for (const Candidate& c : candidates(job, options)) {
    EXPECT_LE(std::int64_t{job.global_batch / c.data / c.micro_batches} * 32 * 256, INT32_MAX);
  }
  EXPECT_FALSE(candidates(job, options).empty());
  job.global_batch = 16;
  options.memory_bytes = 1000;
  EXPECT_EQ(best_of(search(job, made_up_machine(), options)), nullptr);
}

TEST(Planned, GoesThroughTheArgument) {
  TrainOptions options;
  options.strategy = Strategy::kSharded;
  options.bucket_bytes = 65536;
  options.algorithm = Algorithm::kHalvingDoubling;
  options.tensor = 2;
  options.pipeline = 3;
  options.batch = 5;
  options.accumulate = 7;
  TrainOptions back;
  ASSERT_TRUE(planned_parse(planned_format(options), &back));
  EXPECT_EQ(back.strategy, options.strategy);
  EXPECT_EQ(back.bucket_bytes, options.bucket_bytes);
  EXPECT_EQ(back.algorithm, options.algorithm);
  EXPECT_EQ(back.tensor, 2);
  EXPECT_EQ(back.pipeline, 3);
  EXPECT_EQ(back.batch, 5);
  EXPECT_EQ(back.accumulate, 7);
  for (const char* bad :
       {"", "data", "data:64:ring", "data:3:ring:1:1:1:1", "tensor:64:ring:1:1:1:1",
        "data:64:tree:1:1:1:1", "data:64:ring:0:1:1:1", "data:64:ring:1:1:1:0"})
    EXPECT_FALSE(planned_parse(bad, &back)) << bad;
}

class CalibrationFile : public testing::Test {
 protected:
  CalibrationFile() {
    const Machine machine = made_up_machine();
    one_.date = "2026-01-02T03:04:05Z";
    one_.engine = "gloo";
    one_.device = {"Some GPU", 4, 16, 1ULL << 32, true};
    one_.link = {20, 10};
    one_.kernels = machine.kernels;
    one_.links = machine.links;
    one_.links.pairs = {{0, 1, {.alpha_ns = 5, .ns_per_byte = 2}},
                        {1, 3, {.alpha_ns = 7, .ns_per_byte = 3}}};
  }
  std::string refusal(const DeviceFacts& device, const LinkModel& link) {
    try {
      calibration_check(one_, "c.json", device, link);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }
  Calibration one_;
  tests::ScratchDirectory scratch_;
};

TEST_F(CalibrationFile, SaysTheSameWhenReadAgain) {
  const std::string path = scratch_.file("c.json");
  calibration_write(path, one_);
  const Calibration back = calibration_read(path);
  EXPECT_EQ(calibration_json(back), calibration_json(one_));
  EXPECT_EQ(back.device.memory_bytes, one_.device.memory_bytes);
  EXPECT_EQ(back.links.rates.size(), one_.links.rates.size());
  EXPECT_EQ(back.kernels.rates[kZero].ns, one_.kernels.rates[kZero].ns);
  ASSERT_EQ(back.links.pairs.size(), 2u);
  EXPECT_EQ(back.links.message_ns(3, 1, 10), 7 + 3 * 10);
  EXPECT_NE(calibration_text(back).find("Some GPU"), std::string::npos);
}

TEST_F(CalibrationFile, IsRefusedWhereItIsOfSomethingElse) {
  EXPECT_EQ(refusal(one_.device, one_.link), "");
  DeviceFacts other = one_.device;
  other.name = "Another GPU";
  EXPECT_NE(refusal(other, one_.link).find("c.json is of 4 x Some GPU"), std::string::npos);
  other = one_.device;
  other.count = 2;
  EXPECT_NE(refusal(other, one_.link), "");
  EXPECT_NE(refusal(one_.device, {20, 1}).find("--link-gbps 1"), std::string::npos);
  other = one_.device;
  other.software = one_.device.software = false;
  EXPECT_EQ(refusal(other, {20, 1}), "") << "hardware has no modelled link";
}

TEST_F(CalibrationFile, IsRefusedWhereItIsDamaged) {
  const std::string good = calibration_json(one_);
  EXPECT_NO_THROW(calibration_parse(good, "c"));
  EXPECT_THROW(calibration_parse(good.substr(0, good.size() / 2), "c"), Failure);
  EXPECT_THROW(calibration_parse("{}", "c"), Failure);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  for (const auto& [from, to] : {std::pair{"\"format\": 2", "\"format\": 1"},
                                 {"\"pairs\"", "\"others\""},
                                 {"\"launch_ns\": 3000.0", "\"launch_ns\": -1"},
                                 {"\"multiprocessors\": 16", "\"multiprocessors\": 0"},
                                 {"\"all-reduce\"", "\"all-to-all\""}})
    EXPECT_THROW(calibration_parse(changed(from, to), "c"), Failure) << from;
  EXPECT_THROW(calibration_read(scratch_.file("none")), Failure);
}

}  // namespace
}  // namespace sluice::train::planner

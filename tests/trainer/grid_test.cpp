// The grid of ranks and the parts of a model, without a device: every rank in one place, every
// parameter on the ranks that need it, refusals, and what the plan says.
#include "trainer/train/grid.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <tuple>

#include "trainer/train/grid_plan.h"

namespace sluice::train {
namespace {

TrainOptions grid_options(int tensor, int pipeline) {
  TrainOptions options;
  options.model = Model::kGpt;
  options.gpt = {.vocabulary = 11, .context = 4, .width = 8, .layers = 4, .heads = 4};
  options.batch = 3;
  options.accumulate = 5;
  options.tensor = tensor;
  options.pipeline = pipeline;
  return options;
}

std::string failure_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(Grid, NumbersTensorFirstThenStages) {
  const Grid grid = Grid::of(12, 2, 3);
  EXPECT_EQ(grid.text(), "2 data x 3 pipeline x 2 tensor");
  EXPECT_EQ(grid.replica(), 6);
  EXPECT_EQ(grid.tensor_of(7), 1);
  EXPECT_EQ(grid.stage_of(7), 0);
  EXPECT_EQ(grid.data_of(7), 1);
  for (int rank = 0; rank < 12; ++rank)
    EXPECT_EQ(grid.rank_at(grid.data_of(rank), grid.stage_of(rank), grid.tensor_of(rank)), rank);
  EXPECT_FALSE(Grid::of(5, 1, 1).is_split());
  EXPECT_EQ(failure_of([] { Grid::of(6, 2, 2); }),
            "6 ranks cannot be a grid of --tensor 2 x --pipeline 2: 4 ranks make one copy of the "
            "model, so take --nproc 4 or a multiple of it");
}

TEST(GptPart, PartsMakeUpTheWholeAndEveryParameterCountsOnce) {
  const GptShape shape{.vocabulary = 11, .context = 4, .width = 8, .layers = 4, .heads = 4};
  std::vector<float> whole(shape.parameter_count());
  std::iota(whole.begin(), whole.end(), 1.0f);
  for (const auto& [tensor, stages] : {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 2}, {1, 4}, {2, 2}}) {
    SCOPED_TRACE(testing::Message() << tensor << " x " << stages);
    std::vector<float> back(whole.size(), 0);
    std::size_t counted = 0;
    for (int at = 0; at < tensor * stages; ++at) {
      const ModelPart part(shape, {at % tensor, tensor, at / tensor, stages});
      const std::vector<float> mine = part.cut(whole);
      ASSERT_EQ(mine.size(), part.parameter_count());
      part.place_into(mine, back);
      for (const ParameterRun& run : part.counted()) {
        counted += run.count;
        EXPECT_LE(run.begin + run.count, mine.size());
      }
      // The embedding is on both ends, whole, and begins there.
      const ParameterRun shared = part.shared_by_ends();
      const bool end = stages > 1 && (part.place().is_first() || part.place().is_last());
      EXPECT_EQ(shared.count, end ? 88u : 0u);
      EXPECT_EQ(end ? mine[shared.begin + 87] : 88, 88);
    }
    EXPECT_EQ(back, whole);
    EXPECT_EQ(counted, whole.size());
  }
}

TEST(GptPart, TakesTheColumnsOfItsHeads) {
  const GptShape shape{.vocabulary = 2, .context = 1, .width = 4, .layers = 1, .heads = 2};
  std::vector<float> whole(shape.parameter_count());
  std::iota(whole.begin(), whole.end(), 0.0f);
  const GptPart part(shape, {1, 2, 0, 1});
  const std::vector<float> mine = part.cut(whole);
  const auto first = [&](LayerRange which) {
    return mine[part.ranges()[part.range(0, which)].begin];
  };
  const auto begin = [&](LayerRange which) {
    return static_cast<float>(shape.ranges()[gpt_range(0, which)].begin);
  };
  EXPECT_EQ(first(LayerRange::kQkv), begin(LayerRange::kQkv) + 2) << "columns";
  const std::size_t qkv = part.ranges()[part.range(0, LayerRange::kQkv)].begin;
  EXPECT_EQ(mine[qkv + 2], begin(LayerRange::kQkv) + 6) << "keys after queries";
  EXPECT_EQ(first(LayerRange::kProjection), begin(LayerRange::kProjection) + 8) << "rows";
  EXPECT_EQ(first(LayerRange::kExpand), begin(LayerRange::kExpand) + 8);
  EXPECT_EQ(first(LayerRange::kContract), begin(LayerRange::kContract) + 32);
  EXPECT_EQ(first(LayerRange::kProjectionBias), begin(LayerRange::kProjectionBias)) << "whole";
}

TEST(ModelPart, RefusesWhatDoesNotDivide) {
  const GptShape shape{.vocabulary = 11, .context = 4, .width = 6, .layers = 3, .heads = 3};
  const auto why = [](const ModelShape& model, const PartPlace& place) {
    return failure_of([&] { ModelPart(model, place); });
  };
  EXPECT_EQ(why(shape, {0, 2, 0, 1}),
            "--heads 3 does not divide by --tensor 2: every part needs as many");
  EXPECT_EQ(why(shape, {0, 1, 0, 2}),
            "--layers 3 does not divide by --pipeline 2: every part needs as many");
  EXPECT_EQ(
      why(cnn_shape({8}, {24}), {0, 1, 0, 2}).find("--tensor and --pipeline split --model gpt"),
      0u);
  EXPECT_EQ(why(mlp_shape({24}), {0, 1, 0, 1}), "");
}

TEST(GridPlan, BatchesAndBucketsAreThoseOfTheDataAndThePart) {
  const TrainOptions options = grid_options(2, 2);
  const TrainPlan plan = train_plan(options, 8, 2);
  EXPECT_EQ(plan.grid.data, 2);
  EXPECT_LT(plan.part.parameter_count(), plan.shape.parameter_count() / 2);
  EXPECT_EQ(plan.gradient_bytes, (plan.part.parameter_count() + kExtraCount) * sizeof(float));
  EXPECT_EQ(rate_plan(options, plan.grid.data, 10).steps, 0u);
  const std::string text = plan_text(plan, options);
  for (const char* part :
       {"batch 15 per rank, 30 in all", "grid 2 data x 2 pipeline x 2 tensor, tensor innermost",
        "5 micro-batches through 2 stages, 1F1B: bubble 16.7 %",
        "rank 7 (data 1, stage 1, tensor 1): layers 2 to 3, 2 of 4 heads, "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(GridPlan, TrafficFollowsTheFormulas) {
  // [3 x 4, 8] floats go from layer to layer.
  const double stream = 3 * 4 * 8 * 4;
  const auto traffic = [](int tensor, int pipeline) {
    const TrainOptions options = grid_options(tensor, pipeline);
    return grid_traffic(options, train_plan(options, tensor * pipeline, 1));
  };
  EXPECT_EQ(traffic(1, 1).tensor + traffic(1, 1).pipeline + traffic(1, 1).ends, 0);
  // Four all-reduces a layer and micro-batch, of 2 S (T-1)/T.
  EXPECT_EQ(traffic(2, 1).tensor, 5 * 4 * 4 * stream);
  EXPECT_EQ(traffic(4, 1).tensor, 5 * 4 * 4 * stream * 1.5);
  EXPECT_EQ(traffic(2, 2).tensor, 5 * 4 * 2 * stream) << "of its own layers";
  EXPECT_EQ(traffic(1, 2).pipeline, 5 * stream);
  EXPECT_EQ(traffic(1, 4).pipeline, 2 * 5 * stream) << "to both sides";
  EXPECT_EQ(traffic(1, 2).ends, 11 * 8 * 4);
}

}  // namespace
}  // namespace sluice::train

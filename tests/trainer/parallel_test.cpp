// Ranks of a grid on the device: their groups, and a transformer whose layers are shared out, which
// gives the logits and the gradients of one that is not, and sends what the formula says.
#include <mutex>

#include "tests/trainer/device_fixture.h"
#include "tests/trainer/ranks.h"
#include "trainer/train/grid.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

CommOptions grid_comm(int rank, int rank_count, const std::string& directory) {
  CommOptions options;
  options.rank = rank;
  options.rank_count = rank_count;
  options.directory = directory;
  options.timeout_s = 20;
  return options;
}

class GroupsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    SLUICE_NEEDS_DRIVER();
    if (std::string(GetParam()) == "nccl" && !nccl_missing().empty())
      GTEST_SKIP() << nccl_missing();
  }
};

TEST_P(GroupsTest, SumOverThoseThatTheGridPutsTogether) {
  for (const Grid grid : {Grid{2, 2, 1}, Grid{1, 2, 2}}) {
    SCOPED_TRACE(grid.text());
    ranks_run(4, [&](int rank, const std::string& directory) {
      // To NCCL the ranks of one process are of one host, and need a GPU each.
      Device device(std::string(GetParam()) == "nccl" ? rank : 0);
      Stream stream(device);
      Groups groups =
          groups_make(grid, grid_comm(rank, 4, directory), *engine_parse(GetParam()), true, true);
      const Together together;
      const DeviceArray<float> value(1);
      const auto sum = [&](Communicator& comm) {
        auto mine = static_cast<float>(1 << rank);
        stream.upload(value.at(), &mine, sizeof mine);
        comm.all_reduce(stream, value.at(), 1);
        stream.download(&mine, value.at(), sizeof mine);
        stream.synchronize();
        return static_cast<int>(mine);
      };
      const auto members = [&](const std::function<bool(int other)>& together_with) {
        int bits = 0;
        for (int other = 0; other < 4; ++other) bits |= together_with(other) ? 1 << other : 0;
        return bits;
      };
      const auto same_data = [&](int o) { return grid.data_of(o) == grid.data_of(rank); };
      const auto same_stage = [&](int o) { return grid.stage_of(o) == grid.stage_of(rank); };
      const auto same_tensor = [&](int o) { return grid.tensor_of(o) == grid.tensor_of(rank); };
      EXPECT_EQ(sum(*groups.data), members([&](int o) { return same_stage(o) && same_tensor(o); }));
      EXPECT_EQ(sum(*groups.tensor), members([&](int o) { return same_data(o) && same_stage(o); }));
      EXPECT_EQ(sum(*groups.pipeline),
                members([&](int o) { return same_data(o) && same_tensor(o); }));
      EXPECT_EQ(sum(*groups.replica), members(same_data));
      ASSERT_EQ(groups.ends != nullptr, grid.pipeline > 1);
      if (groups.ends) {
        EXPECT_EQ(sum(*groups.ends),
                  members([&](int o) { return same_data(o) && same_tensor(o); }));
      }
      groups.barrier(stream);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, GroupsTest, testing::Values("gloo", "nccl"),
                         [](const auto& param) { return std::string(param.param); });

class TensorParallelTest : public DeviceTest {
 protected:
  static constexpr int kBatch = 16;  // so many that Gloo's ring has no chunk below its least

  struct Passes {
    Floats logits, gradients;
  };

  void SetUp() override {
    DeviceTest::SetUp();
    parameters_ = gpt_draw(shape_, 3);
    const Floats noise = floats_draw(parameters_.size(), 5, -0.2, 0.2);
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i] += noise[i];
    Random random(7);
    for (int i = 0; i < kBatch * shape_.context; ++i) {
      tokens_.push_back(static_cast<int>(random.below(11)));
      targets_.push_back(static_cast<int>(random.below(11)));
    }
  }

  Passes passes(Stream& stream, Gpt& model, const Floats& parameters) {
    model.parameters_upload(parameters);
    model.batch_upload(tokens_.data(), targets_.data(), kBatch);
    model.forward(kBatch);
    model.backward(kBatch, kBatch);
    Passes out{Floats(targets_.size() * 11), Floats(model.parameter_count())};
    stream.download(out.logits.data(), model.logits(), out.logits.size() * sizeof(float));
    stream.download(out.gradients.data(), model.gradients(), out.gradients.size() * sizeof(float));
    stream.synchronize();
    return out;
  }

  void parts_check(int tensor) {
    Gpt whole_model(stream(), shape_, {.batch_max = kBatch});
    const Passes whole = passes(stream(), whole_model, parameters_);
    Floats gradients(whole.gradients.size());
    std::vector<Passes> parts(static_cast<std::size_t>(tensor));
    std::mutex mutex;
    ranks_run(tensor, [&](int rank, const std::string& directory) {
      Device device(0);
      Stream mine(device);
      const auto comm = gloo_comm(grid_comm(rank, tensor, directory));
      const Together together;
      const GptPart part(shape_, {rank, tensor, 0, 1});
      int sums = 0;
      Gpt model(mine, part, {.batch_max = kBatch}, [&](CUdeviceptr data, std::size_t count) {
        ++sums;
        comm->all_reduce(mine, data, count);
      });
      passes(mine, model, part.cut(parameters_));
      const WireCount before = comm->traffic()->of(Operation::kAllReduce);
      const Passes got = passes(mine, model, part.cut(parameters_));
      const WireCount sent = comm->traffic()->of(Operation::kAllReduce) - before;
      const std::size_t stream_bytes = tokens_.size() * 16 * sizeof(float);
      const auto of_tensor = static_cast<std::size_t>(tensor);
      EXPECT_EQ(sent.bytes, 2 * 4 * 2 * stream_bytes * (of_tensor - 1) / of_tensor)
          << "4 all-reduces in each of 2 layers, 2 S (T-1)/T each";
      EXPECT_EQ(sums, 2 * 4 * 2);
      const std::lock_guard lock(mutex);
      part.place_into(got.gradients, gradients);
      parts[static_cast<std::size_t>(rank)] = got;
    });
    EXPECT_TRUE(close_to(parts[0].logits, doubles_of(whole.logits), 0, 1e-5));
    EXPECT_TRUE(close_to(gradients, doubles_of(whole.gradients), 1e-5, 1e-6));
    // What several ranks have they have alike, to the last bit.
    for (int rank = 1; rank < tensor; ++rank) {
      const Passes& other = parts[static_cast<std::size_t>(rank)];
      EXPECT_EQ(other.logits, parts[0].logits);
      const GptPart part(shape_, {rank, tensor, 0, 1});
      for (const GptPiece& piece : part.pieces()) {
        if (piece.split) continue;
        const auto begin = static_cast<std::ptrdiff_t>(piece.range.begin);
        const auto end = static_cast<std::ptrdiff_t>(piece.range.end());
        EXPECT_TRUE(std::equal(other.gradients.begin() + begin, other.gradients.begin() + end,
                               parts[0].gradients.begin() + begin))
            << piece.range.name;
      }
    }
  }

  const GptShape shape_{.vocabulary = 11, .context = 8, .width = 16, .layers = 2, .heads = 4};
  Floats parameters_;
  std::vector<int> tokens_, targets_;
};

TEST_F(TensorParallelTest, TwoRanksGiveLogitsAndGradientsOfOne) { parts_check(2); }

TEST_F(TensorParallelTest, FourRanksWithAHeadEach) { parts_check(4); }

}  // namespace
}  // namespace sluice::tests

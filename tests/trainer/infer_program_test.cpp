// sluice-infer as a process: it serves its whole schedule, logs intended arrivals, and answers as
// the network does.
#include <fstream>
#include <map>
#include <set>

#include "kernels/reference.h"
#include "tests/trainer/device_fixture.h"
#include "tests/trainer/process.h"
#include "trainer/infer/server.h"
#include "trainer/job/statistics.h"
#include "trainer/model/mlp_reference.h"

namespace sluice::tests {
namespace {

class InferProgramTest : public testing::Test {
 protected:
  void SetUp() override { SLUICE_NEEDS_DRIVER(); }
  ScratchDirectory scratch_;
  std::string log_ = scratch_.file("log");
};

TEST_F(InferProgramTest, ServesTheWholeScheduleInOrder) {
  Child child({"sluice-infer", "--rate", "100", "--seconds", "1", "--seed", "3", "--hidden", "16",
               "--batch-max", "4", "--log", log_},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  const auto schedule = train::poisson_arrivals(100, 1, 3);
  const auto ready = log_events(log_, "ready");
  ASSERT_EQ(ready.size(), 1u);
  const auto requests = log_events(log_, "request");
  ASSERT_EQ(requests.size(), schedule.size());
  std::map<std::int64_t, int> together;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& request = requests[i];
    EXPECT_EQ(request["id"], i);
    // The intended time, whatever the server was doing then.
    EXPECT_EQ(request["arrival_ns"], ready[0]["t_ns"].get<train::Nanos>() + schedule[i]);
    EXPECT_GE(request["start_ns"], request["arrival_ns"]);
    EXPECT_GT(request["done_ns"], request["start_ns"]);
    EXPECT_LE(++together[request["start_ns"].get<std::int64_t>()], 4);
    EXPECT_EQ(request["model"], 0);
  }
  std::map<int, int> sizes, logged;
  for (const auto& [start, size] : together) ++sizes[size];
  for (const auto& line : log_events(log_, "batches")) logged[line["size"]] = line["count"];
  EXPECT_EQ(logged, sizes);
  const auto end = log_lines(log_).back();
  EXPECT_EQ(end["event"], "end");
  EXPECT_EQ(end["requests"], requests.size());
  EXPECT_EQ(end["status"], "ok");
  std::vector<train::Nanos> latencies;
  for (const auto& request : requests) {
    latencies.push_back(request["done_ns"].get<train::Nanos>() -
                        request["arrival_ns"].get<train::Nanos>());
  }
  EXPECT_EQ(end["p50_ns"], train::percentile(latencies, 50));
  EXPECT_EQ(end["p999_ns"], train::percentile(latencies, 99.9));
  EXPECT_NE(child.out().find("done: " + std::to_string(schedule.size()) + " requests"),
            std::string::npos)
      << child.out();
}

TEST_F(InferProgramTest, ADayHasItsRushAndItsQuiet) {
  Child child({"sluice-infer", "--arrivals", "diurnal", "--rate", "100", "--amplitude", "0.9",
               "--period", "2", "--seconds", "2", "--seed", "3", "--hidden", "8", "--log", log_},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  train::Load load;
  load.kind = train::ArrivalKind::kDiurnal;
  load.rate_per_s = 100;
  load.diurnal = {.amplitude = 0.9, .period_s = 2};
  const auto schedule = train::load_arrivals(load, 2, 3);
  const auto requests = log_events(log_, "request");
  ASSERT_EQ(requests.size(), schedule.size());
  const train::Nanos begin = log_events(log_, "ready").at(0)["t_ns"];
  int rush = 0;  // in the first half of the only day, in which the sine is positive
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const train::Nanos arrival = requests[i]["arrival_ns"].get<train::Nanos>() - begin;
    EXPECT_EQ(arrival, schedule[i].at_ns);
    rush += arrival < train::kNanosPerSecond;
  }
  // 200 in all are expected, 157 of them in that half.
  EXPECT_GT(rush, 2 * (static_cast<int>(requests.size()) - rush));
  EXPECT_EQ(log_lines(log_).back()["status"], "ok");
}

TEST_F(InferProgramTest, TooMuchLoadEndsWithUnservedRequests) {
  Child child({"sluice-infer", "--rate", "100000", "--seconds", "0.2", "--batch-max", "1",
               "--drain-seconds", "0", "--log", log_},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  const auto end = log_lines(log_).back();
  EXPECT_EQ(end["status"], "overloaded");
  EXPECT_GT(end["unserved"], 0);
  EXPECT_EQ(end["unserved"].get<std::size_t>() + end["requests"].get<std::size_t>(),
            train::poisson_arrivals(100000, 0.2, 1).size());
}

TEST_F(InferProgramTest, SeveralModelsInOneProcessGetTheirShares) {
  Child child({"sluice-infer", "--rate", "200", "--seconds", "1", "--seed", "3", "--hidden", "16",
               "--models", "3", "--shares", "2,1,1", "--batch-wait-us", "2000", "--log", log_},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  train::Load load;
  load.rate_per_s = 200;
  load.shares = {2, 1, 1};
  const auto schedule = train::load_arrivals(load, 1, 3);
  std::map<std::int64_t, std::set<int>> models_of_batch;
  std::map<int, std::uint64_t> counts;
  const auto requests = log_events(log_, "request");
  ASSERT_EQ(requests.size(), schedule.size());
  for (const auto& request : requests) {
    const int model = request["model"];
    EXPECT_EQ(model, schedule[request["id"].get<std::size_t>()].model);
    models_of_batch[request["start_ns"].get<std::int64_t>()].insert(model);
    ++counts[model];
  }
  for (const auto& [start, models] : models_of_batch) EXPECT_EQ(models.size(), 1u);
  const auto models = log_events(log_, "model");
  ASSERT_EQ(models.size(), 3u);
  for (int model = 0; model < 3; ++model) {
    EXPECT_EQ(models[static_cast<std::size_t>(model)]["requests"], counts[model]);
  }
  EXPECT_NE(child.out().find("model 2 (784-16-10): "), std::string::npos) << child.out();
}

// The stall is real time on a busy machine, so only bounds that noise cannot cross are asked for:
// everyone who arrived in the first half of it waited at least its second half.
TEST_F(InferProgramTest, AStallIsChargedToAllWhoArrivedMeanwhile) {
  Child child({"sluice-infer", "--rate", "200", "--seconds", "1.2", "--hidden", "8",
               "--plant-stall-ms", "600", "--plant-stall-at", "0.3", "--log", log_},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  const auto requests = log_events(log_, "request");
  const auto slowest =
      *std::max_element(requests.begin(), requests.end(), [](const auto& a, const auto& b) {
        return a["done_ns"].template get<train::Nanos>() -
                   a["start_ns"].template get<train::Nanos>() <
               b["done_ns"].template get<train::Nanos>() -
                   b["start_ns"].template get<train::Nanos>();
      });
  const train::Nanos stall = slowest["start_ns"];
  int meanwhile = 0;
  for (const auto& request : requests) {
    const train::Nanos since = request["arrival_ns"].get<train::Nanos>() - stall;
    if (since < 0 || since > 300 * train::kNanosPerMilli) continue;
    ++meanwhile;
    EXPECT_GE(request["done_ns"].get<train::Nanos>() - request["arrival_ns"].get<train::Nanos>(),
              300 * train::kNanosPerMilli);
  }
  EXPECT_GT(meanwhile, 30);  // 60 are expected
  EXPECT_GE(log_lines(log_).back()["p95_ns"], 300 * train::kNanosPerMilli);
}

TEST_F(InferProgramTest, PlaysATraceAndDropsWhatItsQueueCannotTake) {
  const std::string trace = scratch_.file("trace");
  std::ofstream(trace) << "times\n"
                       << "0.1\n0.1\n0.1\n0.1\n0.2\n";
  Child child({"sluice-infer", "--arrivals", "trace", "--trace", trace, "--hidden", "8",
               "--batch-max", "1", "--queue-max", "2", "--log", log_},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  const auto requests = log_events(log_, "request");
  ASSERT_EQ(requests.size(), 5u);
  std::set<int> dropped;
  for (const auto& request : requests) {
    if (request.contains("dropped")) dropped.insert(request["id"].get<int>());
    EXPECT_NE(request.contains("dropped"), request.contains("done_ns"));
  }
  EXPECT_EQ(dropped, (std::set<int>{2, 3}));
  const auto end = log_lines(log_).back();
  EXPECT_EQ(end["dropped"], 2);
  EXPECT_EQ(end["requests"], 3);
  EXPECT_EQ(end["status"], "overloaded");
}

TEST_F(InferProgramTest, AskedToStopItEndsWell) {
  Child child({"sluice-infer", "--rate", "50", "--seconds", "3600", "--hidden", "8", "--log", log_},
              scratch_);
  ASSERT_TRUE(log_await(log_, "request", 3, kPatience)) << child.err();
  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_EQ(log_lines(log_).back()["status"], "stopped");
}

TEST_F(InferProgramTest, ServesTheWeightsThatTrainingSaved) {
  const std::string weights = scratch_.file("weights");
  Child trainer({"sluice-train", "--data", "synthetic", "--nproc", "1", "--hidden", "12", "--steps",
                 "2", "--save", weights},
                scratch_);
  ASSERT_EQ(trainer.wait(kPatience), 0) << trainer.err();
  Child child({"sluice-infer", "--model", weights, "--weights", weights, "--rate", "50",
               "--seconds", "0.2"},
              scratch_);
  ASSERT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_NE(child.out().find("ready: 784-12-10 and 1 more on "), std::string::npos) << child.out();
}

TEST_F(InferProgramTest, RefusesWhatItCannotServe) {
  Child missing({"sluice-infer", "--weights", "/nonexistent"}, scratch_);
  EXPECT_EQ(missing.wait(kPatience), 1);
  EXPECT_NE(missing.err().find("sluice: sluice-infer: reading the weights"), std::string::npos);
  for (const auto& bad :
       {std::vector<std::string>{"--rate", "0"}, std::vector<std::string>{"--batch-max", "0"},
        std::vector<std::string>{"--seconds", "-1"},
        std::vector<std::string>{"--weights", "a", "--hidden", "8"},
        std::vector<std::string>{"--model", "a", "--models", "2"},
        std::vector<std::string>{"--models", "2", "--shares", "1,2,3"},
        std::vector<std::string>{"--models", "2", "--shares", "1,0"},
        std::vector<std::string>{"--arrivals", "trace"}, std::vector<std::string>{"--trace", "a"},
        std::vector<std::string>{"--arrivals", "trace", "--trace", "/nonexistent"},
        std::vector<std::string>{"--rate", "2", "--trace-scale", "2"}}) {
    std::vector<std::string> command = {"sluice-infer"};
    command.insert(command.end(), bad.begin(), bad.end());
    Child child(command, scratch_);
    EXPECT_EQ(child.wait(kPatience), 2);
    EXPECT_EQ(child.err().find("sluice: sluice-infer: "), 0u) << child.err();
  }
}

class ServerTest : public DeviceTest {};

TEST_F(ServerTest, AnswersAreThoseOfTheNetwork) {
  train::Weights weights;
  const train::MlpShape shape = train::mlp_shape({20});
  weights.shape = shape;
  weights.values = train::mlp_draw(shape, 2);
  const train::Dataset data = train::synthetic_draw(2, 10, 1);
  train::Weights other;
  other.shape = train::mlp_shape({9});
  other.values = other.shape.draw(7);
  train::Server server({other, weights}, 7, data.train);
  const std::vector<std::uint32_t> ids = {0, 3, 9, 13};  // 13 asks about image 3 again
  server.answer(0, ids);
  server.answer(1, ids);
  std::vector<double> inputs;
  for (const std::uint32_t id : ids) {
    for (const std::uint8_t pixel : data.train.image(id % 10)) {
      inputs.push_back(static_cast<double>(train::pixel_value(pixel)));
    }
  }
  const auto logits =
      train::mlp_reference(shape, doubles_of(weights.values), inputs, std::vector<int>(ids.size()))
          .logits;
  EXPECT_EQ(kernels::reference::correct_count(4, train::kClassCount, logits, server.answers()), 4);
  EXPECT_EQ(server.answers()[1], server.answers()[3]);
}

}  // namespace
}  // namespace sluice::tests

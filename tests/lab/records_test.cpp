#include "trainer/lab/records.h"

#include <gtest/gtest.h>

#include <fstream>

namespace sluice::lab {
namespace {

std::string file_with(const std::string& text) {
  const std::string path = testing::TempDir() + "/records-" + std::to_string(::getpid()) + ".jsonl";
  std::ofstream(path) << text;
  return path;
}

TEST(TrainingLog, ReadsStepsEvaluationAndEnd) {
  const TrainingLog log = training_log_read(
      file_with("{\"event\":\"start\",\"t_ns\":1}\n"
                "{\"event\":\"step\",\"rank\":1,\"step\":3,\"t_ns\":50,\"duration_ns\":20,"
                "\"communication_ns\":5,\"loss\":2.1}\n"
                "{\"event\":\"eval\",\"accuracy\":0.5,\"loss\":1.5}\n{\"event\":\"eval\","
                "\"accuracy\":0.75,\"loss\":1.0}\n"
                "{\"event\":\"end\",\"status\":\"ok\"}\n{\"event\":\"step\",\"ra"));
  EXPECT_TRUE(log.started);
  ASSERT_EQ(log.steps.size(), 1u);
  EXPECT_EQ(log.steps[0].rank, 1u);
  EXPECT_EQ(log.steps[0].end_ns, 50);
  EXPECT_EQ(log.steps[0].duration_ns, 20);
  EXPECT_EQ(log.steps[0].communication_ns, 5);
  EXPECT_DOUBLE_EQ(*log.accuracy, 0.75);
  EXPECT_EQ(log.status, "ok");
  EXPECT_EQ(log.bad_lines, 1u);  // the cut last line
}

TEST(InferenceLog, KeepsUnansweredRequests) {
  const InferenceLog log = inference_log_read(
      file_with("{\"event\":\"ready\",\"t_ns\":1}\n{\"event\":\"request\",\"id\":1,\"arrival_ns\":"
                "10,\"done_ns\":30}\n"
                "{\"event\":\"request\",\"id\":2,\"arrival_ns\":20,\"done_ns\":null}\n"));
  EXPECT_TRUE(log.ready);
  ASSERT_EQ(log.requests.size(), 2u);
  EXPECT_EQ(log.requests[0].done_ns, 30);
  EXPECT_EQ(log.requests[1].done_ns, std::nullopt);
}

TEST(Logs, AMissingFileIsAnEmptyLog) {
  EXPECT_FALSE(training_log_read("/nonexistent").started);
  EXPECT_FALSE(log_has_event("/nonexistent", "ready"));
  EXPECT_EQ(debug_log_first_result("/nonexistent"), std::nullopt);
}

TEST(Accounts, DifferenceIsPerDeviceAndProcess) {
  const auto before = accounts_parse(
      R"({"devices":[{"uuid":"a","elapsed_ns":1000000000,"busy_ns":500000000,"lag_ns":0,
          "processes":[{"pid":7,"name":"x","busy_ns":500000000}]}]})");
  const auto after = accounts_parse(
      R"({"devices":[{"uuid":"a","elapsed_ns":3000000000,"busy_ns":1500000000,"lag_ns":10000000,
          "processes":[{"pid":7,"name":"x","busy_ns":900000000},{"pid":8,"name":"y","busy_ns":600000000}]}]})");
  ASSERT_TRUE(before && after);
  const auto d = accounts_difference(*before, *after);
  ASSERT_EQ(d.size(), 1u);
  EXPECT_DOUBLE_EQ(d[0].elapsed_s, 2);
  EXPECT_DOUBLE_EQ(d[0].busy_s, 1);
  EXPECT_DOUBLE_EQ(d[0].lag_s, 0.01);
  EXPECT_DOUBLE_EQ(d[0].processes.at(7).busy_s, 0.4);
  EXPECT_DOUBLE_EQ(d[0].processes.at(8).busy_s, 0.6);
}

TEST(Accounts, RefusesWhatIsNotAnAccount) {
  EXPECT_FALSE(accounts_parse("softgpu-ctl: no such directory"));
  EXPECT_FALSE(accounts_parse("{}"));
}

}  // namespace
}  // namespace sluice::lab

// The watch over GPUs that may be lost, on the double of NVML: what it tells, and what becomes of a
// helper that cannot live.
#include "broker/devices/loss_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>

#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

using testing::HasSubstr;

constexpr int kTurnsMax = 30'000;  // of a millisecond or more: what never comes fails the test
const std::vector<protocol::GpuUuid> kGpus = {
    *uuid_parse("GPU-00000000-0000-4000-8000-000000000000"),
    *uuid_parse("GPU-00000000-0000-4000-8000-000000000001")};

/// Looks until there is something.
LossWatch::News news_wait(LossWatch& watch, std::int64_t now_ms) {
  LossWatch::News news;
  for (int i = 0; i < kTurnsMax && news.lost.empty() && news.fault.empty(); ++i) {
    news = watch.look(now_ms);
    poll(nullptr, 0, 1);
  }
  return news;
}

TEST(LossLine, RoundTripAndNothingElse) {
  protocol::GpuUuid back;
  ASSERT_TRUE(loss_line_parse(loss_line(kGpus[1]), &back));
  EXPECT_TRUE(back == kGpus[1]);
  for (const char* line : {"", "lost", "lost ", "found GPU-00000000-0000-4000-8000-000000000001",
                           "lost GPU-00000000-0000-4000-8000-00000000000"})
    EXPECT_FALSE(loss_line_parse(line, &back)) << line;
}

TEST(UnknownLine, RoundTripAndNothingElse) {
  protocol::GpuUuid back;
  ASSERT_TRUE(unknown_line_parse(unknown_line(kGpus[1]), &back));
  EXPECT_TRUE(back == kGpus[1]);
  EXPECT_FALSE(unknown_line_parse(loss_line(kGpus[1]), &back));
  EXPECT_FALSE(unknown_line_parse("unknown ", &back));
}

// A question without an answer would be the last about its GPU.
TEST(LossWatch, WhatTheDeviceDoesNotSayIsAnsweredToo) {
  const char* environment[] = {"LD_LIBRARY_PATH=" SLUICE_FAKE_HARDWARE, nullptr};
  LossWatch watch(SLUICE_PROBE, environment, kGpus, 3'600'000);
  ASSERT_TRUE(watch.look(0).fault.empty());
  const auto other = uuid_parse("GPU-00000000-0000-4000-8000-0000000000ff");
  ASSERT_TRUE(watch.ask_used(*other));
  LossWatch::News news;
  for (int i = 0; i < kTurnsMax && news.unknown.empty() && news.used.empty(); ++i) {
    news = watch.look(0);
    poll(nullptr, 0, 1);
  }
  EXPECT_TRUE(news.used.empty());
  ASSERT_EQ(news.unknown.size(), 1U);
  EXPECT_TRUE(news.unknown[0] == *other);
}

TEST(LossWatch, TellsOnceOfAGpuThatIsLostLater) {
  const std::string path = testing::TempDir() + "lost-" + std::to_string(getpid());
  const std::string file = "FAKE_LOST_FILE=" + path;
  const char* environment[] = {"LD_LIBRARY_PATH=" SLUICE_FAKE_HARDWARE, file.c_str(), nullptr};
  LossWatch watch(SLUICE_PROBE, environment, kGpus, 1);
  EXPECT_TRUE(watch.look(0).lost.empty());
  std::ofstream(path) << "1";
  const LossWatch::News news = news_wait(watch, 0);
  ASSERT_EQ(news.lost.size(), 1U) << news.fault;
  EXPECT_TRUE(news.lost[0] == kGpus[1]);
  std::ofstream(path) << "all";
  const LossWatch::News other = news_wait(watch, 0);
  ASSERT_EQ(other.lost.size(), 1U) << "the first one is known";
  EXPECT_TRUE(other.lost[0] == kGpus[0]);
  EXPECT_TRUE(watch.look(0).fault.empty()) << "a helper with nothing left to watch stays";
  unlink(path.c_str());
}

TEST(UsedLine, RoundTripAndNothingElse) {
  DeviceUse back;
  ASSERT_TRUE(used_line_parse(used_line({kGpus[1], 7, std::nullopt, false, {}}), &back));
  EXPECT_TRUE(back.gpu == kGpus[1]);
  EXPECT_EQ(back.bytes, 7U);
  EXPECT_FALSE(back.listed.has_value() || back.busy_known);
  const ListedUse two{12, 5, 2, {{4194304, 8}, {7, 4}}};
  ASSERT_TRUE(used_line_parse(used_line({kGpus[0], 70, two, true, {1, 4194304}}), &back));
  EXPECT_EQ(back.listed->living, 12U);
  EXPECT_EQ(back.listed->ended, 5U);
  EXPECT_EQ(back.listed->processes, 2U);
  ASSERT_EQ(back.listed->of.size(), 2U);
  EXPECT_EQ(back.listed->of[0].pid, 4194304U);
  EXPECT_EQ(back.listed->of[1].bytes, 4U);
  EXPECT_TRUE(back.busy_known);
  EXPECT_EQ(back.busy, (std::vector<std::uint32_t>{1, 4194304}));
  ASSERT_TRUE(used_line_parse(used_line({kGpus[0], 7, ListedUse{}, true, {}}), &back));
  EXPECT_TRUE(back.busy_known && back.busy.empty());
  const std::string used = "used GPU-00000000-0000-4000-8000-000000000001";
  for (const char* end :
       {"", " ", " 7", " 7x -", " -1 -", " 7 x", " 7 5", " 7 5 0 0 idle", " 7 5 0 1 3",
        " 7 5 0 1 3:", " 7 5 0 1 3:x", " 7 5 0 0 busy x", " 7 5 0 0 busy 1 2 3 4 5 6 7 8 9"})
    EXPECT_FALSE(used_line_parse(used + end, &back)) << end;
  EXPECT_FALSE(used_line_parse("lost GPU-00000000-0000-4000-8000-000000000001 7 -", &back));
}

TEST(UsedLine, MoreProcessesThanItNamesAreCountedAllTheSame) {
  ListedUse many{1, 0, 1000, {}};
  for (std::uint32_t pid = 1; pid <= 1000; ++pid) many.of.push_back({4194304, ~0ULL});
  const std::string line = used_line({kGpus[0], 7, many, false, {}});
  DeviceUse back;
  ASSERT_TRUE(used_line_parse(line, &back));
  EXPECT_EQ(back.listed->processes, 1000U);
  EXPECT_EQ(back.listed->of.size(), kListedMax);
  EXPECT_FALSE(used_line_parse(line + " 1:1", &back));
}

TEST(UseQuestion, RoundTripAndNothingElse) {
  protocol::GpuUuid gpu;
  std::vector<EndedProcess> ended;
  ASSERT_TRUE(use_question_parse(use_question(kGpus[1], {}), &gpu, &ended));
  EXPECT_TRUE(gpu == kGpus[1] && ended.empty());
  ASSERT_TRUE(use_question_parse(use_question(kGpus[0], {{7, 99}, {8, 0}}), &gpu, &ended));
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].pid, 7U);
  EXPECT_EQ(ended[0].start_ticks, 99U);
  const std::string name = "GPU-00000000-0000-4000-8000-000000000001";
  for (const std::string& line :
       {std::string(), name + " 7", name + " 7:", name + " :7", name + "x"})
    EXPECT_FALSE(use_question_parse(line, &gpu, &ended)) << line;
  const std::vector<EndedProcess> many(200, {1, 1});
  ASSERT_TRUE(use_question_parse(use_question(kGpus[0], many), &gpu, &ended));
  EXPECT_EQ(ended.size(), kEndedMax) << "the first ones";
}

TEST(LossWatch, SaysHowMuchOfAGpuIsInUseWhenItIsAsked) {
  const char* environment[] = {"LD_LIBRARY_PATH=" SLUICE_FAKE_HARDWARE, nullptr};
  LossWatch watch(SLUICE_PROBE, environment, kGpus, 60'000);
  EXPECT_EQ(watch.descriptor(), -1);
  EXPECT_FALSE(watch.ask_used(kGpus[0])) << "nobody to ask yet";
  ASSERT_TRUE(watch.look(0).fault.empty());
  ASSERT_TRUE(watch.ask_used(kGpus[0]));
  ASSERT_TRUE(watch.ask_used(kGpus[1]));
  std::vector<LossWatch::Used> used;
  for (int i = 0; i < kTurnsMax && used.size() < 2; ++i) {
    pollfd ready{watch.descriptor(), POLLIN, 0};
    poll(&ready, 1, 1);
    const LossWatch::News news = watch.look(0);
    used.insert(used.end(), news.used.begin(), news.used.end());
  }
  ASSERT_EQ(used.size(), 2U) << "long before it looks again whether one is lost";
  EXPECT_TRUE(used[1].gpu == kGpus[1]);
  EXPECT_EQ(used[1].bytes, 1024U);
}

TEST(LossWatch, AHelperThatCannotLiveIsToldOfOnceAndTriedAgain) {
  const char* broken[] = {"LD_LIBRARY_PATH=" SLUICE_FAKE_HARDWARE, "FAKE_FAULT=init", nullptr};
  LossWatch watch(SLUICE_PROBE, broken, kGpus, 1);
  EXPECT_THAT(news_wait(watch, 0).fault, HasSubstr("has ended"));
  EXPECT_TRUE(watch.look(1'000).fault.empty());
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(watch.look(31'000).fault.empty()) << "said before";
}

TEST(LossWatch, NoProgram) {
  const char* none[] = {nullptr};
  LossWatch watch("/nonexistent/sluice-probe", none, kGpus);
  EXPECT_THAT(news_wait(watch, 0).fault, HasSubstr("has ended"));
}

}  // namespace
}  // namespace sluice::devices

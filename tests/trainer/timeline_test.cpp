// The trace of a job: whole JSON whatever happens to the ranks, tracks that do not overlap, sums
// that are the log's, and communication beside the backward pass.
#include "trainer/train/timeline.h"

#include <map>
#include <utility>

#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

using nlohmann::json;

struct Interval {
  double begin, end;  // us
  std::string name;
  int step;
};

/// By rank and the name of the track.
using Tracks = std::map<std::pair<int, std::string>, std::vector<Interval>>;

Tracks tracks_read(const std::string& path) {
  const json trace = json::parse(file_text(path), nullptr, false);
  EXPECT_FALSE(trace.is_discarded()) << file_text(path).substr(0, 300);
  std::map<std::pair<int, int>, std::string> names;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") names[{event["pid"], event["tid"]}] = event["args"]["name"];
  }
  Tracks tracks;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"];
    tracks[{event["pid"], names.at({event["pid"], event["tid"]})}].push_back(
        {begin, begin + event["dur"].get<double>(), event["name"], event["args"]["step"]});
  }
  return tracks;
}

double sum_us(const std::vector<Interval>& track) {
  double sum = 0;
  for (const Interval& one : track) sum += one.end - one.begin;
  return sum;
}

/// Time of the first track's intervals that one of the other's intervals of this name shares.
double shared_us(const std::vector<Interval>& some, const std::vector<Interval>& others,
                 const std::string& name) {
  double sum = 0;
  for (const Interval& one : some) {
    for (const Interval& other : others) {
      if (other.name != name) continue;
      sum += std::max(0.0, std::min(one.end, other.end) - std::max(one.begin, other.begin));
    }
  }
  return sum;
}

class TimelineTest : public TrainProgramTest {
 protected:
  const std::string path_ = scratch_.file("trace.json");
  std::vector<std::string> command(const std::string& overlap) const {
    return {"--nproc",    "2",     "--batch",          "8", "--hidden",       "16,128,128",
            "--bucket",   "16384", "--link-gbps",      "1", "--overlap",      overlap,
            "--steps",    "6",     "--eval-every",     "3", "--eval-samples", "32",
            "--timeline", path_,   "--timeline-steps", "4"};
  }
  std::vector<json> steps_of(const std::string& name, int rank) const {
    std::vector<json> out;
    for (const json& step : log_events(log(name), "step")) {
      if (step["rank"] == rank && step["step"] < 4) out.push_back(step);
    }
    return out;
  }
  void no_parts_left() const {
    for (const auto& entry : std::filesystem::directory_iterator(scratch_.file(""))) {
      EXPECT_EQ(entry.path().string().find("trace.json."), std::string::npos) << entry.path();
    }
  }
};

TEST_F(TimelineTest, TracksDoNotOverlapAndAddUpToTheLog) {
  train(command("on"), "a");
  Tracks tracks = tracks_read(path_);
  no_parts_left();
  ASSERT_EQ(tracks.size(), 10u);
  for (auto& [track, intervals] : tracks) {
    std::sort(intervals.begin(), intervals.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < intervals.size(); ++i) {
      // Device times are floats of milliseconds.
      EXPECT_GT(intervals[i].begin, intervals[i - 1].end - 0.5) << track.second;
    }
  }
  for (const int rank : {0, 1}) {
    double duration = 0, device = 0, collective = 0, stall = 0;
    const auto steps = steps_of("a", rank);
    ASSERT_EQ(steps.size(), 4u);
    for (const json& step : steps) {
      duration += step["duration_ns"].get<double>() / 1e3;
      device += step["device_ns"].get<double>() / 1e3;
      collective += step["collective_ns"].get<double>() / 1e3;
      stall += step["stall_ns"].get<double>() / 1e3;
    }
    const double waited = sum_us(tracks[{rank, "data wait"}]);
    EXPECT_NEAR(waited, stall, 0.02 * stall + 1);
    EXPECT_NEAR(waited + sum_us(tracks[{rank, "host"}]), duration, 0.02 * duration);
    EXPECT_NEAR(sum_us(tracks[{rank, "compute (device)"}]), device, 0.02 * device);
    EXPECT_NEAR(sum_us(tracks[{rank, "communication (device)"}]), collective, 0.02 * collective);
    EXPECT_EQ((tracks[{rank, "evaluation"}].size()), 2u);
    // The host's tracks are in the log's clock.
    EXPECT_NEAR((tracks[{rank, "host"}].back().end), steps.back()["t_ns"].get<double>() / 1e3, 1);
  }
}

TEST_F(TimelineTest, CommunicationIsSeenBesideTheBackwardPassWhereItOverlaps) {
  train(command("on"), "on");
  Tracks on = tracks_read(path_);
  train(command("off"), "off");
  Tracks off = tracks_read(path_);
  for (const int rank : {0, 1}) {
    const std::pair<int, std::string> link{rank, "communication (device)"};
    const std::pair<int, std::string> compute{rank, "compute (device)"};
    EXPECT_NEAR(shared_us(off[link], off[compute], "backward"), 0, 4);
    EXPECT_GT(shared_us(on[link], on[compute], "backward"), 0.1 * sum_us(on[link]));
    EXPECT_NEAR(shared_us(on[link], on[compute], "forward"), 0, 4);
    EXPECT_NEAR(shared_us(on[link], on[compute], "update"), 0, 4);
  }
}

TEST_F(TimelineTest, IsWholeAfterARankWasKilled) {
  Child child(
      {"sluice-train", "--data", "synthetic", "--nproc", "2", "--batch", "8", "--hidden", "8",
       "--seconds", "3600", "--timeline", path_, "--timeline-steps", "1000000", "--log", log("a")},
      scratch_);
  ASSERT_TRUE(log_await(log("a"), "step", 8, kPatience)) << child.err();
  const auto ranks = child.children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  EXPECT_EQ(child.wait(kPatience), 1) << child.err();
  Tracks tracks = tracks_read(path_);
  for (const int rank : {0, 1}) {
    EXPECT_GE((tracks[{rank, "compute (device)"}].size()), 3u) << rank;
  }
  no_parts_left();
}

TEST_F(TimelineTest, ATornLineIsLeftOutAndAnOldFileIsNotKept) {
  const std::string whole =
      R"({"name":"x","ph":"X","pid":0,"tid":1,"ts":1.000,"dur":2.000,"args":{"step":0}})";
  std::ofstream(path_ + ".rank0") << "of an older job";
  std::ofstream(path_) << "too";
  train::timeline_prepare(path_, 1);
  EXPECT_TRUE(tracks_read(path_).empty());
  std::ofstream(path_ + ".rank0") << whole << "\n" << whole.substr(0, whole.size() - 9);
  train::timeline_merge(path_, 2);
  Tracks tracks = tracks_read(path_);
  ASSERT_EQ(tracks.size(), 1u);
  EXPECT_EQ((tracks[{0, "host"}].size()), 1u);
  EXPECT_THROW(train::timeline_prepare("/nonexistent/trace.json", 1), train::Failure);
}

}  // namespace
}  // namespace sluice::tests

// See timeline.h. A part has an event a line, each step's lines written at once.
#include "trainer/train/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

constexpr const char* kTrackNames[] = {"data wait", "host", "compute (device)",
                                       "communication (device)", "evaluation"};

std::string part_path(const std::string& path, int rank) {
  return path + ".rank" + std::to_string(rank);
}

/// The format counts microseconds.
std::string micros_text(Nanos ns) {
  return text_format("%lld.%03lld", static_cast<long long>(ns / 1000),
                     static_cast<long long>(ns % 1000));
}

std::string name_line(const char* what, int rank, int track, const std::string& name) {
  return text_format(R"({"name":"%s","ph":"M","pid":%d,"tid":%d,"args":{"name":"%s"}})", what, rank,
                     track, name.c_str());
}

/// Whole, or not at all.
void file_replace(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::binary);
    file << text;
    file.close();
    if (!file) throw errno_failure("writing the timeline " + fresh);
  }
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    throw errno_failure("writing the timeline " + path);
  }
}

std::string trace_text(const std::vector<std::string>& lines) {
  std::string text = R"({"displayTimeUnit":"ms","otherData":{"clock":"CLOCK_MONOTONIC"},)";
  text += "\"traceEvents\":[\n";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += lines[i] + (i + 1 < lines.size() ? ",\n" : "\n");
  }
  return text + "]}\n";
}

}  // namespace

Timeline::Timeline(const TrainOptions& options, const Stream& stream, std::uint64_t steps_made)
    : stream_(stream),
      slot_(options.place.slot),
      accumulates_(options.accumulate > 1),
      steps_left_(options.timeline_steps - std::min(steps_made, options.timeline_steps)),
      evaluations_left_(steps_left_) {
  if (options.timeline.empty()) return;
  const std::string path = part_path(options.timeline, slot_);
  fd_ = open(path.c_str(),
             O_WRONLY | O_CREAT | (steps_made == 0 ? O_TRUNC : 0) | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw errno_failure("opening the timeline " + path);
  if (steps_made > 0) text_ = "\n";  // a killed writer's last line may not be whole
}

Timeline::~Timeline() {
  if (fd_ >= 0) close(fd_);
}

void Timeline::step_begin() {
  if (!recording()) return;
  origin_ = 1 - origin_;
  if (!anchored_) {
    // Nothing is on the stream, so the event passes now.
    device_ns_ = now_ns();
    origins_[1 - origin_].record(stream_);
    anchored_ = true;
  }
  origins_[origin_].record(stream_);
}

void Timeline::backward_begin() {
  if (recording()) backward_begin_.record(stream_);
}

void Timeline::gradients_wait() { wait_ns_ = now_ns(); }

void Timeline::gradients_here() { here_ns_ = now_ns(); }

void Timeline::step_end(const StepFacts& facts) {
  if (!recording()) return;
  const Event& origin = origins_[origin_];
  device_ns_ += origin.since(origins_[1 - origin_]);
  const auto at = [&](const Event& event) { return device_ns_ + event.since(origin); };
  const std::uint64_t step = facts.step;
  const Nanos loaded_ns = facts.begin_ns + facts.stall_ns;
  put(Track::kWait, "data wait", step, facts.begin_ns, loaded_ns);
  put(Track::kHost, "launch", step, loaded_ns, wait_ns_);
  if (facts.has_ranks) put(Track::kHost, "wait for gradients", step, wait_ns_, here_ns_);
  put(Track::kHost, "update", step, facts.has_ranks ? here_ns_ : wait_ns_, facts.end_ns);
  const Nanos backward_ns = at(backward_begin_), computed_ns = at(facts.compute_end);
  put(Track::kCompute, accumulates_ ? "forward, and earlier micro-batches" : "forward", step,
      at(facts.compute_begin), backward_ns);
  put(Track::kCompute, "backward", step, backward_ns, computed_ns);
  const Nanos updated_ns = at(facts.update_end);
  put(Track::kCompute, "update", step, at(facts.update_begin), updated_ns);
  if (facts.reducer != nullptr) {
    int number = 0;
    for (const auto& [begin, end] : facts.reducer->spans(origin)) {
      put(Track::kCommunication, "bucket " + std::to_string(number++), step, device_ns_ + begin,
          device_ns_ + end);
    }
  }
  if (facts.gather_ns > 0) {
    put(Track::kCommunication, "gather weights", step, updated_ns, updated_ns + facts.gather_ns);
  }
  flush();
  --steps_left_;
}

void Timeline::evaluation(std::uint64_t step, Nanos begin_ns, Nanos end_ns) {
  if (fd_ < 0 || evaluations_left_ == 0) return;
  --evaluations_left_;
  put(Track::kEvaluation, "evaluation", step, begin_ns, end_ns);
  flush();
}

void Timeline::put(Track track, std::string_view name, std::uint64_t step, Nanos begin_ns,
                   Nanos end_ns) {
  text_ += text_format(R"({"name":"%.*s","ph":"X","pid":%d,"tid":%d,"ts":)",
                       static_cast<int>(name.size()), name.data(), slot_, static_cast<int>(track)) +
           micros_text(begin_ns) +
           ",\"dur\":" + micros_text(std::max<Nanos>(0, end_ns - begin_ns)) +
           text_format(",\"args\":{\"step\":%llu}}\n", static_cast<unsigned long long>(step));
}

/// A disk that is full costs the picture, not the job.
void Timeline::flush() {
  const auto wanted = static_cast<ssize_t>(text_.size());
  if (write(fd_, text_.data(), text_.size()) != wanted) {
    std::fprintf(stderr, "sluice: %s; the job goes on without a timeline\n",
                 errno_failure("writing the timeline").what());
    close(fd_);
    fd_ = -1;
  }
  text_.clear();
}

void timeline_prepare(const std::string& path, int rank_count) {
  for (int rank = 0; rank < rank_count; ++rank) std::filesystem::remove(part_path(path, rank));
  file_replace(path, trace_text({}));
}

void timeline_merge(const std::string& path, int rank_count) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < rank_count; ++rank) {
    lines.push_back(name_line("process_name", rank, 0, text_format("rank %d", rank)));
    for (int track = 0; track < static_cast<int>(std::size(kTrackNames)); ++track) {
      lines.push_back(name_line("thread_name", rank, track, kTrackNames[track]));
    }
    std::ifstream part(part_path(path, rank), std::ios::binary);
    for (std::string line; std::getline(part, line);) {
      if (line.starts_with('{') && line.ends_with("}}")) lines.push_back(line);
    }
  }
  file_replace(path, trace_text(lines));
  for (int rank = 0; rank < rank_count; ++rank) std::filesystem::remove(part_path(path, rank));
}

}  // namespace sluice::train

// sluice-infer: a server of image classifications and its own open-loop clients in one process.
#include <algorithm>
#include <utility>

#include "trainer/infer/options.h"
#include "trainer/infer/server.h"
#include "trainer/job/command_line.h"
#include "trainer/job/log.h"
#include "trainer/job/progress.h"
#include "trainer/job/stop.h"

namespace sluice::train {
namespace {

// Requests ask about these many synthetic images in turn.
constexpr std::uint32_t kImages = 64;

std::vector<Weights> models_make(const InferOptions& options) {
  std::vector<Weights> models;
  for (const std::string& file : options.files) models.push_back(weights_load(file));
  while (models.size() < static_cast<std::size_t>(options.model_count)) {
    Weights weights;
    weights.shape = mlp_shape(options.hidden);
    weights.values = weights.shape.draw(options.seed + models.size());
    models.push_back(std::move(weights));
  }
  return models;
}

JsonLine request_line(const Request& request, Nanos t_ns) {
  JsonLine line("request", t_ns);
  line.add("id", static_cast<std::uint64_t>(request.id))
      .add("model", static_cast<std::uint64_t>(request.model))
      .add("arrival_ns", request.arrival_ns);
  return line;
}

/// The loop's hands: the clock, the GPU, the log and the terminal.
class GpuEngine final : public ServingEngine {
 public:
  GpuEngine(const InferOptions& options, Server& server, StopSignal& stop, JobLog& log,
            Progress& progress)
      : server_(server),
        stop_(stop),
        log_(log),
        progress_(progress),
        stall_ns_(static_cast<Nanos>(options.stall_ms * 1e6)),
        stall_at_ns_(now_ns() + nanos_of_seconds(options.stall_at_s)) {}

  Nanos now() override { return now_ns(); }
  bool sleep_until(Nanos at) override { return stop_.sleep_until(at); }

  void answer(std::span<const Request> batch) override {
    if (stall_ns_ > 0 && now_ns() >= stall_at_ns_) {
      stop_.sleep_until(now_ns() + std::exchange(stall_ns_, 0));
    }
    ids_.clear();
    for (const Request& request : batch) ids_.push_back(request.id);
    server_.answer(batch.front().model, ids_);
  }

  void served(std::span<const Request> batch) override {
    for (const Request& request : batch) {
      log_.write(request_line(request, request.done_ns)
                     .add("start_ns", request.start_ns)
                     .add("done_ns", request.done_ns)
                     .add("batch", static_cast<std::uint64_t>(batch.size())));
    }
    count_ += batch.size();
    progress_.show(text_format("%zu requests, last latency %.2f ms", count_,
                               millis_of(batch.back().latency_ns())));
  }

  void dropped(const Request& request) override {
    log_.write(request_line(request, now_ns()).add("dropped", 1));
  }

 private:
  Server& server_;
  StopSignal& stop_;
  JobLog& log_;
  Progress& progress_;
  Nanos stall_ns_;
  const Nanos stall_at_ns_;
  std::vector<std::uint32_t> ids_;
  std::size_t count_ = 0;
};

/// What all summaries have.
JsonLine& summary_add(JsonLine& line, const LatencySummary& sum) {
  return line.add("requests", sum.served)
      .add("unserved", sum.unserved)
      .add("dropped", sum.dropped)
      .add("p50_ns", sum.p50_ns)
      .add("p95_ns", sum.p95_ns)
      .add("p99_ns", sum.p99_ns)
      .add("p999_ns", sum.p999_ns)
      .add("attainment", sum.attainment)
      .add("goodput_per_s", sum.goodput_per_s);
}

std::string summary_text(const LatencySummary& sum, const InferOptions& options) {
  return text_format(
      "%llu requests, %llu unserved, %llu dropped; latency p50 %.2f ms, p95 %.2f ms, p99 %.2f ms, "
      "p99.9 %.2f ms; %.1f %% within %g ms, goodput %.2f/s",
      static_cast<unsigned long long>(sum.served), static_cast<unsigned long long>(sum.unserved),
      static_cast<unsigned long long>(sum.dropped), millis_of(sum.p50_ns), millis_of(sum.p95_ns),
      millis_of(sum.p99_ns), millis_of(sum.p999_ns), 100 * sum.attainment, options.objective_ms,
      sum.goodput_per_s);
}

/// "1: 20, 2: 5, 3-4: 9": sizes in classes that double.
std::string batches_text(const std::vector<std::uint64_t>& batches) {
  std::string text;
  for (std::size_t low = 1, high = 1; low < batches.size(); low = high + 1, high *= 2) {
    std::uint64_t count = 0;
    for (std::size_t size = low; size <= high && size < batches.size(); ++size) {
      count += batches[size];
    }
    if (count == 0) continue;
    if (!text.empty()) text += ", ";
    text += low == high ? text_format("%zu", low) : text_format("%zu-%zu", low, high);
    text += text_format(": %llu", static_cast<unsigned long long>(count));
  }
  return text.empty() ? "none" : text;
}

/// How the models fared, each and together; to the log and the terminal.
void results_tell(const InferOptions& options, const std::vector<Weights>& models,
                  const ServingRecord& record, double seconds, JobLog& log, Progress& progress) {
  for (std::size_t size = 1; size < record.batches.size(); ++size) {
    if (record.batches[size] == 0) continue;
    log.write(JsonLine("batches", record.end_ns)
                  .add("size", static_cast<std::uint64_t>(size))
                  .add("count", record.batches[size]));
  }
  for (std::size_t model = 0; model < models.size(); ++model) {
    const LatencySummary sum =
        latency_summary(record, static_cast<std::int64_t>(model), options.objective_ns(), seconds);
    JsonLine line("model", record.end_ns);
    line.add("model", static_cast<std::uint64_t>(model)).add("name", models[model].shape.text());
    log.write(summary_add(line, sum));
    if (models.size() > 1) {
      progress.say(text_format("model %zu (%s): ", model, models[model].shape.text().c_str()) +
                   summary_text(sum, options));
    }
  }
  const LatencySummary sum = latency_summary(record, kAllModels, options.objective_ns(), seconds);
  const bool overloaded = sum.unserved + sum.dropped > 0;
  JsonLine line("end", record.end_ns);
  summary_add(line, sum).add("depth_mean", record.depth_mean);
  log.write(line.add("depth_max", static_cast<std::uint64_t>(record.depth_max))
                .add("status", record.stopped ? "stopped"
                               : overloaded   ? "overloaded"
                                              : "ok"));
  progress.say(std::string(record.stopped ? "stopped: " : "done: ") + summary_text(sum, options));
  progress.say("batches by size: " + batches_text(record.batches) +
               text_format("; an arriving request found %.2f waiting (at most %zu)",
                           record.depth_mean, record.depth_max));
}

int infer_run(const InferOptions& options) {
  StopSignal stop;
  JobLog log(options.log, JobLog::Open::kFresh);
  Progress progress(options.quiet);
  const std::vector<Weights> models = models_make(options);
  const Dataset data = synthetic_draw(options.seed, kImages, 1);
  Server server(models, static_cast<int>(options.policy.batch_max), data.train);
  const std::vector<Arrival> arrivals = load_arrivals(options.load, options.seconds, options.seed);
  const std::uint32_t first = 0;
  for (std::uint32_t model = 0; model < models.size(); ++model) {
    server.answer(model, {&first, 1});  // the first launch loads code and is no request
  }
  const Nanos begin_ns = now_ns();
  GpuEngine engine(options, server, stop, log, progress);
  log.write(JsonLine("ready", begin_ns)
                .add("models", static_cast<std::uint64_t>(models.size()))
                .add("scheduled", static_cast<std::uint64_t>(arrivals.size())));
  std::string names = models[0].shape.text();
  if (models.size() > 1) names += text_format(" and %zu more", models.size() - 1);
  progress.say(text_format("ready: %s on %s, %zu requests in %g s", names.c_str(),
                           server.device().name().c_str(), arrivals.size(), options.seconds));
  const ServingRecord record = schedule_serve(arrivals, begin_ns, models.size(), options.policy,
                                              nanos_of_seconds(options.drain_seconds), engine);
  // A request that had arrived and got no answer is a record without done_ns.
  for (const Request& request : record.unserved) {
    log.write(request_line(request, record.end_ns));
  }
  const double seconds = std::min(options.seconds, seconds_of(record.end_ns - begin_ns));
  results_tell(options, models, record, seconds, log, progress);
  return 0;
}

}  // namespace
}  // namespace sluice::train

int main(int argc, char** argv) {
  using namespace sluice::train;
  InferOptions options;
  int exit_code = 0;
  if (!infer_options_parse(argc, argv, &options, &exit_code)) return exit_code;
  return program_main("sluice-infer", [&] { return infer_run(options); });
}

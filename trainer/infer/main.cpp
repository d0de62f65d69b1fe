// sluice-infer: a server of image classifications and its own open-loop clients in one process.
#include <algorithm>
#include <cstdio>

#include "trainer/infer/server.h"
#include "trainer/job/command_line.h"

namespace sluice::train {
namespace {

// Requests ask about these many synthetic images in turn.
constexpr std::uint32_t kImages = 64;

struct InferOptions {
  double rate = 20;
  double seconds = 10;
  std::uint64_t seed = 1;
  int batch_max = 8;
  double objective_ms = 100;
  double drain_seconds = 10;
  std::vector<int> hidden = {128};
  std::string weights;
  std::string log;
  bool quiet = false;
};

void flags_add(CommandLine& line, InferOptions& o) {
  line.number("--rate", o.rate, "requests per second, Poisson", 0.001, 1e6);
  line.number("--seconds", o.seconds, "requests arrive for this long", 0.001, 1e6);
  line.number("--seed", o.seed, "of arrivals, images and random weights");
  line.number("--batch-max", o.batch_max, "most requests answered together", 1, 4096);
  line.number("--slo-ms", o.objective_ms, "objective: latency of a request in time", 0.001, 1e6);
  line.number("--drain-seconds", o.drain_seconds, "go on for so long after the last arrival", 0.0,
              1e6);
  line.numbers("--hidden", o.hidden, "units of the hidden layers, e.g. 128 or 256,64");
  line.text("--weights", o.weights, "a file of sluice-train --save instead of random weights");
  line.exclusive({"--hidden", "--weights"});
  line.text("--log", o.log, "JSON lines: ready, request, end");
  line.flag("--quiet", o.quiet, "print nothing but errors");
}

int infer_run(const InferOptions& options) {
  StopSignal stop;
  JobLog log(options.log, JobLog::Open::kFresh);
  Progress progress(options.quiet);
  Weights weights;
  if (options.weights.empty()) {
    weights.shape = mlp_shape(options.hidden);
    weights.values = weights.shape.draw(options.seed);
  } else {
    weights = weights_load(options.weights);
  }
  const Dataset data = synthetic_draw(options.seed, kImages, 1);
  Server server(weights, options.batch_max, data.train);
  const std::vector<Nanos> arrivals = poisson_arrivals(options.rate, options.seconds, options.seed);
  server.answer({0});  // the first launch loads code and is no request
  const Nanos begin_ns = now_ns();
  log.write(JsonLine("ready", begin_ns));
  progress.say(text_format("ready: %s on %s, %zu requests in %g s", weights.shape.text().c_str(),
                           server.device().name().c_str(), arrivals.size(), options.seconds));
  const std::vector<Request> served = server.serve(
      arrivals, begin_ns, nanos_of_seconds(options.drain_seconds), stop, log, progress);

  // Asked to stop, what had not arrived yet is nobody's loss; what had is.
  const Nanos end_ns = now_ns();
  const auto due = std::count_if(arrivals.begin(), arrivals.end(),
                                 [&](Nanos at) { return begin_ns + at <= end_ns; });
  const std::uint64_t unserved = static_cast<std::uint64_t>(due) - served.size();
  // A request that had arrived and got no answer is a record without done_ns.
  for (std::size_t id = served.size(); id < static_cast<std::size_t>(due); ++id) {
    log.write(JsonLine("request", end_ns)
                  .add("id", static_cast<std::uint64_t>(id))
                  .add("arrival_ns", begin_ns + arrivals[id]));
  }
  const bool stopped = stop.asked();
  log.write(JsonLine("end", end_ns)
                .add("requests", static_cast<std::uint64_t>(served.size()))
                .add("unserved", unserved)
                .add("status", stopped        ? "stopped"
                               : unserved > 0 ? "overloaded"
                                              : "ok"));
  const double seconds = std::min(options.seconds, seconds_of(end_ns - begin_ns));
  const LatencySummary sum =
      latency_summary(served, unserved, static_cast<Nanos>(options.objective_ms * 1e6), seconds);
  progress.say(text_format(
      "%s: %llu requests, %llu unserved; latency p50 %.2f ms, p95 %.2f ms, p99 %.2f ms; %.1f %% "
      "within %g ms, goodput %.2f/s",
      stopped ? "stopped" : "done", static_cast<unsigned long long>(sum.served),
      static_cast<unsigned long long>(sum.unserved), millis_of(sum.p50_ns), millis_of(sum.p95_ns),
      millis_of(sum.p99_ns), 100 * sum.attainment, options.objective_ms, sum.goodput_per_s));
  return 0;
}

}  // namespace
}  // namespace sluice::train

int main(int argc, char** argv) {
  using namespace sluice::train;
  InferOptions options;
  CommandLine line("sluice-infer", "Serves image classifications to an open-loop Poisson load.");
  flags_add(line, options);
  int exit_code = 0;
  if (!line.parse(argc, argv, &exit_code)) return exit_code;
  return program_main("sluice-infer", [&] { return infer_run(options); });
}

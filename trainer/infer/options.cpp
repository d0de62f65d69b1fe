// See options.h.
#include "trainer/infer/options.h"

#include "trainer/base/failure.h"
#include "trainer/job/command_line.h"

namespace sluice::train {
namespace {

constexpr int kModelsMax = 64;

/// Options as they are typed.
struct InferWords {
  std::string arrivals = "poisson";
  double rate = 0;
  double seconds = 0;
  std::string trace;
  double trace_scale = 1;
  double wait_us = 0;
  int batch_max = 8;
  int queue_max = 0;
};

void arrivals_add(CommandLine& line, InferOptions& o, InferWords& words) {
  Diurnal& day = o.load.diurnal;
  day.amplitude = 0.8;
  line.word("--arrivals", words.arrivals,
            "poisson; diurnal: Poisson with a rate that goes up and down as a sine; trace: as a "
            "file says",
            {"poisson", "diurnal", "trace"});
  line.number("--rate", words.rate,
              "requests per second, mean, all models together (20 unless given; a trace: scaled "
              "to this)",
              0.001, 1e6);
  line.seconds("--seconds", words.seconds,
               "requests arrive for this long (10 unless given; a trace: its length)", 0.001, 1e6);
  line.number("--amplitude", day.amplitude, "diurnal: how far the rate goes up and down", 0.0, 1.0);
  line.seconds("--period", day.period_s, "diurnal: length of a day", 0.001, 1e6);
  line.number("--phase", day.phase, "diurnal: where in the sine it begins, radians", -1e6, 1e6);
  line.number("--phase-step", day.phase_step, "diurnal: radians from one model to the next", -1e6,
              1e6);
  line.text("--trace", words.trace,
            "file: a line \"times\" and arrival times in seconds, one a line; or a line \"rates "
            "SECONDS\" and the requests per second of intervals of so many seconds");
  line.number("--trace-scale", words.trace_scale,
              "so many times the trace's requests per second: rates are multiplied, times play "
              "faster",
              1e-6, 1e6);
  line.exclusive({"--rate", "--trace-scale"});
}

void flags_add(CommandLine& line, InferOptions& o, InferWords& words) {
  line.number("--seed", o.seed, "of arrivals, images and random weights");
  line.number("--batch-max", words.batch_max, "most requests of a model answered together", 1,
              4096);
  line.number("--batch-wait-us", words.wait_us,
              "wait for so long for a batch to become full; 0 = take whatever waits", 0.0, 1e9);
  line.number("--queue-max", words.queue_max,
              "requests that may wait, all models together; more are dropped; 0 = any", 0, 1 << 30);
  line.number("--slo-ms", o.objective_ms, "objective: latency of a request in time", 0.001, 1e6);
  line.number("--drain-seconds", o.drain_seconds, "go on for so long after the last arrival", 0.0,
              1e6);
  line.numbers("--hidden", o.hidden, "units of the hidden layers, e.g. 128 or 256,64");
  line.texts("--model,--weights", o.files,
             "a file of sluice-train --save instead of random weights; several times for several "
             "models in this process");
  line.number("--models", o.model_count, "so many models of random weights in this process", 1,
              kModelsMax);
  line.numbers("--shares", o.load.shares,
               "which part of the requests each model gets, e.g. 3,1 (equal unless given)");
  line.exclusive({"--hidden", "--model"});
  line.exclusive({"--models", "--model"});
  line.number("--plant-stall-ms", o.stall_ms,
              "experiment: the server stands still for so long, once; 0 = never", 0.0, 1e6);
  line.number("--plant-stall-at", o.stall_at_s, "experiment: seconds after the start", 0.0, 1e6);
  line.text("--log", o.log, "JSON lines: ready, request, batches, model, end");
  line.flag("--quiet", o.quiet, "print nothing but errors");
}

/// The load that the words say; reads the trace.
void load_take(const InferWords& words, InferOptions& o) {
  Load& load = o.load;
  load.kind = words.arrivals == "diurnal" ? ArrivalKind::kDiurnal
              : words.arrivals == "trace" ? ArrivalKind::kTrace
                                          : ArrivalKind::kPoisson;
  const bool is_trace = load.kind == ArrivalKind::kTrace;
  if (is_trace != !words.trace.empty()) {
    throw Failure("--arrivals trace and --trace FILE go together: give both or none");
  }
  load.rate_per_s = words.rate > 0 ? words.rate : 20;
  o.seconds = words.seconds > 0 ? words.seconds : 10;
  if (!is_trace) return;
  const Trace trace = trace_load(words.trace);
  const double scale = words.rate > 0 ? words.rate / trace.mean_rate_per_s() : words.trace_scale;
  load.trace = trace.scaled(scale);
  load.rate_per_s = load.trace.mean_rate_per_s();
  // The last of the times is a request, too.
  if (words.seconds == 0) o.seconds = load.trace.length_s() + 1e-9;
}

void models_check(InferOptions& o, bool shares_given) {
  if (!o.files.empty()) o.model_count = static_cast<int>(o.files.size());
  if (o.model_count > kModelsMax)
    throw Failure(text_format("%d models; at most %d", o.model_count, kModelsMax));
  const auto count = static_cast<std::size_t>(o.model_count);
  if (!shares_given) o.load.shares.assign(count, 1.0);
  if (o.load.shares.size() != count) {
    throw Failure(
        text_format("--shares has %zu numbers for %zu models", o.load.shares.size(), count));
  }
  for (const double share : o.load.shares) {
    if (!(share > 0 && share < 1e9))
      throw Failure(text_format("--shares: %g is not above 0 (and below 1e9)", share));
  }
}

}  // namespace

bool infer_options_parse(int argc, char** argv, InferOptions* out, int* exit_code) {
  InferOptions& o = *out;
  InferWords words;
  o.load.shares.clear();
  CommandLine line("sluice-infer",
                   "Serves image classifications of one or several models to an open-loop load.");
  arrivals_add(line, o, words);
  flags_add(line, o, words);
  const auto check = [&] {
    load_take(words, o);
    models_check(o, !o.load.shares.empty());
    o.policy = {static_cast<std::size_t>(words.batch_max), static_cast<Nanos>(words.wait_us * 1e3),
                static_cast<std::size_t>(words.queue_max)};
  };
  return line.parse(argc, argv, exit_code, check);
}

}  // namespace sluice::train

// sluice-debug: one short job as somebody debugging a program runs it: a little memory, a few small
// kernels with pauses for thought, a first number to look at. It ends well, with a wild pointer, or
// never (--outcome).
#include <cmath>
#include <cstdio>

#include "trainer/base/random.h"
#include "trainer/device/device.h"
#include "trainer/job/command_line.h"
#include "trainer/job/log.h"
#include "trainer/job/stop.h"

namespace sluice::train {
namespace {

struct DebugOptions {
  int kernels = 12;
  std::uint64_t seed = 1;
  std::string outcome = "ok";
  double gap_ms = 5;
  int elements = 65536;
  std::string log;
  bool quiet = false;
};

// In the page that no allocation can have.
constexpr std::uint64_t kWildAddress = 0x40;
constexpr float kFactor = 0.5f;

void flags_add(CommandLine& line, DebugOptions& o) {
  line.number("--kernels", o.kernels, "small kernels to run (outcome loop: no end)", 1, 1000000);
  line.number("--seed", o.seed, "of the numbers and the pauses");
  line.word("--outcome", o.outcome, "success, an illegal address, or a loop until killed",
            {"ok", "fail", "loop"});
  line.number("--gap-ms", o.gap_ms, "mean pause of the host between kernels", 0.0, 1e5);
  line.number("--elements", o.elements, "floats that the kernels work on", 1, 1 << 26);
  line.text("--log", o.log, "JSON lines: start, first_result, end");
  line.flag("--quiet", o.quiet, "print nothing but errors");
}

class DebugJob {
 public:
  DebugJob(const DebugOptions& options, JobLog& log)
      : options_(options),
        log_(log),
        random_(options.seed, 0x64656275),
        x_(static_cast<std::size_t>(options.elements)),
        y_(static_cast<std::size_t>(options.elements)),
        host_(static_cast<std::size_t>(options.elements)) {
    for (float& value : host_) value = static_cast<float>(random_.below(1024)) / 64.0f;
    stream_.upload(x_.at(), host_.data(), x_.bytes());
    stream_.zero(y_.at(), y_.size());
    stream_.synchronize();
  }

  /// "ok" or "stopped"; throws when the numbers are wrong or the device fails.
  const char* run(StopSignal& stop) {
    const bool endless = options_.outcome == "loop";
    for (int i = 0; endless || i < options_.kernels; ++i) {
      if (stop.sleep_until(now_ns() +
                           static_cast<Nanos>(random_.exponential(options_.gap_ms) * 1e6))) {
        return "stopped";
      }
      round_run();
      if (i == 0) first_result();
    }
    if (options_.outcome == "fail") {
      stream_.launch(kernels::word_store(kWildAddress, 1));
      stream_.synchronize();
      throw Failure("a store through a wild pointer went unnoticed");
    }
    return "ok";
  }

 private:
  /// y = (y + x) / 2. Multiples of 2^-6 halved at most 24 - 6 - 4 times stay exact, and rounding is
  /// the same on host and device beyond: both sides do one addition and one exact halving.
  void round_run() {
    stream_.launch(kernels::array_add(options_.elements, x_.at(), y_.at()));
    stream_.launch(kernels::array_scale(options_.elements, kFactor, y_.at()));
    expected_ = (expected_ + host_[0]) * kFactor;
    float got = 0;
    stream_.download(&got, y_.at(), sizeof got);
    stream_.synchronize();
    if (got != expected_) {
      throw Failure(text_format("wrong numbers: element 0 is %.9g, not %.9g",
                                static_cast<double>(got), static_cast<double>(expected_)));
    }
  }

  void first_result() {
    log_.write(JsonLine("first_result"));
    if (options_.quiet) return;
    std::printf("first result: %.6g\n", static_cast<double>(expected_));
    std::fflush(stdout);
  }

  const DebugOptions& options_;
  JobLog& log_;
  Random random_;
  Device device_{0};
  Stream stream_{device_};
  DeviceArray<float> x_;
  DeviceArray<float> y_;
  std::vector<float> host_;
  float expected_ = 0;
};

int debug_run(const DebugOptions& options) {
  StopSignal stop;
  JobLog log(options.log, JobLog::Open::kFresh);
  log.write(JsonLine("start"));
  try {
    DebugJob job(options, log);
    const char* status = job.run(stop);
    log.write(JsonLine("end").add("status", status));
    if (!options.quiet) std::printf("%s\n", status);
    return 0;
  } catch (const Failure& failure) {
    log.write(JsonLine("end").add("status", "failed").add("error", failure.what()));
    throw;
  }
}

}  // namespace
}  // namespace sluice::train

int main(int argc, char** argv) {
  using namespace sluice::train;
  DebugOptions options;
  CommandLine line("sluice-debug", "A short debugging job: a few small kernels with pauses.");
  flags_add(line, options);
  int exit_code = 0;
  if (!line.parse(argc, argv, &exit_code)) return exit_code;
  return program_main("sluice-debug", [&] { return debug_run(options); });
}

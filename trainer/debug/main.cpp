// sluice-debug: one short job of somebody who debugs a program (job.h), or a stream of them, each a
// process of its own (stream.h).
#include <cstdio>

#include "trainer/debug/job.h"
#include "trainer/debug/stream.h"
#include "trainer/job/command_line.h"

namespace sluice::train {
namespace {

int job_run(const DebugOptions& options) {
  const Nanos begin_ns = now_ns();
  StopSignal stop;
  JobLog log(options.log, JobLog::Open::kFresh);
  const DebugPlan plan = options.plan(options.seed);
  JsonLine start("start", begin_ns);
  start.add("outcome", outcome_name(plan.outcome));
  if (plan.life_ns > 0) start.add("planned_life_ns", plan.life_ns).add("busy", plan.busy);
  log.write(start);
  try {
    DebugJob job(options, plan, begin_ns, log);
    const char* status = job.run(stop);
    const Nanos end_ns = now_ns();
    log.write(JsonLine("end", end_ns)
                  .add("status", status)
                  .add("life_ns", end_ns - begin_ns)
                  .add("gpu_ns", job.gpu_ns())
                  .add("idle_ns", job.idle_ns())
                  .add("rounds", job.rounds()));
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
  int exit_code = 0;
  if (!debug_options_parse(argc, argv, &options, &exit_code)) return exit_code;
  return program_main("sluice-debug",
                      [&] { return options.jobs > 0 ? stream_run(options) : job_run(options); });
}

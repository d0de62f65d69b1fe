// Nanoseconds per driver call over the null driver, with Google Benchmark. The same program is run
// bare and under the shim; interpose_bench.py alternates and subtracts.
//
//   interpose_bench plain|tenant|exclusive SECONDS [--benchmark_...]
// where SECONDS is how long the program waits behind cuInit before it measures
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include "tests/bench/interpose/cases.h"

namespace {

constexpr long kBatch = 100;  // calls between two looks at the loop's counter

void case_time(benchmark::State& state, const sluice::bench::Case& one) {
  sluice::bench::case_prepare(one);
  while (state.KeepRunningBatch(kBatch)) one.body(kBatch);
  state.counters["live"] = static_cast<double>(fake.used_bytes / sluice::bench::kAllocationBytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argv[1][0] == '-' || argv[2][0] == '-') {
    fprintf(stderr,
            "interpose_bench: usage: interpose_bench plain|tenant|exclusive SECONDS [options]\n");
    return 2;
  }
  const auto broker = sluice::bench::tenancy_begin(argv[1], atof(argv[2]));
  argv[2] = argv[0];
  int rest = argc - 2;
  benchmark::Initialize(&rest, argv + 2);
  if (benchmark::ReportUnrecognizedArguments(rest, argv + 2)) return 2;
  for (const auto& one : sluice::bench::kCases) {
    benchmark::RegisterBenchmark(one.name, case_time, one);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

// kernels-bench: every family of kernels on fresh random inputs, first checked against float64,
// then timed on the device's own clock (modelled on a software GPU, real on hardware).
#include <sys/random.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/kernels/rows.h"
#include "trainer/job/command_line.h"

namespace sluice::bench {
namespace {

using kernels::Launch;
using kernels::reference::Values;

/// The largest error in parts of the largest expected value.
double error_of(train::Stream& stream, const Work& work) {
  std::vector<float> got(work.results);
  stream.download(got.data(), work.result, got.size() * sizeof(float));
  stream.synchronize();
  const Values expected = work.expected();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(got[i]) - expected[i]);
    error = difference <= error ? error : difference;  // keeps NaN
    size = std::max(size, std::fabs(expected[i]));
  }
  return error / size;
}

int run(std::uint64_t seed, int scale, int rounds) {
  constexpr double kErrorMax = 1e-5;
  const train::Device device(0);
  train::Stream stream(device);
  std::printf("%s, %s time; seed %llu, scale %d, median of %d\n\n", device.name().c_str(),
              device.is_software() ? "modelled" : "device", static_cast<unsigned long long>(seed),
              scale, rounds);
  std::printf("%-20s %10s %12s %10s %10s\n", "kernels", "error", "us", "GFLOP/s", "GB/s");
  std::vector<Row> all = forward_rows();
  for (Row& row : backward_rows()) all.push_back(std::move(row));
  bool right = true;
  for (const Row& row : all) {
    std::string error;
    {
      Inputs inputs(stream, seed);
      const Work work = row.work(inputs, 1);
      for (const Launch& launch : work.before) stream.launch(launch);
      for (const Launch& launch : work.launches) stream.launch(launch);
      const double worst = error_of(stream, work);
      error = train::text_format("%.1e", worst);
      if (!(worst <= kErrorMax)) {
        right = false;
        error += " !";
      }
    }
    Inputs inputs(stream, seed + 1);
    const Work work = row.work(inputs, scale);
    for (const Launch& launch : work.before) stream.launch(launch);
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {  // the first is not counted
      train::Event begin, end;
      begin.record(stream);
      for (const Launch& launch : work.launches) stream.launch(launch);
      end.record(stream);
      stream.synchronize();
      if (round > 0) times.push_back(static_cast<double>(end.since(begin)));
    }
    std::sort(times.begin(), times.end());
    const double ns = times[times.size() / 2];
    const std::string rate = work.flops > 0 ? train::text_format("%.1f", work.flops / ns) : "-";
    std::printf("%-20s %10s %12.1f %10s %10.2f\n", row.name, error.c_str(), ns / 1e3, rate.c_str(),
                work.bytes / ns);
  }
  if (!right)
    std::fprintf(stderr, "sluice: kernels marked ! are wrong by more than %g\n", kErrorMax);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::train::program_main("kernels-bench", [&] {
    std::uint64_t seed = 0;
    int scale = 4, rounds = 5, exit_code = 0;
    sluice::train::CommandLine line(
        "kernels-bench", "Checks every family of kernels on fresh random inputs, then times it.");
    line.number("--seed", seed, "of the inputs; 0 draws one, which is printed");
    line.number("--scale", scale, "times the smallest size, for the timing", 1, 64);
    line.number("--rounds", rounds, "timed runs of each", 1, 1000);
    if (!line.parse(argc, argv, &exit_code)) return exit_code;
    if (seed == 0 && getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = 1;
    return sluice::bench::run(seed, scale, rounds);
  });
}

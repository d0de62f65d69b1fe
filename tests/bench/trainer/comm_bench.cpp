// comm-bench: the collectives of trainer/comm between ranks of one machine: measured time, the
// alpha-beta model fitted to it, and the formula's steps and bytes beside what the transport
// counted.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "trainer/base/clock.h"
#include "trainer/comm/counted_transport.h"
#include "trainer/comm/gloo_wire.h"
#include "trainer/job/command_line.h"
#include "trainer/job/statistics.h"

namespace sluice::train {
namespace {

struct BenchOptions {
  std::vector<int> ranks = {2, 3, 4};
  std::vector<int> kib = {4, 16, 64, 256, 1024, 4096};
  int rounds = 30;
  WireThrottle throttle;
};

struct Row {
  std::size_t bytes = 0;
  double median_us = 0, high_us = 0;  // the slowest rank's
  int steps = 0;
  WireCount busiest;
};

struct Line {
  double alpha_us = 0;     // of a step
  double ns_per_byte = 0;  // of what the busiest rank sends
  double error_ratio = 0;  // the largest, of all sizes
};

using Make = std::function<Exchange&(GlooWire&, std::size_t bytes)>;
using Cost = std::function<AllreduceCost(std::size_t bytes)>;

/// All ranks as threads, each with its own connections; the sizes one after the other.
std::vector<Row> measure(const BenchOptions& o, int ranks, Algorithm algorithm, Operation operation,
                         const Make& make) {
  std::string directory = (std::filesystem::temp_directory_path() / "comm-bench-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) throw errno_failure("making a directory");
  std::vector<Row> rows(o.kib.size());
  std::mutex mutex;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::vector<WireEvent>>> events(
      o.kib.size(), std::vector<std::vector<WireEvent>>(static_cast<std::size_t>(ranks)));
  const auto one = [&](int rank) {
    GlooWire wire({rank, ranks, directory, algorithm, 60, o.throttle});
    for (std::size_t size = 0; size < o.kib.size(); ++size) {
      const std::size_t bytes = static_cast<std::size_t>(o.kib[size]) * 1024;
      Exchange& exchange = make(wire, bytes);
      for (int warm = 0; warm < 3; ++warm) exchange.run();
      wire.trace(true);
      const WireCount before = wire.traffic().of(operation);
      exchange.run();
      const WireCount count = wire.traffic().of(operation) - before;
      wire.trace(false);
      events[size][static_cast<std::size_t>(rank)] = wire.trace_take();
      std::vector<Nanos> times;
      for (int round = 0; round < o.rounds; ++round) {
        wire.barrier();
        const Nanos begin = now_ns();
        exchange.run();
        times.push_back(now_ns() - begin);
      }
      const std::lock_guard lock(mutex);
      Row& row = rows[size];
      row.bytes = bytes;
      row.median_us = std::max(row.median_us, static_cast<double>(percentile(times, 50)) / 1e3);
      row.high_us = std::max(row.high_us, static_cast<double>(percentile(times, 99)) / 1e3);
      if (count.bytes >= row.busiest.bytes) row.busiest = count;
    }
    wire.barrier();
    sleep_until(now_ns() + 50 * kNanosPerMilli);  // until the others have read it, too
  };
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(one, rank);
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove_all(directory);
  for (std::size_t size = 0; size < rows.size(); ++size)
    rows[size].steps = wire_steps(events[size]);
  return rows;
}

/// Least squares of the relative error: minimises the sum of ((a x + b y - t) / t)^2.
Line fit(const std::vector<Row>& rows, const Cost& cost) {
  double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
  for (const Row& row : rows) {
    const AllreduceCost c = cost(row.bytes);
    const double x = c.steps / row.median_us, y = c.bytes / row.median_us;
    xx += x * x, xy += x * y, yy += y * y, x1 += x, y1 += y;
  }
  Line line;
  const double determinant = xx * yy - xy * xy;
  if (determinant > 1e-12 * xx * yy) {
    line.alpha_us = (x1 * yy - y1 * xy) / determinant;
    line.ns_per_byte = (y1 * xx - x1 * xy) / determinant * 1e3;
  }
  for (const Row& row : rows) {
    const AllreduceCost c = cost(row.bytes);
    const double model = line.alpha_us * c.steps + line.ns_per_byte * c.bytes / 1e3;
    line.error_ratio = std::max(line.error_ratio, std::abs(model / row.median_us - 1));
  }
  return line;
}

/// False when the transport counted something else than the formula says.
bool show(const char* name, int ranks, const std::vector<Row>& rows, const Cost& cost,
          double bus_factor) {
  const Line line = fit(rows, cost);
  bool agree = true;
  std::printf(
      "\n%s, %d ranks: alpha %.1f us a step, beta %.0f MB/s; largest error of the fit %.0f %%\n",
      name, ranks, line.alpha_us, line.ns_per_byte > 0 ? 1e3 / line.ns_per_byte : 0.0,
      100 * line.error_ratio);
  std::printf("%10s %10s %10s %10s %9s  %14s %9s %23s\n", "bytes", "p50 us", "p99 us", "fit us",
              "busbw", "steps =formula", "messages", "bytes sent =formula");
  for (const Row& row : rows) {
    const AllreduceCost c = cost(row.bytes);
    const auto sent = static_cast<double>(row.busiest.bytes);
    // Chunks are whole floats, so sizes that do not divide are rounded up; those of Gloo's ring,
    // which all ranks keep two of under way, to a KiB.
    const bool small = row.bytes < 2048u * static_cast<unsigned>(ranks);
    const bool same = row.steps == c.steps && sent >= c.bytes - 128.0 * ranks &&
                      sent <= c.bytes + (small ? 2048.0 * ranks : 128.0 * ranks);
    agree = agree && same;
    std::printf("%10zu %10.1f %10.1f %10.1f %9.1f  %6d %7.0f %9llu %11.0f %11.0f%s\n", row.bytes,
                row.median_us, row.high_us,
                line.alpha_us * c.steps + line.ns_per_byte * c.bytes / 1e3,
                static_cast<double>(row.bytes) * bus_factor / row.median_us, row.steps, c.steps,
                static_cast<unsigned long long>(row.busiest.messages), sent, c.bytes,
                same ? "" : "  <- not the formula");
  }
  return agree;
}

Exchange& zeroed(Exchange& exchange, std::size_t bytes) {
  std::fill_n(exchange.input(), bytes, std::byte{0});
  return exchange;
}

int bench(const BenchOptions& o) {
  bool agree = true;
  std::printf(
      "ranks are threads of this process, over loopback TCP; times are the slowest rank's, "
      "of %d rounds; busbw in MB/s\n",
      o.rounds);
  for (const int ranks : o.ranks) {
    const double share = static_cast<double>(ranks - 1) / ranks;
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kBcube}) {
      if (algorithm == Algorithm::kBcube && (ranks & (ranks - 1)) != 0) continue;
      const Cost cost = [&](std::size_t bytes) { return allreduce_cost(algorithm, ranks, bytes); };
      const auto rows = measure(
          o, ranks, algorithm, Operation::kAllReduce,
          [](GlooWire& wire, std::size_t bytes) -> Exchange& {
            return zeroed(wire.all_reduce(bytes / 4, DataType::kFloat32, Reduction::kSum), bytes);
          });
      const std::string name = std::string("all-reduce by ") + algorithm_name(algorithm);
      agree &= show(name.c_str(), ranks, rows, cost, 2 * share);
    }
    const auto number = static_cast<std::size_t>(ranks);
    const Cost half = [&](std::size_t bytes) {
      const std::size_t part = bytes / 4 / number * 4;  // sizes are of all parts together
      return AllreduceCost{ranks - 1.0, static_cast<double>(part) * (ranks - 1)};
    };
    agree &=
        show("reduce-scatter", ranks,
             measure(o, ranks, Algorithm::kRing, Operation::kReduceScatter,
                     [&](GlooWire& wire, std::size_t bytes) -> Exchange& {
                       const std::size_t part = bytes / 4 / number;
                       return zeroed(wire.reduce_scatter(part, DataType::kFloat32, Reduction::kSum),
                                     part * 4 * number);
                     }),
             half, share);
    agree &= show("all-gather", ranks,
                  measure(o, ranks, Algorithm::kRing, Operation::kAllGather,
                          [&](GlooWire& wire, std::size_t bytes) -> Exchange& {
                            return wire.all_gather(bytes / 4 / number * 4);
                          }),
                  half, share);
  }
  return agree ? 0 : 1;
}

}  // namespace
}  // namespace sluice::train

int main(int argc, char** argv) {
  using namespace sluice::train;
  BenchOptions options;
  CommandLine line("comm-bench",
                   "Times the collectives over loopback, fits the alpha-beta model, and compares "
                   "what was sent with the formulas. Exits with 1 where they differ.");
  line.numbers("--ranks", options.ranks, "numbers of ranks, each 2 or more");
  line.numbers("--kib", options.kib, "sizes");
  line.number("--rounds", options.rounds, "measurements of each", 1, 100000);
  line.number("--wire-alpha-us", options.throttle.alpha_us, "a link for experiments: per message",
              0.0, 1e6);
  line.number("--wire-mb-per-s", options.throttle.megabytes_per_s,
              "and its bandwidth; 0 = as fast as it goes", 0.0, 1e6);
  int exit_code = 0;
  const auto check = [&] {
    for (const int ranks : options.ranks) {
      if (ranks < 2 || ranks > 16) throw Failure("--ranks are from 2 to 16");
    }
    for (const int kib : options.kib) {
      if (kib < 1 || kib > 1 << 20) throw Failure("--kib are from 1 to 1048576");
    }
  };
  if (!line.parse(argc, argv, &exit_code, check)) return exit_code;
  return program_main("comm-bench", [&] { return bench(options); });
}

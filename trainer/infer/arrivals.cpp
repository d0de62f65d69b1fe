// See arrivals.h.
#include "trainer/infer/arrivals.h"

#include "trainer/base/random.h"
#include "trainer/job/statistics.h"

namespace sluice::train {

std::vector<Nanos> poisson_arrivals(double rate_per_s, double seconds, std::uint64_t seed) {
  std::vector<Nanos> arrivals;
  Random random(seed, 0x61727276);
  for (double at = random.exponential(1.0 / rate_per_s); at < seconds;
       at += random.exponential(1.0 / rate_per_s)) {
    arrivals.push_back(nanos_of_seconds(at));
  }
  return arrivals;
}

LatencySummary latency_summary(const std::vector<Request>& served, std::uint64_t unserved,
                               Nanos objective_ns, double seconds) {
  LatencySummary out;
  out.served = served.size();
  out.unserved = unserved;
  std::vector<Nanos> latencies;
  std::uint64_t in_time = 0;
  for (const Request& request : served) {
    latencies.push_back(request.latency_ns());
    in_time += request.latency_ns() <= objective_ns ? 1 : 0;
  }
  out.p50_ns = percentile(latencies, 50);
  out.p95_ns = percentile(latencies, 95);
  out.p99_ns = percentile(latencies, 99);
  const std::uint64_t all = out.served + unserved;
  out.attainment = all > 0 ? static_cast<double>(in_time) / static_cast<double>(all) : 0;
  out.goodput_per_s = seconds > 0 ? static_cast<double>(in_time) / seconds : 0;
  return out;
}

}  // namespace sluice::train

// See arrivals.h.
#include "trainer/infer/arrivals.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numbers>
#include <numeric>
#include <span>

#include "trainer/base/failure.h"
#include "trainer/base/random.h"

namespace sluice::train {
namespace {

constexpr std::uint64_t kArrivalsPurpose = 0x61727276;
constexpr std::uint64_t kModelsPurpose = 0x6d6f646c;

/// What model `model` asks for at this moment, as a part of its mean.
double diurnal_factor(const Diurnal& day, double at_s, std::size_t model) {
  const double angle = 2 * std::numbers::pi * at_s / day.period_s + day.phase +
                       static_cast<double>(model) * day.phase_step;
  return 1 + day.amplitude * std::sin(angle);
}

/// The rate of all models together, as a part of its mean.
double diurnal_mean(const Load& load, double at_s) {
  double sum = 0;
  double all = 0;
  for (std::size_t model = 0; model < load.shares.size(); ++model) {
    sum += load.shares[model] * diurnal_factor(load.diurnal, at_s, model);
    all += load.shares[model];
  }
  return sum / all;
}

/// By thinning (Lewis and Shedler, Simulation of nonhomogeneous Poisson processes by thinning,
/// 1979): arrivals of the highest rate, each kept with the probability that its moment's rate has
/// of that.
std::vector<Nanos> diurnal_arrivals(const Load& load, double seconds, std::uint64_t seed) {
  std::vector<Nanos> arrivals;
  Random random(seed, kArrivalsPurpose);
  const double most = 1 + load.diurnal.amplitude;
  const double gap_s = 1.0 / (load.rate_per_s * most);
  for (double at = random.exponential(gap_s); at < seconds; at += random.exponential(gap_s)) {
    if (random.uniform() * most < diurnal_mean(load, at)) arrivals.push_back(nanos_of_seconds(at));
  }
  return arrivals;
}

std::vector<Nanos> trace_arrivals(const Trace& trace, double seconds, std::uint64_t seed) {
  std::vector<Nanos> arrivals;
  for (const double at : trace.times_s) {
    if (at < seconds) arrivals.push_back(nanos_of_seconds(at));
  }
  // A Poisson process has no memory, so that each interval may begin anew.
  Random random(seed, kArrivalsPurpose);
  for (std::size_t i = 0; i < trace.rates_per_s.size(); ++i) {
    if (trace.rates_per_s[i] <= 0) continue;
    const double gap_s = 1.0 / trace.rates_per_s[i];
    const double begin = static_cast<double>(i) * trace.interval_s;
    const double end = std::min(begin + trace.interval_s, seconds);
    for (double at = begin + random.exponential(gap_s); at < end; at += random.exponential(gap_s)) {
      arrivals.push_back(nanos_of_seconds(at));
    }
  }
  return arrivals;
}

/// The place of a number in [0, sum of weights).
std::uint32_t weighted_pick(std::span<const double> weights, double uniform) {
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    if (left < weights[i]) return static_cast<std::uint32_t>(i);
    left -= weights[i];
  }
  return static_cast<std::uint32_t>(weights.size() - 1);
}

/// The lines of a trace without comments and blanks, each with its number.
struct TraceLine {
  int number;
  std::string text;
};
std::vector<TraceLine> trace_lines(const std::string& text) {
  std::vector<TraceLine> lines;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    line = line.substr(0, line.find('#'));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    line.erase(0, line.find_first_not_of(" \t\r"));
    ++number;
    if (!line.empty()) lines.push_back({number, line});
    at = end + 1;
  }
  return lines;
}

/// Not negative and finite.
double trace_number(const std::string& text, const TraceLine& line, const std::string& name) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value < 0) {
    throw Failure(text_format("%s, line %d: \"%s\" is no number of 0 or more", name.c_str(),
                              line.number, text.c_str()));
  }
  return value;
}

}  // namespace

std::vector<Nanos> poisson_arrivals(double rate_per_s, double seconds, std::uint64_t seed) {
  std::vector<Nanos> arrivals;
  Random random(seed, kArrivalsPurpose);
  for (double at = random.exponential(1.0 / rate_per_s); at < seconds;
       at += random.exponential(1.0 / rate_per_s)) {
    arrivals.push_back(nanos_of_seconds(at));
  }
  return arrivals;
}

double Trace::length_s() const {
  if (!times_s.empty()) return times_s.back();
  return static_cast<double>(rates_per_s.size()) * interval_s;
}

double Trace::mean_rate_per_s() const {
  if (!times_s.empty()) return static_cast<double>(times_s.size()) / times_s.back();
  return std::accumulate(rates_per_s.begin(), rates_per_s.end(), 0.0) /
         static_cast<double>(rates_per_s.size());
}

Trace Trace::scaled(double factor) const {
  Trace out = *this;
  for (double& at : out.times_s) at /= factor;
  for (double& rate : out.rates_per_s) rate *= factor;
  return out;
}

Trace trace_parse(const std::string& text, const std::string& name) {
  const std::vector<TraceLine> lines = trace_lines(text);
  const std::string head = lines.empty() ? "" : lines[0].text;
  Trace trace;
  if (head.starts_with("rates ")) {
    trace.interval_s = trace_number(head.substr(6), lines[0], name);
  } else if (head != "times") {
    throw Failure(name + " is no trace: its first line is not \"times\" or \"rates SECONDS\"");
  }
  const bool is_times = head == "times";
  std::vector<double>& values = is_times ? trace.times_s : trace.rates_per_s;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const double value = trace_number(lines[i].text, lines[i], name);
    if (is_times && !values.empty() && value < values.back()) {
      throw Failure(text_format("%s, line %d: %g comes after %g; times must ascend", name.c_str(),
                                lines[i].number, value, values.back()));
    }
    values.push_back(value);
  }
  if (values.empty() || !(trace.length_s() > 0) || !(trace.mean_rate_per_s() > 0)) {
    throw Failure(name + " has no requests: a trace needs a length and a rate above 0");
  }
  return trace;
}

Trace trace_load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw errno_failure("opening the trace " + path);
  return trace_parse({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()},
                     path);
}

std::vector<Arrival> load_arrivals(const Load& load, double seconds, std::uint64_t seed) {
  const bool is_diurnal = load.kind == ArrivalKind::kDiurnal;
  const std::vector<Nanos> times = is_diurnal ? diurnal_arrivals(load, seconds, seed)
                                   : load.kind == ArrivalKind::kTrace
                                       ? trace_arrivals(load.trace, seconds, seed)
                                       : poisson_arrivals(load.rate_per_s, seconds, seed);
  std::vector<Arrival> arrivals;
  arrivals.reserve(times.size());
  Random random(seed, kModelsPurpose);
  std::vector<double> weights = load.shares;
  for (const Nanos at : times) {
    for (std::size_t model = 0; is_diurnal && model < weights.size(); ++model) {
      weights[model] = load.shares[model] * diurnal_factor(load.diurnal, seconds_of(at), model);
    }
    arrivals.push_back({at, weighted_pick(weights, random.uniform())});
  }
  return arrivals;
}

}  // namespace sluice::train

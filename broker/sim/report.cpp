// Formats results. Times in JSON are nanoseconds, as everywhere; the table uses milliseconds and
// per cent.
#include "broker/sim/report.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace sluice::sim {
namespace {

template <class... Args>
std::string line(const char* format, Args... args) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, format, args...);
  return buffer;
}

double ms(Nanos ns) { return static_cast<double>(ns) / 1e6; }

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

template <class T>
std::string list(const std::vector<T>& values) {
  std::string out = "[";
  for (std::size_t i = 0; i < values.size(); ++i)
    out += (i == 0 ? "" : ",") + std::to_string(values[i]);
  return out + "]";
}

Nanos busy(const JobResult& job) {
  return std::accumulate(job.busy_ns.begin(), job.busy_ns.end(), Nanos{0});
}

std::string job_json(const JobResult& job) {
  std::string out = "{\"name\":" + quoted(job.name);
  out += ",\"admitted\":" + std::string(job.admitted ? "true" : "false");
  out += ",\"refused\":" + quoted(job.refused);
  out += line(",\"admitted_ns\":%lld,\"ended_ns\":%lld", static_cast<long long>(job.admitted_ns),
              static_cast<long long>(job.ended_ns));
  out += ",\"gpus\":" + list(job.gpus) + ",\"busy_ns\":" + list(job.busy_ns);
  out += ",\"window_busy_ns\":[";
  for (std::size_t i = 0; i < job.window_busy_ns.size(); ++i)
    out += (i == 0 ? "" : ",") + list(job.window_busy_ns[i]);
  out += "]";
  out += line(",\"tasks\":%llu,\"kernels\":%llu,\"runaways\":%u",
              static_cast<unsigned long long>(job.tasks),
              static_cast<unsigned long long>(job.kernels), job.runaways);
  out += line(",\"moved_out_bytes\":%llu,\"moved_in_bytes\":%llu,\"room_waits\":%u",
              static_cast<unsigned long long>(job.moved_out_bytes),
              static_cast<unsigned long long>(job.moved_in_bytes), job.room_waits);
  out += line(",\"refused_allocations\":%u", job.refused_allocations);
  out += line(",\"latency_p50_ns\":%lld,\"latency_p99_ns\":%lld,\"longest_wait_ns\":%lld}",
              static_cast<long long>(percentile(job.latency_ns, 0.5)),
              static_cast<long long>(percentile(job.latency_ns, 0.99)),
              static_cast<long long>(job.longest_wait_ns));
  return out;
}

}  // namespace

std::string report_text(const ReportHead& head, const Result& result) {
  std::string out =
      line("scenario %s, seed %llu, %.1f s of virtual time, %llu events\n", head.scenario.c_str(),
           static_cast<unsigned long long>(head.seed), static_cast<double>(head.duration_ns) / 1e9,
           static_cast<unsigned long long>(result.steps));
  out += line("%-14s %-8s %8s %8s %9s %9s %9s %9s %s\n", "job", "gpus", "share", "tasks", "p50 ms",
              "p99 ms", "wait ms", "end ms", "note");
  constexpr std::size_t kRowsMax = 40;
  for (std::size_t i = 0; i < std::min(result.jobs.size(), kRowsMax); ++i) {
    const JobResult& job = result.jobs[i];
    const double time = static_cast<double>(head.duration_ns) *
                        static_cast<double>(std::max<std::size_t>(job.gpus.size(), 1));
    std::string note = !job.refused.empty() ? job.refused : job.admitted ? "" : "waiting";
    if (job.runaways > 0) note += "runaway ";
    if (job.lost > 0) note += "lost ";
    if (job.refused_allocations > 0) note += "out of memory ";
    if (job.moved_out_bytes > 0)
      note += line("moved out %.1f GiB", static_cast<double>(job.moved_out_bytes) / 0x1p30);
    out += line("%-14.14s %-8s %7.2f%% %8llu %9.3f %9.3f %9.3f %9.1f ", job.name.c_str(),
                list(job.gpus).c_str(), 100 * static_cast<double>(busy(job)) / time,
                static_cast<unsigned long long>(job.tasks), ms(percentile(job.latency_ns, 0.5)),
                ms(percentile(job.latency_ns, 0.99)), ms(job.longest_wait_ns), ms(job.ended_ns));
    out += note + "\n";
  }
  if (result.jobs.size() > kRowsMax)
    out += line("... and %zu more (--json has all)\n", result.jobs.size() - kRowsMax);
  for (std::size_t g = 0; g < result.gpu_busy_ns.size(); ++g)
    out += line(
        "GPU %zu busy %.2f%%, idle while wanted %.2f%%, leases %llu\n", g,
        100 * static_cast<double>(result.gpu_busy_ns[g]) / static_cast<double>(head.duration_ns),
        100 * static_cast<double>(result.gpu_idle_wanted_ns[g]) /
            static_cast<double>(head.duration_ns),
        static_cast<unsigned long long>(result.view.gpus[g].leases_granted));
  return out;
}

std::string report_json(const ReportHead& head, const Result& result) {
  std::string out = "{\"scenario\":" + quoted(head.scenario);
  out += line(",\"seed\":%llu,\"duration_ns\":%lld,\"makespan_ns\":%lld",
              static_cast<unsigned long long>(head.seed), static_cast<long long>(head.duration_ns),
              static_cast<long long>(result.makespan_ns));
  out += line(",\"steps\":%llu,\"actions\":%llu", static_cast<unsigned long long>(result.steps),
              static_cast<unsigned long long>(result.actions));
  out += ",\"gpu_busy_ns\":" + list(result.gpu_busy_ns) + ",\"jobs\":[";
  for (std::size_t i = 0; i < result.jobs.size(); ++i)
    out += (i == 0 ? "" : ",") + job_json(result.jobs[i]);
  return out + "]}\n";
}

}  // namespace sluice::sim

#include "exporter/why/report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace sluice::exporter {
namespace {

constexpr int kBarWidth = 40;
constexpr std::uint64_t kOwedLeastNs = 50'000'000;  // "0.1 s"

constexpr std::array<const char*, kCauses> kAdvice{
    "the host computes while the GPU waits: prepare data in other threads or processes and ahead "
    "of "
    "time, use larger batches, launch graphs",
    "the host's CPUs are taken: ask for more of them, or look for who takes them (top, the "
    "cgroup's cpu.max)",
    "files are slow: read ahead with more loaders, pack small files into shards, keep the data "
    "in memory or on a faster disk",
    "others are waited for: in a distributed job look for the slowest rank, elsewhere for a slow "
    "server",
    "threads wait for each other: look for the lock's owner (in Python, mostly the interpreter's "
    "lock)",
    "copies and waits keep the GPU idle: copy from pinned memory in a stream of its own, wait less "
    "often",
    "the GPU was another job's: `sluice status` shows the shares; ask for a larger one, as far as "
    "your profile allows it",
    "the GPU's memory is full: smaller batches, or a quota that is not oversold",
    "the program slept, or waited for input: have its input ready earlier; where there is nothing "
    "to "
    "do, give the GPU back"};

std::string percent(std::uint64_t part, std::uint64_t whole) {
  char out[16];
  std::snprintf(out, sizeof out, "%5.1f %%",
                whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return out;
}

void bar(std::string& out, const char* name, std::uint64_t part, std::uint64_t whole) {
  char head[32];
  std::snprintf(head, sizeof head, "  %-9s ", name);
  const auto width = whole == 0 ? 0 : (part * kBarWidth + whole / 2) / whole;
  out += head + percent(part, whole) + "  " + std::string(width, '#') + "\n";
}

std::string seconds_text(std::uint64_t ns) {
  char out[32];
  std::snprintf(out, sizeof out, "%.1f s", static_cast<double>(ns) / 1e9);
  return out;
}

/// What else is known of a cause that matters.
void joined_text(std::string& out, const WhyRow& row) {
  const std::uint64_t all = row.figures.accounted_ns();
  const auto matters = [&](Cause cause) {
    return row.figures.idle_ns[static_cast<std::size_t>(cause)] * 20 > all;
  };
  const auto held = [&](const std::optional<std::uint64_t>& ns) {
    return ns && *ns * 100 > row.watched_ns;
  };
  const std::string over = " of " + seconds_text(row.watched_ns);
  if (matters(Cause::kRunqueue) && held(row.cgroup.throttled_ns))
    out += "  runqueue: the CPU limit of its cgroup (cpu.max) held it back for " +
           seconds_text(*row.cgroup.throttled_ns) + over + " (threads at a time not counted)\n";
  if (matters(Cause::kRunqueue) && held(row.cgroup.cpu_wait_ns))
    out += "  runqueue: some task of its cgroup waited for a CPU for " +
           seconds_text(*row.cgroup.cpu_wait_ns) + over + " (cpu.pressure)\n";
  if (held(row.cgroup.memory_wait_ns))
    out += "  memory of the host: some task of its cgroup waited for it for " +
           seconds_text(*row.cgroup.memory_wait_ns) + over +
           " (memory.pressure); give the job more, or load less\n";
  if (!matters(Cause::kNetwork)) return;
  char score[16];
  std::snprintf(score, sizeof score, "%.2f", row.straggler_score);
  if (row.straggler_score > 0)
    out += std::string("  network: its slowest rank computes ") + score +
           " times as long as the median, as the job says\n";
  if (row.least_waiting != 0 && row.least_wait_ns * 2 < row.others_wait_ns)
    out += "  network: the others wait for process " + std::to_string(row.least_waiting) +
           ", which itself waited " + seconds_text(row.least_wait_ns) + " for them, and they " +
           seconds_text(row.others_wait_ns) + " each\n";
}

/// "GPU 0 (GPU-2f44...)".
std::string gpu_text(const std::string& uuid, int index) {
  return index < 0 ? uuid : "GPU " + std::to_string(index) + " (" + uuid + ")";
}

std::string whole_percent(std::uint64_t part, std::uint64_t whole) {
  return std::to_string(whole == 0 ? 0 : (part * 100 + whole / 2) / whole) + " %";
}

/// Who had the GPU: "train (job 4) of ann had it for 71 % of the time, ...".
std::string holders_text(const WhyShares& shares) {
  constexpr std::size_t kNamed = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(kNamed, shares.others.size()); ++i) {
    const WhyShares::Holder& one = shares.others[i];
    out += (i == 0 ? "" : ", ") + one.name + " (job " + std::to_string(one.tenant) + ") of " +
           one.user + (i == 0 ? " had the GPU for " : " for ") +
           whole_percent(one.ns, shares.watched_ns) + (i == 0 ? " of the time" : "");
  }
  if (shares.others.size() > kNamed)
    out += ", and " + std::to_string(shares.others.size() - kNamed) + " more jobs";
  return (out.empty() ? "" : out + "; ") + "this one had it for " +
         whole_percent(shares.own_ns, shares.watched_ns);
}

/// What it may have, and what more there is to be had. What its user's profile allows is not known
/// here.
std::string part_text(const WhyShares& shares) {
  const std::uint32_t left = 100 - std::min(shares.guaranteed, 100U);
  const std::string rest = std::to_string(left) + " %";
  if (shares.kind == protocol::SmKind::kGuaranteed) {
    const std::string own = "it is guaranteed " + std::to_string(shares.percent) + " %";
    if (left == 0) return own + ", and no more can be guaranteed on this GPU";
    return own + ", and " + rest +
           " of the GPU is guaranteed to no job: ask for more (--sm, up to " +
           std::to_string(shares.percent + left) + "), as far as your profile allows it";
  }
  std::string own = "the guarantees on this GPU leave " + rest + " of it for weights";
  if (shares.mode == protocol::SmMode::kEqual)
    own += ", of which this job has an equal part";
  else if (shares.weights != 0)
    own +=
        ", and this job's is " + std::to_string(shares.percent) + " of " +
        std::to_string(shares.weights) + ": " +
        whole_percent(std::uint64_t{left} * shares.percent, std::uint64_t{100} * shares.weights) +
        " of the GPU while all want it";
  if (left == 0)
    return own + "; on another GPU, or when jobs with guarantees have ended, it has more";
  return own + "; ask for a guarantee (--sm, up to " + std::to_string(left) +
         "), as far as your profile allows one";
}

std::string advice(const WhyRow& row, std::size_t cause) {
  if (cause != static_cast<std::size_t>(Cause::kGate)) return kAdvice[cause];
  if (row.owed_ns < kOwedLeastNs)
    return row.shares.percent == 0
               ? kAdvice[cause]
               : holders_text(row.shares) + "\n  gate: " + part_text(row.shares);
  return "it pays back " + seconds_text(row.owed_ns) +
         " of GPU time that its user's jobs took beyond their share, and waits while others want "
         "the GPU; launch shorter kernels";
}

void row_text(std::string& out, const WhyRow& row) {
  const IdleFigures& figures = row.figures;
  const std::uint64_t all = figures.accounted_ns();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", static_cast<double>(all) / 1e9);
  out += row.name + " (job " + std::to_string(row.tenant) + ") on " +
         gpu_text(row.gpu, row.gpu_index) + ", " + seconds + "\n";
  if (all == 0) {
    out += "  nothing is known yet: a kernel has been running all the time, or it was too short\n";
    return;
  }
  bar(out, "busy", figures.busy_ns, all);
  std::array<std::size_t, kCauses> order{};
  for (std::size_t i = 0; i < kCauses; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return figures.idle_ns[a] > figures.idle_ns[b];
  });
  for (const std::size_t i : order)
    if (figures.idle_ns[i] * 1000 > all) bar(out, kCauseNames[i], figures.idle_ns[i], all);
  const std::size_t worst = order[0];
  if (figures.idle_ns[worst] * 10 > all)
    out += "  " + std::string(kCauseNames[worst]) + ": " + advice(row, worst) + "\n";
  joined_text(out, row);
  if (figures.unseen_ns > 0)
    out += "  (another " + percent(figures.unseen_ns, all + figures.unseen_ns) +
           " of the time had more gaps than could be read)\n";
}

void whole_text(std::string& out, const WhyWholeRow& row) {
  out += row.name + " (job " + std::to_string(row.tenant) + ") on " +
         gpu_text(row.gpu, row.gpu_index) + ", which it owns as a whole, " +
         seconds_text(row.watched_ns) + "\n";
  if (row.looks > 0) {
    constexpr std::uint64_t kWhole = 1'000'000;
    const auto busy = static_cast<std::uint64_t>(row.busy_sum / row.looks * kWhole);
    bar(out, "busy", busy, kWhole);
    bar(out, "idle", kWhole - busy, kWhole);
    out += "  busy is what the driver says; ";
  } else {
    out += "  how busy it is is not known, for the driver does not say; ";
  }
  out +=
      "causes are not known, because on a whole GPU nothing is metered: run it in another class "
      "to find out\n";
}

nlohmann::ordered_json shares_json(const WhyShares& shares) {
  const bool guaranteed = shares.kind == protocol::SmKind::kGuaranteed;
  nlohmann::ordered_json out{{"kind", guaranteed ? "guaranteed" : "weight"},
                             {"percent", shares.percent},
                             {"guaranteed_percent", shares.guaranteed},
                             {"weights", shares.weights},
                             {"watched_ns", shares.watched_ns},
                             {"held_ns", shares.own_ns}};
  out["others"] = nlohmann::ordered_json::array();
  for (const WhyShares::Holder& one : shares.others)
    out["others"].push_back(
        {{"tenant", one.tenant}, {"name", one.name}, {"user", one.user}, {"held_ns", one.ns}});
  return out;
}

}  // namespace

std::string why_text(const WhyReport& report) {
  std::string out;
  for (const WhyRow& row : report.rows) row_text(out, row);
  for (const WhyWholeRow& row : report.whole) whole_text(out, row);
  if (report.unseen > 0)
    out += std::to_string(report.unseen) + (report.unseen == 1 ? " job is" : " jobs are") +
           " another user's and cannot be looked at; ask as that user, or as root\n";
  if (report.rows.empty() && report.whole.empty() && report.unseen == 0)
    out += "no job is running; sluice status lists them\n";
  if (report.coarse) out += "sampled from /proc: " + report.reason + "\n";
  if (report.lost > 0)
    out += std::to_string(report.lost) + " periods of threads were lost; figures are rougher\n";
  return out;
}

std::string why_json(const WhyReport& report) {
  nlohmann::ordered_json out;
  out["source"] = report.coarse ? "proc" : "bpf";
  out["periods_lost"] = report.lost;
  out["unseen_tenants"] = report.unseen;
  out["tenants"] = nlohmann::ordered_json::array();
  for (const WhyRow& row : report.rows) {
    nlohmann::ordered_json one;
    one["tenant"] = row.tenant;
    one["name"] = row.name;
    one["gpu"] = row.gpu;
    one["accounted_ns"] = row.figures.accounted_ns();
    one["busy_ns"] = row.figures.busy_ns;
    one["unseen_ns"] = row.figures.unseen_ns;
    const auto known = [&one](const char* name, const std::optional<std::uint64_t>& value) {
      if (value) one[name] = *value;
    };
    if (row.owed_ns > 0) one["owed_ns"] = row.owed_ns;
    if (row.shares.percent != 0) one["shares"] = shares_json(row.shares);
    known("cgroup_throttled_ns", row.cgroup.throttled_ns);
    known("cgroup_cpu_pressure_ns", row.cgroup.cpu_wait_ns);
    known("cgroup_memory_pressure_ns", row.cgroup.memory_wait_ns);
    if (row.straggler_score > 0) one["straggler_score"] = row.straggler_score;
    if (row.least_waiting != 0) {
      one["least_waiting_process"] = row.least_waiting;
      one["least_wait_ns"] = row.least_wait_ns;
      one["others_wait_ns"] = row.others_wait_ns;
    }
    for (std::size_t i = 0; i < kCauses; ++i)
      one["idle_ns"][kCauseNames[i]] = row.figures.idle_ns[i];
    out["tenants"].push_back(one);
  }
  out["whole_gpus"] = nlohmann::ordered_json::array();
  for (const WhyWholeRow& row : report.whole) {
    nlohmann::ordered_json one{{"tenant", row.tenant},
                               {"name", row.name},
                               {"gpu", row.gpu},
                               {"watched_ns", row.watched_ns},
                               {"busy_ratio", nullptr}};
    if (row.looks > 0) one["busy_ratio"] = row.busy_sum / row.looks;
    out["whole_gpus"].push_back(one);
  }
  return out.dump(2) + "\n";
}

}  // namespace sluice::exporter

// sluice-why: watches for a while, then tells. `sluice why` is this program.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "broker/protocol/ordinal.h"
#include "broker/protocol/wire.h"
#include "exporter/clock.h"
#include "exporter/idle/observer.h"
#include "exporter/why/options.h"
#include "exporter/why/report.h"
#include "exporter/why/shares.h"
#include "exporter/why/whole.h"

namespace sluice::exporter {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;
constexpr std::uint64_t kLookEveryNs = 100'000'000;
constexpr std::uint64_t kSampleEveryNs = 10'000'000;
constexpr int kLooksPerSnapshot = 10;

void say(const std::string& line) { std::fprintf(stderr, "sluice why: %s\n", line.c_str()); }

std::string socket_path(const WhyOptions& options) {
  if (options.socket) return *options.socket;
  const char* variable = std::getenv(protocol::kSocketVariable);
  return variable != nullptr && *variable != '\0' ? variable : protocol::kSystemSocket;
}

/// Of a job's first process, when it was first seen.
struct Before {
  std::uint32_t process = 0;
  std::uint64_t at_ns = 0;
  CgroupLook look;
};

std::string name_of(const protocol::SnapshotTenant& row) {
  return field_text(row.name, sizeof row.name);
}

bool is_asked_for(const WhyOptions& options, const protocol::SnapshotTenant& row) {
  return options.tenant.empty() || options.tenant == std::to_string(row.tenant) ||
         options.tenant == name_of(row);
}

std::string ago_text(std::uint64_t since_ns, std::uint64_t now_ns) {
  const std::uint64_t s = now_ns > since_ns ? (now_ns - since_ns) / 1'000'000'000 : 0;
  if (s < 120) return std::to_string(s) + " s";
  return s < 7200 ? std::to_string(s / 60) + " min" : std::to_string(s / 3600) + " h";
}

/// Of a job that waits or does not run: its name, and why. Empty = it runs.
std::string stopped_text(const protocol::SnapshotTenant& row, std::uint64_t now_ns) {
  const std::string why = field_text(row.why, sizeof row.why);
  const std::string user = " of " + field_text(row.user, sizeof row.user);
  if (row.state == protocol::TenantState::kQueued)
    return name_of(row) + user + " waits, " + std::to_string(row.queue_position) +
           protocol::ordinal_ending(row.queue_position) + " in line, for " +
           ago_text(row.asked_ns, now_ns) + " (" + protocol::queue_reason_name(row.reason) + ")" +
           (why.empty() ? "" : ": " + why);
  if (why.empty()) return "";
  return name_of(row) + " (job " + std::to_string(row.tenant) + ")" + user + ": " + why;
}

/// Of the last job of that number or name that has ended; empty = none is remembered.
std::string ended_text(const WhyOptions& options, const Snapshot& snapshot) {
  for (const protocol::SnapshotEnded& ended : snapshot.ended) {
    const std::string name = field_text(ended.name, sizeof ended.name);
    if (options.tenant != std::to_string(ended.tenant) && options.tenant != name) continue;
    return name + " (job " + std::to_string(ended.tenant) + ") of " +
           field_text(ended.user, sizeof ended.user) + " has ended, " +
           ago_text(ended.ended_ns, snapshot.header.taken_ns) + " ago, after " +
           ago_text(ended.admitted_ns, ended.ended_ns) + ": " +
           field_text(ended.how, sizeof ended.how);
  }
  return "";
}

enum class Narrowed { kWatch, kSaid, kNone };

/// Leaves what was asked for in the snapshot. kSaid: what there is to say of the job that was named
/// needs no watching. kNone: there is none, which has been said.
Narrowed snapshot_narrow(const WhyOptions& options, Snapshot& snapshot) {
  std::vector<protocol::SnapshotTenant> kept;
  std::vector<std::string> stopped;
  for (const auto& row : snapshot.tenants) {
    if (!is_asked_for(options, row)) continue;
    const std::string text = stopped_text(row, snapshot.header.taken_ns);
    const bool runs = (row.state == protocol::TenantState::kRunning && row.runaway == 0) ||
                      row.state == protocol::TenantState::kSwapped;
    if (!text.empty()) stopped.push_back(text);
    if (row.tenant != 0 && (runs || options.tenant.empty())) kept.push_back(row);
  }
  snapshot.tenants = std::move(kept);
  if (options.tenant.empty()) return Narrowed::kWatch;
  if (stopped.empty() && snapshot.tenants.empty()) {
    const std::string ended = ended_text(options, snapshot);
    if (!ended.empty()) stopped.push_back(ended);
  }
  for (const std::string& text : stopped) {
    if (options.json)
      say(text);  // what it prints is for programs, and there are no figures
    else
      std::printf("%s\n", text.c_str());
  }
  if (!snapshot.tenants.empty()) return Narrowed::kWatch;
  if (!stopped.empty()) return options.json ? Narrowed::kNone : Narrowed::kSaid;
  say("there is no job '" + options.tenant +
      "', and none of the last hundred that ended was it; "
      "sluice status lists those that run");
  return Narrowed::kNone;
}

/// What else is known of the job: what it reports, whom of its ranks the others wait for, and what
/// its cgroup was held back from since `before`.
void row_join(WhyRow& row, const IdleObserver& observer, const Snapshot& last,
              const std::map<protocol::TenantId, Before>& before) {
  for (const auto& tenant : last.tenants) {
    if (tenant.tenant != row.tenant) continue;
    row.name = name_of(tenant);
    if (std::isfinite(tenant.straggler_score)) row.straggler_score = tenant.straggler_score;
  }
  const auto waits = observer.peer_waits(row.tenant);
  std::uint64_t sum_ns = 0;
  for (const auto& [process, ns] : waits) {
    sum_ns += ns;
    if (row.least_waiting != 0 && ns >= row.least_wait_ns) continue;
    row.least_waiting = process;
    row.least_wait_ns = ns;
  }
  if (waits.size() > 1) row.others_wait_ns = (sum_ns - row.least_wait_ns) / (waits.size() - 1);
  if (waits.size() < 2) row.least_waiting = 0;
  const auto found = before.find(row.tenant);
  if (found == before.end()) return;
  row.watched_ns = monotonic_ns() - found->second.at_ns;
  row.cgroup = cgroup_since(found->second.look, cgroup_look(found->second.process));
}

using TenantGpu = std::pair<protocol::TenantId, std::string>;

/// Keeps the most that each job has owed on each GPU.
void owed_note(const Snapshot& snapshot, std::map<TenantGpu, std::uint64_t>& owed) {
  for (const auto& row : snapshot.tenant_gpus) {
    std::uint64_t& most = owed[{row.tenant, uuid_text(row.gpu)}];
    most = std::max(most, row.owed_ns);
  }
}

int index_of(const Snapshot& snapshot, const std::string& uuid) {
  for (const auto& gpu : snapshot.gpus)
    if (uuid_text(gpu.uuid) == uuid) return gpu.index;
  return -1;
}

WhyReport report_make(const IdleObserver& observer, const Snapshot& last,
                      const std::map<protocol::TenantId, Before>& before) {
  WhyReport report;
  report.coarse = observer.is_coarse();
  report.lost = observer.periods_lost();
  report.unseen = observer.unseen_tenants();
  for (const auto& [key, figures] : observer.figures()) {
    WhyRow row;
    row.tenant = key.first;
    row.gpu = key.second;
    row.gpu_index = index_of(last, row.gpu);
    row.figures = figures;
    row_join(row, observer, last, before);
    report.rows.push_back(std::move(row));
  }
  return report;
}

/// False where the broker gives none, which has been said.
bool snapshot_read(BrokerSource& source, Snapshot* out) {
  SnapshotResult result = source.snapshot_take();
  if (const auto* error = std::get_if<SnapshotError>(&result)) {
    const bool away = error->kind == SnapshotError::Kind::kUnreachable;
    say(error->text + (away ? "; is sluiced running?" : ""));
    return false;
  }
  *out = std::move(std::get<Snapshot>(result));
  return true;
}

/// Reads the first snapshot. Returns the exit status where there is nothing to watch, all of which
/// has been said.
std::optional<int> first_look(const WhyOptions& options, BrokerSource& source, Snapshot* out,
                              ShareWatch& shares) {
  if (!snapshot_read(source, out)) return kFailed;
  shares.look(*out);
  const Narrowed narrowed = snapshot_narrow(options, *out);
  std::fflush(stdout);
  if (narrowed != Narrowed::kWatch) return narrowed == Narrowed::kSaid ? EXIT_SUCCESS : kFailed;
  if (isatty(STDERR_FILENO) != 0 && !options.json)
    say("watching for " + std::to_string(options.seconds_ns / 1'000'000'000) + " s");
  return std::nullopt;
}

/// Looks until the time is over or the job has ended.
int watch(const WhyOptions& options, const std::string& socket) {
  BrokerSource source(socket);
  Snapshot snapshot;
  ShareWatch shares;
  if (const auto done = first_look(options, source, &snapshot, shares)) return *done;
  std::string reason = "--no-bpf was given";
  auto threads = options.bpf ? thread_watch_bpf(&reason) : nullptr;
  if (threads == nullptr) threads = thread_watch_proc(kSampleEveryNs);
  IdleObserver observer(std::move(threads), std::make_unique<BrokerActivity>(socket));
  WholeGpus whole;
  Snapshot last;
  std::map<protocol::TenantId, Before> before;
  std::map<TenantGpu, std::uint64_t> owed;
  WhyReport report;
  const std::uint64_t end_ns = monotonic_ns() + options.seconds_ns;
  for (int look = 0; look == 0 || monotonic_ns() < end_ns; ++look) {
    if (look % kLooksPerSnapshot == 0) {
      if (look > 0) {
        if (!snapshot_read(source, &snapshot)) return kFailed;
        shares.look(snapshot);
        std::erase_if(snapshot.tenants,
                      [&](const auto& row) { return !is_asked_for(options, row); });
        if (!options.tenant.empty() && snapshot.tenants.empty()) break;  // it has ended
      }
      observer.tenants_set(snapshot);
      whole.tenants_set(snapshot, monotonic_ns());
      for (const auto& row : snapshot.processes)
        if (!before.contains(row.tenant))
          before[row.tenant] = {row.pid, monotonic_ns(), cgroup_look(row.pid)};
      last = snapshot;
      owed_note(last, owed);
    }
    observer.look();
    whole.look(monotonic_ns());
    report = report_make(observer, last, before);
    const std::uint64_t now_ns = monotonic_ns();
    const std::uint64_t wait_ns = std::min(kLookEveryNs, end_ns > now_ns ? end_ns - now_ns : 0);
    usleep(static_cast<useconds_t>(wait_ns / 1000));
  }
  observer.look();
  if (!last.tenants.empty()) report = report_make(observer, last, before);
  report.reason = reason;
  report.whole = whole.rows();
  const bool seen = !report.rows.empty() || !report.whole.empty();
  if (!options.tenant.empty() && !seen && report.unseen > 0) {
    say("the broker does not let you look into job '" + options.tenant +
        "', which is another user's; ask its user, or look as root");
    return kFailed;
  }
  for (WhyRow& row : report.rows) {
    row.owed_ns = owed[{row.tenant, row.gpu}];
    row.shares = shares.shares(row.tenant, row.gpu);
  }
  for (WhyWholeRow& row : report.whole) row.gpu_index = index_of(last, row.gpu);
  const std::string text = options.json ? why_json(report) : why_text(report);
  return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? EXIT_SUCCESS : kFailed;
}

int run(const std::vector<std::string>& arguments) {
  std::string error;
  const auto options = why_options_parse(arguments, &error);
  if (!options) {
    say(error);
    return kUsageError;
  }
  if (options->help) {
    std::fputs(kWhyUsage, stdout);
    return EXIT_SUCCESS;
  }
  return watch(*options, socket_path(*options));
}

}  // namespace
}  // namespace sluice::exporter

int main(int argc, char** argv) {
  return sluice::exporter::run(std::vector<std::string>(argv + 1, argv + argc));
}

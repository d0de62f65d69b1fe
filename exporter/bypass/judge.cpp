#include "exporter/bypass/judge.h"

#include <algorithm>
#include <utility>

namespace sluice::exporter {
namespace {

constexpr const char* kFoundByTexts[kFoundBy] = {
    "calls of the driver library", "opening the driver's device", "calls of the driver's device",
    "holding the driver's device open", "NVML's list"};

std::string found_text(const std::set<FoundBy>& by, std::uint64_t bytes) {
  std::string out;
  for (const FoundBy one : by) {
    out += out.empty() ? "" : ", ";
    out += kFoundByTexts[static_cast<std::size_t>(one)];
  }
  return bytes == 0 ? out : out + "; " + std::to_string(bytes >> 20) + " MiB of GPU memory";
}

/// The name is its user's choice, the line is ours: nothing in it begins another.
std::string process_text(const Seen& seen) {
  std::string program = seen.program.empty() ? "program not known" : seen.program;
  std::ranges::replace_if(
      program, [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return "process " + std::to_string(seen.process.pid) + " of user " + std::to_string(seen.uid) +
         " (" + program + ")";
}

}  // namespace

bool BypassJudge::is_exempt(const Seen& seen, Entry& entry) const {
  if (seen.exempt_program) entry.exempt_file = seen.file;
  const bool by_file = entry.exempt_file != FileName{} && entry.exempt_file == seen.file;
  return by_file || rules_.exempt_uids.contains(seen.uid);
}

void BypassJudge::say(Verdict& out, std::string line, std::uint64_t now_ns) {
  if (now_ns >= lines_since_ns_ + kLinesOverNs) {
    if (lines_left_out_ > 0)
      out.lines.push_back("another " + std::to_string(lines_left_out_) +
                          " lines about processes beside Sluice were left out");
    lines_since_ns_ = now_ns;
    lines_ = lines_left_out_ = 0;
  }
  if (lines_ == kLinesMax) {
    ++lines_left_out_;
    return;
  }
  ++lines_;
  out.lines.push_back(std::move(line));
}

void BypassJudge::stop(Verdict& out, const Seen& seen, Entry& entry, std::uint64_t now_ns) {
  if (entry.term_ns == 0 && is_over(entry.uid)) {
    entry.term_ns = now_ns;
    ++counts_.stopped;
    out.orders.push_back({seen.process, false});
    say(out, process_text(seen) + " is stopped: it uses a GPU without Sluice ([bypass] policy)",
        now_ns);
  } else if (entry.term_ns != 0 && !entry.killed &&
             now_ns >= entry.term_ns + (entry.again ? kAgainNs : kTermNs)) {
    entry.killed = true;
    out.orders.push_back({seen.process, true});
  }
}

void BypassJudge::evidence_add(const Seen& seen, Entry& entry, std::uint64_t now_ns) {
  entry.heir |= seen.is_heir;
  const bool is_first = entry.by.empty();
  entry.by.insert(seen.by.begin(), seen.by.end());
  if (entry.heir) entry.by.erase(FoundBy::kHeld);
  if (is_first) entry.first_ns = now_ns;
}

// A process that the broker never knew was beside Sluice all its life, however short that was.
void BypassJudge::ended_count(const std::vector<Seen>& seen, std::uint64_t now_ns) {
  std::set<ProcessName> living;
  for (const Seen& one : seen) living.insert(one.process);
  for (const auto& [process, entry] : entries_) {
    if (living.contains(process) || entry.exempt || entry.by.empty()) continue;
    users_.add(entry.uid, std::max(entry.first_ns, entry.counted_ns),
               std::min(now_ns, entry.last_ns + kLookNs));
  }
}

void BypassJudge::time_count(Entry& entry, std::uint64_t now_ns) {
  const std::uint64_t earliest_ns = now_ns > kSettleNs ? now_ns - kSettleNs : 0;
  users_.add(entry.uid, std::max({entry.first_ns, entry.counted_ns, earliest_ns}), now_ns);
  entry.counted_ns = now_ns;
}

bool BypassJudge::is_settled(Entry& entry, std::uint64_t now_ns) {
  if (entry.by.empty()) return false;
  if (entry.found_ns != 0 || now_ns >= entry.first_ns + kSettleNs) return true;
  entry.again = is_over(entry.uid);
  return entry.again && now_ns >= entry.first_ns + kAgainNs;
}

void BypassJudge::found(Verdict& out, const Seen& seen, Entry& entry, std::uint64_t now_ns) {
  const bool is_new = entry.found_ns == 0;
  ++(entry.exempt ? counts_.exempt : counts_.processes);
  counts_.bytes += seen.bytes;
  for (const FoundBy by : entry.by)
    if (entry.counted.insert(by).second) ++counts_.found[static_cast<std::size_t>(by)];
  if (is_new) entry.found_ns = now_ns;
  if (entry.exempt) return;
  if (is_new && rules_.policy != BypassPolicy::kCount)
    say(out,
        process_text(seen) + " uses a GPU without Sluice; found by " +
            found_text(entry.by, seen.bytes),
        now_ns);
  time_count(entry, now_ns);
  if (rules_.policy == BypassPolicy::kStop) stop(out, seen, entry, now_ns);
}

BypassJudge::Verdict BypassJudge::look(const std::vector<Seen>& seen, std::uint64_t now_ns) {
  Verdict out;
  std::map<ProcessName, Entry> living;
  counts_.processes = counts_.exempt = counts_.bytes = 0;
  const std::uint64_t window_ns = kWindow * grace_ns();
  users_.forget(now_ns > window_ns ? now_ns - window_ns : 0);
  ended_count(seen, now_ns);
  for (const Seen& one : seen) {
    auto known = entries_.extract(one.process);
    // Who is the broker's now may have been found before it was: that is forgotten.
    if (one.managed || one.is_broker || (known.empty() && one.by.empty())) continue;
    Entry entry = known.empty() ? Entry{} : std::move(known.mapped());
    entry.uid = one.uid;
    entry.last_ns = now_ns;
    entry.exempt = is_exempt(one, entry);
    evidence_add(one, entry, now_ns);
    if (is_settled(entry, now_ns)) found(out, one, entry, now_ns);
    living.emplace(one.process, std::move(entry));
  }
  entries_ = std::move(living);
  return out;
}

std::uint64_t BypassJudge::pause_ns(std::uint64_t now_ns) const {
  const std::uint64_t lately_ns = now_ns > kLatelyNs ? now_ns - kLatelyNs : 0;
  return users_.is_any(grace_ns(), lately_ns) ? kLookSoonNs : kLookNs;
}

std::set<ProcessName> BypassJudge::known() const {
  std::set<ProcessName> out;
  for (const auto& [process, entry] : entries_) out.insert(process);
  return out;
}

}  // namespace sluice::exporter

// Who uses a GPU and is nobody's tenant, and what becomes of it. Pure: told who was seen and whom
// the broker knows, it says what is to be written and to whom which signal is to be sent.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "exporter/bypass/leaver_time.h"
#include "exporter/bypass/process_name.h"

namespace sluice::exporter {

/// Calls of the driver library; opening the driver's device, calling it, holding it open; NVML.
enum class FoundBy : std::uint8_t { kDriver, kDevice, kIoctl, kHeld, kNvml };
inline constexpr std::size_t kFoundBy = 5;
inline constexpr const char* kFoundByNames[kFoundBy] = {"driver", "device", "ioctl", "held",
                                                        "nvml"};

enum class BypassPolicy : std::uint8_t { kCount, kReport, kStop };

/// A file, whatever paths lead to it: its device and inode. 0 and 0 is none.
struct FileName {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileName&) const = default;
};

/// What was seen of a living process in one look.
struct Seen {
  ProcessName process;
  std::uint32_t uid = 0;
  std::string program;          // its path, as its own mounts show it: a text for people
  std::set<FoundBy> by;         // empty: only that it lives on
  std::uint64_t bytes = 0;      // of GPU memory, as NVML says now
  bool managed = false;         // the broker's, as it says now
  bool is_broker = false;       // the broker itself, or a helper that it started
  bool is_heir = false;         // descends from a managed one, as the workers that a program forks
  FileName file;                // its program
  bool exempt_program = false;  // that file is where a path of exempt_paths leads (processes.h)
};

struct BypassRules {
  BypassPolicy policy = BypassPolicy::kReport;
  std::uint64_t grace_ns = 0;
  std::set<std::uint32_t> exempt_uids;
};

struct BypassOrder {
  ProcessName process;
  bool kill = false;  // SIGKILL, because SIGTERM was of no use
};

struct BypassCounts {
  std::uint64_t processes = 0;         // that live, beside Sluice
  std::uint64_t exempt = 0;            // of further ones, whom the rules leave alone
  std::uint64_t bytes = 0;             // of both
  std::uint64_t found[kFoundBy] = {};  // ever, by what found it; one process may count in several
  std::uint64_t stopped = 0;           // ever
};

/// A program comes to the GPU a moment before the broker knows it, and its list is a second old.
inline constexpr std::uint64_t kSettleNs = 3'000'000'000;
/// From SIGTERM to SIGKILL.
inline constexpr std::uint64_t kTermNs = 5'000'000'000;
/// Both, for a process of a user that has had its grace in earlier ones.
inline constexpr std::uint64_t kAgainNs = 1'000'000'000;
/// A user's grace is over when its processes have been beside Sluice for kSettleNs and the grace
/// together, in the last so many times that long.
inline constexpr std::uint64_t kWindow = 10;
/// Between two looks. Of a longer pause, in which the broker did not answer, kSettleNs count.
inline constexpr std::uint64_t kLookNs = 1'000'000'000;
/// While a user without any grace left has gone on lately.
inline constexpr std::uint64_t kLookSoonNs = 250'000'000;
inline constexpr std::uint64_t kLatelyNs = 10'000'000'000;
/// Lines in ten seconds; more are summed up in one.
inline constexpr std::size_t kLinesMax = 10;
inline constexpr std::uint64_t kLinesOverNs = 10'000'000'000;

class BypassJudge {
 public:
  explicit BypassJudge(BypassRules rules) : rules_(std::move(rules)) {}

  struct Verdict {
    std::vector<std::string> lines;
    std::vector<BypassOrder> orders;
  };
  /// All that are known and live must be in `seen`, whether or not something new was found; those
  /// missing have ended. To be called only while the broker answers: without it nobody is anybody's
  /// tenant.
  Verdict look(const std::vector<Seen>& seen, std::uint64_t now_ns);
  /// Those it wants to hear of again.
  std::set<ProcessName> known() const;
  const BypassCounts& counts() const { return counts_; }
  /// When to look again: sooner while a user's grace is over, for processes that end quickly.
  std::uint64_t pause_ns(std::uint64_t now_ns) const;

 private:
  struct Entry {
    std::uint32_t uid = 0;
    std::uint64_t first_ns = 0;
    std::uint64_t last_ns = 0;     // seen last
    std::uint64_t counted_ns = 0;  // the user's time is counted until then; 0 = not at all
    FileName exempt_file;          // that was found to be exempt, and may be replaced since
    bool exempt = false;
    bool again = false;          // its user's grace was over before it was found
    std::uint64_t found_ns = 0;  // settled: it is nobody's; 0 = not yet
    std::uint64_t term_ns = 0;   // 0 = not sent
    bool killed = false;
    // It has its descriptors from a managed one, and that stays so when it outlives that.
    bool heir = false;
    std::set<FoundBy> by, counted;
  };
  bool is_exempt(const Seen& seen, Entry& entry) const;
  std::uint64_t grace_ns() const { return kSettleNs + rules_.grace_ns; }
  bool is_over(std::uint32_t uid) const { return users_.of(uid) >= grace_ns(); }
  void ended_count(const std::vector<Seen>& seen, std::uint64_t now_ns);
  void time_count(Entry& entry, std::uint64_t now_ns);
  bool is_settled(Entry& entry, std::uint64_t now_ns);
  void found(Verdict& out, const Seen& seen, Entry& entry, std::uint64_t now_ns);
  /// What of it speaks against this one: a descriptor that a managed program left it does not.
  static void evidence_add(const Seen& seen, Entry& entry, std::uint64_t now_ns);
  void say(Verdict& out, std::string line, std::uint64_t now_ns);
  void stop(Verdict& out, const Seen& seen, Entry& entry, std::uint64_t now_ns);

  BypassRules rules_;
  std::map<ProcessName, Entry> entries_;
  LeaverTime users_;
  BypassCounts counts_;
  std::uint64_t lines_since_ns_ = 0;
  std::size_t lines_ = 0, lines_left_out_ = 0;
};

}  // namespace sluice::exporter

// What the journal looks like on disk: a sequence of records, each with its length and checksum, of
// tenants and their processes as they come, change and go, and of GPUs that are closed by command.
// Pure functions of bytes; which file they come from and when they are written is journal.h's
// business.
//
// Each record begins with a mark, by which a reader finds the next one behind damage, and carries
// its length, its checksum and its boot. So a damaged byte costs the record that it stands in, and
// with a lost record of a tenant those that need it: of its processes. What cannot be read is
// counted. The values of a whole record are checked as well: an edited file gives no state that
// the broker could not have written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "broker/protocol/words.h"

namespace sluice::daemon {

/// A process by number and start time (clock ticks since boot, /proc/PID/stat): the two name it for
/// good within one boot. pid 0 = nobody.
struct ProcessName {
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;
  friend bool operator==(const ProcessName&, const ProcessName&) = default;
};

struct JournalProcess {
  ProcessName name;
  std::uint64_t program = 0;  // that it ran when it registered (devices/process.h); 0 = not known
  std::string command;
  friend bool operator==(const JournalProcess&, const JournalProcess&) = default;
};

/// What was asked for, as opposed to what a default gave; 0 = left to the default.
struct AskedLimits {
  std::uint64_t memory_max_bytes = 0;
  std::uint64_t memory_min_bytes = 0;
  std::uint32_t sm_percent = 0;
  bool sm_weight = false;  // it asked for a weight
  friend bool operator==(const AskedLimits&, const AskedLimits&) = default;
};

/// Where a tenant's memory is, and why it stays there; as the core notes it.
struct Stay {
  bool suspended = false;  // by command
  bool rests = false;      // out until it wants its GPUs
  bool returns = false;    // out, and in the queue to get them again
  bool swapped = false;    // its movable memory is, or may be, in the host
  bool frozen = false;     // it is in the driver's checkpoint
  std::vector<protocol::GpuUuid>
      frozen_on;          // taken there on these GPUs; empty = on its present ones
  bool by_other = false;  // suspended by root or the broker's user, and not by its own
  friend bool operator==(const Stay&, const Stay&) = default;
};

struct JournalTenant {
  protocol::TenantId id = 0;
  protocol::JoinKey key = 0;
  std::uint32_t uid = 0;
  protocol::TenantClass tenant_class{};
  protocol::SmMode sm_mode{};
  protocol::SmKind sm_kind{};
  bool is_default = false;
  bool released = false;
  bool swap = false;  // its memory may be moved
  Stay stay;
  std::uint32_t sm_percent = 100;
  std::uint64_t memory_max_bytes = 0;
  std::uint64_t memory_min_bytes = 0;
  std::int64_t window_ns = 0;  // as asked; 0 = the class's
  AskedLimits asked;
  std::int64_t asked_ns = 0;  // CLOCK_MONOTONIC
  std::int64_t admitted_ns = 0;
  ProcessName founder;  // pid 0: it has ended
  std::vector<protocol::GpuUuid> gpus;
  std::string name;
  std::string profile;
  std::vector<JournalProcess> processes;
  friend bool operator==(const JournalTenant&, const JournalTenant&) = default;
};

/// Why a GPU is closed.
struct JournalDrain {
  protocol::GpuUuid gpu{};
  std::uint32_t uid = 0;
  std::int64_t until_s = 0;
  std::string reason;
  friend bool operator==(const JournalDrain&, const JournalDrain&) = default;
};

/// Everything a journal says: who lives, and the next number to give.
struct JournalState {
  std::map<protocol::TenantId, JournalTenant> tenants;
  std::vector<protocol::GpuUuid> closed_gpus;  // to new tenants, by command,
  std::vector<JournalDrain> drains;            // and of some of them why
  protocol::TenantId next_tenant = 1;
  friend bool operator==(const JournalState&, const JournalState&) = default;
  /// Records that it takes to write this state anew, without the first.
  std::size_t record_count() const;
};

/// A journal longer than this is not read: it is none of ours.
inline constexpr std::size_t kJournalBytesMax = std::size_t{64} << 20;

// Encoding: each returns one record of this boot, ready to be appended.
class JournalWriter {
 public:
  explicit JournalWriter(std::string_view boot_id);
  std::string begin(protocol::TenantId next_tenant) const;
  /// Everything of the tenant but its processes; a later one replaces an earlier one.
  std::string tenant(const JournalTenant& tenant) const;
  std::string tenant_ended(protocol::TenantId id) const;
  std::string process(protocol::TenantId id, const JournalProcess& process) const;
  std::string process_ended(protocol::TenantId id, const ProcessName& name) const;
  /// Whether a GPU is closed to new tenants; a later one replaces an earlier one.
  std::string gpu(const protocol::GpuUuid& gpu, bool closed) const;
  /// Why a GPU is closed, after the record that it is.
  std::string drain(const JournalDrain& drain) const;
  /// The whole state as one journal. The record that begins it stands there twice: no single
  /// damage loses the next number to give.
  std::string image(const JournalState& state) const;

 private:
  std::string boot_id_;
  std::uint64_t boot_;
};

enum class JournalOutcome {
  kEmpty,       // there is nothing
  kRead,        // `state` is what it says
  kOtherBoot,   // it is whole, but of another boot of the machine: nobody in it lives
  kUnreadable,  // no record in it is whole
};

struct JournalReading {
  JournalOutcome outcome = JournalOutcome::kEmpty;
  JournalState state;
  std::size_t good_bytes = 0;  // the last whole record ends here
  bool earlier = false;        // of an earlier version: no record of this one can follow there
  std::size_t records = 0;     // that count, without those that begin a journal
  std::size_t lost = 0;        // damaged places, and whole records that say what cannot be
  std::string fault;           // what is wrong with the first of the lost; empty = none is
};

JournalReading journal_read(std::string_view bytes, std::string_view boot_id);

}  // namespace sluice::daemon

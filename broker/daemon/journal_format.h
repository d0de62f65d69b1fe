// What the journal looks like on disk: a sequence of records, each with its length and checksum, of
// tenants and their processes as they come, change and go, and of GPUs that are closed by command.
// Pure functions of bytes; which file they come from and when they are written is journal.h's
// business.
//
// A journal is read from the front and believed up to the first record that is not whole. Whatever
// stands in a record that is, its values are checked: a file that somebody has edited gives no
// state that the broker could not have written.
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
  std::uint64_t claims_device = 0;  // the claims page that it was given: what it still maps unless
  std::uint64_t claims_inode = 0;   // it called exec
  std::string command;
  friend bool operator==(const JournalProcess&, const JournalProcess&) = default;
};

/// What was asked for, as opposed to what a default gave; 0 = left to the default.
struct AskedLimits {
  std::uint64_t memory_max_bytes = 0;
  std::uint64_t memory_min_bytes = 0;
  std::uint32_t sm_percent = 0;
  friend bool operator==(const AskedLimits&, const AskedLimits&) = default;
};

/// Where a tenant's memory is, and whether that is by command; as the core notes it.
struct Stay {
  bool suspended = false;
  bool swapped = false;  // its movable memory is, or may be, in the host
  bool frozen = false;   // it is in the driver's checkpoint
  std::vector<protocol::GpuUuid>
      frozen_on;  // taken there on these GPUs; empty = on its present ones
  friend bool operator==(const Stay&, const Stay&) = default;
};

struct JournalTenant {
  protocol::TenantId id = 0;
  protocol::JoinKey key = 0;
  std::uint32_t uid = 0;
  protocol::TenantClass tenant_class{};
  protocol::SmMode sm_mode{};
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

/// Everything a journal says: who lives, and the next number to give.
struct JournalState {
  std::map<protocol::TenantId, JournalTenant> tenants;
  std::vector<protocol::GpuUuid> closed_gpus;  // to new tenants, by command
  protocol::TenantId next_tenant = 1;
  friend bool operator==(const JournalState&, const JournalState&) = default;
  /// Records that it takes to write this state anew, without the first.
  std::size_t record_count() const;
};

/// A journal longer than this is not read: it is none of ours.
inline constexpr std::size_t kJournalBytesMax = std::size_t{64} << 20;

// Encoding: each returns one record, ready to be appended.
std::string record_begin(std::string_view boot_id, protocol::TenantId next_tenant);
/// Everything of the tenant but its processes; a later one replaces an earlier one.
std::string record_tenant(const JournalTenant& tenant);
std::string record_tenant_ended(protocol::TenantId id);
std::string record_process(protocol::TenantId id, const JournalProcess& process);
std::string record_process_ended(protocol::TenantId id, const ProcessName& name);
/// Whether a GPU is closed to new tenants; a later one replaces an earlier one.
std::string record_gpu(const protocol::GpuUuid& gpu, bool closed);
/// The whole state as one journal.
std::string journal_image(const JournalState& state, std::string_view boot_id);

enum class JournalOutcome {
  kEmpty,       // there is nothing
  kRead,        // `state` is what it says
  kOtherBoot,   // it is whole, but of another boot of the machine: nobody in it lives
  kUnreadable,  // not even its first record is whole
};

struct JournalReading {
  JournalOutcome outcome = JournalOutcome::kEmpty;
  JournalState state;
  std::size_t good_bytes = 0;  // the records that count end here
  std::size_t records = 0;     // without the first
  std::string fault;           // why reading stopped before the end; empty = it did not
};

JournalReading journal_read(std::string_view bytes, std::string_view boot_id);

}  // namespace sluice::daemon

// `sluice status`: the broker's snapshot for people or for programs.
#pragma once

#include <string>

#include "broker/cli/options.h"
#include "broker/cli/snapshot_reader.h"

namespace sluice::cli {

int status_command(const StatusOptions& options);

/// One line per GPU, one per job and GPU, then the queue. Pure.
std::string status_table(const Snapshot& snapshot);

/// Every field of the snapshot under stable names. Pure.
std::string status_json(const Snapshot& snapshot, const std::string& socket);

/// What claims have said that cannot be true, "memory, time"; empty = nothing. Of kDistrust...
std::string distrust_text(std::uint8_t distrust);
const char* class_name(protocol::TenantClass tenant_class);
const char* sm_mode_name(protocol::SmMode mode);
const char* sm_kind_name(protocol::SmKind kind);
const char* state_name(protocol::TenantState state);
/// "12.3 s".
std::string seconds_text(std::uint64_t ns);
/// A fixed text field, whether terminated or not.
std::string field_text(const char* field, std::size_t size);

}  // namespace sluice::cli

// `sluice suspend`, `resume`, `move`, `drain` and `undrain`: names the tenant and the GPU, sends
// the command, shows how far it is, and says what came of it. The deciding is the broker's.
#pragma once

#include <string>

#include "broker/cli/options.h"
#include "broker/cli/snapshot_reader.h"

namespace sluice::cli {

int command_command(const CommandOptions& options);

/// The word that people type for it.
const char* verb_name(protocol::CommandVerb verb);

/// The running tenant meant by its number or its name. Null with `error`, which suggests a name
/// that is near, or lists the numbers where several have the name.
const protocol::SnapshotTenant* tenant_named(const Snapshot& snapshot, const std::string& text,
                                             std::string* error);

/// False with `error` when the tenant or the GPU is not there.
[[nodiscard]] bool command_make(const CommandOptions& options, const Snapshot& snapshot,
                                protocol::Command* out, std::string* error);

/// How far it is, while it is going on: "suspending train: 1 GiB of 4 GiB out, 2.1 s".
std::string progress_text(const protocol::Command& command, const Snapshot& snapshot,
                          std::uint64_t taken_ns);
/// What a job that is being resumed waits for; empty = for nothing that is known.
std::string waiting_text(const protocol::Command& command, const Snapshot& snapshot);
/// The last word: "train (job 5) is suspended; 4 GiB moved in 3.2 s". `passed_ns`: since it was
/// asked for, of which a long part before the move is said.
std::string done_text(const protocol::Command& command, const Snapshot& before,
                      const protocol::CommandDone& done, std::uint64_t passed_ns = 0);

}  // namespace sluice::cli

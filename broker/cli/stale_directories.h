// The directories of private brokers, and what brokers that were killed have left behind.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::cli {

/// A lock file younger than this may be a broker's that is just starting.
inline constexpr std::int64_t kStaleAfterS = 120;

/// The name of a private broker's directory, to mkdtemp.
inline constexpr char kPrivateDirectory[] = "sluice-XXXXXX";
/// Its socket there.
inline constexpr char kPrivateSocket[] = "sluiced.sock";

/// Whether `socket` is where a private broker listens.
bool private_socket(const std::string& socket);

/// Removes the directories sluice-XXXXXX in `parent` of private brokers that are gone. Such a
/// directory is the caller's own and open to no other user, and its lock file is kStaleAfterS old
/// and locked by no process. Files that no broker makes stay, and the directory with them. Silent:
/// what cannot be removed is tried again by the next start.
void stale_directories_remove(const std::string& parent);

}  // namespace sluice::cli

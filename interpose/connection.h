// Loss of the broker and reconnecting, by the helper: whether the broker lives and does not hang,
// registration anew, adoption of the new pages once memory that is out is back, and what
// becomes of a program whose broker stays away (the machine's policy, limits of its own).
#pragma once

#include <stdint.h>

namespace sluice::interpose {

/// For a helper that starts. `asks`: there is a broker to be asked. `stopping` becomes other than 0
/// when the process exits.
void connection_begin(bool is_up, bool asks, const uint32_t* stopping);
/// The helper's turn. True: the pages are others now, what was seen of those before is void.
bool connection_look(uint64_t now_ns);
bool connection_is_up();
/// How long the helper may sleep at most; `otherwise_ns` where the connection does not matter.
uint64_t connection_wait_max_ns(uint64_t otherwise_ns);
void connection_reset_after_fork();

}  // namespace sluice::interpose

// The connection to the broker: connecting, registering, mapping the pages, sending the gate's
// notes. Knows the protocol and nothing of CUDA. Every send checks first that the descriptor is
// still ours: programs close descriptors they do not know, and the number may be somebody else's
// file by now.
#pragma once

#include "broker/protocol/pages.h"
#include "broker/protocol/wire.h"
#include "interpose/types.h"

namespace sluice::interpose {

enum class LinkResult {
  kRegistered,
  kNobody,      // no broker answers
  kRefused,     // it answered no; the text is in link_refusal()
  kNotATenant,  // this process was started outside Sluice
};

/// Connects and registers; the pages it receives are put in place by link_pages_install().
LinkResult link_register();
/// True while the broker's end of the socket is open. Notices a closed, replaced or broken
/// descriptor.
bool link_alive();
/// Sends a note about a GPU; false when the link is dead.
bool link_note(protocol::MessageType type, uint32_t gpu, uint32_t epoch, uint64_t busy_ns);

const protocol::LeasePage* link_lease();
protocol::ClaimsPage* link_claims();
uint32_t link_slot();
const char* link_refusal();
/// Where the broker was looked for, for the sentence that says that nobody answers.
const char* link_path();

/// Puts the freshly received pages in place. link_register leaves them aside, so that the account
/// can be paused first.
void link_pages_install();

void link_reset_after_fork();

}  // namespace sluice::interpose

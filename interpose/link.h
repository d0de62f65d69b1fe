// The connection to the broker: connecting, registering, sending the gate's notes. Knows the
// protocol and nothing of CUDA. Every send checks first that the descriptor is still ours: programs
// close descriptors they do not know, and the number may be somebody else's file by now.
#pragma once

#include "broker/protocol/wire.h"
#include "interpose/limits.h"
#include "interpose/types.h"

namespace sluice::interpose {

enum class LinkResult {
  kRegistered,
  kNobody,      // no broker answers
  kRefused,     // it answered no; the text is in link_refusal()
  kNotATenant,  // this process was started outside Sluice
  kPending,     // asked, not answered yet
};

/// Longest wait of link_register(). A broker that is alive answers within milliseconds.
inline constexpr uint64_t kRegisterTimeoutNs = 5'000'000'000;

/// Connects and registers; the pages it receives are put in place by link_pages_install().
LinkResult link_register();
/// The same without waiting: kPending until there is an answer or the time is up. To be called
/// again until then. For one thread at a time.
LinkResult link_register_step();
/// Reads what the process was started with, once. False: SLUICE_MEMORY or SLUICE_SM is wrong, and
/// `fault` says how.
bool link_limits(Limits* out, Line* fault);
/// True when SLUICE_TENANT was set.
bool link_has_tenant();
/// True while the broker's end of the socket is open. Notices a closed, replaced or broken
/// descriptor.
bool link_alive();
/// Gives the connection up.
void link_close();
/// Sends a note about a GPU; false when the link is dead.
bool link_note(protocol::MessageType type, uint32_t gpu, uint32_t epoch, uint64_t busy_ns);

uint32_t link_slot();
/// This process's pid as the broker sees it; 0 = the broker did not say.
uint32_t link_host_pid();
const char* link_refusal();
/// Where the broker was looked for, for the sentence that says that nobody answers.
const char* link_path();

/// Puts the freshly received pages in place. link_register leaves them aside, so that the account
/// can be paused first.
void link_pages_install();

void link_reset_after_fork();

}  // namespace sluice::interpose

// The connection to the broker: connecting, registering, sending the gate's notes. Knows the
// protocol and nothing of CUDA. Every send checks first that the descriptor is still ours: programs
// close descriptors they do not know, and the number may be somebody else's file by now.
#pragma once

#include "broker/protocol/pages.h"
#include "broker/protocol/tenant_limits.h"
#include "broker/protocol/wire.h"
#include "interpose/limits.h"
#include "interpose/types.h"

namespace sluice::interpose {

enum class LinkResult {
  kRegistered,
  kNobody,      // no broker answers
  kRefused,     // it answered no; the text is in link_refusal()
  kNotATenant,  // of no job: the process was started outside Sluice, and no broker takes it
  kPending,     // asked, not answered yet
  kQueued,      // in line for room (programs that nobody announced): the answer may take for ever
};

/// Where in the line.
struct LinkPlace {
  uint32_t position;
  protocol::QueueReason reason;
  char ahead[protocol::kNameBytes];
  char text[protocol::kTextBytes];  // what it waits for; may be empty
};

/// Longest wait of link_register(). A broker that is alive answers within milliseconds.
inline constexpr uint64_t kRegisterTimeoutNs = 5'000'000'000;

/// Connects and registers; the pages it receives are put in place by link_pages_install(). With
/// kQueued the place in the line is kept, for link_register_wait().
LinkResult link_register();
/// Waits for the answer in the line, so long: kQueued when it has not come.
LinkResult link_register_wait(int timeout_ms);
/// True while a registration of this process stands in the line; `place` may be null.
bool link_in_line(LinkPlace* place);
/// As link_register without waiting: kPending until there is an answer or, out of the line, the
/// time is up. To be called again until then. For one thread at a time.
LinkResult link_register_step();
/// Reads what the process was started with, once. False: SLUICE_MEMORY or SLUICE_SM is wrong, and
/// `fault` says how.
bool link_limits(Limits* out, Line* fault);
/// True if a broker took a connection when this was asked first. The connection is closed again.
bool link_answered();
/// Keeps the variables as the process was started with them, whatever becomes of its environment.
void link_origin_keep();
/// True when the process was started in a job: SLUICE_TENANT was set, or a family says so
/// (family_adopt).
bool link_has_tenant();
/// The first variable of the environment whose name begins as Sluice's do and means nothing;
/// nullptr if there is none, or the process is of a job. It ends at its '='.
const char* link_unknown_variable();
/// The tenant of that job. False: there is none, or SLUICE_TENANT is wrong.
bool link_tenant(protocol::TenantId* tenant, protocol::JoinKey* key);
/// Makes the process one of the job around its own, where no broker has confirmed that (family.h).
/// False, and nothing was done: there is none, or its own is confirmed.
bool link_tenant_leave();
/// True when it cannot be said whether the process is of a job, because it has no descriptor left
/// to look with. It looks again when it is asked again.
bool link_blind();
/// Returns why a process that names no tenant does not ask the listener at the socket; nullptr = it
/// asked, or there is no listener.
const char* link_stranger();
/// What SLUICE_TENANT_LIMITS said of that tenant. False: it said nothing, or spoke of another one.
bool link_tenant_limits(protocol::TenantLimits* out);
/// Says where a program that nobody announced wants to be registered; asked when there is somebody
/// to be told, each time.
void link_wish(protocol::GpuUuid (*wish)());
/// True while the broker's end of the socket is open. Notices a closed, replaced or broken
/// descriptor.
bool link_alive();
/// Gives the connection up.
void link_close();
/// Sends a note about a GPU. False: it was not sent, because the link is dead or its socket full.
bool link_note(protocol::MessageType type, uint32_t gpu, uint32_t epoch, uint64_t busy_ns);
/// Tells whether the order of a hold has been carried out. False as link_note().
bool link_moved(uint32_t gpu, uint32_t word, int32_t result, uint64_t bytes, uint64_t taken_ns);
/// Asks for room for what the driver has none for. False as link_note().
bool link_memory_want(uint32_t gpu, uint32_t room, uint64_t bytes);

uint32_t link_slot();
/// This process's pid as the broker sees it; 0 = the broker did not say.
uint32_t link_host_pid();
const char* link_refusal();
/// Where the broker was looked for, for the sentence that says that nobody answers.
const char* link_path();

/// Puts the freshly received pages in place. link_register leaves them aside, so that the account
/// can be paused first. False: see pages_install().
[[nodiscard]] bool link_pages_install();
/// What the lease page says that waits to be installed. False when it is there no more: a program
/// may close descriptors that it does not know.
bool link_pages_read(protocol::LeasePage* out);
/// Or gives them up, unused.
void link_pages_drop();

void link_reset_after_fork();

}  // namespace sluice::interpose

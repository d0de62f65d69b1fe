// Asking a broker and waiting for its answer: which broker is asked, and which answer counts. libc
// only, no exceptions, no allocation.
#pragma once

#include "broker/protocol/wire.h"

namespace sluice::protocol {

/// Connects to the broker at `path` as wire_connect does, if wire_trusted believes its owner.
/// Returns a descriptor or -errno. -EPERM with a nonzero `owner`: the socket belongs to that uid
/// (negative: the kernel does not say whose it is), and nothing was sent. `owner` is 0 otherwise.
int broker_connect(const char* path, int timeout_ms, long* owner);

/// Longest text of stranger_format: a path of a socket (107 bytes), a uid and the words.
inline constexpr std::size_t kStrangerTextBytes = 320;
/// Writes why broker_connect did not ask the owner of `path`, and what to do, into `out`.
void stranger_format(const char* path, long owner, char out[kStrangerTextBytes]);

/// Sends a message whose answer question_answer receives. Returns 0 or -errno, as wire_send. A
/// broker that has closed is no error here: its last message can still be read.
int question_send(int fd, const void* message, std::size_t size, bool dont_wait);

/// Receives as wire_receive does, but returns a message that the broker sent before it closed also
/// where the broker left the question unread (-ECONNRESET comes only when there is none).
int question_answer(int fd, Envelope* out, int timeout_ms);

}  // namespace sluice::protocol

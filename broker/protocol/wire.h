// Sending and receiving one message over the broker's socket: the part of the protocol that does
// I/O. libc only, no exceptions, no allocation; async-signal-safe apart from errno, so the shim
// uses it as it is.
#pragma once

#include <sys/types.h>

#include "broker/protocol/messages.h"

namespace sluice::protocol {

/// The system broker's socket, in a directory that only root can write.
inline constexpr char kSystemSocket[] = "/run/sluice/sluiced.sock";
/// Names another socket (private brokers, tests). Ignored where AT_SECURE is set.
inline constexpr char kSocketVariable[] = "SLUICE_SOCKET";
/// "ID-KEY", both 16 hexadecimal digits: the tenant that a process belongs to.
inline constexpr char kTenantVariable[] = "SLUICE_TENANT";

/// Largest datagram of the protocol; a longer one is malformed.
inline constexpr std::size_t kMessageBytesMax = 1024;
inline constexpr int kMessageFdsMax = 2;

/// The longest message plus the descriptors that came with it. Whoever receives owns
/// fds[0..fd_count).
struct Envelope {
  alignas(8) unsigned char bytes[kMessageBytesMax];
  std::size_t size;
  int fds[kMessageFdsMax];
  int fd_count;

  const Header& header() const { return *reinterpret_cast<const Header*>(bytes); }
  /// The message as M; only after `is<M>(type)` said yes.
  template <class M>
  const M& as() const {
    return *reinterpret_cast<const M*>(bytes);
  }
  template <class M>
  bool is(MessageType type) const {
    return size == sizeof(M) && header().type == type;
  }
};

/// Fills the header of a message of type M.
template <class M>
void message_init(M& message, MessageType type, std::uint32_t request) {
  __builtin_memset(&message, 0, sizeof message);
  message.header =
      Header{kMessageMagic, kVersion, type, static_cast<std::uint32_t>(sizeof message), request};
}

/// Connects to the broker at `path` (a leading '@' is refused: no abstract names). Returns a
/// close-on-exec descriptor or -errno. With a timeout, -EAGAIN when a broker that does not accept
/// has kept the call waiting for that long; later sends are bounded by it too.
int wire_connect(const char* path, int timeout_ms = -1);

/// Whose socket is at the other end of a connection: the uid of whoever listens there (of when it
/// began to). -errno when the kernel does not say.
long wire_owner(int fd);
/// A broker is believed when it is root's or belongs to the one who asks (his effective uid):
/// anybody else could hand out a lease that is always open, or read what is asked.
bool wire_trusted(long owner);

/// Sends one datagram with up to kMessageFdsMax descriptors. 0 or -errno (-EAGAIN when the socket
/// is full and `dont_wait`). Never raises SIGPIPE.
int wire_send(int fd, const void* message, std::size_t size, const int* fds, int fd_count,
              bool dont_wait);

/// Receives one datagram, waiting at most timeout_ms (-1 = for ever, 0 = not at all). 1 = a
/// message, 0 = the peer closed, -ECONNRESET = it closed and left unread what it had been sent,
/// -EAGAIN = time is up, other -errno. A datagram with a bad magic, size or truncated descriptors
/// is -EPROTO (descriptors closed). A message of another version is delivered, for the receiver to
/// refuse with a text.
int wire_receive(int fd, Envelope* out, int timeout_ms);

/// "ID-KEY" <-> numbers. False when the text is not exactly that.
bool tenant_parse(const char* text, TenantId* tenant, JoinKey* key);
inline constexpr std::size_t kTenantTextBytes = 34;  // 16 + '-' + 16 + NUL
void tenant_format(TenantId tenant, JoinKey key, char out[kTenantTextBytes]);

}  // namespace sluice::protocol

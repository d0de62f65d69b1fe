#include "broker/protocol/wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace sluice::protocol {
namespace {

void fds_close(const int* fds, int count) {
  for (int i = 0; i < count; ++i) close(fds[i]);
}

// Collects the descriptors of one received datagram; false if the kernel had to cut the control
// data.
bool fds_take(msghdr& header, Envelope* out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const int count = static_cast<int>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (int i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + static_cast<std::size_t>(i) * sizeof(int), sizeof fd);
      if (out->fd_count < kMessageFdsMax) {
        out->fds[out->fd_count++] = fd;
      } else {
        close(fd);
      }
    }
  }
  return (header.msg_flags & MSG_CTRUNC) == 0;
}

bool hex_parse(const char* text, std::uint64_t* out) {
  std::uint64_t value = 0;
  for (int i = 0; i < 16; ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    value = (value << 4) | static_cast<std::uint64_t>(digit);
  }
  *out = value;
  return true;
}

void hex_format(std::uint64_t value, char* out) {
  for (int i = 15; i >= 0; --i, value >>= 4) out[i] = "0123456789abcdef"[value & 15];
}

}  // namespace

int wire_connect(const char* path, int timeout_ms) {
  sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  const std::size_t length = strlen(path);
  if (length == 0 || path[0] == '@') return -EINVAL;
  if (length >= sizeof address.sun_path) return -ENAMETOOLONG;
  memcpy(address.sun_path, path, length + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  if (timeout_ms >= 0) {
    const timeval limit{timeout_ms / 1000, static_cast<suseconds_t>(timeout_ms % 1000) * 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  int rc;
  do {
    rc = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (rc < 0 && errno == EINTR);
  if (rc < 0) {
    const int error = errno;
    close(fd);
    return -error;
  }
  return fd;
}

long wire_owner(int fd) {
  ucred credentials;
  socklen_t length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) return -errno;
  return static_cast<long>(credentials.uid);
}

bool wire_trusted(long owner) { return owner == 0 || owner == static_cast<long>(geteuid()); }

int wire_send(int fd, const void* message, std::size_t size, const int* fds, int fd_count,
              bool dont_wait) {
  iovec part{const_cast<void*>(message), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMessageFdsMax)];
  msghdr header;
  memset(&header, 0, sizeof header);
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd_count > kMessageFdsMax) return -EINVAL;
  if (fd_count > 0) {
    memset(control, 0, sizeof control);
    const std::size_t bytes = sizeof(int) * static_cast<std::size_t>(fd_count);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(c), fds, bytes);
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &header, MSG_NOSIGNAL | (dont_wait ? MSG_DONTWAIT : 0));
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? -errno : 0;
}

int wire_receive(int fd, Envelope* out, int timeout_ms) {
  out->size = 0;
  out->fd_count = 0;
  if (timeout_ms > 0) {
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(&p, 1, timeout_ms);
    if (ready < 0) return errno == EINTR ? -EAGAIN : -errno;
    if (ready == 0) return -EAGAIN;
  }
  iovec part{out->bytes, sizeof out->bytes};
  // Room for more descriptors than the protocol ever sends, so that surplus ones arrive and can be
  // closed.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)];
  msghdr header;
  memset(&header, 0, sizeof header);
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t received;
  do {
    received = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | (timeout_ms == 0 ? MSG_DONTWAIT : 0));
  } while (received < 0 && errno == EINTR);
  if (received < 0) return -errno;
  const bool whole = fds_take(header, out) && (header.msg_flags & MSG_TRUNC) == 0;
  if (received == 0) {
    fds_close(out->fds, out->fd_count);
    out->fd_count = 0;
    return 0;
  }
  out->size = static_cast<std::size_t>(received);
  const bool sane = whole && out->size >= sizeof(Header) && out->header().magic == kMessageMagic &&
                    out->header().size == out->size;
  if (!sane) {
    fds_close(out->fds, out->fd_count);
    out->fd_count = 0;
    return -EPROTO;
  }
  return 1;
}

bool tenant_parse(const char* text, TenantId* tenant, JoinKey* key) {
  return strlen(text) == 33 && text[16] == '-' && hex_parse(text, tenant) &&
         hex_parse(text + 17, key);
}

void tenant_format(TenantId tenant, JoinKey key, char out[kTenantTextBytes]) {
  hex_format(tenant, out);
  out[16] = '-';
  hex_format(key, out + 17);
  out[33] = '\0';
}

}  // namespace sluice::protocol

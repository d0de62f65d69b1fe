#include "broker/protocol/question.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

namespace sluice::protocol {

int broker_connect(const char* path, int timeout_ms, long* owner) {
  *owner = 0;
  const int fd = wire_connect(path, timeout_ms);
  if (fd < 0) return fd;
  const long uid = wire_owner(fd);
  if (wire_trusted(uid)) return fd;
  close(fd);
  *owner = uid;
  return -EPERM;
}

void stranger_format(const char* path, long owner, char out[kStrangerTextBytes]) {
  snprintf(out, kStrangerTextBytes,
           "the socket %.120s belongs to uid %ld, which is neither root nor you; whoever that is, "
           "it is not asked for anything; check --socket and SLUICE_SOCKET",
           path, owner);
}

int question_send(int fd, const void* message, std::size_t size, bool dont_wait) {
  const int rc = wire_send(fd, message, size, nullptr, 0, dont_wait);
  return rc == -EPIPE || rc == -ECONNRESET ? 0 : rc;
}

int question_answer(int fd, Envelope* out, int timeout_ms) {
  const int rc = wire_receive(fd, out, timeout_ms);
  if (rc != -ECONNRESET) return rc;
  // The kernel reports the reset once, before what is still in the socket.
  return wire_receive(fd, out, 0) == 1 ? 1 : rc;
}

}  // namespace sluice::protocol

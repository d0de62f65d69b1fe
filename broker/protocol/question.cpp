#include "broker/protocol/question.h"

#include <errno.h>
#include <unistd.h>

namespace sluice::protocol {
namespace {

constexpr std::size_t kPathShownMax = 120;  // longer than any path of a socket

// The shim links this file, and leaves stdio to the program.
char* stranger_put(char* at, const char* text, std::size_t most) {
  while (*text != '\0' && most-- > 0) *at++ = *text++;
  return at;
}

char* stranger_put_number(char* at, long value) {
  char digits[21];
  char* begin = digits + sizeof digits - 1;
  *begin = '\0';
  unsigned long left =
      value < 0 ? 0ul - static_cast<unsigned long>(value) : static_cast<unsigned long>(value);
  do {
    *--begin = static_cast<char>('0' + left % 10);
    left /= 10;
  } while (left != 0);
  if (value < 0) *at++ = '-';
  return stranger_put(at, begin, sizeof digits);
}

}  // namespace

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
  constexpr char kAdvice[] =
      ", which is neither root nor you; whoever that is, it is not asked for anything; check "
      "--socket and SLUICE_SOCKET";
  constexpr char kSocket[] = "the socket ", kOwner[] = " belongs to uid ";
  static_assert(sizeof kSocket + kPathShownMax + sizeof kOwner + 21 + sizeof kAdvice <=
                kStrangerTextBytes);
  char* at = stranger_put(stranger_put(out, kSocket, sizeof kSocket), path, kPathShownMax);
  at = stranger_put_number(stranger_put(at, kOwner, sizeof kOwner), owner);
  *stranger_put(at, kAdvice, sizeof kAdvice) = '\0';
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

// See link.h. The pages live in one reserved range of addresses; new pages are mapped over the old
// ones in place, so no reader ever holds an address that goes away.
#include "interpose/link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sluice::interpose {

using namespace protocol;

namespace {

// A broker that is alive answers a registration within milliseconds.
constexpr int kRegisterTimeoutMs = 5000;
// Low numbers belong to the program: shells, daemons and launchers name, reuse and close them.
constexpr int kDescriptorMin = 1000;

constexpr size_t page_round(size_t bytes) { return (bytes + 4095) & ~size_t{4095}; }
constexpr size_t kLeaseBytes = page_round(sizeof(LeasePage));
constexpr size_t kClaimsBytes = page_round(sizeof(ClaimsPage));

struct Link {
  int fd = -1;
  dev_t device = 0;
  ino_t inode = 0;
  unsigned char* range = nullptr;
  int lease_fd = -1;
  int claims_fd = -1;
  uint32_t slot = 0;
  char refusal[kTextBytes] = {};
};
constinit Link link;

// What the process was started with, copied at the first registration: the helper registers again
// at moments when the program may be changing its environment, and a program that does must not
// move to another broker.
struct Origin {
  uint32_t known;
  bool has_tenant;
  char socket[108];                   // sockaddr_un::sun_path
  char tenant[kTenantTextBytes + 1];  // one more, so that a text that is too long stays wrong
};
constinit Origin origin{};
Lock send_lock;

bool descriptor_is(int fd, dev_t device, ino_t inode) {
  struct stat s;
  return fd >= 0 && fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode) && s.st_dev == device &&
         s.st_ino == inode;
}

bool descriptor_is_ours() { return descriptor_is(link.fd, link.device, link.inode); }

void link_drop() {
  if (descriptor_is_ours()) close(link.fd);
  link.fd = -1;
}

int descriptor_move_up(int fd) {
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kDescriptorMin);
  if (moved < 0) return fd;
  close(fd);
  return moved;
}

void command_name(char out[kNameBytes]) {
  const int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t n = read(fd, out, kNameBytes - 1);
  close(fd);
  if (n > 0 && out[n - 1] == '\n') out[n - 1] = '\0';
}

bool page_fits(int fd, size_t bytes) {
  struct stat s;
  return fstat(fd, &s) == 0 && static_cast<uint64_t>(s.st_size) >= bytes;
}

void refusal_set(const char* text) {
  const size_t length = strnlen(text, sizeof link.refusal - 1);
  memcpy(link.refusal, text, length);
  link.refusal[length] = '\0';
}

// Takes the answer to Register apart. The descriptors are ours whatever it says.
LinkResult answer_read(Envelope& answer) {
  if (answer.is<Refused>(MessageType::kRefused)) {
    refusal_set(answer.as<Refused>().text);
    return LinkResult::kRefused;
  }
  if (!answer.is<Registered>(MessageType::kRegistered) || answer.fd_count != 2 ||
      answer.as<Registered>().slot >= kTenantProcessesMax ||
      !page_fits(answer.fds[0], sizeof(LeasePage)) ||
      !page_fits(answer.fds[1], sizeof(ClaimsPage))) {
    refusal_set(
        "the broker's answer is not one of this version; use the libsluice.so that came with it");
    return LinkResult::kRefused;
  }
  link.slot = answer.as<Registered>().slot;
  link.lease_fd = answer.fds[0];
  link.claims_fd = answer.fds[1];
  answer.fd_count = 0;
  return LinkResult::kRegistered;
}

bool range_reserve() {
  if (link.range != nullptr) return true;
  void* range =
      mmap(nullptr, kLeaseBytes + kClaimsBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) return false;
  link.range = static_cast<unsigned char*>(range);
  return true;
}

// The first registration of a process is serialised by its caller; the helper starts after it.
void origin_read() {
  if (origin.known != 0) return;
  const char* named = getauxval(AT_SECURE) != 0 ? nullptr : getenv(kSocketVariable);
  const char* path = named != nullptr && named[0] != '\0' ? named : kSystemSocket;
  strncpy(origin.socket, path, sizeof origin.socket - 1);
  const char* text = getenv(kTenantVariable);
  origin.has_tenant = text != nullptr && text[0] != '\0';
  if (origin.has_tenant) strncpy(origin.tenant, text, sizeof origin.tenant - 1);
  origin.known = 1;
}

}  // namespace

const char* link_path() { return origin.socket; }

LinkResult link_register() {
  origin_read();
  Register message;
  message_init(message, MessageType::kRegister, 1);
  const bool tenant = origin.has_tenant;
  if (tenant && !tenant_parse(origin.tenant, &message.tenant, &message.key)) {
    refusal_set("SLUICE_TENANT is not of the form ID-KEY; start the program with `sluice run`");
    return LinkResult::kRefused;
  }
  command_name(message.command);
  int fd = wire_connect(link_path());
  if (fd < 0) return tenant ? LinkResult::kNobody : LinkResult::kNotATenant;
  fd = descriptor_move_up(fd);
  struct stat born;
  if (fstat(fd, &born) != 0) return LinkResult::kNobody;
  Envelope answer;
  answer.fd_count = 0;
  LinkResult result = LinkResult::kNobody;
  if (wire_send(fd, &message, sizeof message, nullptr, 0, false) == 0 &&
      wire_receive(fd, &answer, kRegisterTimeoutMs) == 1) {
    result = answer_read(answer);
    for (int i = 0; i < answer.fd_count; ++i) close(answer.fds[i]);
  }
  // A program that reuses numbers may have put a file of its own here meanwhile: that one is not
  // ours to close.
  const bool ours = descriptor_is(fd, born.st_dev, born.st_ino);
  if (result == LinkResult::kRegistered && (!ours || !range_reserve())) {
    close(link.lease_fd);
    close(link.claims_fd);
    result = LinkResult::kNobody;
  }
  if (result != LinkResult::kRegistered) {
    if (ours) close(fd);
    return result == LinkResult::kRefused && !tenant ? LinkResult::kNotATenant : result;
  }
  const LockScope scope(send_lock);
  link_drop();
  link.fd = fd;
  link.device = born.st_dev;
  link.inode = born.st_ino;
  return result;
}

void link_pages_install() {
  mmap(link.range, kLeaseBytes, PROT_READ, MAP_SHARED | MAP_FIXED, link.lease_fd, 0);
  mmap(link.range + kLeaseBytes, kClaimsBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
       link.claims_fd, 0);
  // A fork child is another process: it registers for pages of its own.
  madvise(link.range, kLeaseBytes + kClaimsBytes, MADV_DONTFORK);
  close(link.lease_fd);
  close(link.claims_fd);
  link.lease_fd = link.claims_fd = -1;
}

const LeasePage* link_lease() { return reinterpret_cast<const LeasePage*>(link.range); }
ClaimsPage* link_claims() { return reinterpret_cast<ClaimsPage*>(link.range + kLeaseBytes); }
uint32_t link_slot() { return link.slot; }
const char* link_refusal() { return link.refusal; }

bool link_alive() {
  const LockScope scope(send_lock);
  if (!descriptor_is_ours()) {
    link.fd = -1;
    return false;
  }
  char byte;
  const ssize_t n = recv(link.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return true;
  link_drop();
  return false;
}

bool link_note(MessageType type, uint32_t gpu, uint32_t epoch, uint64_t busy_ns) {
  const LockScope scope(send_lock);
  if (!descriptor_is_ours()) return false;
  GateNote note;
  message_init(note, type, 0);
  note.gpu = gpu;
  note.epoch = epoch;
  note.busy_ns = busy_ns;
  return wire_send(link.fd, &note, sizeof note, nullptr, 0, true) == 0;
}

void link_reset_after_fork() {
  send_lock.reset_after_fork();
  // The connection is the parent's; this copy of the descriptor only keeps its socket from looking
  // closed.
  link_drop();
  link.range = nullptr;
}

}  // namespace sluice::interpose

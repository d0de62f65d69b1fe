// See link.h.
#include "interpose/link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/protocol/question.h"
#include "interpose/family.h"
#include "interpose/pages.h"

namespace sluice::interpose {

using namespace protocol;

namespace {

// How long a helper may be kept from its other work by a broker that does not accept.
constexpr int kConnectBrieflyMs = 1;

struct Link {
  int fd = -1;
  dev_t device = 0;
  ino_t inode = 0;
  int lease_fd = -1;
  int claims_fd = -1;
  ino_t lease_inode = 0;  // of the pages that wait to be installed
  ino_t claims_inode = 0;
  uint32_t slot = 0;
  Shared<uint32_t> host_pid;
  GpuUuid (*wish)() = nullptr;
  char refusal[kTextBytes] = {};
  bool stranger = false;  // the refusal is our own: it is not asked
};
constinit Link link;

// A registration that has not been answered yet.
struct Pending {
  int fd;
  dev_t device;
  ino_t inode;
  uint64_t end_ns;
  bool in_line;
  LinkPlace place;
};
constinit Pending pending{-1, 0, 0, 0, false, {}};

// What the process was started with, copied when it was, or at the first registration: the helper
// registers again at moments when the program may be changing its environment, and a program that
// does must not move to another broker.
struct Origin {
  uint32_t known;
  bool has_tenant;
  bool adoption_due;  // it names no tenant, and it is not known yet whether a family does
  bool secure;
  bool limits_wrong;
  bool tenant_limits_known;
  Limits limits;
  TenantLimits tenant_limits;
  Line limits_fault;
  char socket[kSocketPathBytes];
  char tenant[kTenantTextBytes + 1];  // one more, so that a text that is too long stays wrong
};
constinit Origin origin{};
// The socket that the family names, before the one above: a variable may name any.
constinit char job_socket[kSocketPathBytes];
constinit const char* asked;  // the one that was asked last; nullptr = the variable's
Lock send_lock;
Lock origin_lock;

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

ino_t inode_of(int fd) {
  struct stat s;
  return fd >= 0 && fstat(fd, &s) == 0 ? s.st_ino : 0;
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
  link.host_pid = answer.as<Registered>().host_pid;
  link.lease_fd = answer.fds[0];
  link.claims_fd = answer.fds[1];
  link.lease_inode = inode_of(answer.fds[0]);
  link.claims_inode = inode_of(answer.fds[1]);
  answer.fd_count = 0;
  return LinkResult::kRegistered;
}

// A process that was executed without the variables of its job is of the job all the same.
void tenant_adopt() {
  const FamilyAdoption found = family_adopt();
  origin.adoption_due = found == FamilyAdoption::kBlind;
  if (found != FamilyAdoption::kAdopted) return;
  const FamilyTenant tenant = family_tenant();
  tenant_format(tenant.id, tenant.key, origin.tenant);
  origin.has_tenant = true;
}

void variables_read() {
  // A program that gains privileges takes no orders from who starts it.
  const bool secure = origin.secure = getauxval(AT_SECURE) != 0;
  const char* named = secure ? nullptr : getenv(kSocketVariable);
  const char* path = named != nullptr && named[0] != '\0' ? named : kSystemSocket;
  strncpy(origin.socket, path, sizeof origin.socket - 1);
  const char* text = secure ? nullptr : getenv(kTenantVariable);
  origin.has_tenant = text != nullptr && text[0] != '\0';
  if (origin.has_tenant) strncpy(origin.tenant, text, sizeof origin.tenant - 1);
  const char* admitted = secure ? nullptr : getenv(kTenantLimitsVariable);
  TenantId tenant;
  JoinKey key;
  origin.tenant_limits_known =
      admitted != nullptr && tenant_limits_parse(admitted, &origin.tenant_limits) &&
      tenant_parse(origin.tenant, &tenant, &key) && tenant == origin.tenant_limits.tenant &&
      key == origin.tenant_limits.key;
  origin.limits_wrong = !secure && !limits_read(getenv(kMemoryVariable), getenv(kSmVariable),
                                                &origin.limits, &origin.limits_fault);
}

// Several threads may make the first call of the driver at once.
void origin_read() {
  if (SLUICE_LIKELY(load_acquire(origin.known) != 0)) return;
  const SystemGuard guard;
  const LockScope scope(origin_lock);
  if (origin.known != 0) return;
  if (!origin.adoption_due) variables_read();
  if (!origin.has_tenant) tenant_adopt();
  // Without a descriptor to look with, the next one that asks looks again.
  store_release(origin.known, origin.adoption_due ? 0u : 1u);
}

constexpr int kTimeoutMs = static_cast<int>(kRegisterTimeoutNs / 1'000'000);

// Connects to the broker of the job, else to the one that the variable names.
int broker_reach(int timeout_ms, long* owner) {
  int fd = -ENOENT;
  *owner = 0;
  if (origin.has_tenant && !origin.secure && family_socket(job_socket)) {
    store_release(asked, static_cast<const char*>(job_socket));
    fd = broker_connect(job_socket, timeout_ms, owner);
    // One that is there and slow is the right one.
    if (fd >= 0 || *owner != 0 || fd == -EAGAIN || strcmp(job_socket, origin.socket) == 0)
      return fd;
  }
  const int other = broker_connect(origin.socket, timeout_ms, owner);
  if (other >= 0 || *owner != 0 || fd == -ENOENT)
    store_release(asked, static_cast<const char*>(nullptr));
  return other;
}

LinkResult nobody_result() {
  return origin.has_tenant ? LinkResult::kNobody : LinkResult::kNotATenant;
}

// Sends Register; kPending when that went well.
LinkResult register_begin(int connect_timeout_ms) {
  origin_read();
  link.refusal[0] = '\0';
  link.stranger = false;
  Register message;
  message_init(message, MessageType::kRegister, 1);
  if (origin.has_tenant && !tenant_parse(origin.tenant, &message.tenant, &message.key)) {
    refusal_set("SLUICE_TENANT is not of the form ID-KEY; start the program with `sluice run`");
    return LinkResult::kRefused;
  }
  const LinkResult nobody = nobody_result();
  command_name(message.command);
  long owner = 0;
  int fd = broker_reach(connect_timeout_ms, &owner);
  if (fd < 0 && owner != 0) {
    stranger_format(link_path(), owner, link.refusal);
    link.stranger = true;
    return origin.has_tenant ? LinkResult::kRefused : nobody;
  }
  if (fd < 0) return nobody;
  if (!origin.has_tenant && link.wish != nullptr) message.gpu = link.wish();
  fd = descriptor_move_up(fd, false);
  struct stat born;
  if (fstat(fd, &born) != 0) return nobody;
  if (question_send(fd, &message, sizeof message, true) != 0) {
    close(fd);
    return nobody;
  }
  pending.fd = fd;
  pending.device = born.st_dev;
  pending.inode = born.st_ino;
  pending.in_line = false;
  return LinkResult::kPending;
}

void place_take(const Queued& queued) {
  pending.in_line = true;
  pending.place.position = queued.position;
  pending.place.reason = queued.reason;
  memcpy(pending.place.ahead, queued.ahead, sizeof pending.place.ahead - 1);
  memcpy(pending.place.text, queued.text, sizeof pending.place.text - 1);
}

LinkResult register_poll(int timeout_ms) {
  const Pending asked_for = pending;
  const LinkResult nobody = nobody_result();
  Envelope answer;
  answer.fd_count = 0;
  LinkResult result = nobody;
  if (descriptor_is(asked_for.fd, asked_for.device, asked_for.inode)) {
    const int received = question_answer(asked_for.fd, &answer, timeout_ms);
    if (received == -EAGAIN && asked_for.in_line) return LinkResult::kQueued;
    if (received == -EAGAIN && clock_now_ns() < asked_for.end_ns) return LinkResult::kPending;
    if (received == 1 && answer.is<Queued>(MessageType::kQueued) && answer.fd_count == 0) {
      place_take(answer.as<Queued>());
      return LinkResult::kQueued;
    }
    if (received == 1) result = answer_read(answer);
    for (int i = 0; i < answer.fd_count; ++i) close(answer.fds[i]);
  }
  pending.fd = -1;
  pending.in_line = false;
  // A program that reuses numbers may have put a file of its own here meanwhile: that one is not
  // ours to close.
  const bool ours = descriptor_is(asked_for.fd, asked_for.device, asked_for.inode);
  if (result == LinkResult::kRegistered && (!ours || !pages_reserve())) {
    close(link.lease_fd);
    close(link.claims_fd);
    result = nobody;
  }
  if (result != LinkResult::kRegistered) {
    if (ours) close(asked_for.fd);
    return result == LinkResult::kRefused && !origin.has_tenant ? LinkResult::kNotATenant : result;
  }
  const LockScope scope(send_lock);
  link_drop();
  link.fd = asked_for.fd;
  link.device = asked_for.device;
  link.inode = asked_for.inode;
  return result;
}

}  // namespace

const char* link_path() {
  const char* path = load_acquire(asked);
  return path != nullptr ? path : origin.socket;
}

void link_origin_keep() { origin_read(); }

bool link_limits(Limits* out, Line* fault) {
  origin_read();
  *out = origin.limits;
  if (origin.limits_wrong) *fault = origin.limits_fault;
  return !origin.limits_wrong;
}

const char* link_unknown_variable() {
  constexpr char kPrefix[] = "SLUICE_";
  constexpr const char* kKnown[] = {kSocketVariable, kTenantVariable, kTenantLimitsVariable,
                                    kMemoryVariable, kSmVariable};
  origin_read();
  if (origin.secure || origin.has_tenant) return nullptr;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    if (strncmp(*at, kPrefix, sizeof kPrefix - 1) != 0) continue;
    bool is_known = false;
    for (const char* known : kKnown) {
      const size_t length = strlen(known);
      is_known |= strncmp(*at, known, length) == 0 && (*at)[length] == '=';
    }
    if (!is_known) return *at;
  }
  return nullptr;
}

bool link_has_tenant() {
  origin_read();
  return origin.has_tenant;
}

bool link_tenant(TenantId* tenant, JoinKey* key) {
  origin_read();
  return origin.has_tenant && tenant_parse(origin.tenant, tenant, key);
}

bool link_tenant_leave() {
  origin_read();
  if (!origin.has_tenant || !family_leave()) return false;
  const FamilyTenant tenant = family_tenant();
  memset(origin.tenant, 0, sizeof origin.tenant);
  tenant_format(tenant.id, tenant.key, origin.tenant);
  origin.tenant_limits_known = false;
  return true;
}

bool link_blind() {
  origin_read();
  return origin.adoption_due;
}

const char* link_stranger() { return link.stranger ? link.refusal : nullptr; }

bool link_tenant_limits(TenantLimits* out) {
  origin_read();
  *out = origin.tenant_limits;
  return origin.tenant_limits_known;
}

bool link_answered() {
  enum : uint32_t { kNotAsked, kNo, kYes };
  static uint32_t answer;
  if (load_relaxed(answer) == kNotAsked) {
    origin_read();
    long owner = 0;
    const int fd = broker_reach(kTimeoutMs, &owner);
    if (fd >= 0) close(fd);
    store_relaxed(answer, uint32_t{fd >= 0 ? kYes : kNo});
  }
  return load_relaxed(answer) == kYes;
}

void link_wish(GpuUuid (*wish)()) { link.wish = wish; }

LinkResult link_register() {
  const uint64_t end_ns = clock_now_ns() + kRegisterTimeoutNs;
  LinkResult result = register_begin(kTimeoutMs);
  pending.end_ns = end_ns;
  while (result == LinkResult::kPending) {
    const uint64_t now_ns = clock_now_ns();
    result = register_poll(now_ns < end_ns ? static_cast<int>((end_ns - now_ns) / 1'000'000) : 0);
  }
  return result;
}

LinkResult link_register_step() {
  if (pending.fd < 0) {
    const LinkResult begun = register_begin(kConnectBrieflyMs);
    if (begun != LinkResult::kPending) return begun;
    pending.end_ns = clock_now_ns() + kRegisterTimeoutNs;
  }
  const LinkResult result = register_poll(0);
  return result == LinkResult::kQueued ? LinkResult::kPending : result;
}

LinkResult link_register_wait(int timeout_ms) { return register_poll(timeout_ms); }

bool link_in_line(LinkPlace* place) {
  if (pending.in_line && place != nullptr) *place = pending.place;
  return pending.in_line;
}

bool link_pages_install() {
  const bool installed = pages_install(link.lease_fd, link.claims_fd);
  link.lease_fd = link.claims_fd = -1;
  return installed;
}

bool link_pages_read(LeasePage* out) {
  return inode_of(link.lease_fd) == link.lease_inode &&
         inode_of(link.claims_fd) == link.claims_inode &&
         pread(link.lease_fd, out, sizeof *out, 0) == static_cast<ssize_t>(sizeof *out);
}

void link_pages_drop() {
  if (inode_of(link.lease_fd) == link.lease_inode) close(link.lease_fd);
  if (inode_of(link.claims_fd) == link.claims_inode) close(link.claims_fd);
  link.lease_fd = link.claims_fd = -1;
}

uint32_t link_slot() { return link.slot; }
uint32_t link_host_pid() { return link.host_pid; }
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

void link_close() {
  const LockScope scope(send_lock);
  link_drop();
}

namespace {

bool message_send(const void* message, size_t bytes) {
  const SystemGuard guard;
  const LockScope scope(send_lock);
  return descriptor_is_ours() && wire_send(link.fd, message, bytes, nullptr, 0, true) == 0;
}

}  // namespace

bool link_note(MessageType type, uint32_t gpu, uint32_t epoch, uint64_t busy_ns) {
  GateNote note;
  message_init(note, type, 0);
  note.gpu = gpu;
  note.epoch = epoch;
  note.busy_ns = busy_ns;
  return message_send(&note, sizeof note);
}

bool link_moved(uint32_t gpu, uint32_t word, int32_t result, uint64_t bytes, uint64_t taken_ns) {
  Moved moved;
  message_init(moved, MessageType::kMoved, 0);
  moved.gpu = gpu;
  moved.word = word;
  moved.result = result;
  moved.bytes = bytes;
  moved.taken_ns = taken_ns;
  return message_send(&moved, sizeof moved);
}

bool link_memory_want(uint32_t gpu, uint32_t room, uint64_t bytes) {
  MemoryWant want;
  message_init(want, MessageType::kMemoryWant, 0);
  want.gpu = gpu;
  want.room = room;
  want.bytes = bytes;
  return message_send(&want, sizeof want);
}

void link_reset_after_fork() {
  send_lock.reset_after_fork();
  origin_lock.reset_after_fork();
  // The connection is the parent's; this copy of the descriptor only keeps its socket from looking
  // closed.
  link_drop();
  link_pages_drop();
  if (descriptor_is(pending.fd, pending.device, pending.inode)) close(pending.fd);
  pending.fd = -1;
  pending.in_line = false;
}

}  // namespace sluice::interpose

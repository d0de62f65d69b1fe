// Accepting, reading, sending, closing.
#include "broker/daemon/connections.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cassert>
#include <cstdio>
#include <cstring>
#include <string>

#include "broker/daemon/timer.h"

namespace sluice::daemon {
namespace {

using protocol::RefusalCode;

constexpr int kMessagesPerTurn =
    16;  // per connection, so that one chatterer cannot starve its user's others
constexpr int kConnectionsAtOnce = 4;
constexpr std::uint32_t kDescriptorsEach = 2;  // the socket and its peer's pidfd
// What the kernel keeps for a peer that does not read, in its terms (twice this, some hundred bytes
// for each message besides): some dozens of answers.
constexpr int kSendBufferBytes = 16 * 1024;

void refuse(int fd, RefusalCode code, const std::string& text) {
  protocol::Refused refused;
  protocol::message_init(refused, protocol::MessageType::kRefused, 0);
  refused.code = code;
  std::snprintf(refused.text, sizeof refused.text, "%s", text.c_str());
  protocol::wire_send(fd, &refused, sizeof refused, nullptr, 0, true);
}

}  // namespace

Connections::Connections(Loop& loop, Log& log, const ConnectionLimits& limits)
    : loop_(loop), log_(log), limits_(limits) {}

Connections::~Connections() { close_all(); }

std::uint32_t Connections::user_max(uid_t uid) const {
  const auto found = users_.find(uid);
  const bool known = found != users_.end();
  const std::uint64_t own = known ? found->second->connections : 0;
  const std::uint64_t part =
      part_of_user(limits_.total_max, table_.size(), own, users_.size() + (known ? 0 : 1));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(part, 1, limits_.per_user_max));
}

bool Connections::within_limits(uid_t uid) const {
  if (table_.size() >= limits_.total_max) return false;
  const auto found = users_.find(uid);
  return found == users_.end() || found->second->connections < user_max(uid);
}

void Connections::descriptors_add(Descriptors* out) const {
  for (const auto& [uid, user] : users_) (*out)[uid] += 1 + kDescriptorsEach * user->connections;
}

std::shared_ptr<Connections::User> Connections::user_take(uid_t uid) {
  std::shared_ptr<User>& user = users_[uid];  // a new user's first connection makes his entry
  if (user == nullptr) {
    user = std::make_shared<User>();
    if (user->loop.fault() != 0) {
      users_.erase(uid);
      return nullptr;
    }
    // The handler holds on to him: his last connection may end in his own turn.
    user->key = loop_.add(
        user->loop.fd(), [this, user] { user_turn(*user); }, "messages");
  }
  ++user->connections;
  return user;
}

void Connections::user_turn(User& user) {
  user.turn_end_ns = clock_ns() + limits_.user_turn_ns;
  while (user.loop.turn(0, kConnectionsAtOnce) == kConnectionsAtOnce &&
         clock_ns() < user.turn_end_ns) {
  }
}

void Connections::accept(devices::Fd fd) {
  auto connection = std::make_unique<Connection>();
  if (const int rc = peer_identify(fd.get(), &connection->peer); rc != 0) {
    if (rc == -EMFILE || rc == -ENFILE) refuse(fd.get(), RefusalCode::kNoRoom, kNoDescriptors);
    return;  // otherwise it has ended before it said anything
  }
  const uid_t uid = connection->peer.uid;
  if (!within_limits(uid)) {
    log_.line_of(uid, Level::kWarning, "connection_refused",
                 {{"uid", uid}, {"pid", connection->peer.pid}});
    refuse(fd.get(), RefusalCode::kUserLimit,
           "user " + std::to_string(uid) +
               " has as many connections to the broker as are allowed (" +
               std::to_string(user_max(uid)) + "); end some programs first");
    return;
  }
  const ConnectionId id = next_++;
  connection->fd = std::move(fd);
  setsockopt(connection->fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes,
             sizeof kSendBufferBytes);
  connection->user = user_take(uid);
  if (connection->user == nullptr) {
    refuse(connection->fd.get(), RefusalCode::kNoRoom, kNoDescriptors);
    return;
  }
  connection->key = connection->user->loop.add(connection->fd.get(), [this, id] {
    readable(id);
    loop_.settle();
  });
  connection->accepted_ns = clock_ns();
  silent_.emplace(id, connection->accepted_ns);
  table_.emplace(id, std::move(connection));
}

void Connections::readable(ConnectionId id) {
  const auto known = table_.find(id);
  if (known == table_.end()) return;
  const std::int64_t turn_end_ns = known->second->user->turn_end_ns;
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    const auto found = table_.find(id);
    if (found == table_.end() || found->second->doomed) break;
    Connection& connection = *found->second;
    protocol::Envelope envelope;
    const int rc = protocol::wire_receive(connection.fd.get(), &envelope, 0);
    if (rc == -EAGAIN) break;
    if (!connection.spoke) {
      connection.spoke = true;
      silent_.erase(id);
    }
    if (rc == 1) {
      sink_->message_received(id, connection.peer, envelope);
      for (int f = 0; f < envelope.fd_count; ++f) close(envelope.fds[f]);
    } else if (rc == -EPROTO) {
      sink_->garbage_received(id, connection.peer);
      drop(id);
    } else {
      connection.unread = rc == -ECONNRESET;
      drop(id);
    }
    if (clock_ns() >= turn_end_ns) break;
  }
}

bool Connections::send_bytes(ConnectionId id, const void* message, std::size_t size, const int* fds,
                             int fd_count) {
  const auto found = table_.find(id);
  if (found == table_.end() || found->second->doomed) return false;
  const int rc = protocol::wire_send(found->second->fd.get(), message, size, fds, fd_count, true);
  if (rc == 0) return true;
  log_.line_of(found->second->peer.uid, Level::kInfo, "send_failed",
               {{"pid", found->second->peer.pid}, {"reason", std::strerror(-rc)}});
  drop(id);
  return false;
}

std::size_t Connections::unread_bytes(ConnectionId id) const {
  const auto found = table_.find(id);
  int bytes = 0;
  if (found == table_.end() || ioctl(found->second->fd.get(), SIOCOUTQ, &bytes) < 0) return 0;
  return static_cast<std::size_t>(bytes);
}

uid_t Connections::user_of(ConnectionId id) const {
  const auto found = table_.find(id);
  return found == table_.end() ? UINT32_MAX : found->second->peer.uid;
}

void Connections::drop(ConnectionId id) {
  const auto found = table_.find(id);
  if (found == table_.end() || found->second->doomed) return;
  found->second->doomed = true;
  if (doomed_.empty()) loop_.defer([this] { reap(); });
  doomed_.push_back(id);
}

// Telling the sink may doom further connections.
void Connections::reap() {
  while (!doomed_.empty()) {
    const ConnectionId id = doomed_.back();
    doomed_.pop_back();
    erase(id);
  }
}

void Connections::erase(ConnectionId id) {
  const auto found = table_.find(id);
  assert(found != table_.end());
  const std::shared_ptr<User> user = found->second->user;
  user->loop.remove(found->second->key);
  assert(user->connections > 0);
  if (--user->connections == 0) {
    loop_.remove(user->key);
    users_.erase(found->second->peer.uid);
  }
  silent_.erase(id);
  const bool unread = found->second->unread;
  table_.erase(found);
  if (sink_ != nullptr) sink_->connection_closed(id, unread);
}

void Connections::tend(std::int64_t now_ns) {
  for (const auto& [uid, user] : users_) user->loop.unwatched_retry();
  std::vector<ConnectionId> late;
  for (const auto& [id, since_ns] : silent_) {
    if (now_ns - since_ns < limits_.silence_ns_max) break;
    late.push_back(id);
  }
  for (const ConnectionId id : late) {
    const Connection& connection = *table_.at(id);
    if (connection.doomed) continue;
    log_.line_of(connection.peer.uid, Level::kInfo, "silent",
                 {{"pid", connection.peer.pid}, {"uid", connection.peer.uid}});
    refuse(connection.fd.get(), RefusalCode::kTimeout,
           "nothing was said on this connection; connect when there is something to ask");
    drop(id);
  }
}

void Connections::close_all() {
  sink_ = nullptr;
  while (!table_.empty()) erase(table_.begin()->first);
  doomed_.clear();
  assert(users_.empty() && silent_.empty());
}

}  // namespace sluice::daemon

// Accepting, reading, sending, closing.
#include "broker/daemon/connections.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cassert>
#include <cstdio>
#include <cstring>
#include <string>

namespace sluice::daemon {
namespace {

constexpr int kMessagesPerTurn =
    16;  // per connection, so that one chatterer cannot starve the others

void refuse(int fd, const std::string& text) {
  protocol::Refused refused;
  protocol::message_init(refused, protocol::MessageType::kRefused, 0);
  refused.code = protocol::RefusalCode::kUserLimit;
  std::snprintf(refused.text, sizeof refused.text, "%s", text.c_str());
  protocol::wire_send(fd, &refused, sizeof refused, nullptr, 0, true);
}

}  // namespace

Connections::Connections(Loop& loop, Log& log, const ConnectionLimits& limits)
    : loop_(loop), log_(log), limits_(limits) {}

Connections::~Connections() { close_all(); }

bool Connections::within_limits(uid_t uid) const {
  if (table_.size() >= limits_.total_max) return false;
  const auto found = per_user_.find(uid);
  return found == per_user_.end() || found->second < limits_.per_user_max;
}

void Connections::accept(devices::Fd fd) {
  auto connection = std::make_unique<Connection>();
  if (peer_identify(fd.get(), &connection->peer) != 0) return;  // it ended before it said anything
  const uid_t uid = connection->peer.uid;
  if (!within_limits(uid)) {
    log_.line_limited(Level::kWarning, "connection_refused",
                      {{"uid", uid}, {"pid", connection->peer.pid}});
    refuse(fd.get(), "user " + user_name(uid) +
                         " has as many connections to the broker as are allowed (" +
                         std::to_string(limits_.per_user_max) + "); end some programs first");
    return;
  }
  const ConnectionId id = next_++;
  connection->fd = std::move(fd);
  connection->key = loop_.add(connection->fd.get(), [this, id] { readable(id); });
  ++per_user_[uid];
  table_.emplace(id, std::move(connection));
}

void Connections::readable(ConnectionId id) {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    const auto found = table_.find(id);
    if (found == table_.end() || found->second->doomed) break;
    Connection& connection = *found->second;
    protocol::Envelope envelope;
    const int rc = protocol::wire_receive(connection.fd.get(), &envelope, 0);
    if (rc == -EAGAIN) break;
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
  }
}

bool Connections::send_bytes(ConnectionId id, const void* message, std::size_t size, const int* fds,
                             int fd_count) {
  const auto found = table_.find(id);
  if (found == table_.end() || found->second->doomed) return false;
  const int rc = protocol::wire_send(found->second->fd.get(), message, size, fds, fd_count, true);
  if (rc == 0) return true;
  log_.line_limited(Level::kInfo, "send_failed",
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
  loop_.remove(found->second->key);
  const auto user = per_user_.find(found->second->peer.uid);
  assert(user != per_user_.end() && user->second > 0);
  if (--user->second == 0) per_user_.erase(user);
  const bool unread = found->second->unread;
  table_.erase(found);
  if (sink_ != nullptr) sink_->connection_closed(id, unread);
}

void Connections::close_all() {
  sink_ = nullptr;
  while (!table_.empty()) erase(table_.begin()->first);
  doomed_.clear();
  assert(per_user_.empty());
}

}  // namespace sluice::daemon

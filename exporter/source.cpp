// One question to the broker. Everything is bounded in time: a broker that is stopped must not stop
// the exporter.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <optional>

#include "broker/protocol/question.h"
#include "exporter/idle/observer.h"
#include "exporter/snapshot.h"

namespace sluice::exporter {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

using protocol::MessageType;

SnapshotError unreachable(const std::string& socket, const std::string& why) {
  return {SnapshotError::Kind::kUnreachable, "no answer from the broker at " + socket + ": " + why};
}

SnapshotError stranger(const std::string& socket, long owner) {
  char text[protocol::kStrangerTextBytes];
  protocol::stranger_format(socket.c_str(), owner, text);
  return {SnapshotError::Kind::kRefused, text};
}

/// Asks one question on a connection of its own. Nothing when a reply came.
template <class Question>
std::optional<SnapshotError> ask(const std::string& socket, int timeout_ms,
                                 const Question& question, protocol::Envelope* reply) {
  long owner = 0;
  const Descriptor fd(protocol::broker_connect(socket.c_str(), timeout_ms, &owner));
  if (owner != 0) return stranger(socket, owner);
  if (fd.get() < 0) return unreachable(socket, strerror(-fd.get()));
  if (const int rc = protocol::question_send(fd.get(), &question, sizeof question, true); rc != 0) {
    return unreachable(socket, strerror(-rc));
  }
  const int rc = protocol::question_answer(fd.get(), reply, timeout_ms);
  if (rc == 0 || rc == -ECONNRESET) return unreachable(socket, "it closed the connection");
  if (rc == -EAGAIN)
    return unreachable(socket, "no reply within " + std::to_string(timeout_ms) + " ms");
  if (rc == -EPROTO) {
    return SnapshotError{SnapshotError::Kind::kMalformed,
                         "the broker's reply is not of the protocol"};
  }
  if (rc < 0) return unreachable(socket, strerror(-rc));
  return std::nullopt;
}

SnapshotResult reply_read(const protocol::Envelope& reply) {
  const Descriptor first(reply.fd_count > 0 ? reply.fds[0] : -1);
  const Descriptor second(reply.fd_count > 1 ? reply.fds[1] : -1);
  if (reply.is<protocol::Refused>(MessageType::kRefused)) {
    const auto& refused = reply.as<protocol::Refused>();
    return SnapshotError{SnapshotError::Kind::kRefused,
                         "the broker refused: " + field_text(refused.text, sizeof refused.text)};
  }
  if (!reply.is<protocol::SnapshotReply>(MessageType::kSnapshotReply) || reply.fd_count != 1) {
    return SnapshotError{SnapshotError::Kind::kMalformed,
                         "the broker answered with something that is no snapshot"};
  }
  return snapshot_load(first.get(), reply.as<protocol::SnapshotReply>().bytes);
}

}  // namespace

SnapshotResult BrokerSource::snapshot_take() {
  protocol::SnapshotRequest request;
  protocol::message_init(request, MessageType::kSnapshotRequest, 1);
  protocol::Envelope reply;
  if (auto error = ask(socket_, timeout_ms_, request, &reply)) return *std::move(error);
  return reply_read(reply);
}

int BrokerActivity::activity_fd(protocol::TenantId tenant) {
  protocol::ActivityRequest request;
  protocol::message_init(request, MessageType::kActivityRequest, 1);
  request.tenant = tenant;
  protocol::Envelope reply;
  if (ask(socket_, timeout_ms_, request, &reply)) return -1;
  const bool good =
      reply.is<protocol::ActivityReply>(MessageType::kActivityReply) && reply.fd_count == 1;
  for (int i = good ? 1 : 0; i < reply.fd_count; ++i) close(reply.fds[i]);
  return good ? reply.fds[0] : -1;
}

}  // namespace sluice::exporter

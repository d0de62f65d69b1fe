// One question to the broker. Everything is bounded in time: a broker that is stopped must not stop
// the exporter.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "broker/protocol/wire.h"
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

SnapshotError unreachable(const std::string& socket, const std::string& why) {
  return {SnapshotError::Kind::kUnreachable, "no answer from the broker at " + socket + ": " + why};
}

SnapshotResult reply_read(const protocol::Envelope& reply) {
  using protocol::MessageType;
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
  const Descriptor fd(protocol::wire_connect(socket_.c_str(), timeout_ms_));
  if (fd.get() < 0) return unreachable(socket_, strerror(-fd.get()));
  protocol::SnapshotRequest request;
  protocol::message_init(request, protocol::MessageType::kSnapshotRequest, 1);
  if (const int rc = protocol::wire_send(fd.get(), &request, sizeof request, nullptr, 0, true);
      rc != 0) {
    return unreachable(socket_, strerror(-rc));
  }
  protocol::Envelope reply;
  const int rc = protocol::wire_receive(fd.get(), &reply, timeout_ms_);
  if (rc == 0 || rc == -ECONNRESET) return unreachable(socket_, "it closed the connection");
  if (rc == -EAGAIN)
    return unreachable(socket_, "no reply within " + std::to_string(timeout_ms_) + " ms");
  if (rc == -EPROTO) {
    return SnapshotError{SnapshotError::Kind::kMalformed,
                         "the broker's reply is not of the protocol"};
  }
  if (rc < 0) return unreachable(socket_, strerror(-rc));
  return reply_read(reply);
}

}  // namespace sluice::exporter

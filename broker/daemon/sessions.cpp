// Order of messages per connection.
#include "broker/daemon/sessions.h"

#include "broker/daemon/inherited_limits.h"
#include "broker/daemon/validate.h"

namespace sluice::daemon {
namespace {

using protocol::MessageType;
using protocol::ProtocolError;
using protocol::RefusalCode;

constexpr std::size_t kOffendersRemembered = 1024;
// Each unread snapshot is a file in memory; whoever reads his answers has none.
constexpr std::size_t kUnreadBytesMax = 8192;

}  // namespace

void Sessions::reject(ConnectionId connection, const Peer& peer, std::uint32_t request,
                      ProtocolError kind, const std::string& fault) {
  engine_.protocol_error_count(kind);
  if (complained_.size() >= kOffendersRemembered) complained_.clear();
  if (complained_.insert(peer.pid).second) {
    log_.line_of(peer.uid, Level::kWarning, "malformed",
                 {{"pid", peer.pid}, {"uid", peer.uid}, {"fault", fault}});
  }
  engine_.refuse(connection, request, RefusalCode::kMalformed,
                 "the broker does not understand this message: " + fault +
                     "; the sender is damaged or not part of this installation of Sluice");
  outbox_.drop(connection);
}

void Sessions::garbage_received(ConnectionId connection, const Peer& peer) {
  reject(connection, peer, 0, ProtocolError::kGarbage, "it is no message of the protocol at all");
}

void Sessions::connection_closed(ConnectionId connection, bool unread) {
  engine_.connection_closed(connection, unread);
}

void Sessions::message_received(ConnectionId connection, const Peer& peer,
                                const protocol::Envelope& envelope) {
  const protocol::Header& header = envelope.header();
  if (header.version != protocol::kVersion) {
    engine_.protocol_error_count(ProtocolError::kOtherVersion);
    engine_.refuse(connection, header.request, RefusalCode::kOtherVersion,
                   "the broker speaks protocol version " + std::to_string(protocol::kVersion) +
                       " and this program version " + std::to_string(header.version) +
                       "; both must come from one installation of Sluice; after an upgrade restart "
                       "the broker and then "
                       "the program");
    outbox_.drop(connection);
    return;
  }
  if (const auto fault = message_fault(envelope)) {
    reject(connection, peer, header.request, ProtocolError::kMalformed, *fault);
    return;
  }
  dispatch(Asker{connection, peer, header.request}, envelope);
}

/// True = refused: the user's connections, requests, tenants and processes take as many of the
/// broker's descriptors as one user's may, so that another one's always find some.
bool Sessions::user_full(const Asker& asker) {
  const uid_t uid = asker.peer.uid;
  Descriptors each;
  engine_.descriptors_add(&each);
  outbox_.descriptors_add(&each);
  std::uint64_t all = 0;
  for (const auto& [user, count] : each) all += count;
  const std::uint32_t taken = each[uid];
  const std::uint64_t part = part_of_user(descriptors_max_, all, taken, each.size());
  if (taken < part) return false;
  engine_.refuse(
      asker.connection, asker.request, RefusalCode::kUserLimit,
      "the programs of user " + engine_.user_name(uid) + " take " + std::to_string(taken) +
          " of the broker's file descriptors, as many as one user's may; " + kDescriptorsRemedy);
  return true;
}

void Sessions::register_timed(const Asker& asker, const protocol::Register& message) {
  engine_.join(asker, message);
  if (!log_.enabled(Level::kDebug) || engine_.process_on(asker.connection) == 0) return;
  log_.line(Level::kDebug, "register_answered",
            {{"pid", asker.peer.pid}, {"taken_ns", clock_ns() - loop_.readable_since_ns()}});
}

void Sessions::dispatch(const Asker& asker, const protocol::Envelope& envelope) {
  const MessageType type = envelope.header().type;
  const bool asks = type == MessageType::kAdmit || type == MessageType::kRegister ||
                    type == MessageType::kCommand || type == MessageType::kReload;
  if (asks && shutting_down_) {
    engine_.refuse(asker.connection, asker.request, RefusalCode::kShuttingDown,
                   "the broker is ending; try again when it is back");
    return;
  }
  if (asks && (engine_.pending_on(asker.connection) || engine_.process_on(asker.connection) != 0)) {
    reject(asker.connection, asker.peer, asker.request, ProtocolError::kOrder,
           "it comes on a connection that is already in use");
    return;
  }
  const bool takes = type == MessageType::kAdmit || type == MessageType::kRegister;
  if (takes && user_full(asker)) return;
  switch (type) {
    case MessageType::kAdmit:
      engine_.admit(asker, envelope.as<protocol::Admit>());
      return;
    case MessageType::kRegister:
      register_timed(asker, envelope.as<protocol::Register>());
      return;
    case MessageType::kCommand:
      engine_.command(asker, envelope.as<protocol::Command>());
      return;
    case MessageType::kReload:
      engine_.reload_asked(asker, envelope.as<protocol::Reload>());
      return;
    case MessageType::kJobReport:
      engine_.job_report(asker, envelope.as<protocol::JobReport>());
      return;
    case MessageType::kRelease:
      engine_.job_release(asker, envelope.as<protocol::Release>());
      return;
    case MessageType::kSnapshotRequest:
    case MessageType::kActivityRequest:
      if (outbox_.unread_bytes(asker.connection) > kUnreadBytesMax) {
        reject(asker.connection, asker.peer, asker.request, ProtocolError::kOrder,
               "it asks for more before it has read what it was sent");
        return;
      }
      if (type == MessageType::kSnapshotRequest) {
        engine_.snapshot_send(asker);
      } else {
        engine_.activity_send(asker, envelope.as<protocol::ActivityRequest>());
      }
      return;
    default:
      note(asker, envelope);
      return;
  }
}

void Sessions::note(const Asker& asker, const protocol::Envelope& envelope) {
  const core::ProcessId process = engine_.process_on(asker.connection);
  if (process == 0) {
    // Not an offence after the broker itself ended the registration, but then the connection is
    // being closed anyway.
    reject(asker.connection, asker.peer, asker.request, ProtocolError::kOrder,
           "a gate message came on a connection without a registration");
    return;
  }
  if (!engine_.note(process, envelope)) {
    reject(asker.connection, asker.peer, asker.request, ProtocolError::kOrder,
           "the job has no GPU of that index");
  }
}

}  // namespace sluice::daemon

// The protocol's state machine: which message may come on which connection when. A connection
// either asks (Admit, Command, Reload, JobReport, Release, SnapshotRequest,
// ActivityRequest) or, once it has sent Register, is a
// shim's. What breaks the rules is refused with a text, counted, and disconnected.
#pragma once

#include <set>

#include "broker/daemon/connections.h"
#include "broker/daemon/engine.h"

namespace sluice::daemon {

class Sessions : public Sink {
 public:
  /// `descriptors_max`: of the broker, for one user's connections, requests, tenants and processes.
  Sessions(Log& log, Engine& engine, Outbox& outbox, const Loop& loop,
           std::uint32_t descriptors_max)
      : log_(log),
        engine_(engine),
        outbox_(outbox),
        loop_(loop),
        descriptors_max_(descriptors_max) {}

  void message_received(ConnectionId connection, const Peer& peer,
                        const protocol::Envelope& envelope) override;
  void garbage_received(ConnectionId connection, const Peer& peer) override;
  void connection_closed(ConnectionId connection, bool unread) override;

  /// From now on nobody is admitted or registered.
  void shut() { shutting_down_ = true; }

 private:
  void reject(ConnectionId connection, const Peer& peer, std::uint32_t request,
              protocol::ProtocolError kind, const std::string& fault);
  bool user_full(const Asker& asker);
  void register_timed(const Asker& asker, const protocol::Register& message);
  void dispatch(const Asker& asker, const protocol::Envelope& envelope);
  void note(const Asker& asker, const protocol::Envelope& envelope);

  Log& log_;
  Engine& engine_;
  Outbox& outbox_;
  const Loop& loop_;
  const std::uint32_t descriptors_max_;
  std::set<pid_t> complained_;  // one log line per offender
  bool shutting_down_ = false;
};

}  // namespace sluice::daemon

// The protocol's state machine: which message may come on which connection when. A connection
// either asks (Admit, JobReport, Release, SnapshotRequest) or, once it has sent Register, is a
// shim's. What breaks the rules is refused with a text, counted, and disconnected.
#pragma once

#include <set>

#include "broker/daemon/connections.h"
#include "broker/daemon/engine.h"

namespace sluice::daemon {

class Sessions : public Sink {
 public:
  Sessions(Log& log, Engine& engine, Outbox& outbox)
      : log_(log), engine_(engine), outbox_(outbox) {}

  void message_received(ConnectionId connection, const Peer& peer,
                        const protocol::Envelope& envelope) override;
  void garbage_received(ConnectionId connection, const Peer& peer) override;
  void connection_closed(ConnectionId connection, bool unread) override;

  /// From now on nobody is admitted or registered.
  void shut() { shutting_down_ = true; }

 private:
  void reject(ConnectionId connection, const Peer& peer, std::uint32_t request,
              const std::string& fault);
  void dispatch(const Asker& asker, const protocol::Envelope& envelope);
  void note(const Asker& asker, const protocol::Envelope& envelope);

  Log& log_;
  Engine& engine_;
  Outbox& outbox_;
  std::set<pid_t> complained_;  // one log line per offender
  bool shutting_down_ = false;
};

}  // namespace sluice::daemon

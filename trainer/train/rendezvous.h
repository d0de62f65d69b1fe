// Where the launchers of a job on several machines meet: the launcher of node 0 serves it, in a
// thread, and is a node of it itself. It lets in the nodes that have the same job, begins it when
// all are there, keeps the words by which their ranks find each other (comm/store.h), passes on how
// far everybody's ranks are, and says to all when a node is lost or in trouble, so that nobody
// waits for who does not come any more. It decides nothing else: each launcher looks after its own
// ranks.
//
// Nobody proves who he is. What comes is bounded and checked, and a stranger cannot harm what runs
// by accident; on purpose he can, so the port belongs into a network where all are trusted.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/frames.h"

namespace sluice::train {

class Rendezvous {
 public:
  struct Setup {
    HostPort at;
    int node_count;
    std::string job;    // in lines of "option value"; that of every node must be the same
    double wait_s;      // for all nodes to come
    double patience_s;  // with a node that gives no sign of life
  };
  /// Listens, and serves from here to its end. Throws Failure.
  explicit Rendezvous(Setup setup);
  /// What has been said is still sent, for a second at most.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

 private:
  struct Peer {
    enum class Kind { kStranger, kNode, kRank, kGone };
    explicit Peer(int fd);
    FrameSocket socket;
    const std::string address;
    const Nanos since_ns;
    Kind kind = Kind::kStranger;
    int node = -1;
    bool shares = false;
    Nanos heard_ns;
    std::string awaits;  // a rank: the key that it has asked for; empty = none
  };
  struct Node {
    Peer* peer = nullptr;
    bool done = false;  // or lost
  };

  void run();
  void accept_all();
  void serve(Peer& peer);
  void hear(Peer& peer, const Frame& frame);
  void hello_hear(Peer& peer, const Frame& frame);
  void node_enter(Peer& peer, BodyReader& body);
  void node_hear(Peer& peer, const Frame& frame);
  void rank_hear(Peer& peer, const Frame& frame);
  void begin_if_all();
  void clocks_look(Nanos now);
  void leave(Peer& peer);
  void refuse(Peer& peer, const std::string& why);
  void trouble_say(int node, const std::string& text);
  void verdict_if_all();
  void to_nodes(std::uint8_t type, const std::string& body, int but);
  std::string name_of(int node) const;
  std::string missing_text() const;

  const Setup setup_;
  const std::string token_;
  const int listener_;
  const Nanos begun_ns_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Node> nodes_;
  std::vector<std::string> addresses_;  // of nodes, also when they are gone
  std::map<std::string, std::string> words_;
  std::string last_refused_;
  Nanos looked_ns_, beat_ns_ = 0;
  bool started_ = false;
  bool over_ = false;  // the verdict is out, or the job did not begin
  bool failed_ = false;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace sluice::train

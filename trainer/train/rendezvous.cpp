// See rendezvous.h.
#include "trainer/train/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <utility>

#include "trainer/base/failure.h"
#include "trainer/comm/rendezvous_wire.h"
#include "trainer/train/options.h"

namespace sluice::train {
namespace {

constexpr Nanos kServeGap = 50 * kNanosPerMilli;
constexpr Nanos kBeatEvery = 200 * kNanosPerMilli;
constexpr Nanos kStrangerPatience = 10 * kNanosPerSecond;
constexpr Nanos kFarewell = kNanosPerSecond;
// A server that was itself stopped for longer than this begins to listen anew.
constexpr Nanos kServerPauseMax = kNanosPerSecond;
// Every rank of a job has a few connections while it meets the others in its groups.
constexpr std::size_t kPeersMax = 16 * kRanksMax;
// Of one peer, before the others are served.
constexpr int kFramesAtOnce = 64;
constexpr std::size_t kWordsMax = 4096;
// What a node that does not read may leave unsent before it hears no more of how far others are.
constexpr std::size_t kUnsentMax = 1 << 20;

std::string token_draw() {
  std::random_device source;
  return text_format("%08x%08x%08x", source(), source(), source());
}

std::uint8_t type_of(Note note) { return static_cast<std::uint8_t>(note); }

/// The first option in which they differ, for who has `theirs`.
std::string difference_text(const std::string& ours, const std::string& theirs) {
  std::istringstream a(ours), b(theirs);
  for (;;) {
    std::string here, there;
    const bool more = static_cast<bool>(std::getline(a, here));
    const bool others = static_cast<bool>(std::getline(b, there));
    if (!more && !others) return "";
    if (here != there) {
      return text_format("'%s' here, '%s' at node 0", there.substr(0, 200).c_str(),
                         here.substr(0, 200).c_str());
    }
  }
}

}  // namespace

Rendezvous::Peer::Peer(int fd)
    : socket(fd, kRendezvousHelloMax),
      address(address_there(fd)),
      since_ns(now_ns()),
      heard_ns(since_ns) {}

Rendezvous::Rendezvous(Setup setup)
    : setup_(std::move(setup)),
      token_(token_draw()),
      listener_(tcp_listen(setup_.at)),
      begun_ns_(now_ns()),
      nodes_(static_cast<std::size_t>(setup_.node_count)),
      addresses_(nodes_.size()),
      looked_ns_(begun_ns_),
      thread_([this] { run(); }) {}

Rendezvous::~Rendezvous() {
  ends_ = true;
  thread_.join();
  close(listener_);
}

void Rendezvous::run() {
  Nanos leave_at = 0;
  for (;;) {
    std::vector<pollfd> watched{{listener_, POLLIN, 0}};
    for (const auto& peer : peers_) {
      const short sends = peer->socket.unsent() > 0 ? POLLOUT : 0;
      watched.push_back({peer->socket.fd(), static_cast<short>(POLLIN | sends), 0});
    }
    const timespec gap = timespec_of(kServeGap);
    ppoll(watched.data(), watched.size(), &gap, nullptr);
    accept_all();
    for (std::size_t i = 0; i < peers_.size(); ++i) serve(*peers_[i]);
    clocks_look(now_ns());
    verdict_if_all();
    std::erase_if(peers_, [](const auto& peer) { return peer->kind == Peer::Kind::kGone; });
    if (!ends_) continue;
    if (leave_at == 0) leave_at = now_ns() + kFarewell;
    const bool all_sent = std::all_of(peers_.begin(), peers_.end(),
                                      [](const auto& peer) { return peer->socket.unsent() == 0; });
    if (all_sent || now_ns() > leave_at) return;
  }
}

void Rendezvous::accept_all() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (peers_.size() < kPeersMax) {
      peers_.push_back(std::make_unique<Peer>(fd));
    } else {
      close(fd);
    }
  }
}

void Rendezvous::serve(Peer& peer) {
  if (peer.kind == Peer::Kind::kGone) return;
  peer.socket.pump();
  for (int left = kFramesAtOnce; left > 0 && peer.kind != Peer::Kind::kGone; --left) {
    const auto frame = peer.socket.next();
    if (!frame) break;
    peer.heard_ns = now_ns();
    hear(peer, *frame);
    peer.socket.pump();
  }
  if (peer.kind != Peer::Kind::kGone && !peer.socket.broken().empty()) leave(peer);
}

void Rendezvous::hear(Peer& peer, const Frame& frame) {
  switch (peer.kind) {
    case Peer::Kind::kStranger:
      return hello_hear(peer, frame);
    case Peer::Kind::kNode:
      return node_hear(peer, frame);
    case Peer::Kind::kRank:
      return rank_hear(peer, frame);
    case Peer::Kind::kGone:
      return;
  }
}

void Rendezvous::hello_hear(Peer& peer, const Frame& frame) {
  BodyReader body(frame.body);
  const std::string magic = body.text();
  const std::uint64_t version = body.number();
  if (!body.good() || magic != kRendezvousMagic) {
    peer.kind = Peer::Kind::kGone;  // nobody of ours, who would not understand an answer
    return;
  }
  if (version != kRendezvousVersion) {
    return refuse(peer, text_format("it is another sluice-train: version %llu of the rendezvous "
                                    "here, %llu at node 0",
                                    static_cast<unsigned long long>(version),
                                    static_cast<unsigned long long>(kRendezvousVersion)));
  }
  if (frame.type == type_of(Note::kNodeHello)) return node_enter(peer, body);
  const std::string token = body.text();
  if (frame.type != type_of(Note::kRankHello) || !body.ok() || !started_ || token != token_)
    return refuse(peer, "it is no rank of this job");
  peer.kind = Peer::Kind::kRank;
  peer.socket.body_max_set(kRendezvousBodyMax);
}

void Rendezvous::node_enter(Peer& peer, BodyReader& body) {
  const std::uint64_t node = body.number();
  const std::uint64_t count = body.number();
  const std::string job = body.text();
  const bool shares = body.number() != 0;
  if (!body.ok()) return refuse(peer, "it does not speak as it must");
  if (count != nodes_.size()) {
    return refuse(peer, text_format("--nnodes %llu here, %zu at node 0",
                                    static_cast<unsigned long long>(count), nodes_.size()));
  }
  const auto named = text_format("node %llu", static_cast<unsigned long long>(node));
  if (node >= nodes_.size()) return refuse(peer, "there is no " + named);
  Node& mine = nodes_[static_cast<std::size_t>(node)];
  if (started_ || over_) return refuse(peer, "the job has begun already, and takes no more nodes");
  if (mine.peer != nullptr) {
    return refuse(peer, named + " is there already, at " + mine.peer->address +
                            "; give each node a --node-rank of its own");
  }
  const std::string differs = difference_text(setup_.job, job);
  if (!differs.empty()) {
    last_refused_ = named + " at " + peer.address + " has another job (" + differs + ")";
    return refuse(peer, "its job is another: " + differs + "; give all nodes the same options");
  }
  peer.kind = Peer::Kind::kNode;
  peer.node = static_cast<int>(node);
  peer.shares = shares;
  peer.socket.body_max_set(kRendezvousBodyMax);
  mine.peer = &peer;
  addresses_[static_cast<std::size_t>(node)] = peer.address;
  begin_if_all();
}

void Rendezvous::begin_if_all() {
  const auto is_there = [](const Node& node) { return node.peer != nullptr; };
  if (!std::all_of(nodes_.begin(), nodes_.end(), is_there)) return;
  started_ = true;
  bool shares = false;
  for (const Node& node : nodes_) {
    shares = shares || node.peer->shares;
    node.peer->heard_ns = now_ns();
  }
  to_nodes(type_of(Note::kWelcome), BodyWriter().text(token_).number(shares ? 1 : 0).body(), -1);
}

void Rendezvous::node_hear(Peer& peer, const Frame& frame) {
  Node& mine = nodes_[static_cast<std::size_t>(peer.node)];
  BodyReader body(frame.body);
  switch (static_cast<Note>(frame.type)) {
    case Note::kLines:
      return to_nodes(frame.type, frame.body, peer.node);
    case Note::kTrouble:
      return trouble_say(peer.node, body.text());
    case Note::kDone:
      failed_ = failed_ || body.number() != 1;
      mine.done = true;
      return;
    default:
      return;  // a beat, or what a later version says
  }
}

void Rendezvous::rank_hear(Peer& peer, const Frame& frame) {
  BodyReader body(frame.body);
  const std::string key = body.text();
  const bool sets = frame.type == type_of(Note::kSet);
  const std::string value = sets ? body.text() : "";
  if (!body.ok() || (!sets && frame.type != type_of(Note::kGet)) || words_.size() >= kWordsMax)
    return refuse(peer, "it does not speak as it must");
  if (!sets) {
    peer.awaits = key;
  } else {
    words_[key] = value;
  }
  for (const auto& one : peers_) {
    if (one->kind != Peer::Kind::kRank || one->awaits.empty() || one->awaits != key) continue;
    const auto found = words_.find(key);
    if (found == words_.end()) continue;
    one->awaits.clear();
    one->socket.push(type_of(Note::kValue), BodyWriter().text(found->second).body());
  }
}

std::string Rendezvous::name_of(int node) const {
  const std::string& address = addresses_[static_cast<std::size_t>(node)];
  return "node " + std::to_string(node) + (address.empty() ? "" : " (" + address + ")");
}

std::string Rendezvous::missing_text() const {
  std::string names;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].peer == nullptr) names += (names.empty() ? "" : ", ") + std::to_string(i);
  return names;
}

void Rendezvous::clocks_look(Nanos now) {
  if (now - looked_ns_ > kServerPauseMax) {
    for (const auto& peer : peers_) peer->heard_ns = now;
  }
  looked_ns_ = now;
  for (const auto& peer : peers_) {
    if (peer->kind == Peer::Kind::kStranger && now - peer->since_ns > kStrangerPatience)
      peer->kind = Peer::Kind::kGone;
    if (peer->kind != Peer::Kind::kNode || !started_ || over_) continue;
    if (now - peer->heard_ns <= nanos_of_seconds(setup_.patience_s)) continue;
    trouble_say(peer->node,
                text_format("it has given no sign of life for %g s (--heartbeat-timeout)",
                            setup_.patience_s));
    nodes_[static_cast<std::size_t>(peer->node)] = {nullptr, true};
    peer->kind = Peer::Kind::kGone;
  }
  if (!started_ && !over_ && now - begun_ns_ > nanos_of_seconds(setup_.wait_s)) {
    over_ = true;
    const std::string missing = missing_text();
    const std::string why = text_format(
        "the job did not begin: of %zu nodes, node %s has not come to %s within %g s "
        "(--rendezvous-timeout)%s",
        nodes_.size(), missing.c_str(), setup_.at.text().c_str(), setup_.wait_s,
        last_refused_.empty() ? "" : ("; " + last_refused_).c_str());
    to_nodes(type_of(Note::kRefused), BodyWriter().text(why).body(), -1);
  }
  if (now - beat_ns_ < kBeatEvery) return;
  beat_ns_ = now;
  to_nodes(type_of(Note::kBeat), "", -1);
}

/// The connection has ended.
void Rendezvous::leave(Peer& peer) {
  if (peer.kind == Peer::Kind::kNode) {
    Node& mine = nodes_[static_cast<std::size_t>(peer.node)];
    mine.peer = nullptr;
    if (started_ && !mine.done && !over_)
      trouble_say(peer.node, "its launcher was lost (" + peer.socket.broken() + ")");
    mine.done = mine.done || started_;
  }
  peer.kind = Peer::Kind::kGone;
}

void Rendezvous::refuse(Peer& peer, const std::string& why) {
  peer.socket.push(type_of(Note::kRefused), BodyWriter().text(why).body());
  peer.kind = Peer::Kind::kGone;
}

void Rendezvous::trouble_say(int node, const std::string& text) {
  failed_ = true;
  to_nodes(type_of(Note::kTrouble), BodyWriter().text(name_of(node) + ": " + text).body(), node);
}

void Rendezvous::verdict_if_all() {
  const bool all = std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.done; });
  if (!started_ || over_ || !all) return;
  over_ = true;
  to_nodes(type_of(Note::kVerdict), BodyWriter().number(failed_ ? 0 : 1).body(), -1);
}

void Rendezvous::to_nodes(std::uint8_t type, const std::string& body, int but) {
  const bool may_wait = type == type_of(Note::kLines) || type == type_of(Note::kBeat);
  for (const Node& node : nodes_) {
    if (node.peer == nullptr || node.peer->node == but) continue;
    if (may_wait && node.peer->socket.unsent() > kUnsentMax) continue;
    node.peer->socket.push(type, body);
  }
}

}  // namespace sluice::train

// Limits, fairness and silence on connections, with socket pairs in place of clients.
#include "broker/daemon/connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/daemon/timer.h"
#include "no_descriptors.h"

namespace sluice::daemon {
namespace {

class CountingSink : public Sink {
 public:
  void message_received(ConnectionId connection, const Peer&,
                        const protocol::Envelope& envelope) override {
    ++messages;
    last = connection;
    request = envelope.header().request;
    if (on_message) on_message(connection);
  }
  void garbage_received(ConnectionId, const Peer&) override { ++garbage; }
  void connection_closed(ConnectionId, bool) override { ++closed; }
  std::function<void(ConnectionId)> on_message;
  int messages = 0;
  int garbage = 0;
  int closed = 0;
  ConnectionId last = 0;
  std::uint32_t request = 0;
};

class ConnectionsTest : public testing::Test {
 protected:
  void make(const ConnectionLimits& limits) {
    connections_ = std::make_unique<Connections>(loop_, log_, limits);
    connections_->sink_set(&sink_);
  }
  /// The client's end of an accepted connection.
  devices::Fd connect() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) abort();
    connections_->accept(devices::Fd(pair[0]));
    return devices::Fd(pair[1]);
  }
  static bool say(const devices::Fd& fd, std::uint32_t request = 1) {
    protocol::SnapshotRequest message;
    protocol::message_init(message, protocol::MessageType::kSnapshotRequest, request);
    return protocol::wire_send(fd.get(), &message, sizeof message, nullptr, 0, true) == 0;
  }
  /// The code of the refusal that waits to be read, or kNone.
  static protocol::RefusalCode refusal(const devices::Fd& fd) {
    protocol::Envelope envelope;
    if (protocol::wire_receive(fd.get(), &envelope, 0) != 1 ||
        !envelope.is<protocol::Refused>(protocol::MessageType::kRefused))
      return protocol::RefusalCode::kNone;
    return envelope.as<protocol::Refused>().code;
  }
  static bool closed(const devices::Fd& fd) {
    protocol::Envelope envelope;
    return protocol::wire_receive(fd.get(), &envelope, 0) == 0;
  }

  Loop loop_;
  Log log_;
  CountingSink sink_;
  std::unique_ptr<Connections> connections_;
};

TEST_F(ConnectionsTest, MessagesArriveAndEndsAreTold) {
  make({});
  devices::Fd client = connect();
  ASSERT_TRUE(say(client, 77));
  loop_.turn(1000);
  EXPECT_EQ(sink_.messages, 1);
  EXPECT_EQ(sink_.request, 77u);
  Descriptors taken;
  connections_->descriptors_add(&taken);
  EXPECT_GT(taken[getuid()], 0u);
  client.reset();
  loop_.turn(1000);
  EXPECT_EQ(sink_.closed, 1);
  EXPECT_EQ(connections_->count(), 0u);
  taken.clear();
  connections_->descriptors_add(&taken);
  EXPECT_EQ(taken[getuid()], 0u) << "charges return to zero";
}

TEST_F(ConnectionsTest, OneUserHasSoManyAndIsToldSo) {
  ConnectionLimits limits;
  limits.per_user_max = 2;
  make(limits);
  const devices::Fd first = connect();
  devices::Fd second = connect();
  const devices::Fd third = connect();
  EXPECT_EQ(refusal(third), protocol::RefusalCode::kUserLimit);
  EXPECT_TRUE(closed(third));
  EXPECT_EQ(connections_->count(), 2u);
  second.reset();
  loop_.turn(1000);
  const devices::Fd fourth = connect();
  EXPECT_EQ(refusal(fourth), protocol::RefusalCode::kNone);
  EXPECT_EQ(connections_->count(), 2u);
}

TEST_F(ConnectionsTest, WithoutADescriptorForItsPeerAConnectionIsToldSo) {
  make({});
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  const devices::Fd client(pair[1]);
  {
    const NoDescriptors none;
    connections_->accept(devices::Fd(pair[0]));
  }
  EXPECT_EQ(refusal(client), protocol::RefusalCode::kNoRoom);
  EXPECT_TRUE(closed(client));
  EXPECT_EQ(connections_->count(), 0u);
}

TEST_F(ConnectionsTest, WhoSaysNothingIsDisconnected) {
  ConnectionLimits limits;
  limits.silence_ns_max = 1'000'000'000;
  make(limits);
  const devices::Fd silent = connect();
  const devices::Fd speaking = connect();
  ASSERT_TRUE(say(speaking));
  loop_.turn(1000);
  connections_->tend(clock_ns());
  loop_.turn(0);
  EXPECT_EQ(connections_->count(), 2u) << "not yet";
  connections_->tend(clock_ns() + limits.silence_ns_max);
  loop_.turn(0);
  EXPECT_EQ(refusal(silent), protocol::RefusalCode::kTimeout);
  EXPECT_TRUE(closed(silent));
  EXPECT_EQ(connections_->count(), 1u) << "who has spoken may be quiet";
  EXPECT_TRUE(say(speaking));
  loop_.turn(1000);
  EXPECT_EQ(sink_.messages, 2);
}

TEST_F(ConnectionsTest, AFloodEndsItsTurnSoThatOthersAreHeard) {
  ConnectionLimits limits;
  limits.user_turn_ns = 0;  // the least: a message for each connection that is looked at
  make(limits);
  std::vector<devices::Fd> flood;
  std::size_t sent = 0;
  for (int i = 0; i < 20; ++i) {
    flood.push_back(connect());
    while (sent < 100 * flood.size() && say(flood.back())) ++sent;
  }
  ASSERT_GT(sent, 100u);
  // Something else of the daemon's: in its place in line every turn, however much waits.
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const devices::Fd reader(pipe_fds[0]);
  const devices::Fd writer(pipe_fds[1]);
  ASSERT_EQ(write(writer.get(), "x", 1), 1);
  int others = 0;
  const Loop::Key key = loop_.add(reader.get(), [&] { ++others; });
  int turns = 0;
  while (sink_.messages < static_cast<int>(sent)) {
    const int before = sink_.messages;
    loop_.turn(1000);
    ++turns;
    ASSERT_EQ(others, turns) << "the others have every turn";
    ASSERT_LE(sink_.messages - before, 4) << "a user's turn is bounded";
  }
  loop_.remove(key);
}

// However many connections it comes on: each message that is begun in time is finished.
TEST_F(ConnectionsTest, AUsersTurnIsBoundedWhateverAMessageCosts) {
  constexpr std::int64_t kMessage_ns = 100'000;
  const ConnectionLimits limits;
  make(limits);
  sink_.on_message = [](ConnectionId) {
    for (const std::int64_t until_ns = clock_ns() + kMessage_ns; clock_ns() < until_ns;) {
    }
  };
  std::vector<devices::Fd> flood;
  for (int i = 0; i < 64; ++i) {
    flood.push_back(connect());
    for (int n = 0; n < 5; ++n) ASSERT_TRUE(say(flood.back()));
  }
  const auto most = static_cast<int>(limits.user_turn_ns / kMessage_ns) + 4;
  for (int before = 0; sink_.messages < 64 * 5; before = sink_.messages) {
    loop_.turn(1000);
    ASSERT_LE(sink_.messages - before, most);
  }
}

TEST_F(ConnectionsTest, AUsersLastConnectionMayEndInItsOwnTurn) {
  make({});
  devices::Fd client = connect();
  sink_.on_message = [&](ConnectionId connection) { connections_->drop(connection); };
  ASSERT_TRUE(say(client));
  ASSERT_TRUE(say(client)) << "more of it waits";
  loop_.turn(1000);
  EXPECT_EQ(sink_.messages, 1);
  EXPECT_EQ(sink_.closed, 1);
  EXPECT_EQ(connections_->count(), 0u);
  const devices::Fd again = connect();
  ASSERT_TRUE(say(again));
  loop_.turn(1000);
  EXPECT_EQ(sink_.messages, 2);
}

TEST_F(ConnectionsTest, AnswersThatAreNotReadEndTheConnection) {
  make({});
  const devices::Fd deaf = connect();
  ASSERT_TRUE(say(deaf));
  loop_.turn(1000);
  protocol::Refused answer;
  protocol::message_init(answer, protocol::MessageType::kRefused, 1);
  int taken = 0;
  while (taken < 10'000 && connections_->send(sink_.last, answer)) ++taken;
  EXPECT_GT(taken, 8) << "a few may wait";
  EXPECT_LT(taken, 200) << "what waits in the kernel is bounded";
  loop_.turn(0);
  EXPECT_EQ(connections_->count(), 0u);
}

std::uint32_t charged(const ChargeBook& book, uid_t uid) {
  Descriptors each;
  book.add_to(&each);
  return each.contains(uid) ? each[uid] : 0;
}

TEST(Charges, AreReturnedWithTheirOwnersWhereverThoseGo) {
  ChargeBook book;
  DescriptorCharge kept;
  {
    DescriptorCharge one(book, 1000, 3);
    const DescriptorCharge other(book, 1001, 1);
    EXPECT_EQ(charged(book, 1000), 3u);
    kept = std::move(one);
    std::vector<DescriptorCharge> line;
    for (int i = 0; i < 10; ++i) line.emplace_back(book, 1000, 1);
    line.erase(line.begin() + 2, line.begin() + 5);
    EXPECT_EQ(charged(book, 1000), 10u);
    line.front() = DescriptorCharge(book, 1001, 2);
    EXPECT_EQ(charged(book, 1000), 9u);
    EXPECT_EQ(charged(book, 1001), 3u);
  }
  EXPECT_EQ(charged(book, 1000), 3u);
  Descriptors each;
  book.add_to(&each);
  EXPECT_EQ(each.size(), 1u) << "who has nothing is not counted among the users";
  kept = DescriptorCharge();
  EXPECT_EQ(charged(book, 1000), 0u);
}

TEST(ChargesDeath, ABookThatIsClosedBeforeItsChargesSaysSo) {
  DescriptorCharge left;
  EXPECT_DEATH(
      {
        ChargeBook book;
        left = DescriptorCharge(book, 1000, 1);
      },
      "charges return to zero");
}

TEST(PartOfUser, LeavesSomethingForOneMoreHoweverManyTakeWhatTheyCan) {
  constexpr std::uint64_t kTotal = 1000;
  EXPECT_EQ(part_of_user(kTotal, 0, 0, 1), kTotal / 2);
  std::uint64_t taken = 0;
  for (std::uint64_t users = 1; users <= 20; ++users) {
    std::uint64_t own = 0;
    while (own < part_of_user(kTotal, taken, own, users)) ++own, ++taken;
    EXPECT_GT(own, 0U) << "user " << users;
    EXPECT_LT(taken, kTotal);
  }
  EXPECT_EQ(part_of_user(10, 30, 5, 2), 0U) << "others have more than there is";
}

}  // namespace
}  // namespace sluice::daemon

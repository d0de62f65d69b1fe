// The rendezvous of the nodes of a job by itself, and what its messages are made of.
#include "trainer/train/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trainer/base/failure.h"
#include "trainer/comm/peer_failure.h"
#include "trainer/comm/rendezvous_wire.h"
#include "trainer/comm/store.h"
#include "trainer/train/nodes.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

constexpr double kRendezvousPatience_s = 60;

struct SocketPair {
  explicit SocketPair(std::size_t body_max) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    a = std::make_unique<FrameSocket>(ends[0], body_max);
    b = std::make_unique<FrameSocket>(ends[1], body_max);
  }
  std::unique_ptr<FrameSocket> a, b;
};

TEST(Frames, ArriveWholeAndInOrderHoweverTheyAreCut) {
  SocketPair pair(100'000);
  const std::string big(90'000, 'x');
  std::vector<Frame> got;
  for (std::uint8_t type = 1; type <= 30; ++type) pair.a->push(type, type % 2 ? big : "small");
  for (int round = 0; round < 1000 && got.size() < 30; ++round) {
    pair.a->pump();
    pair.b->pump();
    while (auto frame = pair.b->next()) got.push_back(*frame);
  }
  ASSERT_EQ(got.size(), 30u);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].type, i + 1);
    EXPECT_EQ(got[i].body, (i + 1) % 2 ? big : "small");
  }
  pair.a->push(7, "last");
  pair.a.reset();
  pair.b->pump();
  EXPECT_FALSE(pair.b->broken().empty());
  const auto last = pair.b->next();
  ASSERT_TRUE(last) << "what came before the end is still there";
  EXPECT_EQ(last->body, "last");
}

TEST(Frames, ALongerOneThanAllowedEndsTheConnection) {
  SocketPair pair(10);
  pair.a->push(1, "0123456789");
  pair.a->push(2, "0123456789a");
  pair.b->pump();
  EXPECT_TRUE(pair.b->next());
  EXPECT_FALSE(pair.b->next());
  EXPECT_EQ(pair.b->broken(), "a message of 11 bytes, and 10 are the most");
}

TEST(Frames, ABodyThatIsTooShortOrTooLongIsSeen) {
  const std::string body = BodyWriter().number(7).text("word").body();
  BodyReader good(body);
  EXPECT_EQ(good.number(), 7u);
  EXPECT_EQ(good.text(), "word");
  EXPECT_TRUE(good.ok());
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
    BodyReader cut(std::string_view(body).substr(0, bytes));
    cut.number();
    EXPECT_EQ(cut.text(), "");
    EXPECT_FALSE(cut.ok()) << bytes;
  }
  BodyReader longer(body);
  longer.number();
  EXPECT_FALSE(longer.ok());
}

TEST(HostPort, IsAHostAndAPort) {
  EXPECT_EQ(host_port_parse("a.b:80")->host, "a.b");
  EXPECT_EQ(host_port_parse("[::1]:65535")->host, "::1");
  EXPECT_EQ(host_port_parse("[::1]:65535")->text(), "[::1]:65535");
  for (const char* bad : {"", "a", ":1", "a:", "a:0", "a:65536", "a:1x", "::1:1", "a:123456"})
    EXPECT_FALSE(host_port_parse(bad)) << bad;
}

TEST(NetworkPlace, IsTextAndBack) {
  const NetworkPlace place{{"::1", "7"}, "token", "fe80::2", true, ""};
  const auto same = network_place_parse(place_part(place.text(), "data-0"));
  ASSERT_TRUE(same);
  EXPECT_EQ(same->rendezvous.host, "::1");
  EXPECT_EQ(same->token, "token");
  EXPECT_EQ(same->address, "fe80::2");
  EXPECT_TRUE(same->shares);
  EXPECT_EQ(same->prefix, "/data-0");
  EXPECT_EQ(place_address(place.text()), "fe80::2");
  EXPECT_FALSE(network_place_parse("/tmp/job"));
  EXPECT_EQ(place_address("/tmp/job"), "127.0.0.1");
}

/// A node's side, by hand.
class NodeByHand {
 public:
  NodeByHand(const HostPort& at, std::uint64_t node, const std::string& job,
             std::uint64_t version = kRendezvousVersion, std::uint64_t count = 2)
      : socket_(tcp_connect(at, now_ns() + nanos_of_seconds(kRendezvousPatience_s), nullptr),
                kRendezvousBodyMax) {
    say(Note::kNodeHello, BodyWriter()
                              .text(kRendezvousMagic)
                              .number(version)
                              .number(node)
                              .number(count)
                              .text(job)
                              .number(0)
                              .body());
  }
  void say(Note note, const std::string& body) {
    socket_.push(static_cast<std::uint8_t>(note), body);
  }
  /// The body of the next such message; other ones are left out. "?" where there is none.
  std::string await(Note note) {
    const Nanos deadline = now_ns() + nanos_of_seconds(kRendezvousPatience_s);
    while (now_ns() < deadline) {
      socket_.pump();
      while (const auto frame = socket_.next())
        if (frame->type == static_cast<std::uint8_t>(note)) return frame->body;
      if (!socket_.broken().empty()) return "?";
      sleep_until(now_ns() + kNanosPerMilli);
    }
    return "?";
  }
  std::string await_text(Note note) {
    const std::string body = await(note);
    return body == "?" ? body : BodyReader(body).text();
  }

 private:
  FrameSocket socket_;
};

class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest()
      : at_({"127." + std::to_string(1 + getpid() / 65536 % 250) + "." +
                 std::to_string(getpid() / 256 % 256) + "." + std::to_string(1 + getpid() % 250),
             "29518"}),
        server_({at_, 2, "--a 1\n--b 2\n", kRendezvousPatience_s, kRendezvousPatience_s}) {}
  const HostPort at_;
  Rendezvous server_;
  const std::string job_ = "--a 1\n--b 2\n";
};

TEST_F(RendezvousTest, LetsInWhoBelongsToTheJob) {
  NodeByHand zero(at_, 0, job_);
  EXPECT_EQ(NodeByHand(at_, 1, "--a 1\n--b 3\n").await_text(Note::kRefused),
            "its job is another: '--b 3' here, '--b 2' at node 0; give all nodes the same options");
  EXPECT_EQ(NodeByHand(at_, 1, "--a 1\n").await_text(Note::kRefused),
            "its job is another: '' here, '--b 2' at node 0; give all nodes the same options");
  EXPECT_NE(NodeByHand(at_, 0, job_).await_text(Note::kRefused).find("node 0 is there already"),
            std::string::npos);
  EXPECT_EQ(NodeByHand(at_, 2, job_).await_text(Note::kRefused), "there is no node 2");
  EXPECT_NE(NodeByHand(at_, 1, job_, 9).await_text(Note::kRefused).find("version 9"),
            std::string::npos);
  { const NodeByHand gone(at_, 1, job_ + "x"); }
  NodeByHand one(at_, 1, job_);
  const std::string token = zero.await_text(Note::kWelcome);
  EXPECT_EQ(token.size(), 24u);
  EXPECT_EQ(one.await_text(Note::kWelcome), token);
  EXPECT_NE(NodeByHand(at_, 1, job_).await_text(Note::kRefused).find("has begun already"),
            std::string::npos);
}

TEST_F(RendezvousTest, KeepsWordsForRanksThatHaveTheToken) {
  NodeByHand zero(at_, 0, job_), one(at_, 1, job_);
  const std::string token = zero.await_text(Note::kWelcome);
  const auto open = [&](const std::string& with) {
    return store_open(NetworkPlace{at_, with, "127.0.0.1", false, "/part"}.text(), 20, nullptr);
  };
  const Nanos deadline = now_ns() + nanos_of_seconds(kRendezvousPatience_s);
  const auto writer = open(token), reader = open(token);
  std::string heard;
  std::thread waits([&] { heard = reader->get("key", deadline).value_or("none"); });
  writer->set("key", std::string("a\0b", 3));
  waits.join();
  EXPECT_EQ(heard, std::string("a\0b", 3));
  EXPECT_EQ(open(token)->get("key", deadline), heard);
  EXPECT_FALSE(open(token)->get("other", now_ns() + kNanosPerMilli));
  EXPECT_THROW(open("wrong")->get("key", deadline), PeerFailure);
  EXPECT_EQ(open(token)->get("key", deadline), heard) << "and it still serves";
}

TEST_F(RendezvousTest, PassesOnTroubleAndTheVerdict) {
  NodeByHand zero(at_, 0, job_);
  {
    NodeByHand one(at_, 1, job_);
    one.await(Note::kWelcome);
    one.say(Note::kLines, "lines");
    EXPECT_EQ(zero.await(Note::kLines), "lines");
    zero.say(Note::kTrouble, BodyWriter().text("it burns").body());
    EXPECT_EQ(one.await_text(Note::kTrouble), "node 0 (127.0.0.1): it burns");
  }
  EXPECT_EQ(zero.await_text(Note::kTrouble),
            "node 1 (127.0.0.1): its launcher was lost (the connection was closed)");
  zero.say(Note::kDone, BodyWriter().number(1).body());
  EXPECT_EQ(zero.await(Note::kVerdict), BodyWriter().number(0).body()) << "one was lost";
}

TEST_F(RendezvousTest, AllIsWellWhenAllNodesAre) {
  NodeByHand zero(at_, 0, job_), one(at_, 1, job_);
  zero.await(Note::kWelcome);
  for (NodeByHand* node : {&zero, &one}) node->say(Note::kDone, BodyWriter().number(1).body());
  for (NodeByHand* node : {&zero, &one})
    EXPECT_EQ(node->await(Note::kVerdict), BodyWriter().number(1).body());
}

TEST(RendezvousDeadline, NamesAllThatAreMissing) {
  const HostPort at{"127." + std::to_string(1 + getpid() / 65536 % 250) + "." +
                        std::to_string(getpid() / 256 % 256) + "." +
                        std::to_string(1 + getpid() % 250),
                    "29519"};
  const Rendezvous server({at, 4, "job\n", 3, kRendezvousPatience_s});
  NodeByHand zero(at, 0, "job\n", kRendezvousVersion, 4),
      two(at, 2, "job\n", kRendezvousVersion, 4);
  EXPECT_NE(NodeByHand(at, 1, "other\n", kRendezvousVersion, 4).await_text(Note::kRefused), "?");
  for (NodeByHand* node : {&zero, &two}) {
    EXPECT_EQ(
        node->await_text(Note::kRefused),
        "the job did not begin: of 4 nodes, node 1, 3 has not come to " + at.text() +
            " within 3 s (--rendezvous-timeout); node 1 at 127.0.0.1 has another job ('other' "
            "here, 'job' at node 0)");
  }
}

}  // namespace
}  // namespace sluice::tests

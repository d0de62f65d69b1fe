// Requests whose user is looked up: a directory service that does not answer holds up nobody else.
#include <algorithm>

#include "broker/daemon/named.h"
#include "engine_fixture.h"

namespace sluice::daemon {
namespace {

using protocol::MessageType;

class EngineWho : public EngineTest {
 protected:
  void by_group() {
    config::ProfileSettings profile;
    profile.name = "staff";
    profile.groups = {"root"};
    setup.config.profiles.push_back(profile);
  }
};

TEST_F(EngineWho, ARequestWaitsForItsUserAndOthersDoNot) {
  by_group();
  Engine engine(loop, log, outbox, slow, setup);
  const Peer known = peer_of(0);
  const Peer unknown = peer_of(4000);
  engine.admit({1, known, 1}, admission);
  slow.let_go();
  ASSERT_EQ(outbox.last[1], MessageType::kAdmitted);
  engine.admit({2, unknown, 1}, admission);  // and its directory service does not answer
  EXPECT_FALSE(outbox.last.contains(2));
  EXPECT_TRUE(engine.pending_on(2));
  engine.admit({3, known, 1}, admission);
  EXPECT_EQ(outbox.last[3], MessageType::kAdmitted) << "nothing of it has to be looked up";
  engine.heartbeat();
  slow.let_go();
  EXPECT_EQ(outbox.last[2], MessageType::kAdmitted);
  EXPECT_FALSE(engine.pending_on(2));
}

TEST_F(EngineWho, WhoWaitsIsToldANameOnceItIsKnown) {
  Engine engine(loop, log, outbox, slow, setup);
  protocol::Command drain;
  protocol::message_init(drain, MessageType::kCommand, 1);
  drain.verb = protocol::CommandVerb::kDrain;
  engine.command({1, peer_of(0), 1}, drain);
  std::strcpy(admission.name, "train");
  engine.admit({2, peer_of(4000), 1}, admission);
  engine.admit({3, peer_of(0), 1}, admission);
  engine.admit({4, peer_of(4000), 1}, admission);
  EXPECT_STREQ(outbox.answer<protocol::Queued>(2).text, "GPU 0 is drained by user 0");
  slow.let_go();
  EXPECT_STREQ(outbox.answer<protocol::Queued>(2).text, "GPU 0 is drained by user root");
  EXPECT_STREQ(outbox.answer<protocol::Queued>(4).ahead, "train of root");
}

TEST(OwnedText, TheUserStaysWhole) {
  EXPECT_EQ(owned_text("train", "anna", 31), "train of anna");
  EXPECT_EQ(owned_text("job-日本語", "anna", 16), "job-日 of anna");
  EXPECT_EQ(owned_text("job-日本語", "anna", 14), "job- of anna") << "whole characters";
  EXPECT_EQ(owned_text("train", "anna", 3), " of anna");
}

TEST_F(EngineWho, OneLookAnswersAllOfItsUser) {
  by_group();
  Engine engine(loop, log, outbox, slow, setup);
  const Peer peer = peer_of(4000);
  for (ConnectionId connection = 1; connection <= 10; ++connection)
    engine.admit({connection, peer, 1}, admission);
  EXPECT_EQ(slow.held.size(), 1u);
  slow.let_go();
  for (ConnectionId connection = 1; connection <= 10; ++connection)
    EXPECT_EQ(outbox.last[connection], MessageType::kAdmitted);
}

TEST_F(EngineWho, ADirectoryThatNeverAnswersIsNotWaitedForForEver) {
  setup.who_patience_ns = 0;
  const Peer peer = peer_of(4000);
  {
    Engine engine(loop, log, outbox, slow, setup);
    engine.admit({1, peer, 1}, admission);
    engine.heartbeat();
    EXPECT_EQ(outbox.last[1], MessageType::kAdmitted) << "no profile goes by groups";
  }
  by_group();
  Engine engine(loop, log, outbox, slow, setup);
  engine.admit({2, peer, 1}, admission);
  engine.heartbeat();
  EXPECT_EQ(outbox.last[2], MessageType::kRefused);
  EXPECT_THAT(outbox.text, testing::HasSubstr("have not told the groups of user 4000"));
  slow.held.clear();  // what is left of it is another engine's
}

TEST_F(EngineWho, GroupsThatAreNotReadAreNotTakenForNone) {
  Peer peer = peer_of(0);
  peer.groups_known = false;
  {
    Engine engine(loop, log, outbox, slow, setup);
    engine.admit({1, peer, 1}, admission);
    EXPECT_EQ(outbox.last[1], MessageType::kAdmitted) << "no profile goes by groups";
    slow.let_go();
  }
  by_group();
  Engine engine(loop, log, outbox, slow, setup);
  engine.admit({2, peer, 1}, admission);
  EXPECT_EQ(outbox.last[2], MessageType::kRefused);
  EXPECT_THAT(outbox.text, testing::HasSubstr("more groups than the broker reads (1024)"));
  slow.held.clear();
}

TEST_F(EngineWho, AnAskerThatLeavesIsForgotten) {
  by_group();
  Engine engine(loop, log, outbox, slow, setup);
  const Peer peer = peer_of(4000);
  engine.admit({1, peer, 1}, admission);
  engine.connection_closed(1, false);
  EXPECT_TRUE(engine.idle());
  slow.let_go();
  EXPECT_TRUE(outbox.last.empty());
}

TEST_F(EngineWho, TheCgroupOfAnAskerThatHasLeftIsNotWanted) {
  config::ProfileSettings profile;
  profile.name = "batch";
  profile.cgroups = {"/batch"};
  setup.config.profiles.push_back(profile);
  Engine engine(loop, log, outbox, slow, setup);
  engine.admit({1, peer_of(4000), 1}, admission);
  ASSERT_FALSE(slow.wanted.empty());
  const auto unwanted = [&] {
    return std::ranges::count_if(slow.wanted, [](const auto& w) { return w.expired(); });
  };
  EXPECT_EQ(unwanted(), 0);
  engine.connection_closed(1, false);
  EXPECT_EQ(unwanted(), 1);
  slow.held.clear();
}

TEST_F(EngineWho, AReloadThatTakesTooLongIsGivenUp) {
  setup.config.path = "/nonexistent/sluice.toml";
  setup.reload_patience_ns = 0;
  Engine engine(loop, log, outbox, slow, setup);
  engine.reload();
  engine.heartbeat();
  engine.reload();
  EXPECT_EQ(slow.held.size(), 2u) << "the next one does not wait for it";
  slow.let_go();
}

TEST_F(EngineWho, AReloadReadsBesideTheLoop) {
  setup.config.path = "/nonexistent/sluice.toml";
  Engine engine(loop, log, outbox, slow, setup);
  engine.reload();
  engine.reload();
  EXPECT_EQ(slow.held.size(), 1u) << "one at a time";
  slow.let_go();
}

}  // namespace
}  // namespace sluice::daemon

// Requests whose user is looked up: a directory service that does not answer holds up nobody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>

#include "broker/daemon/engine.h"

namespace sluice::daemon {
namespace {

using protocol::MessageType;

/// Takes answers in the place of sockets: the type of the last one by connection.
struct Answered : Outbox {
  std::map<ConnectionId, MessageType> last;
  std::string text;
  bool send_bytes(ConnectionId connection, const void* message, std::size_t, const int*,
                  int) override {
    const auto& header = *static_cast<const protocol::Header*>(message);
    last[connection] = header.type;
    if (header.type == MessageType::kRefused)
      text = static_cast<const protocol::Refused*>(message)->text;
    return true;
  }
  std::size_t unread_bytes(ConnectionId) const override { return 0; }
  uid_t user_of(ConnectionId) const override { return 1000; }
  void drop(ConnectionId) override {}
  void descriptors_add(Descriptors*) const override {}
};

/// Work that waits until the test lets it run.
struct Held : SlowWork {
  std::deque<Work> held;
  std::vector<std::weak_ptr<const void>> wanted;
  using SlowWork::run;
  void run(Work work, std::weak_ptr<const void> wanted_by) override {
    held.push_back(std::move(work));
    wanted.push_back(std::move(wanted_by));
  }
  void let_go() {
    while (!held.empty()) {
      const Work work = std::move(held.front());
      held.pop_front();
      if (const Loop::Handler done = work()) done();
    }
  }
};

class EngineWho : public testing::Test {
 protected:
  EngineWho() {
    EXPECT_EQ(log.file_open("/dev/null"), 0);
    setup.gpus.resize(1);
    setup.gpus[0].capacity_bytes = std::uint64_t{1} << 30;
    setup.gpus[0].context_bytes = 1 << 25;
    setup.config = config::config_default();
    setup.probe = "";
    message_init(admission, MessageType::kAdmit, 1);
    admission.tenant_class = protocol::TenantClass::kBatch;
    admission.memory_max_bytes = 1 << 26;
    admission.gpu_count = 1;
  }
  static Peer peer_of(uid_t uid) {
    Peer peer;
    peer.pid = getpid();
    peer.uid = uid;
    peer.pidfd = devices::Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    return peer;
  }
  void by_group() {
    config::ProfileSettings profile;
    profile.name = "staff";
    profile.groups = {"root"};
    setup.config.profiles.push_back(profile);
  }

  Loop loop;
  Log log;
  Answered outbox;
  Held slow;
  EngineSetup setup;
  protocol::Admit admission;
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

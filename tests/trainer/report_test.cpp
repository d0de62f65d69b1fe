// Reports to a broker that is there, and silence where there is none; a broker that refuses whole
// GPUs.
#include "trainer/job/report.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>

#include "broker/protocol/wire.h"
#include "tests/trainer/process.h"
#include "trainer/base/failure.h"
#include "trainer/job/gang.h"

namespace sluice::tests {
namespace {

class ReportTest : public testing::Test {
 protected:
  void SetUp() override {
    char tenant[protocol::kTenantTextBytes];
    protocol::tenant_format(0xabc, 0xdef, tenant);
    setenv(protocol::kTenantVariable, tenant, 1);
    setenv(protocol::kSocketVariable, scratch_.file("socket").c_str(), 1);
  }
  void TearDown() override {
    unsetenv(protocol::kTenantVariable);
    unsetenv(protocol::kSocketVariable);
  }
  int listener_make() {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, scratch_.file("socket").c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(seteuid(listener_), 0);  // the owner of the socket
    EXPECT_EQ(listen(fd, 1), 0);
    EXPECT_EQ(seteuid(getuid()), 0);
    return fd;
  }
  ScratchDirectory scratch_;
  uid_t listener_ = geteuid();
};

TEST_F(ReportTest, CarriesTheFigures) {
  const int listener = listener_make();
  train::JobReporter reporter;
  reporter.report({.steps = 5,
                   .samples = 640,
                   .exposed_communication_ns = 77,
                   .straggler_score = 1.25,
                   .rank_count = 2},
                  false);
  const int peer = accept(listener, nullptr, nullptr);
  protocol::Envelope envelope;
  ASSERT_EQ(protocol::wire_receive(peer, &envelope, 1000), 1);
  ASSERT_TRUE(envelope.is<protocol::JobReport>(protocol::MessageType::kJobReport));
  const auto& message = envelope.as<protocol::JobReport>();
  EXPECT_EQ(message.tenant, 0xabcu);
  EXPECT_EQ(message.key, 0xdefu);
  EXPECT_EQ(message.steps, 5u);
  EXPECT_EQ(message.samples, 640u);
  EXPECT_EQ(message.exposed_communication_ns, 77u);
  EXPECT_EQ(message.straggler_score, 1.25);
  EXPECT_EQ(message.rank_count, 2u);
  // The next one is not due; the last one always is.
  reporter.report({}, false);
  EXPECT_EQ(protocol::wire_receive(peer, &envelope, 0), -EAGAIN);
  reporter.report({}, true);
  EXPECT_EQ(protocol::wire_receive(peer, &envelope, 1000), 1);
  close(peer);
  close(listener);
}

TEST_F(ReportTest, IsHarmlessWithoutABroker) {
  train::JobReporter reporter;
  reporter.report({}, true);
  setenv(protocol::kTenantVariable, "nonsense", 1);
  train::JobReporter other;
  other.report({}, true);
}

TEST_F(ReportTest, SurvivesABrokerThatGoesAway) {
  const int listener = listener_make();
  train::JobReporter reporter;
  reporter.report({}, true);
  close(accept(listener, nullptr, nullptr));
  close(listener);
  reporter.report({}, true);
  reporter.report({}, true);
}

TEST_F(ReportTest, TellsAStrangerNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  listener_ = 61234;
  const int listener = listener_make();
  train::JobReporter reporter;
  reporter.report({}, true);
  const int peer = accept(listener, nullptr, nullptr);
  protocol::Envelope envelope;
  EXPECT_EQ(protocol::wire_receive(peer, &envelope, 1000), 0);
  close(peer);
  close(listener);
}

/// What the trainer says of a broker that refuses, and leaves unread what it is asked.
TEST_F(ReportTest, ARefusalIsReadWhereTheBrokerHasClosed) {
  unsetenv(protocol::kTenantVariable);
  const int listener = listener_make();
  std::thread broker([&] {
    const int peer = accept(listener, nullptr, nullptr);
    protocol::Refused refused;
    protocol::message_init(refused, protocol::MessageType::kRefused, 0);
    std::strcpy(refused.text, "you have too many connections; close some");
    EXPECT_EQ(protocol::wire_send(peer, &refused, sizeof refused, nullptr, 0, false), 0);
    pollfd asked{peer, POLLIN, 0};
    EXPECT_EQ(poll(&asked, 1, 60'000), 1);
    close(peer);
  });
  train::StopSignal stop;
  std::string said;
  try {
    const train::Gang gang(1, stop, [](const std::string&) {});
  } catch (const train::Failure& failure) {
    said = failure.what();
  }
  broker.join();
  close(listener);
  EXPECT_EQ(said, "--exclusive: the broker at " + scratch_.file("socket") +
                      " refuses: you have too many connections; close some");
}

}  // namespace
}  // namespace sluice::tests

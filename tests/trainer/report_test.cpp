// Reports to a broker that is there, and silence where there is none.
#include "trainer/job/report.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "broker/protocol/wire.h"
#include "tests/trainer/process.h"

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
    EXPECT_EQ(listen(fd, 1), 0);
    return fd;
  }
  ScratchDirectory scratch_;
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

}  // namespace
}  // namespace sluice::tests

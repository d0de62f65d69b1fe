// Asking a broker that has no room for one more connection: it says so and closes, and its last
// words are what the user reads, whichever side was faster.
#include "broker/cli/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>

#include "broker/cli/admission.h"
#include "broker/cli/snapshot_reader.h"

namespace sluice::cli {
namespace {

constexpr char kRefusal[] = "user 1000 has as many connections to the broker as are allowed (5)";

/// Listens on a socket in a folder of its own.
class FullBroker {
 public:
  FullBroker() {
    char folder[] = "/tmp/sluice-client-XXXXXX";
    if (mkdtemp(folder) == nullptr) std::abort();
    folder_ = folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s/s", folder);
    const int rc = bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    if (rc != 0 || listen(listener_.get(), 1) != 0) std::abort();
  }
  ~FullBroker() {
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/s"; }
  /// Accepts the connection that waits, refuses it if `says`, and closes it. Reads nothing.
  void turn_away(bool says = true) const {
    const devices::Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    protocol::Refused refused;
    protocol::message_init(refused, protocol::MessageType::kRefused, 0);
    refused.code = protocol::RefusalCode::kUserLimit;
    std::snprintf(refused.text, sizeof refused.text, "%s", kRefusal);
    if (says) protocol::wire_send(fd.get(), &refused, sizeof refused, nullptr, 0, true);
  }

 private:
  std::string folder_;
  devices::Fd listener_{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
};

TEST(NoBroker, WhoMayNotStartItIsToldToAsk) {
  EXPECT_THAT(start_text(true), testing::StartsWith("; start it with systemctl start sluiced or "));
  EXPECT_THAT(start_text(false), testing::StartsWith("; ask the administrator to start it ("));
}

TEST(FullBroker, RefusesBeforeItIsAsked) {
  const FullBroker broker;
  std::string error;
  auto client = Client::connect(broker.path(), &error);
  ASSERT_TRUE(client) << error;
  broker.turn_away();
  EXPECT_FALSE(snapshot_fetch(*client, &error));
  EXPECT_EQ(error, kRefusal);
}

TEST(FullBroker, LeavesTheQuestionUnread) {
  const FullBroker broker;
  std::string error;
  auto client = Client::connect(broker.path(), &error);
  ASSERT_TRUE(client) << error;
  protocol::SnapshotRequest request;
  protocol::message_init(request, protocol::MessageType::kSnapshotRequest, 1);
  ASSERT_TRUE(client->send(request));
  broker.turn_away();
  protocol::Envelope envelope;
  ASSERT_EQ(client->receive(&envelope, 1000), 1);
  EXPECT_STREQ(envelope.as<protocol::Refused>().text, kRefusal);
  EXPECT_EQ(client->receive(&envelope, 1000), 0) << "and nothing more";
}

TEST(FullBroker, RefusesAnAdmission) {
  const FullBroker broker;
  std::string error;
  auto client = Client::connect(broker.path(), &error);
  ASSERT_TRUE(client) << error;
  broker.turn_away();
  protocol::Admit message;
  protocol::message_init(message, protocol::MessageType::kAdmit, 1);
  WaitLine line(STDERR_FILENO, false);
  int signal_number = 0;
  const AdmitAnswer answer = admit_ask(*client, message, line, &signal_number);
  ASSERT_EQ(answer.kind, AdmitAnswer::Kind::kRefused);
  EXPECT_STREQ(answer.refused.text, kRefusal);
}

TEST(FullBroker, WithoutAWord) {
  const FullBroker broker;
  std::string error;
  auto client = Client::connect(broker.path(), &error);
  ASSERT_TRUE(client) << error;
  broker.turn_away(false);
  EXPECT_FALSE(snapshot_fetch(*client, &error));
  EXPECT_THAT(error, testing::StartsWith("the broker closed the connection without an answer; "));
  EXPECT_THAT(error, testing::HasSubstr("ask the administrator"));
  EXPECT_THAT(error, testing::Not(testing::HasSubstr("restart")));
}

}  // namespace
}  // namespace sluice::cli

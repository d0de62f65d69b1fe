// Asking a broker that is there, away, silent, closed, hostile or of another version; and whole
// scrapes against it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker/protocol/wire.h"
#include "exporter/collector.h"
#include "tests/exporter/crafted.h"

namespace sluice::exporter {
namespace {

using test::example;
using test::FakeBroker;
using testing::HasSubstr;
using testing::Not;

std::pair<std::string, std::string> kind_and_text(SnapshotSource& source) {
  const auto result = source.snapshot_take();
  const auto* error = std::get_if<SnapshotError>(&result);
  if (error == nullptr) return {"accepted", ""};
  return {kind_name(error->kind), error->text};
}

std::pair<std::string, std::string> ask(test::Answer answer, int timeout_ms = 2000) {
  FakeBroker broker(std::move(answer));
  BrokerSource source(broker.path(), timeout_ms);
  auto out = kind_and_text(source);
  if (const auto at = out.second.find(broker.path()); at != out.second.npos) {
    out.second.replace(at, broker.path().size(), "SOCKET");
  }
  return out;
}

using Pair = std::pair<std::string, std::string>;

TEST(Source, Snapshot) {
  EXPECT_EQ(ask(test::answer_snapshot(example().bytes())), Pair("accepted", ""));
}

TEST(Source, NobodyThere) {
  BrokerSource source("/nonexistent/broker.sock");
  EXPECT_EQ(
      kind_and_text(source),
      Pair("unreachable",
           "no answer from the broker at /nonexistent/broker.sock: No such file or directory"));
}

TEST(Source, AStrangersSocketIsNotAsked) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a socket to another user";
  constexpr uid_t kStranger = 65534;
  bool asked = false;
  FakeBroker broker([&](int) { asked = true; });
  broker.give_to(kStranger);
  BrokerSource source(broker.path());
  EXPECT_EQ(kind_and_text(source),
            Pair("refused", "the socket " + broker.path() +
                                " belongs to uid 65534, which is neither root nor you; whoever "
                                "that is, it is not asked for anything; check --socket and "
                                "SLUICE_SOCKET"));
  EXPECT_EQ(BrokerActivity(broker.path()).activity_fd(1), -1);
  EXPECT_FALSE(asked);
}

TEST(Source, PathTooLong) {
  BrokerSource source("/" + std::string(200, 'x'));
  EXPECT_EQ(kind_and_text(source).first, "unreachable");
}

TEST(Source, Closes) {
  EXPECT_EQ(ask([](int) {}),
            Pair("unreachable", "no answer from the broker at SOCKET: it closed the connection"));
}

TEST(Source, Silent) {
  EXPECT_EQ(ask(
                [](int fd) {
                  protocol::Envelope rest;
                  protocol::wire_receive(fd, &rest, 5000);
                },
                50),
            Pair("unreachable", "no answer from the broker at SOCKET: no reply within 50 ms"));
}

TEST(Source, DoesNotAccept) {
  char folder[] = "/tmp/sluice-exporter-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s";
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 0), 0);
  std::vector<int> fillers;
  for (int fd = 0; fd >= 0 && fillers.size() < 16;) {
    fd = protocol::wire_connect(path.c_str(), 10);
    if (fd >= 0) fillers.push_back(fd);
  }
  EXPECT_LT(fillers.size(), 16U) << "the backlog never filled";
  BrokerSource source(path, 50);
  EXPECT_EQ(kind_and_text(source).first, "unreachable");
  for (const int fd : fillers) close(fd);
  close(listener);
  unlink(path.c_str());
  rmdir(folder);
}

TEST(Source, Refuses) {
  EXPECT_EQ(ask(test::answer_refusal("this client is too old; update it")),
            Pair("refused", "the broker refused: this client is too old; update it"));
}

TEST(Source, HostileReplies) {
  const auto good = example().bytes();
  EXPECT_EQ(ask(test::answer_announced(good, good.size() * 2)).first, "malformed");
  EXPECT_EQ(ask(test::answer_announced(good, good.size() - 1)).first, "malformed");
  EXPECT_EQ(ask(test::answer_announced(good, UINT64_MAX)).first, "malformed");
  EXPECT_EQ(ask(test::answer_announced({}, 0)).first, "malformed");
  EXPECT_EQ(ask([](int fd) { (void)!write(fd, "hello", 5); }).first, "malformed");
  EXPECT_EQ(ask([](int fd) {
              protocol::SnapshotReply reply;  // no descriptor
              protocol::message_init(reply, protocol::MessageType::kSnapshotReply, 1);
              protocol::wire_send(fd, &reply, sizeof reply, nullptr, 0, true);
            }),
            Pair("malformed", "the broker answered with something that is no snapshot"));
  EXPECT_EQ(ask([](int fd) {
              protocol::Done done;
              protocol::message_init(done, protocol::MessageType::kDone, 1);
              protocol::wire_send(fd, &done, sizeof done, nullptr, 0, true);
            }).first,
            "malformed");
}

int fds_open() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd) count += lseek(fd, 0, SEEK_CUR) != -1 || errno != EBADF ? 1 : 0;
  return count;
}

TEST(Source, LeaksNoDescriptor) {
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  BrokerSource source(broker.path());
  kind_and_text(source);
  while (broker.closed() < 1) usleep(1000);
  const int before = fds_open();
  for (int i = 0; i < 20; ++i) kind_and_text(source);
  while (broker.closed() < 21) usleep(1000);
  EXPECT_EQ(fds_open(), before);
}

/// A source that plays a list of results.
class Scripted : public SnapshotSource {
 public:
  explicit Scripted(std::vector<SnapshotResult> results) : results_(std::move(results)) {}
  SnapshotResult snapshot_take() override { return results_.at(next_++); }

 private:
  std::vector<SnapshotResult> results_;
  std::size_t next_ = 0;
};

TEST(Collector, GoesAndComesBack) {
  const auto bytes = example().bytes();
  const SnapshotResult good = snapshot_parse(bytes.data(), bytes.size());
  const SnapshotResult away = SnapshotError{SnapshotError::Kind::kUnreachable, "nobody there"};
  const SnapshotResult broken = SnapshotError{SnapshotError::Kind::kMalformed, "nonsense"};
  std::vector<std::string> said;
  CollectorParts parts;
  parts.source = std::make_unique<Scripted>(std::vector{good, away, away, broken, good});
  parts.watch_reason = "not here";
  std::uint64_t now = 0;
  parts.clock_ns = [&] { return now += 1'000'000; };
  parts.say = [&](const std::string& line) { said.push_back(line); };
  const Collector collector(std::move(parts));
  const std::string first = metrics_text(collector.Collect());
  EXPECT_THAT(first, HasSubstr("\nsluice_up 1\n"));
  EXPECT_THAT(first, HasSubstr("user=\"anna\""));
  EXPECT_THAT(first, HasSubstr("sluice_exporter_scrape_duration_seconds 0.001\n"));
  const std::string second = metrics_text(collector.Collect());
  EXPECT_THAT(second, HasSubstr("\nsluice_up 0\n"));
  EXPECT_THAT(second, Not(HasSubstr("user=\"anna\"")));
  EXPECT_THAT(second, HasSubstr("scrape_errors_total{reason=\"unreachable\"} 1\n"));
  collector.Collect();
  const std::string fourth = metrics_text(collector.Collect());
  EXPECT_THAT(fourth, HasSubstr("scrape_errors_total{reason=\"unreachable\"} 2\n"));
  EXPECT_THAT(fourth, HasSubstr("scrape_errors_total{reason=\"malformed\"} 1\n"));
  EXPECT_THAT(metrics_text(collector.Collect()), HasSubstr("\nsluice_up 1\n"));
  EXPECT_THAT(said, testing::ElementsAre("nobody there", "nonsense", "the broker answers again"));
}

}  // namespace
}  // namespace sluice::exporter

// sluice-train --exclusive with a broker of this build: no GPU without it, whole ones with it, and
// they are handed back however the job ends.
#include <sys/mman.h>
#include <sys/stat.h>

#include <memory>
#include <optional>

#include "broker/protocol/snapshot.h"
#include "broker/protocol/wire.h"
#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

class ExclusiveTest : public TrainProgramTest {
 protected:
  std::string socket() const { return scratch_.file("broker.sock"); }

  void broker_start() {
    if (!std::filesystem::exists(program_path("sluiced")))
      GTEST_SKIP() << "the broker's room is not built";
    const std::string config = scratch_.file("sluice.toml");
    std::ofstream(config).flush();
    broker_.emplace(std::vector<std::string>{"sluiced", "--config", config, "--socket", socket(),
                                             "--log", scratch_.file("broker.log")},
                    broker_scratch_);
    for (int i = 0; i < 1000 && !std::filesystem::exists(socket()); ++i)
      train::sleep_until(train::now_ns() + 10 * train::kNanosPerMilli);
    ASSERT_TRUE(std::filesystem::exists(socket())) << broker_->err();
  }

  std::unique_ptr<Child> job(std::vector<std::string> more, const std::string& name) {
    std::vector<std::string> command = {
        "sluice-train", "--data", "synthetic",   "--nproc", "2",       "--hidden",       "16",
        "--batch",      "8",      "--exclusive", "--log",   log(name), "--eval-samples", "0"};
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<Child>(command, scratch_,
                                   std::vector<std::string>{"SLUICE_SOCKET=" + socket()});
  }

  /// What the broker knows of its tenants.
  std::vector<protocol::SnapshotTenant> tenants() const {
    std::vector<protocol::SnapshotTenant> out;
    const int fd = protocol::wire_connect(socket().c_str(), 5000);
    protocol::SnapshotRequest request;
    protocol::message_init(request, protocol::MessageType::kSnapshotRequest, 1);
    protocol::Envelope envelope;
    EXPECT_EQ(protocol::wire_send(fd, &request, sizeof request, nullptr, 0, false), 0);
    EXPECT_EQ(protocol::wire_receive(fd, &envelope, 5000), 1);
    close(fd);
    if (envelope.fd_count != 1) return out;
    struct stat state {};
    fstat(envelope.fds[0], &state);
    const auto bytes = static_cast<std::size_t>(state.st_size);
    void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, envelope.fds[0], 0);
    close(envelope.fds[0]);
    const auto* header = static_cast<const protocol::SnapshotHeader*>(memory);
    const auto* gpus = reinterpret_cast<const protocol::SnapshotGpu*>(header + 1);
    const auto* first = reinterpret_cast<const protocol::SnapshotTenant*>(gpus + header->gpu_count);
    out.assign(first, first + header->tenant_count);
    munmap(memory, bytes);
    return out;
  }
  bool handed_back() const {
    for (int i = 0; i < 500; ++i) {
      if (tenants().empty()) return true;
      train::sleep_until(train::now_ns() + 10 * train::kNanosPerMilli);
    }
    return false;
  }

  ScratchDirectory broker_scratch_;
  std::optional<Child> broker_;
};

TEST_F(ExclusiveTest, WithoutABrokerItDoesNotStart) {
  const auto child = job({"--steps", "4"}, "none");
  EXPECT_EQ(child->wait(kPatience), 1);
  EXPECT_NE(child->err().find("--exclusive: no broker at " + socket()), std::string::npos)
      << child->err();
  EXPECT_NE(child->err().find("start sluiced"), std::string::npos) << child->err();
  EXPECT_FALSE(std::filesystem::exists(log("none"))) << "nothing was placed";
}

TEST_F(ExclusiveTest, MoreGpusThanThereAreAreRefused) {
  broker_start();
  if (!broker_) return;
  const std::vector<std::string> command = {"sluice-train", "--data", "synthetic",
                                            "--nproc",      "3",      "--exclusive"};
  Child three(command, scratch_, {"SLUICE_SOCKET=" + socket()});
  EXPECT_EQ(three.wait(kPatience), 1);
  EXPECT_NE(three.err().find("refuses: "), std::string::npos) << three.err();
}

TEST_F(ExclusiveTest, HasItsGpusAloneReportsAndHandsBackHoweverItEnds) {
  broker_start();
  if (!broker_) return;
  // By itself.
  const auto good = job({"--steps", "8"}, "good");
  EXPECT_EQ(good->wait(kPatience), 0) << good->err();
  EXPECT_TRUE(handed_back());
  // Asked to; while it runs the broker knows it, and another has to wait for it.
  {
    const auto first = job({"--seconds", "3600"}, "first");
    ASSERT_TRUE(log_await(log("first"), "step", 20, kPatience)) << first->err();
    const auto second = job({"--steps", "4"}, "second");
    std::optional<protocol::SnapshotTenant> shown;
    for (int i = 0; i < 500 && (!shown || shown->steps == 0 || tenants().size() < 2); ++i) {
      train::sleep_until(train::now_ns() + 10 * train::kNanosPerMilli);
      for (const protocol::SnapshotTenant& one : tenants()) {
        if (one.tenant != 0) shown = one;
      }
    }
    ASSERT_TRUE(shown);
    EXPECT_EQ(shown->tenant_class, protocol::TenantClass::kExclusive);
    EXPECT_GT(shown->steps, 0u);
    EXPECT_GE(shown->samples, 16 * shown->steps);
    EXPECT_GT(shown->exposed_communication_ns, 0u);
    EXPECT_GE(shown->straggler_score, 1);
    EXPECT_FALSE(std::filesystem::exists(log("second"))) << "it has to wait";
    kill(first->pid(), SIGTERM);
    EXPECT_EQ(first->wait(kPatience), 0);
    EXPECT_EQ(second->wait(kPatience), 0);
    EXPECT_TRUE(handed_back());
  }
  // By a failure, and killed.
  const auto failed = job({"--steps", "1000", "--lr", "1e38"}, "failed");
  EXPECT_EQ(failed->wait(kPatience), 1);
  EXPECT_TRUE(handed_back());
  const auto killed = job({"--seconds", "3600"}, "killed");
  ASSERT_TRUE(log_await(log("killed"), "step", 4, kPatience)) << killed->err();
  kill(killed->pid(), SIGKILL);
  EXPECT_TRUE(handed_back());
}

TEST_F(ExclusiveTest, HandsBackWhenARankIsKilled) {
  broker_start();
  if (!broker_) return;
  const auto child = job({"--seconds", "3600"}, "lost");
  ASSERT_TRUE(log_await(log("lost"), "step", 4, kPatience)) << child->err();
  EXPECT_EQ(tenants().size(), 1u);
  kill(child->children().at(1), SIGKILL);
  EXPECT_EQ(child->wait(kPatience), 1);
  EXPECT_NE(child->err().find("was killed by signal 9"), std::string::npos) << child->err();
  EXPECT_TRUE(handed_back());
  EXPECT_EQ(job({"--steps", "2"}, "next")->wait(kPatience), 0) << "the GPUs are free again";
}

// The launcher has its GPUs by then.
TEST_F(ExclusiveTest, HandsBackWhenItFailsBeforeItsRanksStart) {
  broker_start();
  if (!broker_) return;
  const auto child =
      job({"--steps", "2", "--plan", "auto", "--calibration", scratch_.file("none")}, "early");
  EXPECT_EQ(child->wait(kPatience), 1);
  EXPECT_NE(child->err().find(scratch_.file("none")), std::string::npos) << child->err();
  EXPECT_FALSE(std::filesystem::exists(log("early"))) << "no rank was started";
  EXPECT_NE(file_text(scratch_.file("broker.log")).find("exclusive"), std::string::npos)
      << file_text(scratch_.file("broker.log"));
  EXPECT_TRUE(handed_back());
  EXPECT_EQ(job({"--steps", "2"}, "next")->wait(kPatience), 0) << "the GPUs are free again";
}

TEST_F(ExclusiveTest, TokensOfTextReachTheBroker) {
  broker_start();
  if (!broker_) return;
  constexpr std::uint64_t kContext = 8;
  Child child({"sluice-train",
               "--data",
               "synthetic",
               "--nproc",
               "2",
               "--model",
               "gpt",
               "--layers",
               "1",
               "--heads",
               "2",
               "--width",
               "16",
               "--context",
               std::to_string(kContext),
               "--batch",
               "2",
               "--exclusive",
               "--log",
               log("text"),
               "--eval-samples",
               "0",
               "--seconds",
               "3600"},
              scratch_, {"SLUICE_SOCKET=" + socket()});
  std::optional<protocol::SnapshotTenant> shown;
  for (int i = 0; i < 1000 && !shown; ++i) {
    train::sleep_until(train::now_ns() + 50 * train::kNanosPerMilli);
    for (const protocol::SnapshotTenant& one : tenants())
      if (one.steps > 0) shown = one;
  }
  ASSERT_TRUE(shown) << child.err();
  EXPECT_EQ(shown->tokens, shown->samples * kContext);
  EXPECT_EQ(shown->samples, shown->steps * 4);
  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.wait(kPatience), 0) << child.err();
  EXPECT_TRUE(handed_back());
}

}  // namespace
}  // namespace sluice::tests

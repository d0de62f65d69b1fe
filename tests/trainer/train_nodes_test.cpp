// A job on several machines, which are one here: launchers with directories and GPUs of their own,
// that have nothing but a rendezvous on the loopback.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <memory>

#include "tests/trainer/train_fixture.h"
#include "trainer/comm/frames.h"
#include "trainer/comm/rendezvous_wire.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;
using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class NodesTest : public TrainProgramTest {
 protected:
  struct NodeRun {
    std::unique_ptr<ScratchDirectory> own = std::make_unique<ScratchDirectory>();
    std::unique_ptr<Child> child;
  };
  /// An address that no other test process has: all of 127.0.0.0/8 is the loopback's.
  static HostPort address(int number = 1) {
    const int pid = getpid();
    return {
        text_format("127.%d.%d.%d", 1 + pid / 16384 % 250, pid / 64 % 256, pid % 64 * 4 + number),
        "29517"};
  }

  NodeRun node(int number, const Words& more, const Words& environment = {}, int count = 2) {
    NodeRun run;
    const Words own = {"TMPDIR=" + run.own->file(""), "SOFTGPU_DIR=" + run.own->file("gpus")};
    Words words = with({"sluice-train", "--data", "synthetic", "--nproc", "2", "--nnodes",
                        std::to_string(count), "--node-rank", std::to_string(number),
                        "--rendezvous", address().text(), "--log", run.own->file("log")},
                       more);
    if (std::find(more.begin(), more.end(), "--rendezvous-timeout") == more.end())
      words = with(words, {"--rendezvous-timeout", "60"});
    run.child = std::make_unique<Child>(words, *run.own, with(own, environment));
    return run;
  }
  /// Both of them to their end.
  void both(const Words& more, const Words& environment = {}) {
    NodeRun first = node(0, more, environment), second = node(1, more, environment);
    ASSERT_EQ(first.child->wait(kPatience), 0) << first.child->err() << second.child->err();
    ASSERT_EQ(second.child->wait(kPatience), 0) << second.child->err();
    EXPECT_EQ(first.child->err() + second.child->err(), "");
    outs_ = {first.child->out(), second.child->out()};
    logs_ = {log_lines(first.own->file("log")), log_lines(second.own->file("log"))};
  }
  /// A job that goes on until it is ended.
  static Words endless() {
    return {"--hidden", "24", "--batch", "4", "--seconds", "300", "--eval-samples", "0"};
  }
  /// Both of an endless job, once all ranks train.
  void begin_endless(NodeRun* first, NodeRun* second, const Words& more = {}) {
    *first = node(0, with(endless(), more));
    *second = node(1, with(endless(), more));
    for (NodeRun* one : {first, second})
      ASSERT_TRUE(log_await(one->own->file("log"), "step", 8, kPatience))
          << first->child->err() << second->child->err();
  }
  static void has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << text << "\" lacks " << part;
  }

  Words outs_;
  std::vector<std::vector<nlohmann::json>> logs_;
};

const Words kSmall = {"--hidden", "24", "--batch", "16", "--steps", "6", "--eval-samples", "50"};
const Words kText = {"--model", "gpt", "--layers",       "2", "--heads",      "2",
                     "--width", "16",  "--context",      "8", "--batch",      "4",
                     "--steps", "3",   "--eval-samples", "8", "--accumulate", "2"};

class NodesEqualTest : public NodesTest, public testing::WithParamInterface<const char*> {
 protected:
  static Words job() {
    const std::string name = GetParam();
    if (name == "grid") return with(kText, {"--tensor", "2", "--pipeline", "2"});
    if (name == "sharded") return with(kSmall, {"--strategy", "sharded"});
    if (name == "scatter") return with(kSmall, {"--sharing", "scatter"});
    return kSmall;
  }
};

TEST_P(NodesEqualTest, TwoOfTwoRanksTrainWhatOneLauncherOfFourDoes) {
  train(with(job(), {"--nproc", "4", "--comm", "gloo"}), "one");
  both(with(job(), {"--comm", "gloo", "--save", weights("two")}));
  EXPECT_EQ(file_text(weights("one")), file_text(weights("two")));
  const auto one = log_lines(log("one"));
  EXPECT_EQ(logs_[0].back()["status"], "ok");
  for (const char* same : {"steps", "samples", "sent_bytes"})
    EXPECT_EQ(logs_[0].back()[same], one.back()[same]) << same;
  // Each node has the lines of its own ranks; node 0 speaks for the job.
  std::vector<double> losses[2];
  for (const auto& line : one)
    if (line["event"] == "step" && line["rank"] == 0) losses[0].push_back(line["loss"]);
  for (const auto& line : logs_[0]) {
    if (line["event"] != "step") continue;
    EXPECT_LT(line["rank"], 2);
    if (line["rank"] == 0) losses[1].push_back(line["loss"]);
  }
  EXPECT_EQ(losses[0], losses[1]);
  for (const auto& line : logs_[1]) {
    EXPECT_EQ(line["event"], "step") << line;
    EXPECT_GE(line["rank"], 2);
  }
  int ranks = 0;
  for (const auto& line : logs_[0]) {
    if (line["event"] != "rank") continue;
    ++ranks;
    EXPECT_GT(line["compute_median_ns"], 0) << "not known here: " << line;
  }
  EXPECT_EQ(ranks, 4);
  has(outs_[0], "node 0 of 2: ranks 0 to 1");
  has(outs_[0], "done: ");
  EXPECT_EQ(outs_[1], "node 1 of 2: ranks 2 to 3, rendezvous at " + address().text() + "\n");
}

INSTANTIATE_TEST_SUITE_P(Jobs, NodesEqualTest,
                         testing::Values("data", "sharded", "scatter", "grid"),
                         [](const auto& which) { return std::string(which.param); });

TEST_F(NodesTest, NcclsIdGoesThroughTheRendezvous) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string library = (here / "nccl_standin").string();
  if (!std::filesystem::exists(library)) GTEST_SKIP() << "built without nccl.h";
  const char* path = std::getenv("LD_LIBRARY_PATH");
  // One GPU for both ranks of a node, which are hosts of their own then.
  both(with(kSmall, {"--comm", "nccl", "--save", weights("nccl")}),
       {"LD_LIBRARY_PATH=" + library + ":" + (path == nullptr ? "" : path), "SOFTGPU_COUNT=1"});
  has(outs_[0], "a host of its own (NCCL_HOSTID)");
  train(with(kSmall, {"--nproc", "4", "--comm", "gloo"}), "one");
  EXPECT_LT(distance("one", "nccl"), 1e-6);
}

TEST_F(NodesTest, ACheckpointIsWhereRankZeroIsAndTheJobGoesOnFromIt) {
  const std::string directory = scratch_.file("checkpoints");
  const Words job = {"--hidden", "24",     "--batch", "16",           "--eval-samples",
                     "0",        "--comm", "gloo",    "--checkpoint", directory};
  both(with(job, {"--steps", "3"}));
  both(with(job, {"--steps", "6", "--resume", "--save", weights("resumed")}));
  has(outs_[0], "going on after step 3");
  train({"--hidden", "24", "--batch", "16", "--eval-samples", "0", "--comm", "gloo", "--nproc", "4",
         "--steps", "6"},
        "whole");
  EXPECT_EQ(file_text(weights("resumed")), file_text(weights("whole")));
}

TEST_F(NodesTest, ANodeThatNeverComesIsNamed) {
  const Words soon = with(kSmall, {"--rendezvous-timeout", "2"});
  NodeRun lonely = node(0, soon);
  EXPECT_EQ(lonely.child->wait(kPatience), 1);
  has(lonely.child->err(),
      "of 2 nodes, node 1 has not come to " + address().text() + " within 2 s");
  NodeRun other = node(1, soon);
  EXPECT_EQ(other.child->wait(kPatience), 1);
  has(other.child->err(), "cannot reach " + address().text());
  has(other.child->err(), "does node 0 run");
}

TEST_F(NodesTest, ALostRankEndsAllNodesAndIsNamed) {
  NodeRun first, second;
  begin_endless(&first, &second);
  const auto ranks = second.child->children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  EXPECT_EQ(first.child->wait(kPatience), 1);
  EXPECT_EQ(second.child->wait(kPatience), 1);
  const std::string how =
      text_format("rank 3 of 4 (pid %d) was killed by signal 9 (Killed); ending the job", ranks[1]);
  has(second.child->err(), "sluice-train: " + how);
  has(first.child->err(), "sluice-train: node 1 (127.0.0.1): " + how);
}

TEST_F(NodesTest, ALostLauncherEndsTheOthers) {
  for (const bool serving : {false, true}) {
    SCOPED_TRACE(serving ? "node 0" : "node 1");
    NodeRun first, second;
    begin_endless(&first, &second);
    NodeRun& lost = serving ? first : second;
    NodeRun& left = serving ? second : first;
    kill(lost.child->pid(), SIGKILL);
    EXPECT_EQ(left.child->wait(kPatience), 1);
    has(left.child->err(), serving ? "the rendezvous at " + address().text() + " (node 0) was lost"
                                   : "node 1 (127.0.0.1): its launcher was lost");
  }
}

TEST_F(NodesTest, ALauncherThatGivesNoSignOfLifeEndsTheOthers) {
  NodeRun first, second;
  begin_endless(&first, &second, {"--heartbeat-timeout", "5"});
  kill(second.child->pid(), SIGSTOP);
  EXPECT_EQ(first.child->wait(kPatience), 1);
  has(first.child->err(), "node 1 (127.0.0.1): it has given no sign of life for 5 s");
}

TEST_F(NodesTest, AskedToStopOneNodeStopsAllAfterTheSameStep) {
  NodeRun first, second;
  begin_endless(&first, &second);
  kill(second.child->pid(), SIGTERM);
  EXPECT_EQ(second.child->wait(kPatience), 0) << second.child->err();
  EXPECT_EQ(first.child->wait(kPatience), 0) << first.child->err();
  EXPECT_EQ(log_lines(first.own->file("log")).back()["status"], "stopped");
}

TEST_F(NodesTest, AnotherJobIsRefusedAndTheRightNodeStillTaken) {
  NodeRun first = node(0, kSmall);
  Words other = kSmall;
  other[3] = "32";
  NodeRun wrong = node(1, other);
  EXPECT_EQ(wrong.child->wait(kPatience), 1);
  has(wrong.child->err(),
      "refused this node: its job is another: '--batch 32' here, '--batch 16' at "
      "node 0");
  NodeRun more = node(1, kSmall, {"CUDA_VISIBLE_DEVICES=0"}, 3);
  EXPECT_EQ(more.child->wait(kPatience), 1);
  has(more.child->err(), "--nnodes 3 here, 2 at node 0");
  NodeRun second = node(1, kSmall);
  EXPECT_EQ(second.child->wait(kPatience), 0) << second.child->err();
  EXPECT_EQ(first.child->wait(kPatience), 0) << first.child->err();
}

TEST_F(NodesTest, StrangersHarmNeitherAJobThatWaitsNorOneThatRuns) {
  std::vector<std::unique_ptr<FrameSocket>> strangers;
  const auto come = [&](const std::string& bytes) {
    const int fd = tcp_connect(address(), now_ns() + nanos_of_seconds(kPatience), nullptr);
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    strangers.push_back(std::make_unique<FrameSocket>(fd, 1024));
  };
  const auto all_come = [&] {
    come("GET / HTTP/1.1\r\n\r\n");
    come(std::string(100'000, '\xff'));
    come(std::string(100'000, '\0'));
    come("");  // and says nothing
    BodyWriter hello;
    hello.text(kRendezvousMagic).number(kRendezvousVersion).text("another job's token");
    come("");
    strangers.back()->push(static_cast<std::uint8_t>(Note::kRankHello), hello.body());
  };
  NodeRun first = node(0, endless());
  all_come();
  NodeRun second = node(1, endless());
  for (NodeRun* one : {&first, &second})
    ASSERT_TRUE(log_await(one->own->file("log"), "step", 8, kPatience))
        << first.child->err() << second.child->err();
  all_come();
  const std::size_t before = log_events(first.own->file("log"), "step").size();
  ASSERT_TRUE(log_await(first.own->file("log"), "step", before + 20, kPatience));
  kill(first.child->pid(), SIGTERM);
  EXPECT_EQ(first.child->wait(kPatience), 0) << first.child->err();
  EXPECT_EQ(second.child->wait(kPatience), 0) << second.child->err();
}

TEST_F(NodesTest, ATakenPortIsSaid) {
  const int taken = tcp_listen(address());
  NodeRun first = node(0, kSmall);
  EXPECT_EQ(first.child->wait(kPatience), 1);
  has(first.child->err(), "cannot listen at " + address().text() +
                              ": Address already in use; give "
                              "another port");
  close(taken);
}

TEST_F(NodesTest, AnAddressOfAnotherMachineIsSaid) {
  NodeRun first = node(0, with(kSmall, {"--address", "192.0.2.1"}));  // of documents alone
  EXPECT_EQ(first.child->wait(kPatience), 1);
  has(first.child->err(), "--address 192.0.2.1 is no address of this machine");
}

TEST_F(NodesTest, RanksSpeakFromTheAddressThatIsGiven) {
  NodeRun nodes[2];
  for (int i = 0; i < 2; ++i)
    nodes[i] = node(i, with(endless(), {"--comm", "gloo", "--address", address(i + 2).host}));
  for (const NodeRun& one : nodes)
    ASSERT_TRUE(log_await(one.own->file("log"), "step", 8, kPatience)) << one.child->err();
  const std::string connections = file_text("/proc/net/tcp");
  for (int i = 0; i < 2; ++i) {
    in_addr numeric{};
    ASSERT_EQ(inet_pton(AF_INET, address(i + 2).host.c_str(), &numeric), 1);
    has(connections, text_format(" %08X:", numeric.s_addr));
  }
  kill(nodes[0].child->pid(), SIGTERM);
  for (const NodeRun& one : nodes) EXPECT_EQ(one.child->wait(kPatience), 0) << one.child->err();
}

TEST_F(NodesTest, WhatIsNotSupportedIsRefused) {
  const auto complaint = [&](const Words& more, int count = 2) {
    NodeRun run = node(0, with(kSmall, more), {}, count);
    EXPECT_EQ(run.child->wait(kPatience), 2);
    return run.child->err();
  };
  has(complaint({"--elastic", "2"}), "--elastic is not for --nnodes");
  has(complaint({"--exclusive"}), "--exclusive is not for --nnodes");
  has(complaint({"--strategy", "async"}), "--strategy async is not for --nnodes");
  has(complaint({"--plan", "auto"}), "--plan auto is not for --nnodes");
  has(complaint({"--timeline", scratch_.file("trace")}), "--timeline is not for --nnodes");
  has(complaint({}, 1), "is for --nnodes above 1");
}

}  // namespace
}  // namespace sluice::tests

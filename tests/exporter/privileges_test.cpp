// What a started exporter is allowed once it serves: nothing that its user is not. As root, or it
// has nothing to give up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/exporter/crafted.h"
#include "tests/exporter/program.h"

namespace sluice::exporter {
namespace {

using testing::HasSubstr;
using Status = std::map<std::string, std::string>;

/// Of every thread, by the kernel's names.
std::vector<Status> threads_of(pid_t pid) {
  std::vector<Status> out;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream in(task.path() / "status");
    Status& status = out.emplace_back();
    for (std::string line; std::getline(in, line);) {
      const auto colon = line.find(":\t");
      if (colon != line.npos) status[line.substr(0, colon)] = line.substr(colon + 2);
    }
  }
  return out;
}

class Privileges : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root has privileges to give up";
    broker_.open_to_all();
  }
  void expect_none(pid_t pid, const std::string& but = "0000000000000000") {
    const auto threads = threads_of(pid);
    EXPECT_GT(threads.size(), 3U);
    for (const Status& thread : threads) {
      for (const char* set : {"CapEff", "CapPrm"})
        EXPECT_EQ(thread.at(set), but) << thread.at("Name");
      // A root of a container may lack the right to give this up.
      if (prctl(PR_CAPBSET_READ, CAP_SETPCAP) == 1) {
        EXPECT_EQ(thread.at("CapBnd"), but);
      }
      for (const char* set : {"CapInh", "CapAmb"})
        EXPECT_EQ(thread.at(set), "0000000000000000") << thread.at("Name");
      EXPECT_EQ(thread.at("NoNewPrivs"), "1");
    }
  }
  test::FakeBroker broker_{test::answer_snapshot(test::example().bytes())};
};

TEST_F(Privileges, RootHasNoneOnceItServesAndTheObserversGoOn) {
  test::Program program({"--listen", "127.0.0.1:0", "--socket", broker_.path()});
  program.err_wait("serving ");
  const std::string reply = test::http_get(test::port_of(program.err), "/metrics");
  EXPECT_THAT(reply, HasSubstr("\nsluice_up 1\n"));
  if (reply.find("\nsluice_bpf_enabled 1\n") != reply.npos) {
    EXPECT_THAT(reply, HasSubstr("\nsluice_sched_switches_total{tenant=\"3\","));
  }
  expect_none(program.pid());
}

TEST_F(Privileges, AnotherUserWithoutRootsGroups) {
  const passwd* nobody = getpwnam("nobody");
  ASSERT_NE(nobody, nullptr);
  test::Program program(
      {"--user", "nobody", "--listen", "127.0.0.1:0", "--socket", broker_.path()});
  program.err_wait("serving ");
  EXPECT_THAT(test::http_get(test::port_of(program.err), "/metrics"), HasSubstr("\nsluice_up 1\n"));
  const std::string uid = std::to_string(nobody->pw_uid), gid = std::to_string(nobody->pw_gid);
  for (const Status& thread : threads_of(program.pid())) {
    EXPECT_EQ(thread.at("Uid"), uid + "\t" + uid + "\t" + uid + "\t" + uid);
    EXPECT_EQ(thread.at("Gid"), gid + "\t" + gid + "\t" + gid + "\t" + gid);
    EXPECT_EQ(thread.at("Groups"), " ");
  }
  expect_none(program.pid());
}

TEST_F(Privileges, APortOfRootNeedsOneOfThem) {
  // Some port below 1024 is free.
  for (int port = 1023; port > 1000; --port) {
    test::Program program(
        {"--no-bpf", "--listen", "127.0.0.1:" + std::to_string(port), "--socket", broker_.path()});
    program.err_wait("\n");
    if (program.err.find("cannot listen") != std::string::npos) continue;
    EXPECT_THAT(test::http_get(port, "/metrics"), HasSubstr("\nsluice_up 1\n"));
    expect_none(program.pid(), "0000000000000400");  // 1 << CAP_NET_BIND_SERVICE
    return;
  }
  GTEST_SKIP() << "no port below 1024 is free";
}

TEST(PrivilegesMistakes, AreNamed) {
  test::Program unknown({"--once", "--no-bpf", "--user", "no-such-user-here", "--socket", "/x"});
  EXPECT_EQ(unknown.finish(), 1);
  EXPECT_EQ(unknown.err,
            "sluice-exporter: there is no user 'no-such-user-here'; name another with --user\n");
  if (geteuid() == 0) return;
  test::Program other({"--once", "--no-bpf", "--user", "root", "--socket", "/x"});
  EXPECT_EQ(other.finish(), 1);
  EXPECT_THAT(other.err, HasSubstr("cannot become user 'root': "));
}

}  // namespace
}  // namespace sluice::exporter

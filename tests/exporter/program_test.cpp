// The program as people run it: its text, its exit codes, its port.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "tests/exporter/crafted.h"
#include "tests/exporter/program.h"

namespace sluice::exporter {
namespace {

using test::example;
using test::FakeBroker;
using test::has_ipv6;
using test::http_get;
using test::port_of;
using test::Program;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Once, PrintsAndEnds) {
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  Program program({"--once", "--no-bpf", "--socket", broker.path()});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(program.out, HasSubstr("\nsluice_up 1\n"));
  EXPECT_THAT(program.out, HasSubstr("user=\"anna\""));
  EXPECT_EQ(program.err, "");
}

TEST(Once, BrokerAway) {
  Program program({"--once", "--no-bpf", "--socket=/nonexistent/s"});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(program.out, HasSubstr("\nsluice_up 0\n"));
  EXPECT_EQ(
      program.err,
      "sluice-exporter: no answer from the broker at /nonexistent/s: No such file or directory\n");
}

// A user that asks its own broker, or root's, is answered (PrintsAndEnds); nothing else is asked.
TEST(Owner, NoProgramAsksAStrangersSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a socket to another user";
  constexpr uid_t kStranger = 65534;
  const std::string reason = " belongs to uid 65534, which is neither root nor you; ";
  std::atomic<int> asked = 0;
  FakeBroker broker([&](int) { ++asked; });
  broker.give_to(kStranger);
  Program once({"--once", "--no-bpf", "--socket", broker.path()});
  EXPECT_EQ(once.finish(), 0);
  EXPECT_THAT(once.out, HasSubstr("\nsluice_up 0\n"));
  EXPECT_THAT(once.err, HasSubstr(broker.path() + reason));
  Program why({"--no-bpf", "--for", "1s", "--socket", broker.path()}, SLUICE_WHY);
  EXPECT_NE(why.finish(), 0);
  EXPECT_THAT(why.err, HasSubstr(broker.path() + reason));
  EXPECT_THAT(why.err, Not(HasSubstr("is sluiced running")));
  const std::string figures = broker.path() + ".figures", config = broker.path() + ".toml";
  std::ofstream(config) << "[bypass]\nfigures = \"" << figures << "\"\n";
  Program watch({"--socket", broker.path(), "--config", config}, SLUICE_WATCH);
  watch.err_wait(reason);
  EXPECT_THAT(watch.err, HasSubstr(broker.path() + reason));
  watch.end();
  EXPECT_EQ(watch.finish(), 0);
  unlink(config.c_str());
  EXPECT_EQ(asked, 0);
}

TEST(Once, BuiltWithoutObserversItSaysSoAndTellsTheRest) {
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  const std::string reason =
      "built without BPF; install clang, bpftool and libbpf-dev and build again";
  Program program({"--once", "--socket", broker.path()}, SLUICE_EXPORTER_WITHOUT_BPF);
  EXPECT_EQ(program.finish(), 0);
  EXPECT_EQ(program.err, "sluice-exporter: going on without kernel observers: " + reason + "\n");
  EXPECT_THAT(program.out, HasSubstr("\nsluice_bpf_enabled 0\n"));
  EXPECT_THAT(program.out, HasSubstr("\nsluice_bpf_info{reason=\"" + reason + "\"} 1\n"));
  EXPECT_THAT(program.out, HasSubstr("user=\"anna\""));
  EXPECT_EQ(program.out.find("sluice_offcpu"), std::string::npos);
}

// The scrape goes on without what the driver does not tell, and so does the program's end.
TEST(Once, ADriverThatNeverAnswersHoldsUpNothing) {
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  ASSERT_EQ(setenv("LD_LIBRARY_PATH", SLUICE_STUCK_NVML, 1), 0);
  Program program({"--once", "--no-bpf", "--socket", broker.path()});
  unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(program.out, HasSubstr("\nsluice_nvml_up 0\n"));
  EXPECT_THAT(program.out, HasSubstr("\nsluice_up 1\n"));
  EXPECT_EQ(program.out.find("sluice_gpu_memory_used_bytes"), std::string::npos);
}

TEST(Serve, OverHttpAndEndsOnSignal) {
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  Program program({"--no-bpf", "--listen", "127.0.0.1:0", "--socket", broker.path()});
  program.err_wait("serving ");
  const int port = port_of(program.err);
  ASSERT_GT(port, 0) << program.err;
  // A page is kept for a moment; after that each scrape asks the broker anew.
  while (broker.served() < 3) {
    const std::string reply = http_get(port, "/metrics");
    ASSERT_THAT(reply, StartsWith("HTTP/1.1 200"));
    ASSERT_THAT(reply, HasSubstr("\nsluice_up 1\n"));
  }
  program.end();
  EXPECT_EQ(program.finish(), 0);
}

TEST(Serve, OnAnAddressOfIpv6) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no ::1";
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  Program program({"--no-bpf", "--listen", "[::1]:0", "--socket", broker.path()});
  program.err_wait("serving ");
  const int port = port_of(program.err, "[::1]");
  ASSERT_GT(port, 0) << program.err;
  // Whole, one after the other and more than fit at once.
  for (int i = 0; i < 40; ++i) {
    const std::string reply = http_get(port, "/metrics", AF_INET6);
    ASSERT_THAT(reply, StartsWith("HTTP/1.1 200"));
    ASSERT_THAT(reply,
                HasSubstr("\nsluice_exporter_scrape_errors_total{reason=\"malformed\"} 0\n"));
  }
  EXPECT_EQ(http_get(port, "/metrics"), "") << "it was to listen on ::1 alone";
  program.end();
  EXPECT_EQ(program.finish(), 0);
}

TEST(Serve, OnEveryAddressOfAName) {
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  Program program({"--no-bpf", "--listen", "localhost:0", "--socket", broker.path()});
  program.err_wait("serving ");
  const int port = port_of(program.err, "localhost");
  ASSERT_GT(port, 0) << program.err;
  const std::string v4 = http_get(port, "/metrics");
  const std::string v6 = has_ipv6() ? http_get(port, "/metrics", AF_INET6) : "";
  // Which of the two the name means is the machine's affair.
  EXPECT_TRUE(v4.starts_with("HTTP/1.1 200") || v6.starts_with("HTTP/1.1 200")) << v4 << v6;
  Program nowhere({"--no-bpf", "--listen", "no-such-name.invalid:0", "--socket", broker.path()});
  EXPECT_EQ(nowhere.finish(), 1);
  EXPECT_THAT(nowhere.err,
              StartsWith("sluice-exporter: cannot listen on no-such-name.invalid:0: "));
  EXPECT_THAT(nowhere.err, HasSubstr("; choose another address or port with --listen\n"));
}

// The observers learn of processes between scrapes, and a scrape tells what became of them.
TEST(Serve, SeesTheEndOfProcesses) {
  Program probe({"--once", "--socket", "/nonexistent/s"});
  probe.finish();
  if (probe.out.find("\nsluice_bpf_enabled 1\n") == std::string::npos) GTEST_SKIP() << probe.err;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    char c;
    _exit(read(ends[0], &c, 1) == 1 ? 5 : 6);
  }
  test::Crafted crafted = example();
  crafted.process_add(3, child);
  FakeBroker broker(test::answer_snapshot(crafted.bytes()));
  Program program({"--listen", "127.0.0.1:0", "--socket", broker.path()});
  program.err_wait("serving ");
  for (int i = 0; i < 2000 && broker.served() < 2; ++i) usleep(10'000);
  ASSERT_GE(broker.served(),
            2);  // nobody has scraped, so these were for the observers; the first is done with
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  waitpid(child, nullptr, 0);
  const std::string reply = http_get(port_of(program.err), "/metrics");
  EXPECT_THAT(reply, HasSubstr("\nsluice_process_exits_total{result=\"failure\"} 1\n"));
  EXPECT_THAT(reply, HasSubstr("\nsluice_sched_switches_total{tenant=\"3\","));
  close(ends[0]);
  close(ends[1]);
}

TEST(Serve, BusyPortIsNamed) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string listen_at = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  Program program({"--no-bpf", "--listen", listen_at, "--socket", "/nonexistent/s"});
  EXPECT_EQ(program.finish(), 1);
  EXPECT_THAT(
      program.err,
      HasSubstr("sluice-exporter: cannot listen on " + listen_at +
                ": Address already in use; choose another address or port with --listen\n"));
  close(fd);
}

// Whether the port is free here or not, the line has the address.
TEST(Serve, WithoutAWordOnTheLoopbackAddressOnly) {
  char path[] = "/tmp/sluice-exporter-XXXXXX";
  const int empty = mkstemp(path);  // a configuration that says nothing of it
  ASSERT_GE(empty, 0);
  Program program({"--no-bpf", "--config", path, "--socket", "/nonexistent/s"});
  program.err_wait("127.0.0.1:9843");
  EXPECT_THAT(program.err, testing::AnyOf(HasSubstr("serving http://127.0.0.1:9843/metrics "),
                                          HasSubstr("cannot listen on 127.0.0.1:9843: ")));
  program.end();
  program.finish();
  close(empty);
  unlink(path);
}

struct Wrong {
  std::vector<std::string> arguments;
  const char* says;
};

TEST(CommandLine, Mistakes) {
  const Wrong rows[] = {
      {{"--frobnicate"},
       "sluice-exporter: unknown argument '--frobnicate'; --help lists the known ones\n"},
      {{"--once=1"},
       "sluice-exporter: unknown argument '--once=1' (did you mean --once?); --help lists the "
       "known ones\n"},
      {{"extra"}, "sluice-exporter: unknown argument 'extra'; --help lists the known ones\n"},
      {{"--socket"}, "sluice-exporter: --socket needs a value\n"},
      {{"--listen", "localhost"},
       "sluice-exporter: cannot listen on 'localhost': not an address or a name and a port; write "
       "it like 127.0.0.1:9843 or [::1]:9843\n"},
      {{"--config", "/nonexistent/c"},
       "sluice-exporter: /nonexistent/c: cannot be opened: No such file or directory\n"},
  };
  for (const Wrong& row : rows) {
    Program program(row.arguments);
    EXPECT_EQ(program.finish(), 2) << row.says;
    EXPECT_EQ(program.err, row.says);
    EXPECT_EQ(program.out, "");
  }
}

TEST(CommandLine, HelpAndDescribe) {
  Program help({"--help"});
  EXPECT_EQ(help.finish(), 0);
  EXPECT_THAT(help.out, StartsWith("usage: sluice-exporter "));
  Program describe({"--describe"});
  EXPECT_EQ(describe.finish(), 0);
  EXPECT_THAT(describe.out, StartsWith("# Metrics\n"));
}

TEST(CommandLine, ConfigurationNamesSocketAndMistakes) {
  char folder[] = "/tmp/sluice-exporter-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s.toml";
  FakeBroker broker(test::answer_snapshot(example().bytes()));
  std::ofstream(path) << "[broker]\nsocket = \"" << broker.path()
                      << "\"\n[exporter]\ntenants_max = 1\n";
  Program good({"--once", "--no-bpf", "--config", path});
  EXPECT_EQ(good.finish(), 0);
  EXPECT_THAT(good.out, HasSubstr("\nsluice_up 1\n"));
  EXPECT_THAT(good.out, HasSubstr("tenant=\"other\""));
  std::ofstream(path) << "[exporter]\nlisten = 9843\ntenants_max = 0\n";
  Program bad({"--once", "--no-bpf", "--config", path});
  EXPECT_EQ(bad.finish(), 2);
  EXPECT_EQ(bad.err, "sluice-exporter: " + path +
                         ":2:10: listen must be a string in quotes\nsluice-exporter: " + path +
                         ":3:15: tenants_max must be 1 to 4096, not 0\n");
  unlink(path.c_str());
  rmdir(folder);
}

}  // namespace
}  // namespace sluice::exporter

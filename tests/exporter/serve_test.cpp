// The web server as clients see it, kind ones and others: what it serves, with which headers, and
// what it does not put up with.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "exporter/web/web.h"
#include "tests/exporter/crafted.h"
#include "tests/exporter/program.h"

namespace sluice::exporter {
namespace {

using test::http_ask;
using test::http_connect;
using test::http_get;
using test::http_rest;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Serving : public testing::Test {
 protected:
  explicit Serving(std::vector<unsigned char> bytes = test::example().bytes(),
                   const std::string& listen = "127.0.0.1:0")
      : broker_(test::answer_snapshot(std::move(bytes))),
        program_({"--no-bpf", "--listen", listen, "--socket", broker_.path()}) {
    program_.err_wait("serving ");
    port_ = test::port_of(program_.err, listen.substr(0, listen.rfind(':')));
  }
  /// A whole scrape, while or after whatever else goes on.
  void scrape_works() const {
    const std::string reply = http_get(port_, "/metrics");
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(reply,
                HasSubstr("\nsluice_exporter_scrape_errors_total{reason=\"malformed\"} 0\n"));
  }
  static std::string header_of(const std::string& reply, const std::string& name) {
    const auto at = reply.find("\r\n" + name + ": ");
    if (at == reply.npos || at > reply.find("\r\n\r\n")) return "";
    const auto begin = at + name.size() + 4;
    return reply.substr(begin, reply.find("\r\n", begin) - begin);
  }
  static std::string body_of(const std::string& reply) {
    return reply.substr(std::min(reply.size(), reply.find("\r\n\r\n") + 4));
  }
  /// Resident memory of the program.
  std::uint64_t resident_bytes() const {
    std::ifstream in("/proc/" + std::to_string(program_.pid()) + "/statm");
    std::uint64_t whole = 0, resident = 0;
    in >> whole >> resident;
    return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }

  test::FakeBroker broker_;
  test::Program program_;
  int port_ = -1;
};

TEST_F(Serving, PagesAndTheirKinds) {
  const std::pair<const char*, const char*> pages[] = {
      {"/", "text/html; charset=utf-8"},
      {"/wall.css", "text/css; charset=utf-8"},
      {"/wall.js", "text/javascript; charset=utf-8"},
      {"/snapshot.json", "application/json; charset=utf-8"},
      {"/metrics", "text/plain; version=0.0.4; charset=utf-8"}};
  for (const auto& [path, type] : pages) {
    const std::string reply = http_get(port_, path);
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n")) << path;
    EXPECT_EQ(header_of(reply, "Content-Type"), type);
    EXPECT_EQ(header_of(reply, "Content-Length"), std::to_string(body_of(reply).size())) << path;
    EXPECT_EQ(header_of(reply, "X-Content-Type-Options"), "nosniff") << path;
    EXPECT_EQ(
        header_of(reply, "Content-Security-Policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
        "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
        << path;
  }
  EXPECT_THAT(http_get(port_, "/snapshot.json"), HasSubstr("\"user\":\"anna\""));
}

TEST_F(Serving, NothingOfThePageIsElsewhere) {
  for (const char* path : {"/", "/wall.css", "/wall.js"}) {
    std::string body = body_of(http_get(port_, path));
    // The name of a vocabulary, which nobody fetches.
    const std::string svg = "http://www.w3.org/2000/svg";
    for (auto at = body.find(svg); at != body.npos; at = body.find(svg)) body.erase(at, svg.size());
    EXPECT_GT(body.size(), 500U);
    EXPECT_THAT(body, Not(HasSubstr("http:"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("https:"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("\"//"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("@import"))) << path;
    // What would be markup made of names.
    EXPECT_THAT(body, Not(HasSubstr("innerHTML"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("insertAdjacent"))) << path;
    EXPECT_THAT(body, Not(HasSubstr(" onload="))) << path;
  }
}

TEST_F(Serving, OnlyReadingOfWhatThereIs) {
  EXPECT_THAT(http_get(port_, "/nothing"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(http_get(port_, "/nothing"), HasSubstr("there is / /metrics /snapshot.json"));
  EXPECT_THAT(http_get(port_, "/metrics/more"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(http_get(port_, "/../../../../etc/passwd"), Not(HasSubstr("root:")));
  EXPECT_THAT(http_ask(port_, "POST /metrics HTTP/1.0\r\nContent-Length: 1\r\n\r\nx"),
              StartsWith("HTTP/1.1 405 "));
  const std::string head = http_ask(port_, "HEAD /metrics HTTP/1.0\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(body_of(head), "");
  EXPECT_THAT(http_get(port_, "/metrics?x=1"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Serving, PackedForWhoAsksForIt) {
  const std::string reply =
      http_ask(port_, "GET /metrics HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
  ASSERT_EQ(header_of(reply, "Content-Encoding"), "gzip");
  std::string packed = body_of(reply), text(1 << 20, '\0');
  z_stream stream{};
  ASSERT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  EXPECT_LT(packed.size(), text.size() / 4);
  EXPECT_THAT(text, HasSubstr("\nsluice_up 1\n"));
}

TEST_F(Serving, ARequestTooLargeIsRefused) {
  for (const char* begin : {"GET /metrics HTTP/1.0\r\nX: ", "GET /", ""}) {
    const std::string reply = http_ask(port_, begin + std::string(64 * kWebRequestBytesMax, 'x'));
    EXPECT_THAT(reply, Not(HasSubstr(" 200 "))) << begin;
    EXPECT_LT(reply.size(), 4096U);
  }
  scrape_works();
}

TEST_F(Serving, GarbageIsNoEnd) {
  for (const std::string& request : {std::string("\0\0\0\0\r\n\r\n", 8), std::string("\r\n\r\n"),
                                     std::string("GET\r\n\r\n"), std::string("\x16\x03\x01\x02")}) {
    const int fd = http_connect(port_);
    (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    EXPECT_THAT(http_rest(fd), Not(HasSubstr(" 200 ")));
    close(fd);
  }
  scrape_works();
}

/// Many clients, none of which ever sends a whole request.
TEST_F(Serving, SlowClientsAreLeftBehind) {
  constexpr int kClients = 32;
  std::vector<int> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(http_connect(port_));
    ASSERT_GE(clients.back(), 0);
    // Half of them have begun to say something.
    if (i % 2 == 0) (void)!send(clients.back(), "GET /met", 8, MSG_NOSIGNAL);
  }
  // One drips: a byte now and then must not prolong its time.
  const int drip = clients.front();
  scrape_works();
  int gone = 0;
  for (const int fd : clients) {
    if (fd == drip) continue;
    pollfd ready{fd, POLLIN, 0};
    gone +=
        poll(&ready, 1, 20'000) == 1 && http_rest(fd).find(" 200 ") == std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(gone, kClients - 1) << "all were disconnected";
  for (const int fd : clients) close(fd);
  scrape_works();
}

TEST_F(Serving, ADrippingClientIsLeftBehindToo) {
  const int fd = http_connect(port_);
  ASSERT_GE(fd, 0);
  bool closed = false;
  // A byte every tenth of the time it has; many times over.
  for (int i = 0; i < 100 && !closed; ++i) {
    (void)!send(fd, "G", 1, MSG_NOSIGNAL);
    pollfd ready{fd, POLLIN, 0};
    closed = poll(&ready, 1, kWebTimeout_ms / 10) == 1;
  }
  EXPECT_TRUE(closed);
  close(fd);
}

/// Keeps `count` connections open that never send a whole request, and opens a new one for each
/// that the server closes.
class SlowClients {
 public:
  SlowClients(int port, int count, int family = AF_INET) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([this, port, i, family] { client(port, i % 2 == 0, family); });
    while (connected_ < count) usleep(1000);
  }
  ~SlowClients() {
    leave_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void client(int port, bool begins, int family) {
    for (bool first = true; !leave_; first = false) {
      const int fd = http_connect(port, family);
      if (fd < 0) continue;
      if (begins) (void)!send(fd, "GET /met", 8, MSG_NOSIGNAL);
      if (first) ++connected_;
      pollfd ready{fd, POLLIN, 0};
      while (!leave_ && poll(&ready, 1, 100) == 0) {
      }
      close(fd);
    }
  }
  std::atomic<bool> leave_{false};
  std::atomic<int> connected_{0};
  std::vector<std::thread> threads_;
};

// The slow clients never leave, so a server that makes a scrape wait for one of them never answers.
TEST_F(Serving, ScrapesGoOnBesideSlowClientsWithoutEnd) {
  const SlowClients slow(port_, 60);
  for (int i = 0; i < 20; ++i) scrape_works();
}

TEST_F(Serving, ScrapesGoOnBesideACrowdOfSlowClients) {
  const SlowClients slow(port_, 2 * static_cast<int>(kWebConnections));
  for (int i = 0; i < 20; ++i) scrape_works();
}

TEST_F(Serving, OnlyItsOwnNamesAreAnswered) {
  const auto status = [this](const std::string& host) {
    const std::string reply = http_ask(
        port_, "GET /snapshot.json HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    return reply.substr(0, reply.find("\r\n"));
  };
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const std::string port = ":" + std::to_string(port_);
  for (const std::string& host : {"127.0.0.1" + port, std::string("10.1.2.3"), "[::1]" + port,
                                  "localhost" + port, std::string("LocalHost."), name + port}) {
    EXPECT_EQ(status(host), "HTTP/1.1 200 OK") << host;
  }
  for (const std::string& host : {"evil.example" + port, std::string("localhost.evil.example"),
                                  "127.0.0.1.evil.example" + port, std::string("[::1"),
                                  std::string("1.2.3"), std::string("")}) {
    EXPECT_THAT(status(host), StartsWith("HTTP/1.1 4")) << host;
  }
}

TEST_F(Serving, FurtherNamesComeFromTheConfiguration) {
  char path[] = "/tmp/sluice-exporter-XXXXXX";
  const int file = mkstemp(path);
  const std::string text = "[exporter]\nhosts = [\"gpu1.example\"]\n";
  ASSERT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  test::Program named(
      {"--no-bpf", "--listen", "127.0.0.1:0", "--config", path, "--socket", broker_.path()});
  named.err_wait("serving ");
  const int port = test::port_of(named.err);
  EXPECT_THAT(http_ask(port, "GET /metrics HTTP/1.0\r\nHost: gpu1.example\r\n\r\n"),
              StartsWith("HTTP/1.1 200"));
  const std::string refused = http_ask(port, "GET /metrics HTTP/1.0\r\nHost: gpu2.example\r\n\r\n");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(refused, HasSubstr("add the name to hosts in section [exporter] of sluice.toml"));
  close(file);
  unlink(path);
}

/// Enough tenants that a scrape does not fit into the buffers of a connection.
class ServingMuch : public Serving {
 public:
  static std::vector<unsigned char> many() {
    test::Crafted crafted = test::example();
    for (protocol::TenantId id = 10; id < 160; ++id) {
      crafted.tenant_add(id, "somebody-with-a-long-name", protocol::TenantClass::kDebug);
      crafted.vgpu_add(id, 0);
      crafted.vgpu_add(id, 1);
    }
    return crafted.bytes();
  }

 protected:
  ServingMuch() : Serving(many()) {}
};

TEST_F(ServingMuch, WhoDoesNotTakeTheAnswerIsLeftBehind) {
  std::vector<int> clients;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  for (int i = 0; i < 40; ++i) {
    const int fd = http_connect(port_);
    ASSERT_GE(fd, 0);
    const int small = 2048;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    clients.push_back(fd);
  }
  const std::string reply = http_get(port_, "/metrics");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200"));
  EXPECT_GT(reply.size(), 500'000U);
  for (const int fd : clients) close(fd);
}

TEST_F(Serving, AFloodIsAnsweredAFewAtATime) {
  constexpr int kFlooders = 32, kEach = 60;
  std::atomic<int> answered{0};
  std::atomic<bool> done{false};
  std::size_t threads_most = 0;
  std::thread observer([&] {
    while (!done) {
      std::ifstream in("/proc/" + std::to_string(program_.pid()) + "/status");
      for (std::string line; std::getline(in, line);) {
        if (line.starts_with("Threads:"))
          threads_most = std::max<std::size_t>(threads_most, std::stoul(line.substr(8)));
      }
      usleep(20'000);
    }
  });
  std::vector<std::thread> flooders;
  for (int i = 0; i < kFlooders; ++i) {
    flooders.emplace_back([&] {
      for (int k = 0; k < kEach; ++k)
        answered += http_get(port_, "/metrics").starts_with("HTTP/1.1 200") ? 1 : 0;
    });
  }
  for (std::thread& flooder : flooders) flooder.join();
  done = true;
  observer.join();
  EXPECT_EQ(answered, kFlooders * kEach);
  // One thread each that serves, watches connections, waits for signals, asks the driver and learns
  // why GPUs are idle.
  EXPECT_LE(threads_most, 5U);
  scrape_works();
}

// Memory grows for a while, until every worker has served something large; then it has to stay.
TEST_F(Serving, MemoryStaysThroughThousandsOfScrapes) {
  const auto soak = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_THAT(http_get(port_, i % 4 == 0 ? "/snapshot.json" : "/metrics"),
                  StartsWith("HTTP/1.1 200"));
    }
  };
  soak(500);
  const std::uint64_t before = resident_bytes();
  ASSERT_GT(before, 1U << 20);
  soak(3000);
  EXPECT_LT(resident_bytes(), before + (1U << 20));
}

class ServingIpv6 : public Serving {
 protected:
  ServingIpv6() : Serving(test::example().bytes(), test::has_ipv6() ? "[::1]:0" : "127.0.0.1:0") {}
};

TEST_F(ServingIpv6, ScrapesGoOnBesideSlowClientsWithoutEnd) {
  if (!test::has_ipv6()) GTEST_SKIP() << "this machine has no ::1";
  const SlowClients slow(port_, 60, AF_INET6);
  for (int i = 0; i < 20; ++i)
    EXPECT_THAT(http_get(port_, "/metrics", AF_INET6), StartsWith("HTTP/1.1 200"));
}

class ServingMuchIpv6 : public Serving {
 protected:
  ServingMuchIpv6() : Serving(ServingMuch::many(), test::has_ipv6() ? "[::1]:0" : "127.0.0.1:0") {}
};

TEST_F(ServingMuchIpv6, WhoDoesNotTakeTheAnswerLeavesItsPlace) {
  if (!test::has_ipv6()) GTEST_SKIP() << "this machine has no ::1";
  std::vector<int> clients;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  for (int i = 0; i < 40; ++i) {
    clients.push_back(http_connect(port_, AF_INET6));
    (void)!send(clients.back(), request.data(), request.size(), MSG_NOSIGNAL);
  }
  EXPECT_GT(http_get(port_, "/metrics", AF_INET6).size(), 500'000U);
  for (const int fd : clients) close(fd);
}

}  // namespace
}  // namespace sluice::exporter

// Taking the socket: directories, other brokers, stale files.
#include "broker/daemon/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <fstream>
#include <vector>

#include "broker/protocol/wire.h"
#include "no_descriptors.h"

namespace sluice::daemon {
namespace {

using testing::HasSubstr;

class ListenerTest : public testing::Test {
 protected:
  ListenerTest() {
    char name[] = "/tmp/sluice-listener-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/broker.sock";
  }
  ~ListenerTest() override { EXPECT_EQ(system(("rm -rf " + directory_).c_str()), 0); }

  std::unique_ptr<Listener> open(bool is_private = false) {
    ListenOptions options;
    options.path = path_;
    options.is_private = is_private;
    error_.clear();
    return Listener::open(
        loop_, options, [this](devices::Fd) { ++accepted_; }, &error_);
  }
  mode_t mode(const std::string& path) {
    struct stat status {};
    return lstat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
  }

  std::string directory_;
  std::string path_;
  std::string error_;
  Loop loop_;
  int accepted_ = 0;
};

TEST_F(ListenerTest, AcceptsAndCleansUp) {
  auto listener = open();
  ASSERT_NE(listener, nullptr) << error_;
  EXPECT_EQ(mode(path_), 0666u);
  const devices::Fd client(protocol::wire_connect(path_.c_str()));
  ASSERT_TRUE(client);
  loop_.turn(10'000);
  EXPECT_EQ(accepted_, 1);
  listener.reset();
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

// Between two turns the messages of those who came first are answered.
TEST_F(ListenerTest, AFullBacklogIsLetInWithinFewTurns) {
  const auto listener = open();
  ASSERT_NE(listener, nullptr) << error_;
  std::vector<devices::Fd> clients;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 400; ++i) {
      clients.emplace_back(protocol::wire_connect(path_.c_str()));
      ASSERT_TRUE(clients.back());
    }
    accepted_ = 0;
    loop_.turn(10'000);
    EXPECT_LE(accepted_, 8) << "the first is served soon";
    for (int turns = 1; turns < 12 && accepted_ < 400; ++turns) loop_.turn(10'000);
    EXPECT_EQ(accepted_, 400);
    loop_.turn(0);
    clients.clear();
  }
}

class ListenerWithoutDescriptors : public ListenerTest {
 protected:
  ListenerWithoutDescriptors() : listener_(open()) {
    std::strncpy(address_.sun_path, path_.c_str(), sizeof address_.sun_path - 1);
    address_.sun_family = AF_UNIX;
    for (devices::Fd& client : clients_)
      client = devices::Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  void connect(std::size_t n) {
    ASSERT_EQ(::connect(clients_[n].get(), reinterpret_cast<sockaddr*>(&address_), sizeof address_),
              0);
  }
  /// The broker has hung up on it.
  bool refused(std::size_t n) {
    char byte;
    return recv(clients_[n].get(), &byte, 1, 0) == 0;
  }

  std::unique_ptr<Listener> listener_;
  sockaddr_un address_{};
  std::array<devices::Fd, 3> clients_;
};

TEST_F(ListenerWithoutDescriptors, EachConnectionIsRefused) {
  ASSERT_NE(listener_, nullptr) << error_;
  const NoDescriptors none;
  for (std::size_t n = 0; n < clients_.size(); ++n) {
    connect(n);
    loop_.turn(10'000);
    EXPECT_TRUE(refused(n)) << n;
  }
  EXPECT_EQ(accepted_, 0);
}

// Another thread may have taken what the spare one was given up for.
TEST_F(ListenerWithoutDescriptors, NothingSpinsWhereNoneCanBeRefused) {
  ASSERT_NE(listener_, nullptr) << error_;
  auto none = std::make_unique<NoDescriptors>();
  listener_->spare_give();
  const devices::Fd taken(dup(0));
  ASSERT_TRUE(taken);
  connect(0);
  loop_.turn(10'000);
  EXPECT_EQ(loop_.turn(0), 0) << "it waits, though a connection does as well";
  none->give(2);
  for (int turns = 0; turns < 10 && accepted_ == 0; ++turns) loop_.turn(10'000);
  EXPECT_EQ(accepted_, 1);
}

TEST_F(ListenerTest, PrivateSocketIsForItsUserAlone) {
  const auto listener = open(true);
  ASSERT_NE(listener, nullptr) << error_;
  EXPECT_EQ(mode(path_), 0600u);
}

TEST_F(ListenerTest, SecondBrokerIsRefused) {
  const auto first = open();
  ASSERT_NE(first, nullptr) << error_;
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("another broker already answers at " + path_));
}

TEST_F(ListenerTest, LivingBrokerWithoutALockIsRefusedToo) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  const devices::Fd other(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("another broker"));
}

TEST_F(ListenerTest, StaleSocketIsReplaced) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  {
    const devices::Fd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_NE(open(), nullptr) << error_;
}

TEST_F(ListenerTest, SomebodysFileIsKept) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("not a socket"));
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

TEST_F(ListenerTest, ALinkToAnotherPlaceIsKept) {
  ASSERT_EQ(symlink("/dev/null", path_.c_str()), 0);
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("not a socket"));
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

TEST_F(ListenerTest, DirectoriesOthersCanWriteAreRefused) {
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("chmod go-w"));
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  EXPECT_EQ(open(true), nullptr) << "a private broker's directory is for its user alone";
  EXPECT_THAT(error_, HasSubstr("chmod 0700"));
  EXPECT_NE(open(false), nullptr) << error_;
}

TEST_F(ListenerTest, PathsThatCannotWork) {
  path_ = "relative.sock";
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("must be absolute"));
  path_ = directory_ + "/" + std::string(200, 'x');
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("shorter than"));
  path_ = directory_ + "/no/such/broker.sock";
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_, HasSubstr("cannot make the directory"));
}

}  // namespace
}  // namespace sluice::daemon

// Which broker the lab asks for its account.
#include "trainer/lab/usage.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "broker/protocol/wire.h"

namespace sluice::lab {
namespace {

TEST(UsageRead, AsksNoStranger) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  char directory[] = "/tmp/sluice-usage-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string path = std::string(directory) + "/socket";
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(seteuid(61234), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(seteuid(0), 0);
  int received = -1;
  std::thread stranger([&] {
    const int peer = accept(listener, nullptr, nullptr);
    protocol::Envelope envelope;
    received = protocol::wire_receive(peer, &envelope, 60'000);
    close(peer);
  });
  EXPECT_FALSE(usage_read(path));
  stranger.join();
  EXPECT_EQ(received, 0) << "the stranger was asked";
  close(listener);
  unlink(path.c_str());
  rmdir(directory);
}

}  // namespace
}  // namespace sluice::lab

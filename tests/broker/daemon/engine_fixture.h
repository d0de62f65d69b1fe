// What the tests of the engine share: answers that are kept instead of sent, work that waits until
// the test lets it run, an engine's setup with one GPU.
#pragma once

#include "broker/daemon/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <map>

namespace sluice::daemon {

/// Takes answers in the place of sockets: the type of the last one by connection.
struct Answered : Outbox {
  std::map<ConnectionId, protocol::MessageType> last;
  std::map<ConnectionId, std::string> bytes;
  std::string text;
  std::string file;  // what the last one with a descriptor gave to read
  bool send_bytes(ConnectionId connection, const void* message, std::size_t size, const int* fds,
                  int fd_count) override {
    const auto& header = *static_cast<const protocol::Header*>(message);
    last[connection] = header.type;
    bytes[connection].assign(static_cast<const char*>(message), size);
    if (fd_count != 0) file_read(fds[0]);
    if (header.type == protocol::MessageType::kRefused)
      text = static_cast<const protocol::Refused*>(message)->text;
    return true;
  }
  void file_read(int fd) {
    char part[4096];
    file.clear();
    for (ssize_t got; (got = pread(fd, part, sizeof part, static_cast<off_t>(file.size()))) > 0;)
      file.append(part, static_cast<std::size_t>(got));
  }
  template <class M>
  M answer(ConnectionId connection) const {
    M out{};
    EXPECT_EQ(bytes.at(connection).size(), sizeof out);
    std::memcpy(&out, bytes.at(connection).data(), sizeof out);
    return out;
  }
  std::size_t unread_bytes(ConnectionId) const override { return 0; }
  uid_t user_of(ConnectionId) const override { return 1000; }
  void drop(ConnectionId) override {}
  void descriptors_add(Descriptors*) const override {}
};

/// Work that waits until the test lets it run.
struct Held : SlowWork {
  std::deque<Work> held;
  std::vector<std::weak_ptr<const void>> wanted;
  using SlowWork::run;
  void run(Work work, std::weak_ptr<const void> wanted_by) override {
    held.push_back(std::move(work));
    wanted.push_back(std::move(wanted_by));
  }
  void let_go() {
    while (!held.empty()) {
      const Work work = std::move(held.front());
      held.pop_front();
      if (const Loop::Handler done = work()) done();
    }
  }
};

template <class M>
protocol::Envelope envelope_of(const M& message) {
  protocol::Envelope envelope{};
  std::memcpy(envelope.bytes, &message, sizeof message);
  envelope.size = sizeof message;
  return envelope;
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    EXPECT_EQ(log.file_open("/dev/null"), 0);
    setup.gpus.resize(1);
    setup.gpus[0].capacity_bytes = std::uint64_t{1} << 30;
    setup.gpus[0].context_bytes = 1 << 25;
    setup.config = config::config_default();
    setup.probe = "";
    message_init(admission, protocol::MessageType::kAdmit, 1);
    admission.tenant_class = protocol::TenantClass::kBatch;
    admission.memory_max_bytes = 1 << 26;
    admission.gpu_count = 1;
  }
  static Peer peer_of(uid_t uid, pid_t pid = getpid()) {
    Peer peer;
    peer.pid = pid;
    peer.uid = uid;
    peer.pidfd = devices::Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    return peer;
  }
  /// A job of this process; it is asked for on `connection`.
  protocol::Admitted admitted(Engine& engine, ConnectionId connection) {
    engine.admit({connection, peer_of(0), 1}, admission);
    slow.let_go();
    EXPECT_EQ(outbox.last[connection], protocol::MessageType::kAdmitted) << outbox.text;
    return outbox.answer<protocol::Admitted>(connection);
  }
  void registers(Engine& engine, ConnectionId connection, const protocol::Admitted& job,
                 const Peer& peer) {
    protocol::Register message;
    message_init(message, protocol::MessageType::kRegister, 1);
    message.tenant = job.tenant;
    message.key = job.key;
    engine.join({connection, peer, 1}, message);
  }
  /// Has the log in a file from now on; its lines of an event so far.
  void log_keep() {
    char name[] = "/tmp/sluice-engine-log-XXXXXX";
    const devices::Fd file(mkstemp(name));
    ASSERT_TRUE(file);
    log_path = name;
    ASSERT_EQ(log.file_open(log_path), 0);
    log.level_set("debug");
  }
  int logged(const std::string& event) const {
    std::ifstream file(log_path);
    int lines = 0;
    for (std::string line; std::getline(file, line);)
      lines += line.find("event=" + event + " ") != std::string::npos;
    return lines;
  }
  ~EngineTest() override {
    if (!log_path.empty()) unlink(log_path.c_str());
  }

  Loop loop;
  Log log;
  Answered outbox;
  Held slow;
  EngineSetup setup;
  protocol::Admit admission;
  std::string log_path;
};

}  // namespace sluice::daemon

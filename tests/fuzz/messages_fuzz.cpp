// What strangers send to the broker: datagrams through the wire's own checks into the sessions'
// state machine and the engine behind it, on four connections of three users.
//
// The input is a list of steps. A step is a byte (two bits: which connection; three: what) and what
// that needs: a datagram as it is; a message of some type with its header put right, optionally
// with the number and key of the job granted last; a connection that closes; a turn of the loop.
// Holds for every input: nothing but known messages of their exact size and with terminated texts
// is answered, a snapshot is one that the exporter believes, who breaks the rules is cut off, and
// when all are gone nothing is left waiting.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <variant>
#include <vector>

#include "broker/daemon/engine.h"
#include "broker/daemon/sessions.h"
#include "exporter/snapshot.h"
#include "tests/fuzz/target.h"

namespace {

using namespace sluice;
using daemon::ConnectionId;
using fuzz::require;
using protocol::MessageType;

bool terminated(const char* text, std::size_t size) {
  return std::memchr(text, '\0', size) != nullptr;
}

/// The exporter doubts every field.
bool snapshot_sound(const protocol::Envelope& reply) {
  if (reply.fd_count != 1) return false;
  const std::uint64_t bytes = reply.as<protocol::SnapshotReply>().bytes;
  return std::holds_alternative<exporter::Snapshot>(exporter::snapshot_load(reply.fds[0], bytes));
}

/// Takes answers in the place of sockets.
class Answers : public daemon::Outbox {
 public:
  bool send_bytes(ConnectionId connection, const void* message, std::size_t size, const int* fds,
                  int fd_count) override {
    protocol::Envelope envelope;
    require(size >= sizeof(protocol::Header) && size <= sizeof envelope.bytes);
    std::memcpy(envelope.bytes, message, size);
    envelope.size = size;
    envelope.fd_count = fd_count;
    require(fd_count <= protocol::kMessageFdsMax);
    std::copy_n(fds, fd_count, envelope.fds);
    check(envelope);
    unread_ += 512;
    return dropped.count(connection) == 0;
  }
  std::size_t unread_bytes(ConnectionId) const override { return unread_ % 16384; }
  uid_t user_of(ConnectionId) const override { return 1000; }
  void drop(ConnectionId connection) override { dropped.insert(connection); }
  // Now and then more than one user may take.
  void descriptors_add(daemon::Descriptors* out) const override {
    (*out)[getuid()] += static_cast<std::uint32_t>(unread_ / 16 % 1024);
  }

  std::set<ConnectionId> dropped;
  protocol::TenantId tenant = 0;  // granted last
  protocol::JoinKey key = 0;

 private:
  void check(const protocol::Envelope& envelope) {
    const protocol::Header& header = envelope.header();
    require(header.magic == protocol::kMessageMagic && header.version == protocol::kVersion &&
            header.size == envelope.size);
    int fds = 0;
    switch (header.type) {
      case MessageType::kQueued:
        require(envelope.size == sizeof(protocol::Queued));
        require(terminated(envelope.as<protocol::Queued>().ahead, protocol::kNameBytes));
        break;
      case MessageType::kAdmitted:
        require(envelope.size == sizeof(protocol::Admitted));
        require(terminated(envelope.as<protocol::Admitted>().profile, protocol::kNameBytes));
        tenant = envelope.as<protocol::Admitted>().tenant;
        key = envelope.as<protocol::Admitted>().key;
        break;
      case MessageType::kRefused:
        require(envelope.size == sizeof(protocol::Refused));
        require(terminated(envelope.as<protocol::Refused>().text, protocol::kTextBytes));
        break;
      case MessageType::kRegistered:
        require(envelope.size == sizeof(protocol::Registered));
        fds = 2;
        break;
      case MessageType::kDone:
        require(envelope.size == sizeof(protocol::Done));
        break;
      case MessageType::kCommandDone:
        require(envelope.size == sizeof(protocol::CommandDone));
        break;
      case MessageType::kActivityReply:
        require(envelope.size == sizeof(protocol::ActivityReply));
        fds = 1;
        break;
      case MessageType::kSnapshotReply:
        require(envelope.size == sizeof(protocol::SnapshotReply));
        require(snapshot_sound(envelope));
        fds = 1;
        break;
      default:
        std::abort();
    }
    require(envelope.fd_count == fds);
  }
  std::size_t unread_ = 0;
};

/// A living process for the broker to hold on to; the broker may end it.
pid_t sleeper_start() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) pause();
}

daemon::Peer peer_make(uid_t uid) {
  static const pid_t sleepers[] = {sleeper_start(), sleeper_start()};
  daemon::Peer peer;
  peer.pid = sleepers[uid % 2];
  peer.uid = uid;
  peer.groups = {static_cast<gid_t>(uid)};
  peer.pidfd = devices::Fd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  return peer;
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint8_t byte() {
    std::uint8_t value = 0;
    take(&value, 1);
    return value;
  }
  /// What is missing at the end of the input stays as it is.
  void take(void* to, std::size_t size) {
    const std::size_t count = std::min(size, left_);
    if (count != 0) std::memcpy(to, at_, count);
    at_ += count;
    left_ -= count;
  }

 private:
  const std::uint8_t* at_;
  std::size_t left_;
};

std::vector<daemon::ServedGpu> gpus_make() {
  std::vector<daemon::ServedGpu> gpus(2);
  for (std::uint8_t i = 0; i < 2; ++i) {
    gpus[i].uuid.bytes[0] = i;
    gpus[i].capacity_bytes = std::uint64_t{1} << 30;
    gpus[i].context_bytes = 1 << 25;
  }
  return gpus;
}

/// Looks nothing up, as a directory service that never answers.
struct NothingFound : daemon::SlowWork {
  using SlowWork::run;
  void run(Work, std::weak_ptr<const void>) override {}
};

// Without the helper program that asks devices and with accounts that are known, of all users but
// one: to start it, or to read the account databases, takes longer than all the rest of an input.
daemon::EngineSetup setup_make() {
  daemon::EngineSetup setup;
  setup.gpus = gpus_make();
  setup.config = config::config_default();
  setup.probe = "";
  setup.accounts.keep(0, {"root", {0}});
  setup.accounts.keep(1000, {"ada", {1000}});
  setup.who_patience_ns = 0;
  return setup;
}

class Broker {
 public:
  Broker() : engine_(loop_, log(), answers_, slow_, setup_make()) {
    // Kept from one input to the next: a system call costs more than a message.
    static const daemon::Peer peers[] = {peer_make(1000), peer_make(1000), peer_make(1001),
                                         peer_make(0)};
    for (std::size_t i = 0; i < std::size(lines_); ++i) lines_[i] = {next_++, &peers[i]};
  }

  void step(Input& input) {
    const std::uint8_t what = input.byte();
    Line& line = lines_[what & 3U];
    switch ((what >> 2) & 7U) {
      case 0: {
        unsigned char datagram[2048] = {};
        std::uint16_t size = 0;
        input.take(&size, sizeof size);
        size = static_cast<std::uint16_t>(1 + size % (protocol::kMessageBytesMax + 100));
        input.take(datagram, size);
        deliver(line, datagram, size, false);
        break;
      }
      case 1:
        close(line, false);
        break;
      case 2:
        close(line, true);
        break;
      case 3:
        loop_.turn(0);
        engine_.heartbeat();
        break;
      default:
        message(line, input);
    }
    for (Line& other : lines_)
      if (answers_.dropped.count(other.id) != 0) close(other, false);
    loop_.settle();  // a step of its own waits for what is readable
  }

  void end() {
    for (Line& line : lines_) close(line, false);
    for (const Line& line : lines_) require(!engine_.pending_on(line.id));
  }

 private:
  struct Line {
    ConnectionId id = 0;
    const daemon::Peer* peer = nullptr;
  };

  static daemon::Log& log() {
    static daemon::Log* quiet = [] {
      auto* made = new daemon::Log;
      require(made->file_open("/dev/null") == 0);
      return made;
    }();
    return *quiet;
  }

  // The sizes of what the broker receives, by type; 0 = it only sends it.
  static std::size_t size_of(MessageType type) {
    switch (type) {
      case MessageType::kAdmit:
        return sizeof(protocol::Admit);
      case MessageType::kRegister:
        return sizeof(protocol::Register);
      case MessageType::kJobReport:
        return sizeof(protocol::JobReport);
      case MessageType::kMoved:
        return sizeof(protocol::Moved);
      case MessageType::kCommand:
        return sizeof(protocol::Command);
      case MessageType::kRelease:
        return sizeof(protocol::Release);
      case MessageType::kSnapshotRequest:
        return sizeof(protocol::SnapshotRequest);
      case MessageType::kActivityRequest:
        return sizeof(protocol::ActivityRequest);
      default:
        return sizeof(protocol::GateNote);
    }
  }

  void message(Line& line, Input& input) {
    alignas(8) unsigned char datagram[protocol::kMessageBytesMax] = {};
    const auto type = static_cast<MessageType>(input.byte() % 21);
    const std::uint8_t how = input.byte();
    const std::size_t size = size_of(type);
    input.take(datagram, size);
    protocol::Header header{protocol::kMessageMagic, protocol::kVersion, type,
                            static_cast<std::uint32_t>(size), 1};
    if ((how & 2U) != 0) header.version = static_cast<std::uint16_t>(how);
    std::memcpy(datagram, &header, sizeof header);
    const bool named = type == MessageType::kRegister || type == MessageType::kJobReport ||
                       type == MessageType::kRelease;
    if (named && (how & 1U) != 0) {
      std::memcpy(datagram + sizeof header, &answers_.tenant, sizeof answers_.tenant);
      std::memcpy(datagram + sizeof header + 8, &answers_.key, sizeof answers_.key);
    }
    if ((how & 4U) != 0)
      deliver(line, datagram, size, true);
    else
      hand_over(line, datagram, size);
  }

  struct Wire {
    devices::Fd there, here;
    Wire() {
      int ends[2];
      require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
      there = devices::Fd(ends[0]);
      here = devices::Fd(ends[1]);
    }
  };

  /// Through a socket, whose kernel may add descriptors and whose reader has checks of its own.
  void deliver(Line& line, const void* datagram, std::size_t size, bool with_descriptor) {
    static const Wire wire;
    const int sent = wire.there.get();
    require(protocol::wire_send(sent, datagram, size, &sent, with_descriptor ? 1 : 0, true) == 0);
    protocol::Envelope envelope;
    const int got = protocol::wire_receive(wire.here.get(), &envelope, 0);
    require(got == 1 || got == -EPROTO);
    if (got == 1)
      sessions_.message_received(line.id, *line.peer, envelope);
    else
      sessions_.garbage_received(line.id, *line.peer);
    for (int i = 0; i < envelope.fd_count; ++i) ::close(envelope.fds[i]);
    if (got != 1) require(answers_.dropped.count(line.id) != 0);
  }

  /// What the wire makes of a message with a right head and no descriptors.
  void hand_over(Line& line, const void* datagram, std::size_t size) {
    protocol::Envelope envelope;
    std::memcpy(envelope.bytes, datagram, size);
    envelope.size = size;
    sessions_.message_received(line.id, *line.peer, envelope);
  }

  // Its place is taken by a new connection of the same process.
  void close(Line& line, bool unread) {
    answers_.dropped.erase(line.id);
    sessions_.connection_closed(line.id, unread);
    line.id = next_++;
  }

  daemon::Loop loop_;
  Answers answers_;
  NothingFound slow_;
  daemon::Engine engine_;
  daemon::Sessions sessions_{log(), engine_, answers_, loop_, 512};
  Line lines_[4];
  ConnectionId next_ = 1;
};

}  // namespace

FUZZ_TARGET(messages) {
  Input input(data, size);
  Broker broker;
  for (int steps = 0; steps < 64 && !input.empty(); ++steps) broker.step(input);
  broker.end();
  return 0;
}

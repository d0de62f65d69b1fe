// Messages over a TCP connection: a length, a type, a body, and no body longer than the receiver
// allows. Whatever comes from the other side is checked before it is used: who breaks a rule is cut
// off, and has harmed nobody. Little-endian numbers, so machines of different kinds can meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/base/clock.h"

namespace sluice::train {

struct Frame {
  std::uint8_t type = 0;
  std::string body;
};

/// One end of a connection. Never blocks: what cannot be sent yet waits.
class FrameSocket {
 public:
  /// Owns `fd`, a connected socket.
  FrameSocket(int fd, std::size_t body_max);
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;

  int fd() const { return fd_; }
  /// From now on.
  void body_max_set(std::size_t bytes) { body_max_ = bytes; }

  /// Queues a message and sends what goes.
  void push(std::uint8_t type, std::string_view body);
  /// Sends what waits and reads what is there.
  void pump();
  /// The next message that is here whole.
  std::optional<Frame> next();
  std::size_t unsent() const { return out_.size(); }
  /// Why nothing can be sent or will come any more; empty = it works. Messages that came before
  /// that are still handed out.
  const std::string& broken() const { return broken_; }

 private:
  void flush();
  void fail(const std::string& why);

  const int fd_;
  std::size_t body_max_;
  std::string in_, out_;
  std::string broken_;
};

/// A body, written field by field.
class BodyWriter {
 public:
  BodyWriter& number(std::uint64_t value);
  BodyWriter& text(std::string_view value);
  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

/// And read again. What is too short gives 0 and "", and is then not ok().
class BodyReader {
 public:
  explicit BodyReader(std::string_view body) : rest_(body) {}
  std::uint64_t number();
  std::string text();
  /// All of it was there, and nothing more.
  bool ok() const { return good_ && rest_.empty(); }
  bool good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

struct HostPort {
  std::string host;
  std::string port;
  std::string text() const;
};

/// "HOST:PORT" or "[IPV6]:PORT"; none where it is neither.
std::optional<HostPort> host_port_parse(const std::string& text);

/// Listening sockets and connections, close-on-exec and non-blocking. Throw Failure.
int tcp_listen(const HostPort& at);
/// Tries again until `deadline`, or until `cancelled` (which may be empty) says so.
int tcp_connect(const HostPort& to, Nanos deadline, const std::function<bool()>& cancelled);
/// The numeric address of this end, and of the other; empty where there is none.
std::string address_here(int fd);
std::string address_there(int fd);
/// The network interface that has this numeric address; empty where none has.
std::string interface_of(const std::string& address);

}  // namespace sluice::train

// One connection to the broker from the command line: find it, ask, read the answer. Errors come
// back as texts ready to print after "sluice: ".
#pragma once

#include <optional>
#include <string>

#include "broker/devices/fd.h"
#include "broker/protocol/question.h"

namespace sluice::cli {

/// Where the broker is looked for, and whether somebody named that place.
struct SocketChoice {
  std::string path;
  bool named = false;  // by --socket or $SLUICE_SOCKET: then nothing else will do
};

/// --socket, else $SLUICE_SOCKET, else the system's place. The configuration says where the broker
/// listens after its next start, so clients do not look there.
SocketChoice socket_choose(const std::string& option);

/// How long a broker may take to accept a connection, or to answer a question that it need not
/// think about. A broker that hangs is told of after that.
inline constexpr int kAnswer_ms = 10'000;

/// What to do where no broker answers: only root can start the machine's.
std::string start_text(bool root);
/// What is said of a broker that did not answer: `rc` is Client::receive's, which waited that long.
std::string no_answer_text(int rc, int timeout_ms);

/// Whether an administrator has configured this machine: then its broker is the only right one.
bool system_configured();

class Client {
 public:
  /// Nothing when no broker answers; `error` says what and what to do.
  static std::optional<Client> connect(const std::string& path, std::string* error);

  /// True also if the broker has closed: `receive` then returns its last message, or 0.
  template <class M>
  [[nodiscard]] bool send(const M& message) {
    return protocol::question_send(fd_.get(), &message, sizeof message, false) == 0;
  }
  /// As question_answer: 1, 0 closed, -EAGAIN time is up (or a signal), other -errno.
  int receive(protocol::Envelope* out, int timeout_ms) {
    return protocol::question_answer(fd_.get(), out, timeout_ms);
  }
  int fd() const { return fd_.get(); }

 private:
  explicit Client(devices::Fd fd) : fd_(std::move(fd)) {}
  devices::Fd fd_;
};

}  // namespace sluice::cli

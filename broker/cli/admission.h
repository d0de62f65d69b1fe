// Asking for a tenant and waiting in line for it: builds the question, shows the queue, returns the
// answer. Does not know what is done with a tenant afterwards.
#pragma once

#include <string>
#include <vector>

#include "broker/cli/client.h"
#include "broker/cli/options.h"
#include "broker/cli/snapshot_reader.h"

namespace sluice::cli {

/// The GPU meant by an index, a UUID or the unique beginning of one. Null with `error`.
const protocol::SnapshotGpu* gpu_find(const std::vector<protocol::SnapshotGpu>& gpus,
                                      const std::string& text, std::string* error);

/// False with `error` when a named GPU is not there.
[[nodiscard]] bool admit_make(const RunOptions& options,
                              const std::vector<protocol::SnapshotGpu>& gpus, protocol::Admit* out,
                              std::string* error);

/// "no room yet: 78 GiB of 80 GiB promised; you are 3rd in line behind train (reason: Resources)".
std::string queued_text(const protocol::Queued& queued);
/// "in about 40 s", "in about 3 min"; 0 = "unknown".
std::string expected_text(std::uint64_t from_now_ns);
/// "1st", "2nd", "3rd", "4th", "11th".
std::string ordinal(std::uint32_t number);

/// Shows the state of waiting: rewritten in place on a terminal, a line per change otherwise.
class WaitLine {
 public:
  WaitLine(int fd, bool terminal) : fd_(fd), terminal_(terminal) {}
  void show(const std::string& text);
  /// Ends the line that is being rewritten.
  void finish();

 private:
  int fd_;
  bool terminal_;
  bool open_ = false;
  std::string shown_;
};

struct AdmitAnswer {
  enum class Kind { kAdmitted, kRefused, kInterrupted, kLost } kind = Kind::kLost;
  protocol::Admitted admitted{};
  protocol::Refused refused{};
  bool waited = false;
};

/// Sends the question and waits for the final answer. SIGINT and SIGTERM end the waiting
/// (kInterrupted, with the signal in *signal).
AdmitAnswer admit_ask(Client& client, const protocol::Admit& message, WaitLine& line, int* signal);

}  // namespace sluice::cli

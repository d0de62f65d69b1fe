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

/// "no room yet: the quotas on GPU 0 add up to ...", or "not yet: ..." where a limit of the user
/// binds.
std::string wait_reason_text(const protocol::Queued& queued);
/// "3rd in line behind train (Resources); Ctrl-C leaves the line".
std::string wait_place_text(const protocol::Queued& queued);
/// Both, as one line.
std::string queued_text(const protocol::Queued& queued);
/// Lines of at most `columns`, broken at blanks; those after the first are indented.
std::string text_wrapped(const std::string& text, std::size_t columns);
/// "1st", "2nd", "3rd", "4th", "11th".
std::string ordinal(std::uint32_t number);

/// Shows the state of waiting: rewritten in place on a terminal, a line per change otherwise.
class WaitLine {
 public:
  WaitLine(int fd, bool terminal) : fd_(fd), terminal_(terminal) {}
  /// On a terminal cut to its width: a line that it breaks in two cannot be rewritten.
  void show(const std::string& text);
  /// What waits: on a terminal the reason in lines of its own when it is another, and below it the
  /// place; elsewhere all in one line.
  void queued(const protocol::Queued& queued);
  /// Ends the line that is being rewritten.
  void finish();

 private:
  int fd_;
  bool terminal_;
  bool open_ = false;
  std::string shown_;
  std::string reason_;
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

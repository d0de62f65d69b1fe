// Whether a GPU falls off the bus while it is served, and how much of its memory is in use when
// that is asked: both from the helper program sluice-probe (--watch), since a question about a sick
// device may take the driver long and the broker must not hang in it. This is the broker's side:
// starts the helper, reads what it says when it is convenient, starts another one when it has
// ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/devices/child.h"
#include "broker/protocol/words.h"

namespace sluice::devices {

/// "lost GPU-uuid".
std::string loss_line(const protocol::GpuUuid& uuid);
/// False for a line that is not exactly that.
bool loss_line_parse(std::string_view line, protocol::GpuUuid* out);

/// What the driver lists on a device for processes, bytes. What it lists under the number of a
/// process that has ended and that another one has now is in neither sum: it may be of both.
struct ListedUse {
  struct Process {
    std::uint32_t pid = 0;
    std::uint64_t bytes = 0;
  };
  std::uint64_t living = 0;
  std::uint64_t ended = 0;
  std::uint32_t processes = 0;  // that live
  std::vector<Process> of;      // these, kListedMax at most
};

/// What a device says of its memory, and of the processes that it has.
struct DeviceUse {
  protocol::GpuUuid gpu{};
  std::uint64_t bytes = 0;          // in use, by whatever
  std::optional<ListedUse> listed;  // nothing: unknown
  bool busy_known = false;
  std::vector<std::uint32_t> busy;  // ended processes that had work on it within the last second
};
inline constexpr std::size_t kBusyMax = 8;  // more are not told of
inline constexpr std::size_t kListedMax = 256;

/// "used GPU-uuid BYTES", then LIVING ENDED PROCESSES PID:BYTES... or "-" where that is unknown,
/// then "busy" and up to kBusyMax pids where that is known.
std::string used_line(const DeviceUse& use);
/// "unknown GPU-uuid": the answer where the device does not say what is in use. Each question has
/// one answer, in their order.
std::string unknown_line(const protocol::GpuUuid& uuid);
/// False for a line that is not exactly that.
bool unknown_line_parse(std::string_view line, protocol::GpuUuid* out);
/// False for a line that is not exactly that.
bool used_line_parse(std::string_view line, DeviceUse* out);

/// A process that has ended: its number may be another one's by now.
struct EndedProcess {
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;  // 0 = unknown
};
inline constexpr std::size_t kEndedMax = 128;  // of one question

/// "GPU-uuid PID:START_TICKS...", without the end of the line; kEndedMax of them at most.
std::string use_question(const protocol::GpuUuid& gpu, const std::vector<EndedProcess>& ended);
/// False for a line that is not exactly that.
bool use_question_parse(std::string_view line, protocol::GpuUuid* gpu,
                        std::vector<EndedProcess>* ended);

class LossWatch {
 public:
  /// `program` is sluice-probe; it asks every `period_ms`. Empty: nobody is asked anything.
  LossWatch(std::string program, const char* const* environment,
            const std::vector<protocol::GpuUuid>& gpus, std::int64_t period_ms = 1000);
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  using Used = DeviceUse;
  struct News {
    std::vector<protocol::GpuUuid> lost;
    std::vector<Used> used;
    std::vector<protocol::GpuUuid> unknown;  // asked, and the device does not say
    std::string fault;  // not empty: nobody watches; tried again later. Said once
  };
  /// What has come since the last call. Never waits. To be called now and then, with a clock that
  /// does not go back.
  News look(std::int64_t now_ms);
  /// Asks how much of the GPU's memory is in use; the answer is news (used or unknown), unless the
  /// helper ends before (then descriptor() is another). `ended` may have left memory there: a
  /// process that has the number of one of them and another start time is not taken for it. False
  /// where nothing can be asked now.
  [[nodiscard]] bool ask_used(const protocol::GpuUuid& gpu,
                              const std::vector<EndedProcess>& ended = {});
  /// Readable when there are news; -1 = no helper runs. Another one after look() may have started
  /// it.
  int descriptor() const { return child_.output.get(); }

 private:
  void start(std::int64_t now_ms, News* news);
  void end(std::int64_t now_ms, const std::string& why, News* news);
  void lines_take(News* news);

  ChildOptions options_;
  ChildProcess child_;          // output is empty while none runs
  std::vector<pid_t> leaving_;  // killed, not dead yet
  std::string text_;            // a line that is not whole yet
  std::int64_t start_at_ms_ = 0;
  bool told_ = false;
};

}  // namespace sluice::devices

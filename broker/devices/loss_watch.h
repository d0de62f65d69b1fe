// Whether a GPU falls off the bus while it is served: watched by the helper program sluice-probe
// (--watch), which asks NVML once in a while, since a question about a sick device may take the
// driver long and the broker must not hang in it. This is the broker's side: starts the helper,
// reads what it says when it is convenient, starts another one when it has ended.
#pragma once

#include <cstdint>
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

class LossWatch {
 public:
  /// `program` is sluice-probe; it asks every `period_ms`.
  LossWatch(std::string program, const char* const* environment,
            const std::vector<protocol::GpuUuid>& gpus, std::int64_t period_ms = 1000);
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  struct News {
    std::vector<protocol::GpuUuid> lost;
    std::string fault;  // not empty: nobody watches; tried again later. Said once
  };
  /// What has come since the last call. Never waits. To be called now and then, with a clock that
  /// does not go back.
  News look(std::int64_t now_ms);

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

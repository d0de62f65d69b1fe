// Whole GPUs by contract: asks the broker for them, all at once, before the job places anything,
// and hands them back. Where the job was started by `sluice run --class exclusive` it has them
// already, and hands nothing back that it did not take. A job that is killed hands back as well:
// the broker watches its process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "trainer/job/stop.h"

namespace sluice::train {

class Gang {
 public:
  /// Waits in line where it must, saying so through `say`; being asked to stop ends the waiting.
  /// gpu_count: 0 = as many as the broker has. Afterwards this process and what it starts see those
  /// GPUs alone, and belong to the job (the environment says so). Throws Failure where there is no
  /// broker, or it refuses.
  Gang(int gpu_count, StopSignal& stop, const std::function<void(const std::string&)>& say);
  /// Hands back.
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

 private:
  void join(std::uint64_t tenant);
  void ask(std::uint32_t gpu_count, StopSignal& stop,
           const std::function<void(const std::string&)>& say);

  const std::string socket_;
  int fd_ = -1;
  std::uint64_t tenant_ = 0;  // that it founded; 0 = none
  std::uint64_t key_ = 0;
};

}  // namespace sluice::train

// What a load took where no figure for the process tells (usage.h): by what the device had left
// before and after it, less what the tenant's own account changed by in between. Estimates of one
// process follow each other, and what other threads and processes of the tenant have reserved at
// that moment counts as not taken, so that nobody is charged for it. Other tenants who take or give
// back memory in just these moments are counted, so it is an estimate, and `measured` in the claims
// page stays 0. What is estimated is charged as what is counted by calls: to its module, library or
// limit in its context, until that ends.
#pragma once

#include "interpose/records.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// What a device has left and what the tenant is charged for on it, together: no allocation of the
/// tenant's changes it. As long as some are in the middle it lies between two values.
struct DeviceSum {
  uint64_t least, most;
  bool still;  // nothing of this process was in the middle, and no account changed meanwhile
};
/// Where the first part comes from: the driver, for the current context's device, or NVML, less a
/// constant, for any.
enum class LeftBy : uint8_t { kDriver, kLibrary };
/// False when there is no figure.
bool device_sum_read(int device, int gpu, LeftBy by, DeviceSum* out);

/// Estimates, and readings that give back by what the device has left, follow each other. False:
/// another one has not ended within that time.
[[nodiscard]] bool estimate_turn_take(uint64_t patience_ns);
void estimate_turn_give();

class Estimate {
 public:
  /// Before the call; waits for another thread's and reads what the current context's device has
  /// left. Without effect where a figure tells, outside a tenant, without a quota, and when not
  /// `wanted`.
  explicit Estimate(bool wanted = true);
  ~Estimate() { close(); }
  Estimate(const Estimate&) = delete;
  Estimate& operator=(const Estimate&) = delete;
  bool active() const { return gpu_ >= 0; }
  /// After it: charges what was taken to `owner`, or gives back of its charge what came back.
  /// False: the quota has no room, and nothing is charged. The caller takes back what was done.
  [[nodiscard]] bool charge(const void* owner);
  /// The same for what nobody can take back. False: it is charged above the quota, the sentence was
  /// said, and the caller withholds what it was for (residual_settle_late).
  [[nodiscard]] bool charge_late(const void* owner);
  /// After charge() was false and the caller took back what was done: most of what was missing is
  /// still not there, so that somebody else has it.
  bool was_others() const;
  /// Counts the refusal and says the sentence.
  void refuse() const;

 private:
  void taken_read();
  bool give_back(const void* owner);
  bool record(const void* owner, uint64_t bytes);
  void close();

  int device_ = -1;
  int gpu_ = -1;
  bool locked_ = false;
  const void* context_ = nullptr;
  uint64_t before_ = 0;
  DeviceSum after_{};
  uint64_t taken_ = 0;
};

/// True where calls of this thread have to be estimated.
bool estimate_is_used();

/// Around the end of a module, library or green context: what was charged for it, in any context,
/// goes back when the driver said yes. Its handle may be another's by then.
class EstimateEnd {
 public:
  explicit EstimateEnd(const void* owner);
  ~EstimateEnd();
  EstimateEnd(const EstimateEnd&) = delete;
  EstimateEnd& operator=(const EstimateEnd&) = delete;
  void ended() { ended_ = true; }

 private:
  const void* const owner_;
  bool locked_ = false;
  bool ended_ = false;
};

/// The key of a kLoaded record whose context's are to be another's.
uint64_t estimate_key_moved(const Record& record, const void* context);
void estimate_reset_after_fork();

}  // namespace sluice::interpose

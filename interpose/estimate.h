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
  /// After a call that may have given back what shared_keep() keeps: gives back of that what came
  /// back to the device.
  void shared_give_back();

 private:
  // What is left and what the tenant has, together: no allocation of the tenant's changes it. As
  // long as some are in the middle it lies between two values.
  struct Basis {
    uint64_t least, most;
  };
  static bool read(int device, int gpu, Basis* out);
  friend void shared_kept_look(int device);
  void taken_read();
  bool give_back(const void* owner);
  bool record(const void* owner, uint64_t bytes);
  void close();

  int device_ = -1;
  int gpu_ = -1;
  bool locked_ = false;
  const void* context_ = nullptr;
  uint64_t before_ = 0;
  Basis after_{};
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

/// Around a call that may end what other holders have by an export, where no figure tells. Before
/// the call's scope; without effect when not `wanted`.
class SharedEnd {
 public:
  explicit SharedEnd(bool wanted);
  ~SharedEnd();
  SharedEnd(const SharedEnd&) = delete;
  SharedEnd& operator=(const SharedEnd&) = delete;
  /// The driver has ended it, and the scope of the call is over.
  void ended() { estimate_.shared_give_back(); }

 private:
  Estimate estimate_;
};

/// Keeps the charge of memory that this thread's SharedEnd ends. False: nothing would notice that
/// it is gone.
[[nodiscard]] bool shared_keep(int device, uint64_t bytes);
/// Gives back of that what the device has had back since. From within an AccountScope in which
/// nothing is reserved.
void shared_kept_look(int device);

/// The key of a kLoaded record whose context's are to be another's.
uint64_t estimate_key_moved(const Record& record, const void* context);
void estimate_reset_after_fork();

}  // namespace sluice::interpose

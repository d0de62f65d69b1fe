// What a load took where no figure for the process tells (usage.h): by what the device had left
// before and after it, less what the tenant's own account changed by in between. Other users of the
// GPU who take or give memory back in just these moments are counted too, so it is an estimate, and
// `measured` in the claims page stays 0. What is estimated is charged as what is counted by calls:
// to its module, library or context, until that ends.
#pragma once

#include "interpose/types.h"

namespace sluice::interpose {

class Estimate {
 public:
  /// Before the call; reads what the current context's device has left. Without effect where a
  /// figure tells, outside a tenant, without a quota, and when not `wanted`.
  explicit Estimate(bool wanted = true);
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
  uint64_t taken_now();
  bool record(const void* owner, uint64_t bytes);

  int device_ = -1;
  int gpu_ = -1;
  const void* context_ = nullptr;
  uint64_t before_ = 0;  // what the device had left, and what the tenant's account had
  uint64_t after_ = 0;
  uint64_t taken_ = 0;
};

/// True where calls of this thread have to be estimated.
bool estimate_is_used();
/// The module, library or green context is gone: what was charged for it, in any context, goes
/// back.
void estimate_drop(const void* owner);

}  // namespace sluice::interpose

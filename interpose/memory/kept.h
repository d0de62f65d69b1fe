// Shared memory where the driver has no figure for the process (usage.h): what is charged of it by
// what the device has left. An exporter's charge stays when it lets go of memory that other holders
// may have, and an import is charged as far as the device has less than before it. Both stay
// charged until the device has the memory back.
//
// What the device has left and what the tenant is charged for, added, is changed by nothing that
// the account sees. When the sum grows, memory has come back that is still charged. Other tenants
// change the sum too, so these are estimates.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Keeps the charge of `bytes` that this process lets go of. False where a figure tells of the
/// process, or where nothing limits it: nothing is kept.
[[nodiscard]] bool kept_add(int device, uint64_t bytes);
/// Gives back of what is kept on `device` what has come back to it. Waits so long at most for
/// others that read the device. From within an AccountScope in which nothing is reserved, or from
/// the helper, while the account does not stand still.
void kept_look(int device, uint64_t patience_ns);
/// Adds what is kept on each device.
void kept_sum(uint64_t* bytes_by_device);
void kept_reset_after_fork();

/// Around a call that may end what other holders have. Before the call's scope; without effect when
/// not `wanted`, or where a figure tells.
class SharedEnd {
 public:
  explicit SharedEnd(bool wanted);
  SharedEnd(const SharedEnd&) = delete;
  SharedEnd& operator=(const SharedEnd&) = delete;
  /// The driver has ended it, and the scope of the call is over: gives back of what is kept what
  /// has come back since.
  void ended();

 private:
  uint64_t devices_ = 0;  // a bit for each that was read
  uint64_t before_[kDevicesMax];
};

/// Around a call that imports memory, before the call's scope. Without effect where a figure tells.
class ImportCharge {
 public:
  ImportCharge();
  ImportCharge(const ImportCharge&) = delete;
  ImportCharge& operator=(const ImportCharge&) = delete;
  /// After the call: charges what it has taken from any device. False: the quota has no room, and
  /// the caller takes the import back.
  [[nodiscard]] bool fits();
  /// After fits() was false and the import was taken back: most of what was missing still is, so
  /// that another process has it.
  bool was_others() const;
  /// Counts the refusal and says the sentence.
  void refuse() const;

 private:
  bool charge(int device);

  uint64_t devices_ = 0;
  uint64_t before_[kDevicesMax];
  int device_ = -1;  // where there was no room
  uint64_t taken_ = 0, after_ = 0;
};

}  // namespace sluice::interpose

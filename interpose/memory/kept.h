// Shared memory that no figure of its process has (usage.h). The charge stays when a process lets
// go of memory that other holders may have, be it a file descriptor, and an import is charged as
// far as it is in no figure. Both stay charged until there is evidence that the memory is back, or
// that a figure has it.
//
// The evidence is a sum that grows. Where NVML lists this process, it is what the device has left,
// the figures of all processes, and what the tenant keeps (released_bytes in the claims page): a
// release of memory that stays on the device changes nothing of it. Elsewhere it is what the device
// has left and what the tenant is charged for. Other tenants change that one too, so these are
// estimates.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// Keeps the charge of `bytes` that this process lets go of. False where nothing limits the process
/// or nothing tells what the device has left: nothing is kept.
[[nodiscard]] bool kept_add(int device, uint64_t bytes);
/// What is kept on a GPU, bytes. No figure of the process has it.
uint64_t kept_bytes(int gpu);
/// The figure of this process has so many bytes more than it is charged for: returns how many of
/// them are kept, and keeps them no more. Their charge is the caller's.
[[nodiscard]] uint64_t kept_found(int device, uint64_t bytes);
/// Gives back of what is kept on `device` what has come back to it. Waits so long at most for
/// others that read the device. From within an AccountScope in which nothing is reserved, or from
/// the helper, while the account does not stand still. True if some stays for what a process of the
/// tenant has and is not charged yet.
bool kept_look(int device, uint64_t patience_ns);
/// After this process has taken its slot: ends the turn that the slot's process before it left.
void kept_slot_taken();
/// Adds what is kept on each device, in a new slot.
void kept_restore(uint64_t* bytes_by_device);
void kept_reset_after_fork();

/// Around a call that may let go of shared memory, up to its account: meanwhile the memory may be
/// in no figure and not kept yet. What the tenant's processes read of the sum then is no measure
/// for later ones, which would take the memory for memory that is back.
class LettingGo {
 public:
  LettingGo() = default;
  ~LettingGo();
  LettingGo(const LettingGo&) = delete;
  LettingGo& operator=(const LettingGo&) = delete;
  void begin();

 private:
  bool begun_ = false;
};

/// Around a call that may end what other holders have, and the readings behind it. Before the
/// call's scope; without effect when not `wanted`.
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
  LettingGo letting_go_;
};

/// Around a call that imports memory, before the call's scope.
class ImportCharge {
 public:
  ImportCharge();
  ImportCharge(const ImportCharge&) = delete;
  ImportCharge& operator=(const ImportCharge&) = delete;
  /// After the call and a reading of the figure (residual_settle_import): charges what it has taken
  /// from any device besides. False: the quota has no room, and
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
  uint64_t kept_before_[kDevicesMax];  // by all of the tenant
  int device_ = -1;                    // where there was no room
  uint64_t taken_ = 0, after_ = 0;
};

}  // namespace sluice::interpose

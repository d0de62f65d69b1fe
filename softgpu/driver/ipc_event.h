// Events that several processes record, wait for and ask. The state is one word pair in a file that
// its makers share with whoever opens the handle: how many times the event was recorded, and which
// of those records the device has come to. A recorder that dies has come to all of its records, so
// that nobody waits for it for ever.
#pragma once

#include <atomic>

#include "softgpu/driver/ipc.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {

class IpcEvent : public std::enable_shared_from_this<IpcEvent> {
 public:
  /// The shared part of an event of this process; nullptr when the file cannot be made.
  static std::shared_ptr<IpcEvent> create(const Gpu& gpu);
  /// The same event, seen from another process. nullptr: the exporter is gone.
  static std::shared_ptr<IpcEvent> open(const IpcHandle& handle, Gpu& gpu);
  ~IpcEvent();
  IpcEvent(const IpcEvent&) = delete;
  IpcEvent& operator=(const IpcEvent&) = delete;

  /// Where another process finds it.
  /// False: the program closed the file that it is in.
  bool describe(IpcHandle& handle) const;
  bool imported() const { return imported_; }

  /// A record in `stream`'s order; everybody who asks from now on means this one.
  OpRef record(const StreamRef& stream);
  /// What a wait that is issued now waits for.
  std::uint32_t target() const;
  bool reached(std::uint32_t target) const;
  /// Sleeps until it is reached; false when `stop` came first.
  bool wait(std::uint32_t target, const std::atomic<bool>& stop) const;
  /// Whether another process made the last record. Otherwise this one's operation tells more than
  /// the file.
  bool recorded_elsewhere() const;
  /// Holds `stream` back until the last record has been come to.
  void hold(const StreamRef& stream);

 private:
  struct Slot;
  struct Arrival;
  explicit IpcEvent(device::Lives& lives) : lives_(lives) {}

  device::Lives& lives_;  // of the GPU that the event was made on
  Slot* slot_ = nullptr;
  void* page_ = nullptr;  // of an imported event: its own mapping
  std::uint64_t offset_ = 0;
  bool imported_ = false;
};

}  // namespace softgpu::driver

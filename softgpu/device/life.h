// Which processes live, as far as one device is concerned. Each process that maps a segment takes a
// number there and a lock on the byte of that number in the segment's file. The lock belongs to an
// open file that only a mapping of this process keeps open, so the lock lasts exactly as long as
// the address space does: it survives threads that end and programs that close every descriptor;
// kill -9, exit and exec end it; fork children do not inherit it. No pid takes part, so processes
// of several pid namespaces tell each other apart.
//
// On a filesystem whose mappings do not keep the open file (overlayfs) a descriptor keeps it
// instead. A program that closes that descriptor looks dead to others; device.h says what follows.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "softgpu/device/own_file.h"
#include "softgpu/device/segment.h"

namespace softgpu::device {

/// The number of a process that could take no lock: it is never found dead.
inline constexpr std::uint32_t kLifeUntold = 1;

/// The lives of one segment, as one mapping of it in this process sees them. Objects stay until the
/// process ends. All functions may be called by any thread, and by children after fork().
class Lives {
 public:
  /// Registers the mapping `segment` of the file at `path`. False with a sentence in `error`: files
  /// there cannot be locked.
  [[nodiscard]] static bool add(Segment* segment, const std::string& path, std::string& error);
  /// The lives of a mapping that add() knows.
  static Lives& of(const Segment* segment);

  /// This process's number, for as long as it executes this program. kLifeUntold: no lock could be
  /// taken.
  std::uint32_t own() {
    const std::uint32_t number = own_.load(std::memory_order_acquire);
    return number != 0 ? number : take();
  }
  /// This process as it calls itself, after own().
  const LifeName& name() const { return name_; }
  /// True if the process of this number has ended or executes another program. False also where
  /// this process cannot tell, because the file can no longer be reached.
  bool ended(std::uint32_t number);

 private:
  Lives(Segment* segment, std::string path);
  static void forks();
  static void has_forked();
  static void forked();
  std::uint32_t take();
  std::uint32_t take_locked();
  bool hold_locked(std::uint32_t number, bool mapped);
  int reopen(int mode) const;
  int look();
  int look_locked();

  Segment* const segment_;
  const std::string path_;
  FileIdentity identity_;
  std::atomic<std::uint32_t> own_{0};
  LifeName name_;              // of own_, written before it
  std::atomic<int> look_{-1};  // for questions; holds no lock
  int kept_ = -1;              // holds the lock where no mapping can
  int error_ = 0;              // errno of the lock that could not be taken
  std::mutex mutex_;
  Lives* next_ = nullptr;
};

}  // namespace softgpu::device

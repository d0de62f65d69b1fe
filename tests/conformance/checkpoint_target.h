// The process that the checkpoint rows lock, checkpoint and restore: forked before the row's own
// first driver call, it makes a context, and then does what it is told, one command at a time. The
// row speaks to it over a socket pair, so that "the call blocks" is "the answer does not come".
#pragma once

#include <cuda.h>

#include <cstdint>

namespace conformance {

/// What the target is told to do. It answers with a CUresult (or a count) as one 64-bit number.
enum class Order : std::uint32_t {
  kLaunch,       // add one to every word of the buffer, in the created stream, without waiting
  kVerify,       // the number of words that are not what they should be, after synchronising
  kSynchronize,  // cuCtxSynchronize
  kAddress,      // of the buffer
  kManaged,      // allocate managed memory
  kEvents,       // record the second event and compare it with the first: 0 when time went on
  kEndless,      // launch a kernel that ends when kRelease says so, without waiting
  kRelease,      // writes the word that ends it (no driver call)
  kPinned,       // words of pinned memory that are not what they should be
  kImport,       // opens the IPC handle that was sent along
  kUuid,         // the first eight bytes of the device's UUID
  kSlow,         // launches work of a while that writes the pinned words, without waiting
  kQuit,
};

struct Message {
  Order order = Order::kQuit;
  CUipcMemHandle handle{};
};

inline constexpr std::size_t kTargetBytes = 64u << 20;

class Target {
 public:
  /// Forks; the child has its context and its buffer when this returns. Before the caller's own
  /// first driver call.
  Target();
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  int pid() const { return pid_; }
  bool ready() const { return ready_; }
  void send(Order order);
  void send(const Message& message);
  /// Waits for an answer. False when none came in time.
  bool answer(long long& value, int timeout_ms = 20000);
  /// send and answer; -1 when there was none.
  long long ask(Order order);
  void kill();

 private:
  int pid_ = -1;
  int socket_ = -1;
  bool ready_ = false;
};

/// A living process that has never called the driver.
class Sleeper {
 public:
  Sleeper();
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  int pid() const { return pid_; }

 private:
  int pid_ = -1;
};

}  // namespace conformance

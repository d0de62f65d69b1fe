// A broker small enough for a test: it listens on a Unix socket in a fresh directory, hands every
// process that registers the same two pages, keeps the notes it gets, opens or closes leases when
// told, gives the orders of holds, answers who wants room, and zeroes the slots of the dead. Single
// tenant, one thread.
#pragma once

#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "broker/protocol/pages.h"
#include "broker/protocol/tenant_limits.h"
#include "broker/protocol/wire.h"

namespace sluice::test {

// A wait that should end is given up after this time, which no host needs: it ends a test that
// hangs, and judges none.
inline constexpr int kPatience_ms = 120'000;

struct Note {
  protocol::MessageType type;
  std::uint32_t gpu;
  std::uint32_t epoch;
  std::uint64_t busy_ns;
};

class TestBroker {
 public:
  /// GPU 0 has every byte of its UUID set to uuid_byte, or the UUID given.
  explicit TestBroker(std::uint64_t quota_bytes, std::uint64_t context_bytes = 0,
                      unsigned char uuid_byte = 0xA0);
  ~TestBroker();

  const std::string& path() const { return path_; }
  /// "SLUICE_SOCKET=..." and "SLUICE_TENANT=..." into this process's environment (children inherit
  /// it).
  void environment_set() const;
  /// Another SLUICE_TENANT_LIMITS than environment_set() made of the lease page.
  void limits_set(std::uint64_t memory_bytes, std::uint32_t sm_percent) const;
  void gpu_uuid_set(const unsigned char uuid[16]);
  /// Further GPUs with the first one's limits; before the first process registers.
  void gpu_add(const unsigned char uuid[16]);
  void lease_store(std::uint32_t flags);  // a new epoch on every GPU
  void lease_store(std::uint32_t flags, std::uint32_t gpu);
  void lease_flag(std::uint32_t flags);  // the same epochs
  std::uint32_t epoch(std::uint32_t gpu = 0) const { return epochs_[gpu]; }
  void window_set(std::uint64_t ns);
  /// Sets or clears the hold, with a new epoch. The lease is the caller's to close first.
  void hold_store(bool set);
  std::uint32_t hold_epoch() const { return hold_epoch_; }
  /// Allocations of this tenant are movable; before the first process registers.
  void swap_set();
  /// A process gets the lowest slot that is free, as sluiced gives it; else one that none had.
  void slots_again() { slots_again_ = true; }
  /// Slots of processes that have ended stay as they are meanwhile, as sluiced leaves them while
  /// the device may have memory of theirs. Let go, they are zeroed with the next message.
  void ended_hold(bool hold) { ended_held_ = hold; }
  /// Ends of processes are not seen meanwhile, as by a sluiced that does not get to run. Seen with
  /// the next message after that.
  void ends_unseen(bool unseen) { ends_unseen_ = unseen; }
  /// NVML lists nobody under the pid that processes are told; before the first one registers.
  void host_pid_hide() { host_pid_hidden_ = true; }
  /// Adds an order to the hold of GPU 0 (kHoldOut, kHoldIn); 0 takes it back. Returns the word.
  std::uint32_t order_store(std::uint32_t order);
  /// The answer to that word, once every process that registered has given one.
  bool wait_moved(std::uint32_t word, int timeout_ms = kPatience_ms,
                  std::vector<protocol::Moved>* out = nullptr);
  /// Whoever wants room is told at once that there is none, unless this is called: then
  /// room_answer() is what answers.
  void room_hold() { room_held_ = true; }
  void room_answer(bool none, std::uint32_t gpu = 0);
  std::vector<protocol::MemoryWant> wants();
  /// True once every process that registered has acknowledged the hold.
  bool wait_held(int timeout_ms = kPatience_ms);
  /// Refuses registrations with this text from now on; empty = accept.
  void refuse_with(const std::string& text);
  /// True once a note of that type and epoch (any epoch if 0) has come.
  bool wait_for(protocol::MessageType type, std::uint32_t epoch, int timeout_ms = kPatience_ms);
  std::vector<Note> notes();
  int registrations() const { return registrations_; }
  /// The GPU that the last process to register wished for; zero = any.
  protocol::GpuUuid wish();
  protocol::ClaimsPage& claims() { return *claims_; }
  protocol::LeasePage& lease() { return *lease_; }
  protocol::ClaimsGpu& account(std::uint32_t slot = 0, std::uint32_t gpu = 0) {
    return claims_->slots[slot].gpus[gpu];
  }
  /// True once the slot of a process that has ended is zeroed.
  bool wait_for_end(int pid, int timeout_ms = kPatience_ms);
  /// Closes every connection and the listening socket; a second broker may then take the path.
  void die();
  /// Listens where the dead broker did, as a restarted one does.
  void path_take(const TestBroker& dead);

 private:
  void serve(std::promise<void> serves);
  static void fork_prepare();
  static void fork_done();
  void lease_word_store(std::uint32_t gpu, std::uint32_t flags);
  void message_keep(const protocol::Envelope& message);
  void slot_clear(std::uint32_t slot);
  void former_image_clear(std::uint32_t pid);
  int register_answer(int fd, const protocol::Register& request);

  std::string directory_, path_;
  int listen_fd_ = -1, lease_fd_ = -1, claims_fd_ = -1, stop_pipe_[2] = {-1, -1};
  protocol::LeasePage* lease_ = nullptr;
  protocol::ClaimsPage* claims_ = nullptr;
  std::uint32_t epochs_[protocol::kTenantGpusMax] = {1, 1, 1, 1, 1, 1, 1, 1};
  std::uint32_t hold_epoch_ = 0;
  std::atomic<int> registrations_{0};
  std::mutex mutex_;
  std::mutex busy_;  // held by the thread unless it waits for something to do
  std::vector<Note> notes_;
  std::vector<protocol::Moved> moved_;
  std::vector<protocol::MemoryWant> wants_;
  protocol::GpuUuid wish_{};
  std::atomic<bool> host_pid_hidden_{false};
  std::atomic<bool> slots_again_{false};
  std::atomic<bool> room_held_{false};
  std::atomic<bool> ended_held_{false}, ends_unseen_{false};
  std::string refusal_;
  std::thread thread_;
};

}  // namespace sluice::test

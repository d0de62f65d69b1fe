// Charging device memory to the tenant: the ledger's reservations, tied to devices, contexts, pools
// and the sentence that a person sees when the quota says no. Hooks use this; it knows the driver's
// table and the process, not the gate.
#pragma once

#include "interpose/process.h"

namespace sluice::interpose {

/// Held around anything that changes the account, from the claim to the record of its result; waits
/// for the end of a hold first, as a TouchScope does. While the helper moves the account to new
/// pages, it waits for all scopes to end and lets no new one begin.
class AccountScope {
 public:
  AccountScope();
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;
  /// False when this process's memory is not accounted (no tenant, or a call from within another
  /// hook).
  bool active() const { return active_; }
  /// The call may take no memory: the broker said no to this process, or unrecorded().
  bool denied() const { return denied_; }
  /// There is no record for the thread, so that neither its call nor its result could be kept; the
  /// sentence was said. Such a call may free nothing either: what is freed would stay charged.
  bool unrecorded() const { return unrecorded_; }
  /// Device of the thread's current context; -1 without one.
  int device() const;

 private:
  ThreadRecord* thread_ = nullptr;
  bool active_ = false;
  bool denied_ = false;
  bool unrecorded_ = false;
};

/// A device may be none of the job's GPUs: a program sees such devices by a CUDA_VISIBLE_DEVICES of
/// its own, or because it was started without `sluice run`. It gets no context and no memory there;
/// charge_room is false. Returns what a call answers that wants `what` there, a "context" or
/// "memory"; the sentence is said once for a device. CUDA_SUCCESS = the device is not such a one.
CUresult device_refuse(int device, const char* what);

/// A moment in which the account stays this process's, if it is just now: nobody is waited for.
/// Nothing may be charged in it.
class AccountMoment {
 public:
  explicit AccountMoment(ThreadRecord& thread);
  ~AccountMoment();
  AccountMoment(const AccountMoment&) = delete;
  AccountMoment& operator=(const AccountMoment&) = delete;
  bool held() const { return held_; }

 private:
  ThreadRecord& thread_;
  bool held_;
};

/// Within an AccountScope, a wait of the thread between driver calls: readings of the account need
/// not wait for it. Two threads that each look for what has come back would wait for each other.
class AccountRest {
 public:
  AccountRest();
  ~AccountRest();
  AccountRest(const AccountRest&) = delete;
  AccountRest& operator=(const AccountRest&) = delete;

 private:
  ThreadRecord* thread_ = nullptr;
};

/// Reserves bytes on a device; true also where no limits are in force. On false the sentence was
/// said.
[[nodiscard]] bool charge_reserve(int device, uint64_t bytes);
/// Reserves bytes on one of the tenant's GPUs, without a look for what may have come back
/// meanwhile. The one way to a reservation: it also keeps room for what passes to this tenant from
/// a process that has ended and that nothing charges yet. `is_taken`: the device has given the
/// bytes already. Says nothing.
[[nodiscard]] bool charge_try_reserve(int gpu, uint64_t bytes, bool is_taken = false);
/// Reserves bytes as charge_reserve does, without the sentence: charge_refuse says it, and what the
/// program is told.
[[nodiscard]] bool charge_room(int device, uint64_t bytes);
/// Whether the tenant is within its quota on the device, if need be after all that charge_room
/// looks for. For memory that was charged unasked; says nothing.
[[nodiscard]] bool charge_within(int device);
/// Whether so many bytes would fit now. Reserves nothing.
[[nodiscard]] bool charge_has_room(int device, uint64_t bytes);
/// Reserves on a GPU what the device has given already, if need be after the memory of processes
/// that have ended; says nothing.
[[nodiscard]] bool charge_fits(int gpu, uint64_t bytes);
/// Counts a refusal by the quota of one of the tenant's GPUs and says the sentence.
void charge_refused(int gpu, uint64_t bytes);
/// After charge_room was false: says why, and returns what the program is told.
CUresult charge_refuse(int device, uint64_t bytes);
/// Whether the current context can be used, in the words of the driver: an error that its work has
/// left behind is told by every call, but not by those of the virtual memory management. It comes
/// before what a quota says.
CUresult context_fault();
/// `wrong`: the driver is known to refuse these arguments, so that its answer is told instead and
/// nothing is counted. Should it take them all the same, `undo` takes back what it gave.
template <class Call, class Undo>
CUresult charge_refuse(int device, uint64_t bytes, bool wrong, Call call, Undo undo) {
  if (wrong) {
    const CUresult result = call();
    if (result != CUDA_SUCCESS) return result;
    undo();
  }
  return charge_refuse(device, bytes);
}
void charge_commit(int device, uint64_t bytes);
void charge_abort(int device, uint64_t bytes);
void charge_release(int device, uint64_t bytes);
/// Ends the charge of memory that other holders may have by an export. It is kept until the device
/// has it back or a figure has it, and until other processes of the tenant have charged what passed
/// to them (memory/kept.h). The caller looks for that with a SharedEnd and residual_settle_all().
void charge_pass(int device, uint64_t bytes);
/// From what was reserved to what the driver really took. Smaller: the rest goes back. Larger: the
/// difference is asked for; false = it does not fit, and nothing is held any more.
[[nodiscard]] bool charge_settle(int device, uint64_t reserved, uint64_t actual);

/// Charges a context on the device, before the driver makes it. CUDA_SUCCESS, or what the program
/// is told, and the sentence was said.
[[nodiscard]] CUresult context_charge(int device);
void context_discharge(int device);
int contexts_on(int device);
/// What the device's first context was found to cost, and so the later ones.
void context_cost_learn(int device, uint64_t bytes);
/// A number that changes when handles and addresses of functions and variables may come to mean
/// others: at the end of a module, a library or a context.
uint64_t handles_round();
void handles_changed();
/// Drops what a destroyed context took along.
void context_drop(CUcontext context);

// Stream-ordered pools: charged by what the pool has reserved from the device.
struct Pool {
  CUmemoryPool handle;
  int device;  // -1 = none of a device's memory, or another process's: not charged here
  uint64_t charged;
  bool gone;  // destroyed by the program, while allocations of it may live
};
/// The device of a pool that was never seen: every device's own pools have a name for it, others
/// are known from their creation. -1 = unknown.
int pool_device_ask(CUmemoryPool handle);
/// The record of a pool, made on first sight for what `pool_device_ask` says, or for `device`;
/// nullptr when there is no memory for it (the sentence was said). Within a PoolsScope.
Pool* pool_find(CUmemoryPool handle);
Pool* pool_add(CUmemoryPool handle, int device);
/// The driver has told where a pool is, known or new. False as above.
[[nodiscard]] bool pool_place(CUmemoryPool handle, int device);
/// Reads again what the pool has reserved and charges that, whatever the quota says.
void pool_settle(Pool& pool);
/// An allocation from a pool, around the driver's call and within a PoolsScope. A pool grows in
/// steps of its own, and whether it grows at all only the driver knows: what it has left may lie in
/// pieces. So the most that it may take is reserved before the call, and what it took is judged
/// behind it.
class PoolGrowth {
 public:
  PoolGrowth(Pool& pool, uint64_t bytes);
  PoolGrowth(const PoolGrowth&) = delete;
  PoolGrowth& operator=(const PoolGrowth&) = delete;
  /// False: the quota has no room, and nothing is reserved. The driver is not to be asked.
  bool fits() const { return fits_; }
  /// The most that the driver may have to take from the device.
  uint64_t most() const { return most_; }
  /// After the call, whatever its result: charges what the pool took. False: the tenant is above
  /// its quota with that, so that the caller frees the allocation at once and calls undone().
  [[nodiscard]] bool ended();
  /// After ended(): the pool took memory from the device in the call.
  bool grew() const { return grew_; }
  void undone();

 private:
  bool ask();
  bool has_room_inside() const;

  Pool& pool_;
  const uint64_t bytes_, most_;
  uint64_t reserved_ = 0;
  bool grew_ = false;
  bool fits_;
};
/// All pools of a device: frees return to the pool at once but to the device only later.
enum class PoolsRead : uint8_t {
  kRead,
  kSmaller,  // one that the program has destroyed is: the residual knows by how much
  kBusy,     // another thread is within a call on the pools, and reads them again behind it
};
extern uint32_t pools_seen;  // how many records of pools there are
SLUICE_NOINLINE PoolsRead pools_read(int device);
inline PoolsRead pools_settle(int device) {
  return SLUICE_LIKELY(load_relaxed(pools_seen) == 0) ? PoolsRead::kRead : pools_read(device);
}
/// Before memory is refused, within a PoolsScope or not: reads the device's pools, after a call of
/// another thread's on the pools, a second at most.
SLUICE_NOINLINE void pools_read_before_refusal(int device);
/// As pools_read_before_refusal, and gives back to the device first what no allocation of the pools
/// uses, whatever their thresholds say.
SLUICE_NOINLINE void pools_trim_before_refusal(int device);
/// Whether so many bytes would fit if the device had all that its pools have reserved and not in
/// use. Within a PoolsScope.
bool pools_idle_suffices(int device, uint64_t bytes);
void pool_destroyed(Pool& pool);
/// Devices are known that were not before.
void pools_place();
void pools_sum(uint64_t* bytes_by_device);
void pools_reset_after_fork();
/// Around a call on pools: nobody else's changes what one of them has reserved meanwhile. Who looks
/// at the pools during the call does not wait for it; its end looks for them. Only who would refuse
/// memory waits. The thread that is within looks as if it were not.
class PoolsScope {
 public:
  PoolsScope();
  ~PoolsScope();
  PoolsScope(const PoolsScope&) = delete;
  PoolsScope& operator=(const PoolsScope&) = delete;
};

// Memory of graphs' allocation nodes: charged by what the driver has reserved for graphs on the
// device. Between two launches it stays reserved until it is trimmed.
/// Adds what the nodes of a graph allocate. False when part of it could not be looked at.
bool graph_nodes_sum(CUgraph graph, uint64_t* bytes_by_device);
/// Learns what an executable graph made of `graph` will take. False when that cannot be learned or
/// kept, for lack of memory or because its graphs lie too deep within each other; the sentence was
/// said.
[[nodiscard]] bool graph_memory_learn(CUgraphExec exec, CUgraph graph);
void graph_memory_forget(CUgraphExec exec);
/// Around the driver's end of an executable graph: forgotten before it, because another thread may
/// be given the same handle for the next graph at once.
class GraphMemoryEnd {
 public:
  explicit GraphMemoryEnd(CUgraphExec exec);
  GraphMemoryEnd(const GraphMemoryEnd&) = delete;
  GraphMemoryEnd& operator=(const GraphMemoryEnd&) = delete;
  /// The driver did not end it.
  void undo() const;

 private:
  int count_ = 0;
  Record records_[kDevicesMax];
};
/// Whether any executable graph of this process allocates.
extern uint32_t graph_memory_seen;
inline bool graph_memory_used() { return load_acquire(graph_memory_seen) != 0; }
/// Around a launch or an upload, within an AccountScope: what the graph takes is reserved before
/// and becomes what the driver took. Several may be on their way: a driver whose queue is full
/// keeps a launch for as long as a kernel takes. One that finds no room beside them waits for them
/// first, a second at most, and others that have to ask with it.
class GraphMemoryScope {
 public:
  explicit GraphMemoryScope(CUgraphExec exec);
  /// Of an executable graph that is made of `graph` and uploaded in one call.
  explicit GraphMemoryScope(CUgraph graph);
  ~GraphMemoryScope();
  GraphMemoryScope(const GraphMemoryScope&) = delete;
  GraphMemoryScope& operator=(const GraphMemoryScope&) = delete;
  /// CUDA_SUCCESS, or what the program is told: the quota has no room, or the graph allocates where
  /// the job has no GPU. The sentence was said.
  CUresult refusal() const { return refusal_; }
  /// The driver may pass the quota if it takes more than was asked for: a launch, which cannot be
  /// taken back, is to be uploaded first.
  bool is_near() const { return near_; }
  /// After an upload. False = the driver took more than was asked for and the quota has no room for
  /// it: the memory was given back, and the sentence was said.
  [[nodiscard]] bool holds();
  /// The driver took it.
  void taken() { taken_ = true; }
  /// For this one, which has been learned.
  void taken_for(CUgraphExec exec) {
    exec_ = exec;
    taken_ = true;
  }

 private:
  struct Asked {
    uint64_t needed;  // by the graph, which has no memory on the device yet; 0 = it has
    uint64_t growth;  // of what is reserved there
    uint64_t room;    // what the device had free before; 0 = not known
  };
  void settle_all();
  void enter();
  bool has_memory_and_enters(uint64_t* needed);
  [[nodiscard]] CUresult ask(const uint64_t* needed);
  int ask_now(const uint64_t* needed);
  bool ask_on(int device, uint64_t bytes);
  void grant();
  void withdraw(int device);
  bool settle(int device);
  uint64_t end(bool trimmed);
  void remember(int device) const;
  bool is_on(int device) const { return (devices_ >> device & 1) != 0; }
  CUgraphExec exec_;
  uint64_t devices_ = 0;  // a bit for each that it allocates on
  uintptr_t mark_ = 0;    // its records have it once the driver has its memory
  Asked asked_[kDevicesMax] = {};
  uint64_t missing_bytes_ = 0;
  uint32_t begun_ = 0;
  CUresult refusal_ = CUDA_SUCCESS;
  bool taken_ = false, granted_ = false, near_ = false, trimmed_ = false;
  bool on_way_ = false;   // between the room that it has and what the driver took
  bool company_ = false;  // others were on their way meanwhile
};
void graph_memory_trimmed(int device);
/// Reads again what is reserved and charges that.
void graph_memory_settle(int device);
void graph_memory_settle();
void graph_memory_sum(uint64_t* bytes_by_device);
void graph_memory_reset_after_fork();
/// Nobody else changes what is charged for graphs meanwhile.
class GraphMemoryPause {
 public:
  GraphMemoryPause();
  ~GraphMemoryPause();
  GraphMemoryPause(const GraphMemoryPause&) = delete;
  GraphMemoryPause& operator=(const GraphMemoryPause&) = delete;
};

// Physical memory of the program's own virtual memory management: charged until the last handle and
// mapping are gone. What was imported is in no table; for it, and for what was exported, the answer
// of an end is false: its charge is the residual's.
// Creation and mapping are false when there is no memory for the record: the caller takes back what
// the driver did, and the sentence was said.
[[nodiscard]] bool vmm_created(CUmemGenericAllocationHandle handle, int device, uint64_t bytes);
void vmm_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address);
/// Around the driver's call: when it has returned, another thread may be given the handle anew.
bool vmm_release_begin(CUmemGenericAllocationHandle handle);
bool vmm_release_end(CUmemGenericAllocationHandle handle, bool released);
[[nodiscard]] bool vmm_mapped(CUmemGenericAllocationHandle handle, CUdeviceptr address,
                              uint64_t bytes);
bool vmm_unmapped(CUdeviceptr address, uint64_t bytes);
void vmm_sum(uint64_t* bytes_by_device);
void vmm_reset_after_fork();
// For what else holds such memory (account_uses.h). A multicast object is one of no bytes.
/// The device of the memory, which is held as by a mapping; -1 = it is not ours to charge.
int vmm_hold(CUmemGenericAllocationHandle handle);
void vmm_unhold(CUmemGenericAllocationHandle handle);
struct VmmMapping {
  CUmemGenericAllocationHandle handle;
  uint64_t end;
};
/// The mapping that an address lies in.
bool vmm_mapping_at(CUdeviceptr address, VmmMapping* out);
bool vmm_known(CUmemGenericAllocationHandle handle);
/// Other holders may have it now: see charge_pass. The end of a multicast object is not seen here
/// from then on (uses_exported).
void vmm_exported(CUmemGenericAllocationHandle handle);
bool vmm_is_exported(CUmemGenericAllocationHandle handle);

/// Writes the whole account into the ledger's (new) slot. Called while no AccountScope exists, in a
/// PoolsScope and a GraphMemoryPause from before the ledger got the slot: a wait that returns, or a
/// question about memory, looks at pools without an AccountScope.
void account_restore();
/// Stops AccountScopes until accounts_resume(). False: some have not ended within that time, and
/// all go on. For the helper, which is in none.
[[nodiscard]] bool accounts_pause(uint64_t patience_ns);
/// Stops AccountScopes, all but the calling thread's, until accounts_resume(), for a reading that
/// is worth something without that, too: on false some have not ended, but no new one begins. Any
/// thread.
[[nodiscard]] bool accounts_pause_for(uint64_t patience_ns);
void accounts_resume();
void account_reset_after_fork();
// Of hooks_context.cpp.
/// After a call that may have ended the primary context of a device: gives back what it took along.
/// True when it is there, with its handle.
bool primary_look(int device, CUcontext* context);
/// The primary context as far as it is charged; nullptr = it is not. `ends`: how often one of the
/// device has ended.
CUcontext primary_known(int device, uint32_t* ends);
struct ContextRecord;
/// After a call that may have ended it and had its record from context_ending(): another thread's
/// may have, too, which found no record, and another one may be there since.
void primary_may_have_ended(int device, CUcontext context, uint32_t ends, ContextRecord* record);
bool primary_is_active(int device);
/// Keeps primary and green contexts from ending; false = one ends, and has not within that time.
[[nodiscard]] bool contexts_stay_for(uint64_t patience_ns);
void contexts_may_end();
/// Tells the meter of every context that it was not told of, for there was no broker: what is in
/// flight in it is to be waited for. While the account is paused and contexts stay.
void contexts_meet();
/// Primary contexts are the parent's.
void primaries_reset_after_fork();

}  // namespace sluice::interpose

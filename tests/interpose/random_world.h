// Random programs over the driver API, for the comparison of a driver with and without the shim
// (random_programs.py): what they are made of. A program is a seed and a number of steps. What step
// n does follows from the seed, n and the table of steps alone, so that steps can be left out and
// the others stay nearly what they were. Objects are in slots of fixed number and named by them:
// handles and addresses differ from run to run, their names do not.
//
// A step makes a few calls and notes each one's result and outputs in a line of the trace. Nothing
// that depends on timing is noted: whether work is done, what a pool has kept meanwhile.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "softgpu/device/device.h"

namespace sluice::test {

inline constexpr std::size_t kKiBytes = 1 << 10, kMiBytes = 1 << 20;
inline constexpr std::size_t kChunk = 2 * kMiBytes;  // of pools, physical memory, graphs' memory
inline constexpr std::size_t kContextBytes = 32 * kMiBytes;
inline constexpr int kDevices = 2;

/// splitmix64.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t step) : state_(seed) {
    state_ = next() + step;
    state_ = next();
  }
  std::uint64_t next();
  std::size_t below(std::size_t n) { return next() % n; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  /// From a byte to some MiB, small ones as often as large ones.
  std::size_t bytes();

 private:
  std::uint64_t state_;
};

/// What every object of a program has: whether it lives, and the slot of the context whose end is
/// its end (-1: it is no context's).
struct Object {
  bool live = false;
  int context = -1;
};
struct ContextSlot : Object {
  CUcontext handle = nullptr;
  int device = 0;
  int retained = 0;     // of a primary one
  bool struck = false;  // a kernel has faulted there
};
struct StreamSlot : Object {
  CUstream handle = nullptr;
};
struct EventSlot : Object {
  CUevent handle = nullptr;
};
enum class BlockKind { kLinear, kManaged, kPooled, kGraph };
struct BlockSlot : Object {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  BlockKind kind = BlockKind::kLinear;
  bool busy = false;          // work that nobody has waited for may use it
  std::uint64_t pattern = 0;  // what its first bytes are known to be; 0: nothing is known
  std::size_t pattern_bytes = 0;
};
struct PoolSlot : Object {
  CUmemoryPool handle = nullptr;
  int device = 0;
  bool bounded = false;  // by a size of its own
};
struct RangeSlot : Object {  // reserved addresses
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
};
struct PieceSlot : Object {  // a handle of physical memory
  CUmemGenericAllocationHandle handle = 0;
  std::size_t bytes = 0;
  int device = 0;
};
struct ArraySlot : Object {
  CUarray handle = nullptr;
};
struct LevelsSlot : Object {
  CUmipmappedArray handle = nullptr;
};
/// What a graph does that matters to others: what it needs and what it leaves.
struct GraphDeeds {
  struct Allocation {
    CUdeviceptr address;
    std::size_t bytes;
    bool freed = false;  // by the graph itself
    int device = -1;     // -1: not known
  };
  std::vector<Allocation> allocations;
  std::vector<CUdeviceptr> frees;  // of others' allocations
  unsigned contexts = 0;           // in which its nodes run, a bit for each slot
  bool spoiled = false;            // a node names memory or a context that may have gone

  /// Of its allocations on a device, and of those that nobody knows the device of.
  std::size_t chunk_bytes(int device) const;
};
struct GraphSlot : Object {
  CUgraph handle = nullptr;
  GraphDeeds deeds;
};
struct ExecSlot : Object {
  CUgraphExec handle = nullptr;
  GraphDeeds deeds;
};
struct ModuleSlot : Object {
  CUmodule handle = nullptr;
  std::size_t bytes = 0;
};
struct LibrarySlot : Object {
  CUlibrary handle = nullptr;
  std::size_t bytes = 0;
};

struct ImportSlot : Object {  // external memory
  CUexternalMemory handle = nullptr;
  std::size_t bytes = 0;
  int device = 0;
};

template <class Slot, std::size_t count>
struct Slots : std::array<Slot, count> {
  /// One of them, whether it lives or not.
  Slot& any(Random& random) { return (*this)[random.below(count)]; }
  /// The next free one, nullptr: all are taken.
  Slot* free_one(Random& random) {
    const std::size_t begin = random.below(count);
    for (std::size_t i = 0; i < count; ++i) {
      Slot& slot = (*this)[(begin + i) % count];
      if (!slot.live) return &slot;
    }
    return nullptr;
  }
  /// The next living one, nullptr: there is none.
  Slot* live_one(Random& random) {
    const std::size_t begin = random.below(count);
    for (std::size_t i = 0; i < count; ++i) {
      Slot& slot = (*this)[(begin + i) % count];
      if (slot.live) return &slot;
    }
    return nullptr;
  }
  std::size_t number(const Slot& slot) const {
    return static_cast<std::size_t>(&slot - this->data());
  }
};

/// All that a program has.
struct World {
  Slots<ContextSlot, 5> contexts;  // the first ones are the primary contexts of the devices
  Slots<StreamSlot, 8> streams;
  Slots<EventSlot, 6> events;
  Slots<BlockSlot, 20> blocks;
  Slots<PoolSlot, 4> pools;
  Slots<RangeSlot, 4> ranges;
  Slots<PieceSlot, 6> pieces;
  Slots<ArraySlot, 5> arrays;
  Slots<LevelsSlot, 3> levels;
  Slots<GraphSlot, 6> graphs;
  Slots<ExecSlot, 6> execs;
  Slots<ModuleSlot, 4> modules;
  Slots<LibrarySlot, 3> libraries;
  Slots<ImportSlot, 3> imports;

  std::map<cuuint64_t, GraphDeeds> captures;  // by the id of a capture in progress
  bool routes = false;                        // calls are made by all routes
  bool movable = false;         // memory may be moved to the host, which some of it is exempt from
  bool capturing = false;       // something may have captured since the last rest
  CUlibrary library = nullptr;  // whose kernels live as long as the program
  CUkernel empty = nullptr, fill = nullptr;
  // At work at once, of which this is one. Then it keeps to what is its own: the primary contexts,
  // their default streams and the devices' own pools are everybody's.
  std::size_t programs = 1;
  bool shared() const { return programs > 1; }
  /// Of the program's own making.
  static bool own(int context) { return context >= kDevices; }

  /// Whatever ends with this context is gone.
  void context_ended(int context);
};

/// The limits that a run is under, 0 = none that it could meet, and what it may exceed them by.
struct Limit {
  std::size_t quota[kDevices] = {};
  bool exact = true;            // what is not refused by others is refused by this alone
  std::size_t step_most = 0;    // the most that one call may have taken for a moment
  std::size_t unasked_sum = 0;  // what is charged without being asked for
};

/// The threads of a program. Each call is handed to one of them and waited for.
class Threads {
 public:
  virtual ~Threads() = default;
  virtual void everywhere(const std::function<void()>& work) = 0;
};

/// One step being made, on whatever thread it was handed to.
class Step {
 public:
  Step(World& the_world, Limit& the_limit, Threads& the_threads, Random& the_random)
      : world(the_world), limit(the_limit), threads(the_threads), random(the_random) {
    per_thread = world.routes && random.chance(25);
  }

  /// Notes a call and its result.
  CUresult note(const char* call, CUresult result);
  void say(const std::string& text) { line += " " + text; }
  /// An output: a refusal must leave it as it was, and a success must not.
  template <class T>
  void output(const char* name, CUresult result, const T& value, const T& before) {
    if ((value == before) == (result == CUDA_SUCCESS))
      say(std::string(name) + (value == before ? "=kept" : "=changed"));
  }
  /// A refused allocation: what is there and `bytes` more must not fit.
  void refused(CUresult result, int device, std::size_t bytes);
  /// Refused while a device is above its quota: so it must be.
  void withheld(CUresult result, int device) { refused(result, device, 0); }
  void fault(const std::string& text) {
    line += " FAULT: " + text;
    faulty = true;
  }

  /// The slot of the context that is current to this thread, -1: none that lives.
  int here();
  int device_here();
  /// Of a stream, -1: not known.
  int device_of(CUstream stream);
  std::string name_of(CUcontext context) const;
  /// The slot of the context that a stream is in, by the streams of the world.
  int context_of(CUstream stream);
  /// Takes contexts that have ended from all threads' stacks: a new one may get such a handle.
  void stale_forget();
  /// Takes a context from all threads' stacks that is about to end: another program may be given
  /// its handle.
  void context_leave(CUcontext context);
  /// What the capture does that this stream is in, nullptr: it is in none.
  GraphDeeds* capture_of(CUstream stream);
  /// A stream of the world, or one of the default ones.
  CUstream stream();
  /// One for work on this block that nobody waits for, false: there is none. Such a block is not
  /// freed in the order of another stream, and goes with its context, so that no work is left that
  /// uses what is gone.
  bool stream_for(BlockSlot& block, CUstream* stream);

  /// The function by which to call what the source calls `name` and the library `exported`
  /// (random_routes.cpp).
  template <class F>
  F* via(const char* name, const char* exported, F& plain) {
    return reinterpret_cast<F*>(route(name, exported, reinterpret_cast<void*>(&plain)));
  }
  void* route(const char* name, const char* exported, void* plain);
  /// What the null handle means in this step.
  CUstream null_named(CUstream stream) const {
    return stream == nullptr && per_thread ? CU_STREAM_PER_THREAD : stream;
  }

  World& world;
  Limit& limit;
  Threads& threads;
  Random& random;
  bool per_thread = false;  // calls are compiled for per-thread default streams
  std::string line;
  bool faulty = false;
};

/// Calls it by some route, and notes the result.
#define CALL(step, function, ...) CALL_NAMED(step, #function, function, __VA_ARGS__)
#define CALL_NAMED(step, name, function, ...) \
  (step).note(name, (step).via(name, #function, function)(__VA_ARGS__))

/// A kind of step: how often, and what. Families can be chosen.
struct StepKind {
  const char* family;
  const char* name;
  unsigned weight;
  void (*make)(Step&);
};
using StepKinds = std::vector<StepKind>;
/// Ends the capture of this stream.
void capture_end_of(Step& step, CUstream stream);
void memory_steps(StepKinds& kinds);
void pool_steps(StepKinds& kinds);
void virtual_steps(StepKinds& kinds);
void graph_steps(StepKinds& kinds);
void stream_steps(StepKinds& kinds);
void context_steps(StepKinds& kinds);
void module_steps(StepKinds& kinds);
void device_steps(StepKinds& kinds);
void contents_steps(StepKinds& kinds);
void route_steps(StepKinds& kinds);
void fault_steps(StepKinds& kinds);

/// The account that the devices themselves keep.
class Accounts {
 public:
  static Accounts& get();
  std::uint64_t used(int device);
  std::uint64_t peak(int device);

 private:
  std::vector<std::unique_ptr<softgpu::device::Device>> devices_;
};

/// Sentinels of outputs.
template <class T>
T untouched() {
  return reinterpret_cast<T>(std::uintptr_t{0x7777});
}
inline constexpr std::uint64_t kUntouched = 0x7777;

}  // namespace sluice::test

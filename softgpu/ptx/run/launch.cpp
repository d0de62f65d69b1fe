// launch_run(): the blocks of a grid over the calling thread and helpers, charging as they go. What
// a launch costs does not depend on how many threads shared it, except for kernels whose blocks
// wait for each other.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "softgpu/ptx/run/cta.h"
#include "softgpu/ptx/run/fault.h"
#include "softgpu/ptx/run/pool.h"
#include "softgpu/thread_object.h"

namespace softgpu::ptx {
namespace {

/// A worker charges before the next turn could take it over the limit.
constexpr u64 kChargeAt = kChargeEvery - kTurn - kTurn / 2;
/// A worker takes as many blocks at once as have this many instructions: neighbouring blocks read
/// and write neighbouring memory, and what workers share should not travel for every block.
constexpr u64 kTake = 4096;
/// Of the blocks left a worker takes at most this part at once, so that all end together.
constexpr u64 kTakePart = 8;
/// A block that has run so many warp instructions (0.1 s at the default rate) may be waiting for
/// blocks that have not begun. It shares its thread with more of them from then on.
constexpr u64 kLongBlock = 1 << 22;
/// What a block runs before the next one on its thread has its turn.
constexpr u64 kSharedTurn = 2 * kTurn;
/// Warps and blocks that an SM of compute capability 8.0 holds.
constexpr u64 kWarpsPerSm = 64, kBlocksPerSm = 32;
/// Fewer instructions than this are done sooner than a sleeping helper wakes up.
constexpr u64 kWorthHelp = 4096;

struct alignas(64) GridWorkspace {
  u32 bytes = 256;
  u32 barrier = 0;
  u32 rest[62] = {};
};

/// Keeps a thread's CTA memory between launches. A launch inside a launch (a host callback) gets
/// its own.
class RunnerLease {
 public:
  RunnerLease() {
    Cache& cache = ThreadObject<Cache>::get();
    if (cache.empty()) cache.push_back(std::make_unique<CtaRunner>());
    runner_ = std::move(cache.back());
    cache.pop_back();
  }
  ~RunnerLease() { ThreadObject<Cache>::get().push_back(std::move(runner_)); }
  RunnerLease(const RunnerLease&) = delete;
  RunnerLease& operator=(const RunnerLease&) = delete;
  CtaRunner& operator*() { return *runner_; }

 private:
  using Cache = std::vector<std::unique_ptr<CtaRunner>>;
  std::unique_ptr<CtaRunner> runner_;
};

class LaunchJob : public PoolJob {
 public:
  LaunchJob(const Kernel& kernel, const Launch& launch, Host& host)
      : program_(kernel.program),
        launch_(launch),
        host_(host),
        blocks_(u64{launch.grid.x} * launch.grid.y * launch.grid.z),
        resident_(resident(launch)) {}

  Outcome run() {
    if (launch_.cooperative) {
      Worker worker(*this);
      guarded(worker, [&] { run_cooperative(worker); });
    } else {
      work(true);
      if (offered_) pool_withdraw(*this);
    }
    outcome_.warp_instructions = executed_.load();
    return std::move(outcome_);
  }

  void help() override { work(false); }
  bool wants_help() const override { return next_.load() < blocks_ && !stop_.load(); }

 private:
  /// One thread's share of the launch.
  struct Worker {
    explicit Worker(LaunchJob& owner) : job(owner) {}
    LaunchJob& job;
    CtaRunner* runner = nullptr;
    u64 uncharged = 0;
    u64 executed = 0;
    u64 begun = 0;
    u64 block = 0, taken_end = 0;                  // what is left of the blocks it took
    std::vector<std::unique_ptr<CtaRunner>> more;  // for blocks that share this thread
    std::vector<CtaRunner*> running;               // while several blocks do

    /// False: the launch is to end.
    bool account(u64 instructions) {
      uncharged += instructions;
      executed += instructions;
      if (uncharged >= kChargeAt) return charge();
      return !job.stop_.load(std::memory_order_relaxed);
    }
    bool charge() {
      const u64 amount = uncharged;
      uncharged = 0;
      if (amount != 0 && !job.host_.charge(amount))
        job.fail(Fault::kAborted, 0, "the launch was abandoned");
      return !job.stop_.load(std::memory_order_relaxed);
    }
  };

  void fail(Fault fault, u64 address, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (outcome_.fault == Fault::kNone) {
      outcome_.fault = fault;
      outcome_.fault_address = address;
      outcome_.fault_text = text;
    }
    stop_.store(true);
  }

  std::string where(const Worker& worker) const {
    std::string text = "kernel " + program_.info.name;
    if (worker.runner == nullptr || worker.runner->current() == nullptr) return text;
    const Warp& warp = *worker.runner->current();
    const Dim3& block = warp.cta->index;
    text += ", block (" + std::to_string(block.x) + "," + std::to_string(block.y) + "," +
            std::to_string(block.z) + "), warp " + std::to_string(warp.index);
    if (warp.at != nullptr)
      text += ", PTX line " + std::to_string(warp.at->line) + " of " + warp.code->name;
    return text;
  }

  static const char* name_of(Fault fault) {
    switch (fault) {
      case Fault::kIllegalAddress:
        return "illegal address";
      case Fault::kMisaligned:
        return "misaligned address";
      case Fault::kIllegalInstruction:
        return "illegal instruction";
      case Fault::kTrap:
        return "trap";
      case Fault::kStackOverflow:
        return "stack overflow";
      case Fault::kInvalidAddressSpace:
        return "address of the wrong state space";
      case Fault::kInvalidPc:
        return "invalid program counter";
      default:
        return "fault";
    }
  }

  void fault(const Worker& worker, const FaultScope& scope) {
    if (scope.fault == Fault::kAssert) return fail(scope.fault, 0, scope.text);
    char address[32];
    std::snprintf(address, sizeof address, " at 0x%llx",
                  static_cast<unsigned long long>(scope.address));
    const bool has_address =
        scope.fault == Fault::kIllegalAddress || scope.fault == Fault::kMisaligned ||
        scope.fault == Fault::kInvalidAddressSpace || scope.fault == Fault::kInvalidPc;
    fail(scope.fault, scope.address,
         std::string(name_of(scope.fault)) + (has_address ? address : "") + ": " + where(worker) +
             (scope.text.empty() ? "" : ", which calls what cannot run: " + scope.text));
  }

  /// Runs `body` with faults caught, then charges what is left.
  template <class Body>
  void guarded(Worker& worker, Body body) {
    FaultScope scope;
    host_.enter();
    if (sigsetjmp(scope.back, 0) == 0) {
      body();
    } else {
      if (worker.runner != nullptr && worker.runner->current() != nullptr) {
        Warp& warp = *worker.runner->current();
        // All before the one that faulted, and what was folded into it.
        const bool began = warp.at != nullptr && warp.at->serial >= warp.from;
        const u64 ran = began ? warp.at[1].serial - 1 - warp.from : 0;
        worker.uncharged += warp.count + ran - warp.counted;
        worker.executed += warp.count + ran - warp.counted;
      }
      fault(worker, scope);
    }
    worker.charge();
    executed_.fetch_add(worker.executed);
  }

  void work(bool is_caller) {
    RunnerLease lease;
    Worker worker(*this);
    guarded(worker, [&] {
      bool prepared = false;
      for (;;) {
        if (worker.block == worker.taken_end && !take(worker)) return;
        const u64 block = worker.block++;
        ++worker.begun;
        if (stop_.load(std::memory_order_relaxed)) return;
        worker.runner = &*lease;
        if (!prepared) worker.runner->prepare(program_, launch_, host_);
        prepared = true;
        if (!run_block(worker, block, is_caller)) return;
        if (is_caller) consider_help(worker);
      }
    });
  }

  /// The next blocks of the grid for this worker. False: none are left.
  bool take(Worker& worker) {
    u64 count = 1;
    if (worker.begun > 0) {
      const u64 each = std::max<u64>(worker.executed / worker.begun, 1);
      const u64 begun = std::min(next_.load(std::memory_order_relaxed), blocks_);
      count = std::clamp<u64>((blocks_ - begun) / kTakePart, 1, std::max<u64>(kTake / each, 1));
    }
    worker.block = next_.fetch_add(count);
    worker.taken_end = std::max(worker.block, std::min(worker.block + count, blocks_));
    return worker.block < blocks_;
  }

  /// After the first block (or a while into it) the rest can be estimated.
  void consider_help(const Worker& worker) {
    if (offered_ || pool_width() < 2) return;
    const u64 begun = next_.load();
    if (begun >= blocks_) return;
    if (worker.executed * (blocks_ - begun) / std::max<u64>(begun, 1) < kWorthHelp) return;
    offered_ = true;
    pool_offer(*this);
  }

  /// A turn for every warp of the worker's block. False: the launch is to end.
  bool step(Worker& worker) {
    bool go_on = true;
    const bool ran = worker.runner->step(
        kTurn, [&](u64 instructions) { return go_on = worker.account(instructions); });
    if (go_on && !ran) {
      fail(Fault::kTrap, 0,
           "deadlock: the threads left wait at barriers that nobody will reach: " + where(worker));
    }
    return go_on && ran;
  }

  bool run_block(Worker& worker, u64 block, bool is_caller) {
    worker.runner->start(block, 0);
    const u64 before = worker.executed;
    while (!worker.runner->finished()) {
      if (!step(worker)) return false;
      if (is_caller && worker.executed > 2 * kTurn) consider_help(worker);
      if (worker.executed - before > kLongBlock && blocks_left(worker)) return run_shared(worker);
    }
    return true;
  }

  bool blocks_left(const Worker& worker) const {
    return worker.block < worker.taken_end || next_.load(std::memory_order_relaxed) < blocks_;
  }

  /// Runs the worker's block to its end, in turns with others of the grid: all of them may wait for
  /// each other. Their number doubles while they are long, up to what the device holds at a time.
  bool run_shared(Worker& worker) {
    CtaRunner* const first = worker.runner;
    std::vector<CtaRunner*>& running = worker.running;
    running.assign(1, first);
    for (u64 begin_at = 0; !running.empty();) {
      if (worker.executed >= begin_at) {
        std::size_t wanted = running.size();
        while (wanted != 0 && begin_more(worker)) --wanted;
        begin_at = worker.executed + kLongBlock;
      }
      for (CtaRunner* runner : running) {
        worker.runner = runner;
        const u64 end = worker.executed + kSharedTurn;
        while (!runner->finished() && worker.executed < end) {
          if (!step(worker)) return false;
        }
      }
      const auto ended = [&](CtaRunner* runner) {
        if (runner->finished() && runner != first) --shared_;
        return runner->finished();
      };
      running.erase(std::remove_if(running.begin(), running.end(), ended), running.end());
    }
    worker.runner = first;
    return true;
  }

  /// Begins one more block of the grid on this worker's thread. False: none is left, or the device
  /// holds no more at a time.
  bool begin_more(Worker& worker) {
    if (shared_.load() >= resident_) return false;
    if (worker.block == worker.taken_end && !take(worker)) return false;
    ++shared_;
    ++worker.begun;
    CtaRunner* free = nullptr;
    for (const auto& runner : worker.more) {
      if (std::find(worker.running.begin(), worker.running.end(), runner.get()) ==
          worker.running.end())
        free = runner.get();
    }
    if (free == nullptr) {
      free = worker.more.emplace_back(std::make_unique<CtaRunner>()).get();
      free->prepare(program_, launch_, host_);
    }
    free->start(worker.block++, 0);
    worker.running.push_back(free);
    return true;
  }

  /// Blocks of such a launch that a device holds at a time, by threads.
  static u64 resident(const Launch& launch) {
    const u64 warps = (u64{launch.block.x} * launch.block.y * launch.block.z + 31) / 32;
    return u64{launch.sm_count} *
           std::clamp<u64>(kWarpsPerSm / std::max<u64>(warps, 1), 1, kBlocksPerSm);
  }

  /// All blocks at once, in turns, on one thread: they wait for each other through memory.
  void run_cooperative(Worker& worker) {
    GridWorkspace workspace;
    std::vector<std::unique_ptr<CtaRunner>> runners;
    for (u64 block = 0; block < blocks_; ++block) {
      runners.push_back(std::make_unique<CtaRunner>());
      runners.back()->prepare(program_, launch_, host_);
      runners.back()->start(block, reinterpret_cast<u64>(&workspace));
    }
    for (bool all = false; !all;) {
      all = true;
      bool any_ran = false;
      for (const auto& runner : runners) {
        if (runner->finished()) continue;
        all = false;
        worker.runner = runner.get();
        bool go_on = true;
        any_ran |= runner->step(kCooperativeTurn, [&](u64 instructions) {
          return go_on = worker.account(instructions);
        });
        if (!go_on) return;
      }
      if (!all && !any_ran) {
        return fail(
            Fault::kTrap, 0,
            "deadlock: the threads left wait at barriers that nobody will reach: " + where(worker));
      }
    }
  }

  /// Short turns: a block that spins for the others should not spin long.
  static constexpr u64 kCooperativeTurn = 256;

  const Program& program_;
  const Launch& launch_;
  Host& host_;
  const u64 blocks_;
  const u64 resident_;
  // What a worker changes while others read lies on lines of its own.
  alignas(64) std::atomic<u64> next_{0};
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<u64> executed_{0};
  std::atomic<u64> shared_{0};  // blocks that run besides the first one of their thread
  bool offered_ = false;
  std::mutex mutex_;
  Outcome outcome_;
};

}  // namespace

Outcome launch_run(const Kernel& kernel, const Launch& launch, Host& host) {
  Outcome refused;
  refused.fault = Fault::kIllegalInstruction;
  if (!kernel_trouble(kernel).empty()) {
    refused.fault_text = kernel_trouble(kernel);
    return refused;
  }
  fault_handler_install();
  try {
    return LaunchJob(kernel, launch, host).run();
  } catch (const std::bad_alloc&) {
    refused.fault = Fault::kTrap;
    refused.fault_text = "no host memory for the launch of " + kernel.program.info.name;
    return refused;
  }
}

}  // namespace softgpu::ptx

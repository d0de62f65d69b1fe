// sluice-checkpoint: makes the driver's checkpoint calls on other processes, says on standard
// output what it is about to do and what came of it (checkpoint_lines.h), and ends. A program of
// its own because the calls block for as long as a target does not answer, and need cuInit.
//
// It makes no context, so it takes no device memory. SIGTERM: it ends the call it is in and puts
// back what can be put back.
#include <cuda.h>
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "broker/devices/checkpoint_lines.h"
#include "broker/devices/nvml.h"
#include "broker/devices/process.h"

namespace {

using namespace sluice::devices;
using Kind = CheckpointLine::Kind;

constexpr int kDriverWithMoves = 13000;  // CUcheckpointRestoreArgs has pairs since CUDA 13.0

constexpr int kDying_ms = 200;

volatile sig_atomic_t cancelled = 0;

std::int64_t clock_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// One write for a line: lines of several processes on one pipe stay whole.
void say(const CheckpointLine& line) {
  const std::string text = checkpoint_line(line) + "\n";
  (void)!write(STDOUT_FILENO, text.data(), text.size());
}

struct Driver {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*version)(int*) = nullptr;
  CUresult (*error_name)(CUresult, const char**) = nullptr;
  CUresult (*state)(int, CUprocessState*) = nullptr;
  CUresult (*lock)(int, CUcheckpointLockArgs*) = nullptr;
  CUresult (*checkpoint)(int, CUcheckpointCheckpointArgs*) = nullptr;
  CUresult (*restore)(int, CUcheckpointRestoreArgs*) = nullptr;
  CUresult (*unlock)(int, CUcheckpointUnlockArgs*) = nullptr;
};

template <class F>
bool symbol_load(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

bool driver_load(Driver* driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "sluice-checkpoint: %s\n", dlerror());
    return false;
  }
  return symbol_load(library, "cuInit", &driver->init) &&
         symbol_load(library, "cuDriverGetVersion", &driver->version) &&
         symbol_load(library, "cuGetErrorName", &driver->error_name) &&
         symbol_load(library, "cuCheckpointProcessGetState", &driver->state) &&
         symbol_load(library, "cuCheckpointProcessLock", &driver->lock) &&
         symbol_load(library, "cuCheckpointProcessCheckpoint", &driver->checkpoint) &&
         symbol_load(library, "cuCheckpointProcessRestore", &driver->restore) &&
         symbol_load(library, "cuCheckpointProcessUnlock", &driver->unlock);
}

CheckpointState state_of(CUprocessState state) {
  switch (state) {
    case CU_PROCESS_STATE_RUNNING:
      return CheckpointState::kRunning;
    case CU_PROCESS_STATE_LOCKED:
      return CheckpointState::kLocked;
    case CU_PROCESS_STATE_CHECKPOINTED:
      return CheckpointState::kCheckpointed;
    case CU_PROCESS_STATE_FAILED:
      return CheckpointState::kFailed;
  }
  return CheckpointState::kUnknown;
}

/// One target: what is known of it, and the calls on it. A call on a process that has ended is no
/// failure, whatever the driver says of it.
class Target {
 public:
  Target(const Driver& driver, const CheckpointTarget& named) : driver_(driver), pid_(named.pid) {
    const std::uint64_t ticks =
        named.start_ticks != 0 ? named.start_ticks : process_start_ticks(named.pid);
    found_ = process_find(named.pid, ticks, &pidfd_);
  }

  pid_t pid() const { return pid_; }
  CheckpointState state() const { return state_; }

  bool ask() {
    CUprocessState answer = CU_PROCESS_STATE_FAILED;
    return call(
        CheckpointStep::kState, [&] { return driver_.state(pid_, &answer); },
        [&] { return state_of(answer); });
  }
  bool lock(std::int64_t left_ms) {
    CUcheckpointLockArgs args{};
    args.timeoutMs = static_cast<unsigned>(std::max<std::int64_t>(left_ms, 1));  // 0 = for ever
    return call(
        CheckpointStep::kLock, [&] { return driver_.lock(pid_, &args); },
        [] { return CheckpointState::kLocked; });
  }
  bool checkpoint() {
    CUcheckpointCheckpointArgs args{};
    return call(
        CheckpointStep::kCheckpoint, [&] { return driver_.checkpoint(pid_, &args); },
        [] { return CheckpointState::kCheckpointed; });
  }
  bool restore(const std::vector<CheckpointPair>& pairs) {
    std::vector<CUcheckpointGpuPair> list(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      std::memcpy(list[i].oldUuid.bytes, pairs[i].from.bytes, sizeof list[i].oldUuid.bytes);
      std::memcpy(list[i].newUuid.bytes, pairs[i].to.bytes, sizeof list[i].newUuid.bytes);
    }
    CUcheckpointRestoreArgs args{};
    args.gpuPairs = list.empty() ? nullptr : list.data();
    args.gpuPairsCount = static_cast<unsigned>(list.size());
    return call(
        CheckpointStep::kRestore, [&] { return driver_.restore(pid_, &args); },
        [] { return CheckpointState::kLocked; });
  }
  bool unlock() {
    CUcheckpointUnlockArgs args{};
    return call(
        CheckpointStep::kUnlock, [&] { return driver_.unlock(pid_, &args); },
        [] { return CheckpointState::kRunning; });
  }
  bool lost() {
    fault(CheckpointStep::kState, kCheckpointFailed);
    return false;
  }
  /// Why the last call failed.
  CUresult answer() const { return answer_; }

 private:
  bool gone() const { return found_ == ProcessFound::kEnded || pidfd_ended(pidfd_.get()); }
  // The driver loses a dying process a little before the kernel calls it dead.
  bool goes() const {
    pollfd end{pidfd_.get(), POLLIN, 0};
    return poll(&end, 1, kDying_ms) == 1;
  }
  void state_set(CheckpointState state) {
    state_ = state;
    say({.kind = Kind::kState, .pid = pid_, .state = state});
  }
  void fault(CheckpointStep step, const std::string& code) {
    say({.kind = Kind::kFault, .pid = pid_, .step = step, .code = code});
  }
  bool vanish() {
    state_set(CheckpointState::kGone);
    return true;
  }
  template <class Call, class After>
  bool call(CheckpointStep step, Call make, After after) {
    if (found_ == ProcessFound::kUnknown) {
      fault(step, kCheckpointUnseen);
      return false;
    }
    if (gone()) return vanish();
    say({.kind = Kind::kCall, .pid = pid_, .step = step});
    answer_ = make();
    if (answer_ == CUDA_SUCCESS) {
      state_set(after());
      return true;
    }
    if (goes()) return vanish();
    const char* name = nullptr;
    driver_.error_name(answer_, &name);
    fault(step, name != nullptr ? name : "CUDA_ERROR_" + std::to_string(answer_));
    state_refresh(step);
    return false;
  }
  // A call that failed may have changed the state all the same, to FAILED for one.
  void state_refresh(CheckpointStep failed) {
    if (failed == CheckpointStep::kState) return;
    CUprocessState now = CU_PROCESS_STATE_FAILED;
    say({.kind = Kind::kCall, .pid = pid_, .step = CheckpointStep::kState});
    const bool known = driver_.state(pid_, &now) == CUDA_SUCCESS;
    state_set(gone() ? CheckpointState::kGone : known ? state_of(now) : CheckpointState::kUnknown);
  }

  const Driver& driver_;
  pid_t pid_;
  Fd pidfd_;
  ProcessFound found_ = ProcessFound::kUnknown;
  CheckpointState state_ = CheckpointState::kUnknown;
  CUresult answer_ = CUDA_SUCCESS;
};

using Targets = std::vector<Target>;

// Asked between two calls.
bool cancel_seen() {
  if (cancelled == 0) return false;
  static bool told = false;
  if (!told) say({.kind = Kind::kFault, .code = kCheckpointCancelled});
  told = true;
  return true;
}

bool state_good(Target& target) {
  if (!target.ask()) return false;
  return target.state() != CheckpointState::kFailed || target.lost();
}

bool lock_all(Targets& targets, std::int64_t lock_ms) {
  const std::int64_t end = clock_ms() + lock_ms;
  for (Target& target : targets) {
    if (cancel_seen() || !state_good(target)) return false;
    if (target.state() == CheckpointState::kRunning && !target.lock(end - clock_ms())) return false;
  }
  return !cancel_seen();
}

bool checkpoint_all_locked(Targets& targets) {
  for (Target& target : targets) {
    if (target.state() == CheckpointState::kLocked && !target.checkpoint()) return false;
    if (cancel_seen()) return false;
  }
  return true;
}

void put_back(Target& target) {
  if (target.state() == CheckpointState::kCheckpointed && !target.restore({})) return;
  if (target.state() == CheckpointState::kLocked) target.unlock();
}

void take(Targets& targets, std::int64_t lock_ms) {
  if (lock_all(targets, lock_ms) && checkpoint_all_locked(targets)) return;
  for (auto target = targets.rbegin(); target != targets.rend(); ++target) put_back(*target);
}

// A restore without room loses the process, so after one no further one is tried; another failure
// says nothing of the next process.
void give(Targets& targets, const std::vector<CheckpointPair>& pairs) {
  bool room = true;
  for (Target& target : targets) {
    if (!state_good(target) || target.state() != CheckpointState::kCheckpointed) continue;
    if (!room || cancel_seen()) continue;
    room = target.restore(pairs) || target.answer() != CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (Target& target : targets)
    if (target.state() == CheckpointState::kLocked) target.unlock();
}

/// Device memory of the targets as the management library counts it; 0 where it does not know them.
class Account {
 public:
  explicit Account(const std::vector<CheckpointTarget>& targets) : targets_(targets) {
    DeviceError error;
    nvml_ = Nvml::open(kNvmlLibrary, &error);
    if (nvml_ != nullptr && !nvml_->gpus(&gpus_, &error)) gpus_.clear();
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    std::vector<ProcessMemory> list;
    for (const GpuInfo& gpu : gpus_) {
      if (!nvml_->processes(gpu.uuid, &list)) continue;
      for (const ProcessMemory& process : list)
        if (named(process.pid)) sum += process.used_bytes;
    }
    return sum;
  }

 private:
  bool named(std::uint32_t pid) const {
    return std::any_of(targets_.begin(), targets_.end(), [&](const CheckpointTarget& target) {
      return target.pid == static_cast<pid_t>(pid);
    });
  }
  const std::vector<CheckpointTarget>& targets_;
  std::unique_ptr<Nvml> nvml_;
  std::vector<GpuInfo> gpus_;
};

bool driver_start(Driver* driver, bool moves) {
  say({.kind = Kind::kCall, .step = CheckpointStep::kStart});
  if (!driver_load(driver)) {
    say({.kind = Kind::kFault, .step = CheckpointStep::kStart, .code = kCheckpointNoDriver});
    return false;
  }
  int version = 0;
  if (const CUresult result = driver->init(0); result != CUDA_SUCCESS) {
    const char* name = nullptr;
    driver->error_name(result, &name);
    say({.kind = Kind::kFault,
         .step = CheckpointStep::kStart,
         .code = name != nullptr ? name : "CUDA_ERROR_" + std::to_string(result)});
    return false;
  }
  if (moves && (driver->version(&version) != CUDA_SUCCESS || version < kDriverWithMoves)) {
    say({.kind = Kind::kFault, .step = CheckpointStep::kStart, .code = kCheckpointNoMoves});
    return false;
  }
  return true;
}

Targets targets_make(const Driver& driver, const std::vector<CheckpointTarget>& named) {
  Targets targets;
  for (const CheckpointTarget& target : named) targets.emplace_back(driver, target);
  return targets;
}

bool move_run(const CheckpointArguments& arguments) {
  Driver driver;
  if (!driver_start(&driver, !arguments.pairs.empty())) return false;
  Targets targets = targets_make(driver, arguments.targets);
  const Account account(arguments.targets);
  const std::uint64_t before = account.bytes();
  if (arguments.order == CheckpointOrder::kTake)
    take(targets, arguments.lock_ms);
  else
    give(targets, arguments.pairs);
  const std::uint64_t after = account.bytes();
  say({.kind = Kind::kBytes, .bytes = std::max(before, after) - std::min(before, after)});
  return true;
}

// A process for each target: one that does not answer holds up nobody else.
bool each_run(const CheckpointArguments& arguments) {
  std::vector<pid_t> children;
  for (const CheckpointTarget& named : arguments.targets) {
    const pid_t child = fork();
    if (child > 0) children.push_back(child);
    if (child != 0) continue;
    Driver driver;
    if (!driver_start(&driver, false)) _exit(1);
    Target target(driver, named);
    if (target.ask() && arguments.order == CheckpointOrder::kMend) put_back(target);
    _exit(0);
  }
  bool all = children.size() == arguments.targets.size();
  for (const pid_t child : children) {
    int status = 0;
    all = waitpid(child, &status, 0) == child && status == 0 && all;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  struct sigaction action {};
  action.sa_handler = [](int) { cancelled = 1; };
  action.sa_flags = SA_RESTART;  // the driver's own waits go on
  sigaction(SIGTERM, &action, nullptr);
  constexpr const char* kUsage =
      "usage: sluice-checkpoint take|return|look|mend LOCK_MS [FROM=TO]... PID:START_TICKS...\n"
      "Runs the driver's checkpoint of these processes for sluiced, which starts it.\n";
  if (argc == 2 && (std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h"))
    return std::fputs(kUsage, stdout) < 0;
  CheckpointArguments arguments;
  if (!checkpoint_arguments_parse({argv + 1, argv + argc}, &arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const bool alone =
      arguments.order == CheckpointOrder::kTake || arguments.order == CheckpointOrder::kReturn;
  const bool done = alone ? move_run(arguments) : each_run(arguments);
  if (done) say({.kind = Kind::kEnd});
  _exit(done ? 0 : 1);  // the work is done: nothing of the driver's exit is waited for
}

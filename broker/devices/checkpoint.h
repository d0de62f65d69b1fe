// Taking processes off their GPUs and putting them back through the driver's checkpoint calls. They
// block, need cuInit and the target's PID namespace, so the helper program sluice-checkpoint makes
// them, one helper for each job; this is the broker's side: start, wait on one descriptor, collect.
// Must not know of tenants, holds or room: who calls has seen to it that the programs do not
// submit (the first synchronisation after a restore must wait until the job is done) and that the
// room for a restore is claimed (a restore without room loses the process for good).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "broker/protocol/words.h"

namespace sluice::devices {

/// A process by pid and, so that a stranger with the same pid is left alone, by the time it
/// started (field 22 of /proc/PID/stat).
struct CheckpointTarget {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // 0 = whoever has the pid
  friend bool operator==(const CheckpointTarget&, const CheckpointTarget&) = default;
};

/// Memory of the first GPU comes back on the second. The pairs of a job name every GPU that the
/// processes use, also those that stay; naming a whole exchange (A to B, B to A) is always right.
struct CheckpointPair {
  protocol::GpuUuid from{};
  protocol::GpuUuid to{};
};

enum class CheckpointVerb : std::uint8_t {
  /// Locks all, then takes the memory of all. If one refuses, those before it are put back.
  kTake,
  /// Restores all, then unlocks what is restored. After a failure no further one is restored: each
  /// could be lost for good. What is left can be asked for again.
  kReturn,
  /// Only asks for the states.
  kLook,
};

/// Both verbs pass over what is done already: a job that was cut short can simply be started again.
struct CheckpointJob {
  CheckpointVerb verb = CheckpointVerb::kLook;
  std::uint32_t uid = 0;  // the user whose job it is
  /// Of one tenant, those that have a context; the driver refuses others. At most
  /// kTenantProcessesMax.
  std::vector<CheckpointTarget> targets;
  std::vector<CheckpointPair> pairs;    // of kReturn; none = every GPU is its own
  std::int64_t lock_ms = 5'000;         // for all locks together: submitted work ends within it
  std::int64_t deadline_ms = 120'000;   // for the job; then the helper is killed
  std::int64_t afterwards_ms = 60'000;  // for putting right and looking after such an end
};

enum class CheckpointState : std::uint8_t {
  kUnknown,  // could not be asked (in time)
  kRunning,
  kLocked,
  kCheckpointed,
  kFailed,  // the driver has lost it: it can only be ended
  kGone,    // ended: no failure, whatever was wanted of it
};

enum class CheckpointStep : std::uint8_t {
  kNone,
  kStart,  // of the helper, of the driver in it
  kState,
  kLock,
  kCheckpoint,
  kRestore,
  kUnlock,
};

struct CheckpointedProcess {
  pid_t pid = 0;
  CheckpointState state = CheckpointState::kUnknown;
  bool touched = false;  // a call was made, or begun, that changes the state
};

struct CheckpointResult {
  bool ok = false;
  pid_t pid = 0;  // who the first failure is about; 0 = none, or not of one process
  CheckpointStep step = CheckpointStep::kNone;
  std::string code;  // of the driver's answer, "CUDA_ERROR_..."; empty when it gave none
  /// What went wrong, why and what that means for the process, in a sentence or two, without
  /// "sluice: " or a full stop. Empty when all is well.
  std::string text;
  std::int64_t taken_ns = 0;  // from the start of the helper
  /// Device memory that was taken or returned, as the driver's management library counts it; 0 =
  /// it does not tell (in a container it knows the processes by other pids).
  std::uint64_t bytes = 0;
  /// All targets in the order of the job, as they are now.
  std::vector<CheckpointedProcess> processes;
};

const char* checkpoint_state_name(CheckpointState state);
const char* checkpoint_step_name(CheckpointStep step);
/// Whether each process of the result is in this state or gone.
bool checkpoint_all(const CheckpointResult& result, CheckpointState state);
/// Whether none of them is, as far as is known, locked or in a checkpoint: each runs, is gone or
/// lost, or was never touched.
bool checkpoint_clear(const CheckpointResult& result);

using CheckpointId = std::uint64_t;  // 0 = none

struct CheckpointDone {
  CheckpointId id = 0;
  CheckpointResult result;
};

/// Helpers that run at the same time; more jobs wait. Each moves one tenant's memory between
/// device and host, which a few of them saturate. A user's first one waits for no other user's,
/// whose programs may make it last: then there are so many more, one for each user.
inline constexpr std::size_t kCheckpointHelpersMax = 4;
/// With the first ones of all users.
inline constexpr std::size_t kCheckpointHelpersMost = 64;

/// All checkpoint jobs of a broker. Never blocks, starts no thread; single-threaded use. Reaps its
/// own children by pid: whoever reaps all children would rob it.
class Checkpoints {
 public:
  /// `program` is the absolute path of sluice-checkpoint; `environment` the caller's, of which
  /// what would change the answer is left out (as for the probe).
  Checkpoints(std::string program, const char* const* environment);
  /// Kills the helpers that run, and leaves their targets as they are.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Readable whenever collect() has something to do; the same for all jobs, for as long as this
  /// lives. -1 only where the system gave none: then every job fails with that.
  int descriptor() const;
  /// Every job is answered by collect() once, in time, also one that could not be started. A job
  /// for a process of an unfinished job waits for that one.
  CheckpointId start(CheckpointJob job);
  /// The helper ends the call it is in and undoes what a kTake has done, and what a kReturn has
  /// restored it unlocks; the job is answered as failed, unless it was done before. Nothing for a
  /// job that is not there.
  void cancel(CheckpointId id);
  /// What has ended since.
  std::vector<CheckpointDone> collect();
  /// Jobs that are not answered yet.
  std::size_t size() const;
  /// For logs: the helper that works on the job now; 0 = none.
  pid_t helper_pid(CheckpointId id) const;

 private:
  struct Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace sluice::devices

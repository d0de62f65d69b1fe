// What passes between the broker and the helper sluice-checkpoint: the helper's arguments, the
// lines it prints as it goes, and the sentences that people read about it. A line is written whole
// before the call that may never return, so that a helper that died is known by its last words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "broker/devices/checkpoint.h"

namespace sluice::devices {

/// What one run of the helper does.
enum class CheckpointOrder : std::uint8_t {
  kTake,
  kReturn,
  kLook,
  kMend,  // puts back whatever of a take that was cut short is locked or checkpointed
};

struct CheckpointArguments {
  CheckpointOrder order = CheckpointOrder::kLook;
  std::int64_t lock_ms = 0;
  std::vector<CheckpointPair> pairs;
  std::vector<CheckpointTarget> targets;
};

/// "take LOCK_MS [FROM=TO]... PID:TICKS..."
std::vector<std::string> checkpoint_arguments(const CheckpointArguments& arguments);
/// False for anything that is not exactly that.
bool checkpoint_arguments_parse(const std::vector<std::string_view>& words,
                                CheckpointArguments* out);

/// Reasons of the helper's own where the driver has no answer to give. In a line they stand where
/// the driver's code does.
inline constexpr char kCheckpointNoDriver[] = "NO_DRIVER";  // no library, or it lacks the calls
inline constexpr char kCheckpointNoMoves[] = "NO_MOVES";    // pairs, but the driver knows none
inline constexpr char kCheckpointFailed[] = "FAILED";       // the state of the process
inline constexpr char kCheckpointUnseen[] = "UNSEEN";  // whether the process lives cannot be told
inline constexpr char kCheckpointCancelled[] = "CANCELLED";

struct CheckpointLine {
  enum class Kind : std::uint8_t { kCall, kState, kFault, kBytes, kEnd };
  Kind kind = Kind::kEnd;
  pid_t pid = 0;                                      // of kCall, kState, kFault (0 = of none)
  CheckpointStep step = CheckpointStep::kNone;        // of kCall, kFault
  CheckpointState state = CheckpointState::kUnknown;  // of kState
  std::string code{};                                 // of kFault
  std::uint64_t bytes = 0;                            // of kBytes
};

/// "call PID STEP", "state PID STATE", "fault PID STEP CODE", "bytes N", "end".
std::string checkpoint_line(const CheckpointLine& line);
bool checkpoint_line_parse(std::string_view text, CheckpointLine* out);

/// A fault as a clause without a full stop.
std::string checkpoint_fault_text(const CheckpointLine& fault, std::int64_t lock_ms);

}  // namespace sluice::devices

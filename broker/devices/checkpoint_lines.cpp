// Words, and back.
#include "broker/devices/checkpoint_lines.h"

#include <charconv>
#include <iterator>

#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

constexpr const char* kStates[] = {"unknown",      "running", "locked",
                                   "checkpointed", "failed",  "gone"};
constexpr const char* kSteps[] = {"none",       "start",   "state", "lock",
                                  "checkpoint", "restore", "unlock"};
constexpr const char* kOrders[] = {"take", "return", "look", "mend"};
constexpr std::size_t kCodeBytesMax = 64;

template <class Enum, std::size_t kCount>
bool word_parse(const char* const (&words)[kCount], std::string_view text, Enum* out) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (text != words[i]) continue;
    *out = static_cast<Enum>(i);
    return true;
  }
  return false;
}

template <class Number>
bool count_parse(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc{} && end == text.data() + text.size() && *out >= Number{};
}

// "PID:TICKS"
bool target_parse(std::string_view text, CheckpointTarget* out) {
  const std::size_t colon = text.find(':');
  return colon != std::string_view::npos && count_parse(text.substr(0, colon), &out->pid) &&
         out->pid > 0 && count_parse(text.substr(colon + 1), &out->start_ticks);
}

// "FROM=TO"
bool pair_parse(std::string_view text, CheckpointPair* out) {
  const std::size_t sign = text.find('=');
  if (sign == std::string_view::npos) return false;
  const auto from = uuid_parse(text.substr(0, sign));
  const auto to = uuid_parse(text.substr(sign + 1));
  if (!from || !to) return false;
  *out = {*from, *to};
  return true;
}

bool code_valid(std::string_view text) {
  if (text.empty() || text.size() > kCodeBytesMax) return false;
  return text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == std::string_view::npos;
}

std::vector<std::string_view> words_split(std::string_view text) {
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t end = text.find(' ');
    words.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end + 1);
  }
}

const char* call_name(CheckpointStep step) {
  switch (step) {
    case CheckpointStep::kLock:
      return "cuCheckpointProcessLock";
    case CheckpointStep::kCheckpoint:
      return "cuCheckpointProcessCheckpoint";
    case CheckpointStep::kRestore:
      return "cuCheckpointProcessRestore";
    case CheckpointStep::kUnlock:
      return "cuCheckpointProcessUnlock";
    case CheckpointStep::kState:
      return "cuCheckpointProcessGetState";
    default:
      return "cuInit";
  }
}

// What the driver's codes mean at each step; empty where there is no more to say than the code.
// Sources: cuda.h, the manual and the issues of NVIDIA's cuda-checkpoint.
std::string code_meaning(const CheckpointLine& fault, const std::string& who,
                         std::int64_t lock_ms) {
  const std::string& code = fault.code;
  if (code == "CUDA_ERROR_NOT_SUPPORTED") {
    return "the driver cannot take " + who +
           " off its GPU: it has managed memory, memory shared with other processes, or something "
           "else that cannot be saved";
  }
  if (code == "CUDA_ERROR_NOT_READY" && fault.step == CheckpointStep::kLock)
    return "work that " + who + " had submitted did not end within " + std::to_string(lock_ms) +
           " ms, so it could not be locked";
  if (code == "CUDA_ERROR_ILLEGAL_STATE")
    return who + " was in another state than this call needs: something else checkpoints it, too";
  if (code == "CUDA_ERROR_NOT_PERMITTED")
    return "the driver does not let this user checkpoint " + who;
  if (fault.step == CheckpointStep::kState && code == "CUDA_ERROR_INVALID_VALUE")
    return "the driver finds no " + who +
           " that uses CUDA: it has no context, or its PID namespace is another";
  if (fault.step != CheckpointStep::kRestore) return {};
  if (code == "CUDA_ERROR_OUT_OF_MEMORY")
    return "there was no room on the GPU for " + who +
           "; drivers of series 580 never restore a process after that: it can only be ended";
  if (code == "CUDA_ERROR_OPERATING_SYSTEM")
    return who +
           " could not be restored, as after a restore that lacked room: it can only be ended";
  if (code == "CUDA_ERROR_INVALID_VALUE")
    return "the driver refused the GPUs that " + who +
           " was to come back on: each GPU that it uses needs another of the same kind";
  return {};
}

}  // namespace

const char* checkpoint_state_name(CheckpointState state) {
  return kStates[static_cast<std::size_t>(state)];
}

const char* checkpoint_step_name(CheckpointStep step) {
  return kSteps[static_cast<std::size_t>(step)];
}

std::vector<std::string> checkpoint_arguments(const CheckpointArguments& arguments) {
  std::vector<std::string> words = {kOrders[static_cast<std::size_t>(arguments.order)],
                                    std::to_string(arguments.lock_ms)};
  for (const CheckpointPair& pair : arguments.pairs)
    words.push_back(uuid_format(pair.from) + "=" + uuid_format(pair.to));
  for (const CheckpointTarget& target : arguments.targets)
    words.push_back(std::to_string(target.pid) + ":" + std::to_string(target.start_ticks));
  return words;
}

bool checkpoint_arguments_parse(const std::vector<std::string_view>& words,
                                CheckpointArguments* out) {
  *out = {};
  if (words.size() < 2 || !word_parse(kOrders, words[0], &out->order) ||
      !count_parse(words[1], &out->lock_ms))
    return false;
  std::size_t at = 2;
  for (CheckpointPair pair; at < words.size() && pair_parse(words[at], &pair); ++at)
    out->pairs.push_back(pair);
  for (CheckpointTarget target; at < words.size() && target_parse(words[at], &target); ++at)
    out->targets.push_back(target);
  return at == words.size() && out->pairs.size() <= protocol::kTenantGpusMax &&
         out->targets.size() <= protocol::kTenantProcessesMax;
}

std::string checkpoint_line(const CheckpointLine& line) {
  const std::string pid = std::to_string(line.pid);
  switch (line.kind) {
    case CheckpointLine::Kind::kCall:
      return "call " + pid + " " + checkpoint_step_name(line.step);
    case CheckpointLine::Kind::kState:
      return "state " + pid + " " + checkpoint_state_name(line.state);
    case CheckpointLine::Kind::kFault:
      return "fault " + pid + " " + checkpoint_step_name(line.step) + " " + line.code;
    case CheckpointLine::Kind::kBytes:
      return "bytes " + std::to_string(line.bytes);
    case CheckpointLine::Kind::kEnd:
      break;
  }
  return "end";
}

bool checkpoint_line_parse(std::string_view text, CheckpointLine* out) {
  using Kind = CheckpointLine::Kind;
  *out = {};
  const std::vector<std::string_view> words = words_split(text);
  const std::string_view kind = words[0];
  if (kind == "end" && words.size() == 1) return true;
  if (kind == "bytes" && words.size() == 2) {
    out->kind = Kind::kBytes;
    return count_parse(words[1], &out->bytes);
  }
  if (words.size() < 3 || !count_parse(words[1], &out->pid)) return false;
  if (kind == "state" && words.size() == 3) {
    out->kind = Kind::kState;
    return word_parse(kStates, words[2], &out->state);
  }
  if (!word_parse(kSteps, words[2], &out->step)) return false;
  if (kind == "call" && words.size() == 3) {
    out->kind = Kind::kCall;
    return true;
  }
  if (kind != "fault" || words.size() != 4 || !code_valid(words[3])) return false;
  out->kind = Kind::kFault;
  out->code = words[3];
  return true;
}

std::string checkpoint_fault_text(const CheckpointLine& fault, std::int64_t lock_ms) {
  const std::string who = "process " + std::to_string(fault.pid);
  if (fault.code == kCheckpointNoDriver)
    return "the NVIDIA driver here has no checkpoint calls; they need a driver of series 570 or "
           "newer";
  if (fault.code == kCheckpointNoMoves)
    return "this driver restores a process on its own GPU only; moves need series 580 or newer";
  if (fault.code == kCheckpointFailed)
    return "the driver has lost " + who + " (state FAILED): it can only be ended";
  if (fault.code == kCheckpointUnseen)
    return "whether " + who + " lives cannot be told: the helper has no descriptor or memory left";
  if (fault.code == kCheckpointCancelled) return "cancelled";
  const std::string call = std::string(call_name(fault.step)) + ": " + fault.code;
  const std::string meaning = code_meaning(fault, who, lock_ms);
  if (!meaning.empty()) return meaning + " (" + call + ")";
  return (fault.pid == 0 ? "the driver failed" : "the driver failed at " + who) + " (" + call + ")";
}

}  // namespace sluice::devices

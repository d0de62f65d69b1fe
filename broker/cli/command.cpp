// The Command exchange. The progress comes from snapshots on a connection of its own, so that the
// answer is the only thing that the other one can bring.
#include "broker/cli/command.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "broker/cli/admission.h"
#include "broker/cli/signals.h"
#include "broker/cli/status.h"
#include "broker/protocol/gpu_index.h"
#include "config/reader/config.h"
#include "config/reader/keys.h"

namespace sluice::cli {
namespace {

using protocol::CommandVerb;
using protocol::MessageType;

constexpr int kProgress_ms = 250;  // between two looks at how far it is
constexpr int kLooksPerLine = 4;   // where there is no terminal
constexpr std::uint64_t kWaitWorthAWord_ns = 1'000'000'000;
constexpr int kExitFailed = 1;

bool for_tenant(CommandVerb verb) {
  return verb == CommandVerb::kSuspend || verb == CommandVerb::kResume ||
         verb == CommandVerb::kMove;
}

std::uint64_t clock_now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

std::string name_of(const Snapshot& snapshot, protocol::TenantId id) {
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants)
    if (tenant.tenant == id) return field_text(tenant.name, sizeof tenant.name);
  return "job " + std::to_string(id);
}

std::string gpu_words(const Snapshot& snapshot, const protocol::GpuUuid& uuid) {
  const std::uint32_t g = protocol::gpu_index(snapshot.gpus, uuid);
  return g < snapshot.gpus.size() ? "GPU " + std::to_string(g) : "the GPU";
}

/// What is on a GPU that takes no new jobs from now on.
std::string stays_text(const Snapshot& snapshot, const protocol::GpuUuid& uuid) {
  const std::uint32_t g = protocol::gpu_index(snapshot.gpus, uuid);
  const protocol::SnapshotGpu gpu =
      g < snapshot.gpus.size() ? snapshot.gpus[g] : protocol::SnapshotGpu{};
  if (gpu.tenants == 1) return "1 job stays until it ends";
  if (gpu.tenants != 0) return std::to_string(gpu.tenants) + " jobs stay until they end";
  if (gpu.held_bytes == 0) return "nothing is on it: it is drained";
  return "no job runs on it, but suspended ones hold " + config::size_format(gpu.held_bytes);
}

int command_fail(const std::string& text) {
  std::fprintf(stderr, "sluice: %s\n", text.c_str());
  return kExitFailed;
}

std::string without_numbers(std::string text) {
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
}

/// Says on stderr how far it is: on a terminal in a line that is rewritten, below what it waits
/// for; elsewhere only that, and again when it waits for something else.
class Progress {
 public:
  Progress(Client& looker, const protocol::Command& command)
      : looker_(looker),
        command_(command),
        terminal_(isatty(STDERR_FILENO) == 1),
        line_(STDERR_FILENO, terminal_) {}
  // A look that fails changes nothing: the line stays as it is.
  void look() {
    if (++looks_ % (terminal_ ? 1 : kLooksPerLine) != 0) return;
    std::string error;
    const auto snapshot = snapshot_fetch(looker_, &error);
    if (!snapshot) return;
    const std::string waits = waiting_text(command_, *snapshot);
    if (!waits.empty() && without_numbers(waits) != without_numbers(waits_)) {
      line_.finish();
      std::fprintf(stderr, "%s\n", text_wrapped("sluice: " + waits, kWaitColumns).c_str());
      waits_ = waits;
    }
    if (terminal_) line_.show(progress_text(command_, *snapshot, passed_ns()));
  }
  void finish() { line_.finish(); }
  std::uint64_t passed_ns() const { return clock_now_ns() - started_ns_; }

 private:
  static constexpr std::size_t kWaitColumns = 79;
  Client& looker_;
  const protocol::Command& command_;
  bool terminal_;
  WaitLine line_;
  std::uint64_t started_ns_ = clock_now_ns();
  int looks_ = 0;
  std::string waits_;
};

int answer_wait(Client& client, Client& looker, const protocol::Command& command,
                const Snapshot& before) {
  Progress progress(looker, command);
  const SignalWatch watch;
  for (;;) {
    protocol::Envelope envelope;
    const int rc = client.receive(&envelope, kProgress_ms);
    if (const int number = SignalWatch::seen()) {
      progress.finish();
      std::fprintf(stderr,
                   "sluice: not waited for; the broker goes on with it, and sluice status shows "
                   "what comes of it\n");
      return 128 + number;
    }
    if (rc == -EAGAIN) {
      progress.look();
      continue;
    }
    progress.finish();
    if (rc != 1)
      return command_fail(
          "the broker closed the connection before it answered; see its log, then sluice status");
    if (envelope.is<protocol::CommandDone>(MessageType::kCommandDone)) {
      const auto& done = envelope.as<protocol::CommandDone>();
      std::printf("%s\n", done_text(command, before, done, progress.passed_ns()).c_str());
      return 0;
    }
    if (envelope.is<protocol::Refused>(MessageType::kRefused)) {
      const protocol::Refused& refused = envelope.as<protocol::Refused>();
      return command_fail(field_text(refused.text, sizeof refused.text));
    }
    return command_fail(
        "the broker's answer is not understood; sluice and sluiced must come from one "
        "installation");
  }
}

}  // namespace

const char* verb_name(CommandVerb verb) {
  switch (verb) {
    case CommandVerb::kSuspend:
      return "suspend";
    case CommandVerb::kResume:
      return "resume";
    case CommandVerb::kMove:
      return "move";
    case CommandVerb::kDrain:
      return "drain";
    case CommandVerb::kUndrain:
      return "undrain";
  }
  return "unknown";
}

const protocol::SnapshotTenant* tenant_named(const Snapshot& snapshot, const std::string& text,
                                             std::string* error) {
  const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  std::vector<const protocol::SnapshotTenant*> found;
  std::vector<std::string> names;
  bool waits = false;
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants) {
    if (tenant.state == protocol::TenantState::kQueued) {
      waits |= field_text(tenant.name, sizeof tenant.name) == text;
      continue;
    }
    // A number is a number first: whoever names a job "5" can be meant by its number all the same.
    if (number && std::to_string(tenant.tenant) == text) return &tenant;
    const std::string name = field_text(tenant.name, sizeof tenant.name);
    names.push_back(name);
    if (name == text) found.push_back(&tenant);
  }
  if (found.size() == 1) return found.front();
  if (found.empty() && waits) {
    *error = "'" + text +
             "' waits in line and has nothing on a GPU yet; sluice status says what "
             "it waits for, and Ctrl-C in its sluice run takes it out";
    return nullptr;
  }
  if (found.empty()) {
    const std::string near = config::word_nearest(text, names);
    *error = "there is no job '" + text + "'; " +
             (near.empty() ? "" : "did you mean '" + near + "'? ") +
             "sluice status lists their numbers and names";
    return nullptr;
  }
  *error = std::to_string(found.size()) + " jobs are called '" + text + "': ";
  for (std::size_t i = 0; i < found.size(); ++i)
    *error += (i == 0 ? "" : ", ") + std::to_string(found[i]->tenant) + " of " +
              field_text(found[i]->user, sizeof found[i]->user);
  *error += "; name one by its number";
  return nullptr;
}

bool command_make(const CommandOptions& options, const Snapshot& snapshot, protocol::Command* out,
                  std::string* error) {
  protocol::message_init(*out, MessageType::kCommand, 1);
  out->verb = options.verb;
  if (for_tenant(options.verb)) {
    const protocol::SnapshotTenant* tenant = tenant_named(snapshot, options.tenant, error);
    if (tenant == nullptr) return false;
    out->tenant = tenant->tenant;
  }
  out->until_s = static_cast<std::uint64_t>(options.until_s);
  std::snprintf(out->reason, sizeof out->reason, "%s", options.reason.c_str());
  if (options.gpu.empty()) return true;
  const protocol::SnapshotGpu* gpu = gpu_find(snapshot.gpus, options.gpu, error);
  if (gpu == nullptr) return false;
  out->gpu = gpu->uuid;
  return true;
}

std::string progress_text(const protocol::Command& command, const Snapshot& snapshot,
                          std::uint64_t taken_ns) {
  std::uint64_t movable = 0;
  std::uint64_t out = 0;
  for (const protocol::SnapshotTenantGpu& part : snapshot.tenant_gpus) {
    if (part.tenant != command.tenant) continue;
    movable += part.movable_bytes;
    out += std::min(part.swapped_bytes, part.movable_bytes);
  }
  constexpr const char* kDoing[] = {"", "suspending", "resuming", "moving"};
  std::string text = kDoing[static_cast<std::size_t>(command.verb) % std::size(kDoing)];
  if (!text.empty()) text += " " + name_of(snapshot, command.tenant) + ": ";
  if (movable != 0)
    text += config::size_format(out) + " of " + config::size_format(movable) + " out, ";
  return text + seconds_text(taken_ns);
}

std::string waiting_text(const protocol::Command& command, const Snapshot& snapshot) {
  if (command.verb != CommandVerb::kResume) return "";
  for (const protocol::SnapshotTenant& tenant : snapshot.tenants) {
    const bool out = tenant.state == protocol::TenantState::kSuspended ||
                     tenant.state == protocol::TenantState::kSwapped;
    if (tenant.tenant != command.tenant || !out) continue;
    const std::string why = field_text(tenant.why, sizeof tenant.why);
    return why.empty() ? "" : name_of(snapshot, command.tenant) + ": " + why;
  }
  return "";
}

std::string done_text(const protocol::Command& command, const Snapshot& before,
                      const protocol::CommandDone& done, std::uint64_t passed_ns) {
  const std::string gpu = gpu_words(before, command.gpu);
  if (command.verb == CommandVerb::kUndrain) return gpu + " takes new jobs again";
  if (command.verb == CommandVerb::kDrain) {
    const std::string until = config::time_format(static_cast<std::int64_t>(command.until_s));
    const std::string reason = field_text(command.reason, sizeof command.reason);
    return gpu + " takes no new jobs" + (until.empty() ? "" : " until " + until) +
           (reason.empty() ? "" : " (" + reason + ")") + "; " + stays_text(before, command.gpu);
  }
  std::string text =
      name_of(before, command.tenant) + " (job " + std::to_string(command.tenant) + ") ";
  if (command.verb == CommandVerb::kMove)
    text += "goes on on " + gpu;
  else
    text += command.verb == CommandVerb::kSuspend ? "is suspended" : "goes on";
  // What the driver's checkpoint takes is not counted here.
  text += "; " + (done.bytes == 0 ? "it took " : config::size_format(done.bytes) + " moved in ") +
          seconds_text(done.taken_ns);
  const std::uint64_t waited_ns = passed_ns - std::min(passed_ns, done.taken_ns);
  if (command.verb == CommandVerb::kResume && waited_ns >= kWaitWorthAWord_ns)
    text += ", after it had waited " + seconds_text(waited_ns);
  return text;
}

namespace {

int one_command(const CommandOptions& options) {
  const SocketChoice choice = socket_choose(options.socket);
  std::string error;
  auto client = Client::connect(choice.path, &error);
  auto looker = client ? Client::connect(choice.path, &error) : std::nullopt;
  const auto snapshot = looker ? snapshot_fetch(*looker, &error) : std::nullopt;
  if (!snapshot) return command_fail(error);
  protocol::Command message;
  if (!command_make(options, *snapshot, &message, &error)) return command_fail(error);
  if (!client->send(message))
    return command_fail("the broker closed the connection; see its log, then try again");
  return answer_wait(*client, *looker, message, *snapshot);
}

/// Whether every GPU of a list is there: a list with a wrong one changes nothing.
bool gpus_known(const CommandOptions& options, const std::vector<std::string>& gpus,
                std::string* error) {
  auto looker = Client::connect(socket_choose(options.socket).path, error);
  const auto snapshot = looker ? snapshot_fetch(*looker, error) : std::nullopt;
  return snapshot && std::ranges::all_of(gpus, [&](const std::string& gpu) {
           return gpu_find(snapshot->gpus, gpu, error) != nullptr;
         });
}

}  // namespace

int command_command(const CommandOptions& options) {
  const bool takes_list =
      options.verb == CommandVerb::kDrain || options.verb == CommandVerb::kUndrain;
  if (!takes_list || options.gpu.find(',') == std::string::npos) return one_command(options);
  std::vector<std::string> gpus;
  std::istringstream words(options.gpu + ",");
  for (std::string word; std::getline(words, word, ',');) gpus.push_back(word);
  std::string error;
  if (!gpus_known(options, gpus, &error)) return command_fail(error);
  for (const std::string& gpu : gpus) {
    CommandOptions one = options;
    one.gpu = gpu;
    if (const int code = one_command(one); code != 0) return code;
  }
  return 0;
}

}  // namespace sluice::cli

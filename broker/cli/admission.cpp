// The Admit exchange.
#include "broker/cli/admission.h"

#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "broker/cli/paths.h"
#include "broker/cli/signals.h"
#include "broker/devices/uuid.h"
#include "config/reader/config.h"

namespace sluice::cli {
namespace {

using protocol::MessageType;

constexpr int kLook_ms = 1000;  // how soon a signal that came just before the wait is noticed

void text_put(char* field, std::size_t size, const std::string& text) {
  std::snprintf(field, size, "%s", text.c_str());
}

bool index_parse(const std::string& text, std::size_t* out) {
  if (text.empty() || text.size() > 4 || text.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *out = static_cast<std::size_t>(std::stoul(text));
  return true;
}

}  // namespace

const protocol::SnapshotGpu* gpu_find(const std::vector<protocol::SnapshotGpu>& gpus,
                                      const std::string& text, std::string* error) {
  std::size_t index = 0;
  if (index_parse(text, &index)) {
    if (index < gpus.size()) return &gpus[index];
    *error = "there is no GPU " + text + "; the broker has " + std::to_string(gpus.size()) +
             ", numbered from 0; see sluice status";
    return nullptr;
  }
  const protocol::SnapshotGpu* found = nullptr;
  for (const protocol::SnapshotGpu& gpu : gpus) {
    const std::string uuid = devices::uuid_format(gpu.uuid);
    if (text.size() <= 4 || uuid.compare(0, text.size(), text) != 0) continue;
    if (found != nullptr) {
      *error = "'" + text + "' is the beginning of more than one GPU's UUID; write more of it";
      return nullptr;
    }
    found = &gpu;
  }
  if (found == nullptr)
    *error = "there is no GPU '" + text + "'; sluice status --json lists the UUIDs";
  return found;
}

bool admit_make(const RunOptions& options, const std::vector<protocol::SnapshotGpu>& gpus,
                protocol::Admit* out, std::string* error) {
  protocol::message_init(*out, MessageType::kAdmit, 1);
  out->tenant_class = options.tenant_class;
  out->sm_mode = options.sm_mode;
  out->sm_percent = options.sm_percent;
  out->memory_max_bytes = options.memory_max_bytes;
  out->memory_min_bytes = options.memory_min_bytes;
  out->wait_ns_max = static_cast<std::uint64_t>(options.timeout_ns);
  out->gpu_count = options.gpu_count;
  out->flags = (options.no_wait ? protocol::kAdmitNoWait : 0) |
               (options.dry_run ? protocol::kAdmitDryRun : 0) |
               (options.swap ? protocol::kAdmitSwap : 0) |
               (options.weight ? protocol::kAdmitWeight : 0);
  text_put(out->name, sizeof out->name,
           options.name.empty() ? std::string(file_name(options.command.front())) : options.name);
  text_put(out->profile, sizeof out->profile, options.profile);
  for (const std::string& text : options.gpus) {
    const protocol::SnapshotGpu* gpu = gpu_find(gpus, text, error);
    if (gpu == nullptr) return false;
    for (std::uint32_t i = 0; i < out->pinned_count; ++i) {
      if (out->pinned[i] == gpu->uuid) {
        *error = "GPU '" + text + "' is named twice; name each once";
        return false;
      }
    }
    out->pinned[out->pinned_count++] = gpu->uuid;
  }
  return true;
}

std::string ordinal(std::uint32_t number) {
  const std::uint32_t last = number % 10;
  const bool teen = number % 100 >= 11 && number % 100 <= 13;
  const char* ending = teen ? "th" : last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
  return std::to_string(number) + ending;
}

std::string expected_text(std::uint64_t from_now_ns) {
  if (from_now_ns == 0) return "unknown";
  // As exact as such a guess is: seconds, and minutes from two of them on.
  const std::uint64_t whole = (from_now_ns + 999'999'999) / 1'000'000'000;
  return "in about " +
         (whole < 120 ? std::to_string(whole) + " s" : std::to_string((whole + 59) / 60) + " min");
}

namespace {

/// The limit of its user, or of its profile, that a request waits for.
std::string limit_text(const protocol::Queued& queued) {
  using protocol::QueueLimit;
  const bool bytes =
      queued.limit == QueueLimit::kUserMemory || queued.limit == QueueLimit::kAllMemory;
  const std::string used =
      bytes ? config::size_format(queued.promised_bytes) : std::to_string(queued.promised_bytes);
  const std::string most =
      bytes ? config::size_format(queued.capacity_bytes) : std::to_string(queued.capacity_bytes);
  switch (queued.limit) {
    case QueueLimit::kNone:
      break;
    case QueueLimit::kUserTenants:
      return "you have " + used + " jobs, as many as one user may have";
    case QueueLimit::kUserRunning:
      return used + " of your jobs run, as many as your profile allows each user";
    case QueueLimit::kUserMemory:
      return "your jobs have " + used + " of the " + most +
             " of GPU memory that your profile allows each user";
    case QueueLimit::kAllRunning:
      return used + " jobs with your profile run, as many as it allows";
    case QueueLimit::kAllMemory:
      return "the jobs with your profile have " + used + " of the " + most +
             " of GPU memory that it allows all its users together";
  }
  return "you, or your profile, have as much as you may have";
}

}  // namespace

std::string queued_text(const protocol::Queued& queued) {
  std::string text = "no room yet";
  if (queued.reason == protocol::QueueReason::kUserLimit) {
    text = "not yet: " + limit_text(queued);
  } else if (queued.reason == protocol::QueueReason::kShare) {
    text = "no share yet: " + std::to_string(queued.promised_bytes) +
           " % guaranteed on the GPU with least (--weight asks for no guarantee)";
  } else if (queued.capacity_bytes != 0) {
    text += ": " + config::size_format(queued.promised_bytes) + " of " +
            config::size_format(queued.capacity_bytes) + " promised on the GPU with most room";
  }
  text += "; you are " + ordinal(queued.position) + " in line";
  const std::string ahead(queued.ahead, strnlen(queued.ahead, sizeof queued.ahead));
  if (!ahead.empty()) text += " behind " + ahead;
  if (queued.expected_start_ns != 0)
    text += ", expected start " + expected_text(queued.expected_start_ns);
  return text + " (reason: " + protocol::queue_reason_name(queued.reason) +
         "); Ctrl-C leaves the line";
}

void WaitLine::show(const std::string& text) {
  if (text == shown_) return;
  shown_ = text;
  dprintf(fd_, terminal_ ? "\r\033[Ksluice: %s" : "sluice: %s\n", text.c_str());
  open_ = terminal_;
}

void WaitLine::finish() {
  if (open_) dprintf(fd_, "\n");
  open_ = false;
}

AdmitAnswer admit_ask(Client& client, const protocol::Admit& message, WaitLine& line, int* signal) {
  AdmitAnswer answer;
  const SignalWatch watch;
  if (!client.send(message)) return answer;
  for (;;) {
    protocol::Envelope envelope;
    const int rc = client.receive(&envelope, kLook_ms);
    if (SignalWatch::seen() != 0) {
      *signal = SignalWatch::seen();
      answer.kind = AdmitAnswer::Kind::kInterrupted;
      break;
    }
    if (rc == -EAGAIN) continue;
    if (rc != 1) break;
    if (envelope.is<protocol::Queued>(MessageType::kQueued)) {
      answer.waited = true;
      line.show(queued_text(envelope.as<protocol::Queued>()));
    } else if (envelope.is<protocol::Admitted>(MessageType::kAdmitted)) {
      answer.kind = AdmitAnswer::Kind::kAdmitted;
      answer.admitted = envelope.as<protocol::Admitted>();
      break;
    } else if (envelope.is<protocol::Refused>(MessageType::kRefused)) {
      answer.kind = AdmitAnswer::Kind::kRefused;
      answer.refused = envelope.as<protocol::Refused>();
      answer.refused.text[sizeof answer.refused.text - 1] = '\0';
      break;
    }
  }
  line.finish();
  return answer;
}

}  // namespace sluice::cli

// The Admit exchange.
#include "broker/cli/admission.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "broker/cli/paths.h"
#include "broker/cli/signals.h"
#include "broker/cli/text_width.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/ordinal.h"
#include "broker/protocol/wire.h"
#include "config/reader/config.h"

namespace sluice::cli {
namespace {

using protocol::MessageType;

constexpr int kLook_ms = 1000;  // how soon a signal that came just before the wait is noticed

/// As much as fits, in whole characters.
void text_put(char* field, std::size_t size, const std::string& text) {
  std::size_t length = std::min(text.size(), size - 1);
  const auto inside = [&] { return (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80; };
  while (length > 0 && length < text.size() && inside()) --length;
  std::snprintf(field, size, "%.*s", static_cast<int>(length), text.c_str());
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
    *error = "there is no GPU '" + text + "'; sluice status lists the GPUs by index and UUID";
  return found;
}

bool admit_make(const RunOptions& options, const std::vector<protocol::SnapshotGpu>& gpus,
                protocol::Admit* out, std::string* error) {
  protocol::message_init(*out, MessageType::kAdmit, 1);
  out->tenant_class = options.tenant_class.value_or(protocol::TenantClass::kBatch);
  out->sm_mode = options.sm_mode;
  out->sm_percent = options.sm_percent;
  out->memory_max_bytes = options.memory_max_bytes;
  out->memory_min_bytes = options.memory_min_bytes;
  out->wait_ns_max = static_cast<std::uint64_t>(options.timeout_ns);
  out->gpu_count = options.gpu_count;
  out->flags = (options.no_wait ? protocol::kAdmitNoWait : 0) |
               (options.dry_run ? protocol::kAdmitDryRun : 0) |
               (options.swap ? protocol::kAdmitSwap : 0) |
               (options.tenant_class ? 0 : protocol::kAdmitAnyClass) |
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
  return std::to_string(number) + protocol::ordinal_ending(number);
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
  const std::string jobs = queued.promised_bytes == 1 ? " job" : " jobs";
  switch (queued.limit) {
    case QueueLimit::kNone:
      break;
    case QueueLimit::kUserTenants:
      return "you have " + used + jobs + ", as many as one user may have";
    case QueueLimit::kUserRunning:
      return "you have " + used + jobs + " running, as many as your profile allows each user";
    case QueueLimit::kUserMemory:
      return "your jobs have " + used + " of the " + most +
             " of GPU memory that your profile allows each user";
    case QueueLimit::kAllRunning:
      return "the users of your profile have " + used + jobs +
             " running, as many as it allows all of them together";
    case QueueLimit::kAllMemory:
      return "the jobs with your profile have " + used + " of the " + most +
             " of GPU memory that it allows all its users together";
  }
  return "you, or your profile, have as much as you may have";
}

}  // namespace

namespace {

/// Where the wait is for the job around this command: what to do. SLUICE_TENANT begins with the
/// job's number.
std::string around_text(const std::string& why) {
  const char* tenant = std::getenv(protocol::kTenantVariable);
  if (tenant == nullptr) return "";
  const std::string job = "job " + std::to_string(std::strtoull(tenant, nullptr, 10));
  if (why.find(job + " (") == std::string::npos) return "";
  return "; " + job + " is the sluice run around this command: run it outside of that";
}

}  // namespace

std::string wait_reason_text(const protocol::Queued& queued) {
  if (queued.reason == protocol::QueueReason::kUserLimit) return "not yet: " + limit_text(queued);
  const std::string text(queued.text, strnlen(queued.text, sizeof queued.text));
  const std::string colon = text.empty() ? "" : ": ";
  if (queued.reason == protocol::QueueReason::kShare)
    return "no share yet" + colon + text + "; --weight asks for no guarantee";
  return "no room yet" + colon + text + around_text(text);
}

std::string wait_place_text(const protocol::Queued& queued) {
  std::string text = ordinal(queued.position) + " in line";
  const std::string ahead(queued.ahead, strnlen(queued.ahead, sizeof queued.ahead));
  if (!ahead.empty()) text += " behind " + ahead;
  return text + " (" + protocol::queue_reason_name(queued.reason) + "); Ctrl-C leaves the line";
}

std::string queued_text(const protocol::Queued& queued) {
  return wait_reason_text(queued) + "; you are " + wait_place_text(queued);
}

std::string text_wrapped(const std::string& text, std::size_t columns) {
  constexpr std::size_t kIndent = 2;
  constexpr std::size_t kColumnsMin = 20;
  columns = std::max(columns, kColumnsMin);
  std::string out;
  std::size_t width = 0;  // of the present line
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::size_t word = text_width(std::string_view(text).substr(at, end - at));
    if (width != 0 && width + 1 + word > columns) {
      out += "\n" + std::string(kIndent, ' ');
      width = kIndent;
    } else if (width != 0) {
      out += ' ';
      ++width;
    }
    out.append(text, at, end - at);
    width += word;
    at = end + 1;
  }
  return out;
}

namespace {

constexpr std::size_t kColumnsDefault = 80;

std::size_t terminal_columns(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsDefault;
  return size.ws_col;
}

}  // namespace

void WaitLine::show(const std::string& text) {
  if (text == shown_) return;
  shown_ = text;
  // The last column stays free: some terminals break the line once it is full.
  const std::string line =
      terminal_ ? text_cut("sluice: " + text, terminal_columns(fd_) - 1) : "sluice: " + text;
  dprintf(fd_, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
  open_ = terminal_;
}

void WaitLine::queued(const protocol::Queued& queued) {
  if (!terminal_) {
    show(queued_text(queued));
    return;
  }
  const std::string reason = wait_reason_text(queued);
  if (reason != reason_) {
    const std::string lines = text_wrapped("sluice: " + reason, terminal_columns(fd_) - 1);
    dprintf(fd_, "\r\033[K%s\n", lines.c_str());
    reason_ = reason;
    shown_.clear();
  }
  show(wait_place_text(queued));
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
      line.queued(envelope.as<protocol::Queued>());
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

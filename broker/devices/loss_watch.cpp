// Starting, reading without waiting, ending.
#include "broker/devices/loss_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "broker/devices/probe.h"
#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

// A helper that cannot live is not started over and over: NVML may take a while, and all of it.
constexpr std::int64_t kStartAgain_ms = 30'000;
constexpr std::string_view kLost = "lost ";
constexpr std::string_view kUsed = "used ";
constexpr std::string_view kUnknown = "unknown ";
constexpr std::string_view kBusy = " busy";
constexpr std::size_t kReadBytes = 4096;
/// Above the longest answer: kListedMax processes of 32 characters each.
constexpr std::size_t kLossLineBytesMax = 16384;

}  // namespace

namespace {

/// True if the line is this word and a UUID.
bool uuid_line_parse(std::string_view line, std::string_view word, protocol::GpuUuid* out) {
  if (line.substr(0, word.size()) != word) return false;
  const auto uuid = uuid_parse(std::string(line.substr(word.size())));
  if (uuid) *out = *uuid;
  return uuid.has_value();
}

}  // namespace

std::string loss_line(const protocol::GpuUuid& uuid) {
  return std::string(kLost) + uuid_format(uuid);
}

bool loss_line_parse(std::string_view line, protocol::GpuUuid* out) {
  return uuid_line_parse(line, kLost, out);
}

std::string unknown_line(const protocol::GpuUuid& uuid) {
  return std::string(kUnknown) + uuid_format(uuid);
}

bool unknown_line_parse(std::string_view line, protocol::GpuUuid* out) {
  return uuid_line_parse(line, kUnknown, out);
}

namespace {

std::string pair_text(std::uint64_t first, std::uint64_t second) {
  return " " + std::to_string(first) + ":" + std::to_string(second);
}

std::string listed_text(const ListedUse& listed) {
  std::string text = std::to_string(listed.living) + " " + std::to_string(listed.ended) + " " +
                     std::to_string(listed.processes);
  for (std::size_t i = 0; i < std::min(listed.of.size(), kListedMax); ++i)
    text += pair_text(listed.of[i].pid, listed.of[i].bytes);
  return text;
}

}  // namespace

std::string used_line(const DeviceUse& use) {
  std::string line =
      std::string(kUsed) + uuid_format(use.gpu) + " " + std::to_string(use.bytes) + " ";
  line += use.listed ? listed_text(*use.listed) : "-";
  if (use.busy_known) line += kBusy;
  for (std::size_t i = 0; i < std::min(use.busy.size(), kBusyMax); ++i)
    line += " " + std::to_string(use.busy[i]);
  return line;
}

namespace {

/// Takes the text up to the next blank off the line.
std::string_view word_take(std::string_view* line) {
  const std::size_t blank = std::min(line->find(' '), line->size());
  const std::string_view word = line->substr(0, blank);
  line->remove_prefix(std::min(blank + 1, line->size()));
  return word;
}

template <class Number>
bool number_parse(std::string_view text, Number* out) {
  const char* const end = text.data() + text.size();
  const auto [at, fault] = std::from_chars(text.data(), end, *out);
  return !text.empty() && fault == std::errc{} && at == end;
}

/// "PID:NUMBER".
bool pair_parse(std::string_view word, std::uint32_t* pid, std::uint64_t* second) {
  const std::size_t colon = std::min(word.find(':'), word.size());
  return number_parse(word.substr(0, colon), pid) && colon < word.size() &&
         number_parse(word.substr(colon + 1), second);
}

/// Takes what listed_text() has said off the line, whose first word has been taken.
bool listed_parse(std::string_view living, std::string_view* line, ListedUse* out) {
  if (!number_parse(living, &out->living) || !number_parse(word_take(line), &out->ended) ||
      !number_parse(word_take(line), &out->processes))
    return false;
  while (!line->empty() && line->front() != kBusy[1]) {
    ListedUse::Process process;
    if (out->of.size() == kListedMax || !pair_parse(word_take(line), &process.pid, &process.bytes))
      return false;
    out->of.push_back(process);
  }
  return true;
}

}  // namespace

std::string use_question(const protocol::GpuUuid& gpu, const std::vector<EndedProcess>& ended) {
  std::string line = uuid_format(gpu);
  for (std::size_t i = 0; i < std::min(ended.size(), kEndedMax); ++i)
    line += pair_text(ended[i].pid, ended[i].start_ticks);
  return line;
}

bool use_question_parse(std::string_view line, protocol::GpuUuid* gpu,
                        std::vector<EndedProcess>* ended) {
  const auto uuid = uuid_parse(std::string(word_take(&line)));
  if (!uuid) return false;
  *gpu = *uuid;
  ended->clear();
  while (!line.empty()) {
    EndedProcess process;
    if (ended->size() == kEndedMax ||
        !pair_parse(word_take(&line), &process.pid, &process.start_ticks))
      return false;
    ended->push_back(process);
  }
  return true;
}

bool used_line_parse(std::string_view line, DeviceUse* out) {
  if (line.substr(0, kUsed.size()) != kUsed) return false;
  line.remove_prefix(kUsed.size());
  DeviceUse use;
  const auto uuid = uuid_parse(std::string(word_take(&line)));
  if (!uuid || !number_parse(word_take(&line), &use.bytes)) return false;
  use.gpu = *uuid;
  const std::string_view living = word_take(&line);
  if (living != "-" && !listed_parse(living, &line, &use.listed.emplace())) return false;
  if (!line.empty()) {
    if (word_take(&line) != kBusy.substr(1)) return false;
    use.busy_known = true;
  }
  while (!line.empty()) {
    std::uint32_t pid = 0;
    if (use.busy.size() == kBusyMax || !number_parse(word_take(&line), &pid)) return false;
    use.busy.push_back(pid);
  }
  *out = std::move(use);
  return true;
}

LossWatch::LossWatch(std::string program, const char* const* environment,
                     const std::vector<protocol::GpuUuid>& gpus, std::int64_t period_ms) {
  options_.program = std::move(program);
  options_.environment = probe_environment(environment);
  options_.arguments = {"--watch", std::to_string(period_ms)};
  options_.input = true;
  for (const protocol::GpuUuid& uuid : gpus) options_.arguments.push_back(uuid_format(uuid));
}

LossWatch::~LossWatch() {
  if (child_.output) kill(-child_.pid, SIGKILL);
  if (child_.output) waitpid(child_.pid, nullptr, WNOHANG);
  for (const pid_t pid : leaving_) waitpid(pid, nullptr, WNOHANG);
}

void LossWatch::start(std::int64_t now_ms, News* news) {
  const int fault = child_start(options_, &child_);
  if (fault == 0 && fcntl(child_.output.get(), F_SETFL, O_NONBLOCK) == 0) return;
  if (fault == 0)
    end(now_ms, "its pipe cannot be read", news);
  else
    end(now_ms, std::strerror(-fault), news);
}

/// Why it was not better; the next one comes later.
void LossWatch::end(std::int64_t now_ms, const std::string& why, News* news) {
  if (child_.output) {
    kill(-child_.pid, SIGKILL);
    leaving_.push_back(child_.pid);
    child_.output.reset();
    child_.input.reset();
  }
  text_.clear();
  start_at_ms_ = now_ms + kStartAgain_ms;
  if (!told_) news->fault = why;
  told_ = true;
}

void LossWatch::lines_take(News* news) {
  for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
    const std::string line = text_.substr(0, end);
    protocol::GpuUuid uuid;
    Used used;
    if (loss_line_parse(line, &uuid)) news->lost.push_back(uuid);
    if (used_line_parse(line, &used)) news->used.push_back(used);
    if (unknown_line_parse(line, &uuid)) news->unknown.push_back(uuid);
    text_.erase(0, end + 1);
  }
}

bool LossWatch::ask_used(const protocol::GpuUuid& gpu, const std::vector<EndedProcess>& ended) {
  if (!child_.input) return false;
  const std::string line = use_question(gpu, ended) + "\n";
  return send(child_.input.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

LossWatch::News LossWatch::look(std::int64_t now_ms) {
  News news;
  if (options_.program.empty()) return news;
  std::erase_if(leaving_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
  if (!child_.output && now_ms >= start_at_ms_) start(now_ms, &news);
  if (!child_.output) return news;
  char buffer[kReadBytes];
  ssize_t got = 0;
  while ((got = read(child_.output.get(), buffer, sizeof buffer)) > 0) {
    text_.append(buffer, static_cast<std::size_t>(got));
    lines_take(&news);
    if (text_.size() > kLossLineBytesMax) text_.clear();
  }
  if (got == 0)
    end(now_ms, "sluice-probe --watch has ended", &news);
  else if (errno != EAGAIN && errno != EINTR)
    end(now_ms, std::strerror(errno), &news);
  return news;
}

}  // namespace sluice::devices

// Starting, reading without waiting, ending.
#include "broker/devices/loss_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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
constexpr std::size_t kLossLineBytesMax = 256;

}  // namespace

std::string loss_line(const protocol::GpuUuid& uuid) {
  return std::string(kLost) + uuid_format(uuid);
}

bool loss_line_parse(std::string_view line, protocol::GpuUuid* out) {
  if (line.substr(0, kLost.size()) != kLost) return false;
  const auto uuid = uuid_parse(std::string(line.substr(kLost.size())));
  if (uuid) *out = *uuid;
  return uuid.has_value();
}

std::string used_line(const protocol::GpuUuid& uuid, std::uint64_t bytes) {
  return std::string(kUsed) + uuid_format(uuid) + " " + std::to_string(bytes);
}

bool used_line_parse(std::string_view line, protocol::GpuUuid* out, std::uint64_t* bytes) {
  if (line.substr(0, kUsed.size()) != kUsed) return false;
  line.remove_prefix(kUsed.size());
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos) return false;
  const auto uuid = uuid_parse(std::string(line.substr(0, blank)));
  const std::string_view number = line.substr(blank + 1);
  const char* const end = number.data() + number.size();
  std::uint64_t value = 0;
  const auto [at, fault] = std::from_chars(number.data(), end, value);
  if (!uuid || number.empty() || fault != std::errc{} || at != end) return false;
  *out = *uuid;
  *bytes = value;
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
    if (used_line_parse(line, &used.gpu, &used.bytes)) news->used.push_back(used);
    text_.erase(0, end + 1);
  }
}

bool LossWatch::ask_used(const protocol::GpuUuid& gpu) {
  if (!child_.input) return false;
  const std::string line = uuid_format(gpu) + "\n";
  return send(child_.input.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

LossWatch::News LossWatch::look(std::int64_t now_ms) {
  News news;
  if (options_.program.empty()) return news;
  std::erase_if(leaving_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
  if (!child_.output && now_ms >= start_at_ms_) start(now_ms, &news);
  if (!child_.output) return news;
  char buffer[kLossLineBytesMax];
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

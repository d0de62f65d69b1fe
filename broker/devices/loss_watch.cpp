// Starting, reading without waiting, ending.
#include "broker/devices/loss_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "broker/devices/probe.h"
#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

// A helper that cannot live is not started over and over: NVML may take a while, and all of it.
constexpr std::int64_t kStartAgain_ms = 30'000;
constexpr std::string_view kLost = "lost ";
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

LossWatch::LossWatch(std::string program, const char* const* environment,
                     const std::vector<protocol::GpuUuid>& gpus, std::int64_t period_ms) {
  options_.program = std::move(program);
  options_.environment = probe_environment(environment);
  options_.arguments = {"--watch", std::to_string(period_ms)};
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
  }
  text_.clear();
  start_at_ms_ = now_ms + kStartAgain_ms;
  if (!told_) news->fault = why;
  told_ = true;
}

void LossWatch::lines_take(News* news) {
  for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
    protocol::GpuUuid uuid;
    if (loss_line_parse(text_.substr(0, end), &uuid)) news->lost.push_back(uuid);
    text_.erase(0, end + 1);
  }
}

LossWatch::News LossWatch::look(std::int64_t now_ms) {
  News news;
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

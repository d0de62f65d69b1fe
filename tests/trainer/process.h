// Runs the trainer's programs as people do: a child process with arguments, its output, its exit,
// all within a deadline.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/base/clock.h"

namespace sluice::tests {

/// Seconds for one run on a busy machine.
#ifdef __SANITIZE_THREAD__
inline constexpr double kPatience = 240;  // ThreadSanitizer takes several times as long
#else
inline constexpr double kPatience = 90;
#endif

/// A program of this build: bin/NAME beside the directory of the tests.
inline std::string program_path(const std::string& name) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (here.parent_path() / "bin" / name).string();
}

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The lines of a job log; a line that is no JSON fails the test.
inline std::vector<nlohmann::json> log_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
    EXPECT_FALSE(lines.back().is_discarded()) << line;
  }
  return lines;
}

inline std::vector<nlohmann::json> log_events(const std::string& path, const std::string& event) {
  std::vector<nlohmann::json> out;
  for (nlohmann::json& line : log_lines(path)) {
    if (line.value("event", "") == event) out.push_back(std::move(line));
  }
  return out;
}

/// A directory per test, removed with it.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    path_ = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Child {
 public:
  Child(const std::vector<std::string>& command, const ScratchDirectory& scratch,
        const std::vector<std::string>& environment = {})
      : out_(scratch.file("stdout")), err_(scratch.file("stderr")) {
    std::vector<std::string> words = command;
    words[0] = program_path(words[0]);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    std::vector<std::string> settings = environment;
    pid_ = fork();
    if (pid_ == 0) {
      for (std::string& setting : settings) putenv(setting.data());
      output_to(out_, STDOUT_FILENO);
      output_to(err_, STDERR_FILENO);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const { return file_text(out_); }
  std::string err() const { return file_text(err_); }

  /// Exit code, 128+n when killed by signal n, or -1 when it did not end in time.
  int wait(double seconds) {
    const train::Nanos deadline = train::now_ns() + train::nanos_of_seconds(seconds);
    while (train::now_ns() < deadline) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      train::sleep_until(train::now_ns() + 5 * train::kNanosPerMilli);
    }
    return -1;
  }

  /// Pids of its children (the ranks).
  std::vector<pid_t> children() const {
    const std::string task = "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_);
    std::ifstream file(task + "/children");
    return {std::istream_iterator<pid_t>(file), std::istream_iterator<pid_t>()};
  }

 private:
  static void output_to(const std::string& path, int as) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, as);
    close(fd);
  }

  std::string out_;
  std::string err_;
  pid_t pid_ = -1;
};

/// Waits until the log has `count` lines of `event`; false when that takes too long.
inline bool log_await(const std::string& path, const std::string& event, std::size_t count,
                      double seconds) {
  const std::string wanted = "{\"event\":\"" + event + "\"";
  const train::Nanos deadline = train::now_ns() + train::nanos_of_seconds(seconds);
  while (train::now_ns() < deadline) {
    const std::string text = file_text(path);
    std::size_t found = 0;
    for (std::size_t at = text.find(wanted); at != std::string::npos;
         at = text.find(wanted, at + 1)) {
      ++found;
    }
    if (found >= count) return true;
    train::sleep_until(train::now_ns() + 10 * train::kNanosPerMilli);
  }
  return false;
}

/// True once no process has this pid, or only an unreaped one.
inline bool process_gone(pid_t pid, double seconds) {
  const train::Nanos deadline = train::now_ns() + train::nanos_of_seconds(seconds);
  while (train::now_ns() < deadline) {
    const std::string stat = file_text("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t name_end = stat.rfind(')');
    if (stat.empty() || stat.substr(name_end + 2, 1) == "Z") return true;
    train::sleep_until(train::now_ns() + 10 * train::kNanosPerMilli);
  }
  return false;
}

}  // namespace sluice::tests

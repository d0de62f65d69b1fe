#include "trainer/lab/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace sluice::lab {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_make(const Command& command) {
  std::map<std::string, std::string> merged;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) merged[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  for (const std::string& name : command.unset) merged.erase(name);
  for (const auto& [name, value] : command.set) merged[name] = value;
  std::vector<std::string> out;
  for (const auto& [name, value] : merged) out.push_back(name + "=" + value);
  return out;
}

// In the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void child_exec(int output_fd, int error_fd, pid_t parent, char** argv, char** envp) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(in, STDIN_FILENO);
  dup2(output_fd, STDOUT_FILENO);
  dup2(output_fd, STDERR_FILENO);
  execve(argv[0], argv, envp);
  const int error = errno;
  [[maybe_unused]] const ssize_t n = write(error_fd, &error, sizeof error);
  _exit(127);
}

}  // namespace

std::int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

void sleep_ms(int ms) {
  timespec t{ms / 1000, static_cast<long>(ms % 1000) * 1'000'000};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

std::optional<Child> Child::start(const Command& command, std::string* error) {
  std::vector<std::string> arguments = command.argv;
  std::vector<std::string> environment = environment_make(command);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  const char* path = command.output_path.empty() ? "/dev/null" : command.output_path.c_str();
  const int output = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  int report[2];
  if (output < 0 || pipe2(report, O_CLOEXEC) != 0) {
    *error = std::string("cannot open ") + path + ": " + std::strerror(errno);
    if (output >= 0) close(output);
    return std::nullopt;
  }
  const pid_t parent = getpid();
  const std::int64_t started = now_ns();
  const pid_t pid = fork();
  if (pid == 0)
    child_exec(output, report[1], parent, const_cast<char**>(argv.data()),
               const_cast<char**>(envp.data()));
  close(output);
  close(report[1]);
  int exec_error = pid < 0 ? errno : 0;
  if (pid > 0) {
    setpgid(pid, pid);
    if (read(report[0], &exec_error, sizeof exec_error) > 0) waitpid(pid, nullptr, 0);
  }
  close(report[0]);
  if (exec_error != 0) {
    *error = "cannot start " + command.argv[0] + ": " + std::strerror(exec_error);
    return std::nullopt;
  }
  return Child(pid, started);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), started_ns_(other.started_ns_), status_(other.status_) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(started_ns_, other.started_ns_);
  std::swap(status_, other.status_);
  return *this;
}

Child::~Child() {
  if (pid_ > 0) end(0);
}

std::optional<int> Child::poll() {
  if (status_ || pid_ < 0) return status_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return status_;
}

std::optional<int> Child::wait(int timeout_ms) {
  const std::int64_t deadline = now_ns() + std::int64_t{timeout_ms} * 1'000'000;
  while (!poll() && now_ns() < deadline) sleep_ms(5);
  return poll();
}

void Child::signal(int number) {
  if (!status_ && pid_ > 0) kill(-pid_, number);
}

bool Child::end(int grace_ms) {
  bool gently = true;
  if (!poll()) {
    signal(SIGTERM);
    if (!wait(grace_ms)) {
      gently = false;
      signal(SIGKILL);
      wait(5000);
    }
  }
  // Whatever of the group outlived its leader (a rank of a killed trainer) goes too.
  kill(-pid_, SIGKILL);
  return gently;
}

std::optional<std::string> command_output(const Command& command, int timeout_ms,
                                          std::string* error) {
  char path[] = "/tmp/sluice-lab-XXXXXX";
  const int fd = mkstemp(path);
  if (fd < 0) {
    *error = std::string("cannot make a temporary file: ") + std::strerror(errno);
    return std::nullopt;
  }
  close(fd);
  Command redirected = command;
  redirected.output_path = path;
  std::optional<Child> child = Child::start(redirected, error);
  std::optional<int> status;
  if (child) status = child->wait(timeout_ms);
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  unlink(path);
  if (!child) return std::nullopt;
  if (status != 0) {
    *error = command.argv[0] +
             (status ? " ended with status " + std::to_string(*status) : " did not end in time") +
             ": " + text.str();
    return std::nullopt;
  }
  return text.str();
}

}  // namespace sluice::lab

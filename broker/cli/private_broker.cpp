// Directory, double fork, and the word on the ready pipe.
#include "broker/cli/private_broker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "broker/cli/environment.h"
#include "broker/cli/paths.h"
#include "broker/cli/stale_directories.h"
#include "broker/devices/fd.h"

extern char** environ;

namespace sluice::cli {
namespace {

constexpr int kReadyFd = 3;
constexpr std::int64_t kReady_ms = 90'000;  // the broker gives its probe a minute

// $XDG_RUNTIME_DIR is the user's own and goes at logout; else /tmp, with a name nobody can foresee.
// mkdtemp makes 0700.
std::string directory_make() {
  const char* runtime = secure_getenv("XDG_RUNTIME_DIR");
  for (const char* parent : {runtime, "/tmp"}) {
    if (parent == nullptr || parent[0] != '/') continue;
    stale_directories_remove(parent);
    std::string path = std::string(parent) + "/" + kPrivateDirectory;
    if (mkdtemp(path.data()) != nullptr) return path;
  }
  return "";
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// The broker works in "/". It and the program must find the same software GPUs, so paths that the
// user gave from the present directory are made whole, for both.
bool soft_paths_complete(std::string* error) {
  for (const char* name : {"SOFTGPU_DIR", "SOFTGPU_PROFILE", "SOFTGPU_LOG"}) {
    const char* given = getenv(name);
    if (given == nullptr || given[0] == '\0' || given[0] == '/') continue;
    const bool level = given[0] >= '0' && given[0] <= '2' && given[1] == '\0';
    if (level && std::strcmp(name, "SOFTGPU_LOG") == 0) continue;
    std::error_code failed;
    const std::string whole = std::filesystem::absolute(given, failed).string();
    if (!failed && setenv(name, whole.c_str(), 1) == 0) continue;
    *error = std::string(name) + "=" + given +
             " is relative, and the present directory has no path; give an absolute path";
    return false;
  }
  return true;
}

// In the grandchild: no terminal, no inherited descriptor but the ready pipe, default signals.
[[noreturn]] void broker_exec(int ready_fd, char** argv, char** envp) {
  // Out of the way of the number that it is to have, and of those that are given away first.
  const int kept = fcntl(ready_fd, F_DUPFD, kReadyFd + 1);
  const int null_fd = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null_fd, fd);
  dup2(kept, kReadyFd);
  syscall(SYS_close_range, kReadyFd + 1, ~0u, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number = 1; number < 32; ++number) signal(number, SIG_DFL);
  if (chdir("/") < 0) _exit(127);
  execve(argv[0], argv, envp);
  _exit(127);
}

std::int64_t clock_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// Everything until the writer closes.
std::string word_read(int fd) {
  std::string word;
  char buffer[1024];
  const std::int64_t deadline = clock_ms() + kReady_ms;
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    const std::int64_t left = deadline - clock_ms();
    if (left <= 0 || word.size() > sizeof buffer * 16) return word;
    if (poll(&p, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got <= 0) return word;
    word.append(buffer, static_cast<std::size_t>(got));
  }
}

std::string word_explain(std::string word) {
  while (!word.empty() && word.back() == '\n') word.pop_back();
  constexpr char kPrefix[] = "sluice: ";
  if (word.compare(0, sizeof kPrefix - 1, kPrefix) == 0) word.erase(0, sizeof kPrefix - 1);
  return word.empty() ? "a private broker could not be started (" + program_path("sluiced") +
                            " does not run or does not answer); reinstall Sluice, or run sluiced "
                            "by hand to see why"
                      : word;
}

}  // namespace

bool private_broker_start(const PrivateBrokerOptions& options, std::string* socket,
                          std::string* error) {
  if (!soft_paths_complete(error)) return false;
  const std::string directory = directory_make();
  if (directory.empty()) {
    *error =
        std::string("cannot make a directory for a private broker in XDG_RUNTIME_DIR or /tmp: ") +
        std::strerror(errno) + "; free some space or check the permissions";
    return false;
  }
  *socket = directory + "/" + kPrivateSocket;
  std::vector<std::string> arguments = {program_path("sluiced"),
                                        "--private",
                                        "--socket",
                                        *socket,
                                        "--log",
                                        directory + "/log",
                                        "--ready-fd",
                                        std::to_string(kReadyFd)};
  Environment environment = environment_read(environ);
  environment_leave(&environment);
  if (options.soft != 0) environment_soften(&environment, soft_directory(), options.soft);
  std::vector<std::string> settings = environment_strings(environment);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(settings);

  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
    *error = std::string("cannot start a private broker: ") + std::strerror(errno) +
             "; raise the limit (ulimit -n)";
    rmdir(directory.c_str());
    return false;
  }
  devices::Fd reader(pipe_fds[0]);
  devices::Fd writer(pipe_fds[1]);
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    if (fork() == 0)
      broker_exec(writer.get(), const_cast<char**>(argv.data()), const_cast<char**>(envp.data()));
    _exit(0);
  }
  writer.reset();
  if (child > 0) waitpid(child, nullptr, 0);
  const std::string word = child > 0 ? word_read(reader.get()) : "";
  if (word == "ready\n") return true;
  *error = word_explain(word);
  unlink((directory + "/log").c_str());
  unlink((*socket + ".lock").c_str());
  unlink(socket->c_str());
  rmdir(directory.c_str());
  return false;
}

}  // namespace sluice::cli

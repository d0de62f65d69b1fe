// fork, exec, read until the pipe closes or time is up, reap. The child gets a process group of its
// own so that a kill reaches whatever it started.
#include "broker/devices/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "broker/devices/fd.h"

namespace sluice::devices {
namespace {

std::int64_t clock_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void child_exec(const ChildOptions& options, int in_fd, int out_fd, char** argv,
                             char** envp) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The broker may go before others (config/systemd); what asks a driver or copies memory does not.
  if (getpriority(PRIO_PROCESS, 0) < 0) setpriority(PRIO_PROCESS, 0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(out_fd, STDOUT_FILENO);
  if (in_fd < 0) in_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (in_fd >= 0) dup2(in_fd, STDIN_FILENO);
  execve(options.program.c_str(), argv, envp);
  _exit(127);
}

// Reads until end of file; false when the deadline came first.
bool output_collect(int fd, const ChildOptions& options, std::int64_t deadline, std::string* out) {
  char buffer[4096];
  for (;;) {
    const std::int64_t left = deadline - clock_ms();
    if (left <= 0) return false;
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(&p, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got == 0) return true;
    if (got < 0 && errno != EINTR) return true;
    if (got > 0 && out->size() < options.output_bytes_max)
      out->append(buffer, static_cast<std::size_t>(got));
  }
}

// The pipe is closed: the child normally ends at once, but it may close its output and hang.
bool child_wait(pid_t pid, std::int64_t deadline, int* status) {
  for (;;) {
    const pid_t done = waitpid(pid, status, WNOHANG);
    if (done == pid) return true;
    if (done < 0 && errno != EINTR) return true;
    if (clock_ms() >= deadline) return false;
    poll(nullptr, 0, 1);
  }
}

}  // namespace

int child_start(const ChildOptions& options, ChildProcess* out) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) < 0) return -errno;
  Fd reader(pipe_fds[0]);
  const Fd writer(pipe_fds[1]);
  // A socket and not a pipe: who writes to a child that is gone gets an error and no signal.
  int socket_fds[2] = {-1, -1};
  if (options.input && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socket_fds) < 0)
    return -errno;
  Fd input(socket_fds[0]);
  const Fd input_end(socket_fds[1]);
  std::vector<std::string> arguments = options.arguments;
  arguments.insert(arguments.begin(), options.program);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(options.environment);
  const pid_t pid = fork();
  if (pid < 0) return -errno;
  if (pid == 0)
    child_exec(options, input_end.get(), writer.get(), const_cast<char**>(argv.data()),
               const_cast<char**>(envp.data()));
  setpgid(pid, pid);  // here as well: whoever kills the group next must find it
  out->pid = pid;
  out->output = std::move(reader);
  out->input = std::move(input);
  return 0;
}

ChildResult child_run(const ChildOptions& options) {
  ChildResult result;
  ChildProcess child;
  if (const int fault = child_start(options, &child); fault != 0) {
    result.status = -fault;
    return result;
  }
  const std::int64_t deadline = clock_ms() + options.deadline_ms;
  int status = 0;
  if (!output_collect(child.output.get(), options, deadline, &result.output) ||
      !child_wait(child.pid, deadline, &status)) {
    kill(-child.pid, SIGKILL);
    waitpid(child.pid, &status, 0);
    result.end = ChildResult::End::kTimedOut;
    return result;
  }
  result.end = WIFEXITED(status) ? ChildResult::End::kExited : ChildResult::End::kSignalled;
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
  return result;
}

}  // namespace sluice::devices

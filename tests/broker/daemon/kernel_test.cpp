// What the broker says on a kernel that lacks something, and that the program says it.
#include "broker/daemon/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <string>

#include "broker/daemon/pages.h"

namespace sluice::daemon {
namespace {

/// From now on a system call whose `argument` is `value` answers an error.
bool refuse(long call, unsigned argument, unsigned value, unsigned error) {
  constexpr unsigned kNumber = offsetof(seccomp_data, nr);
  const auto at = static_cast<unsigned>(offsetof(seccomp_data, args)) + 8 * argument;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof *program, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// What a child writes that runs `body`; its exit code is behind it.
std::string said(const std::function<void()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char bytes[512];
  for (ssize_t n = 0; (n = read(ends[0], bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  return text + "exit " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

void write_lacks() {
  const std::string text = kernel_lacks() + "\n";
  (void)!write(1, text.data(), text.size());
}

constexpr char kToDo[] =
    "; use Linux 5.3 or later and permit it, or run programs without a broker under SLUICE_MEMORY "
    "and SLUICE_SM\n";

TEST(Kernel, HasAllThatTheBrokerNeeds) { EXPECT_EQ(kernel_lacks(), ""); }

TEST(Kernel, IsToldToLackWhatItRefuses) {
  EXPECT_EQ(said([] {
              if (refuse(SYS_pidfd_open, 1, 0, ENOSYS)) write_lacks();
            }),
            "this kernel, or a filter for system calls, refuses pidfd_open (Function not "
            "implemented), by which the broker knows who has ended" +
                std::string(kToDo) + "exit 0");
  EXPECT_EQ(said([] {
              if (refuse(SYS_pidfd_send_signal, 3, 0, EPERM)) write_lacks();
            }),
            "this kernel, or a filter for system calls, refuses pidfd_send_signal (Operation not "
            "permitted), by which the broker ends a job and nobody else" +
                std::string(kToDo) + "exit 0");
  EXPECT_EQ(said([] {
              if (refuse(SYS_fcntl, 2, kLeaseSeals, EINVAL)) write_lacks();
            }),
            "this kernel, or a filter for system calls, refuses F_SEAL_FUTURE_WRITE (Invalid "
            "argument), by which jobs cannot write their own leases" +
                std::string(kToDo) + "exit 0");
}

TEST(Kernel, IsAskedBeforeTheBrokerBegins) {
  const std::string text = said([] {
    if (refuse(SYS_pidfd_open, 1, 0, ENOSYS))
      execl(SLUICED, SLUICED, "--socket", "/nonexistent/broker.sock", nullptr);
  });
  EXPECT_NE(text.find("sluice: this kernel, or a filter for system calls, refuses pidfd_open"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("exit 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::daemon

/* Runs a program and lets one of its system calls fail, chosen by number while it runs.
 *
 *   fault_tracer CONTROL MARK PROGRAM [ARGUMENT ...]
 *
 * CONTROL is a file of six 64-bit words that the test has mapped as well:
 *   0  arm: 0 = nothing fails; k = the k-th call counted from now on fails, once (k is then set to
 * 0) 1  calls counted since it was last armed 2  number of the call that failed, plus 1; 0 = none
 * has yet 3  the program's process 4  calls that are counted at all: 0 until the program opens a
 * path that ends in MARK 5  1 = instead of the call's failing the program is killed there, whatever
 * call it is The calls of the program's threads are counted, not those of its children. A call that
 * fails is not made, apart from close, which the kernel always carries out. Each fails with an
 * error that its manual names for want of something: descriptors, memory, space.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
int main(void) {
  fputs("skipped: system calls are made to fail on x86-64 only\n", stderr);
  return 77;
}
#else

static pid_t child;
static volatile uint64_t* control;

static void pass_on(int signal) { kill(child, signal); }

/* 0 = this call does not fail in a way that a program could meet. */
static int error_of(long number) {
  switch (number) {
    case SYS_openat:
    case SYS_open:
    case SYS_accept4:
    case SYS_socket:
    case SYS_memfd_create:
    case SYS_epoll_create1:
    case SYS_timerfd_create:
    case SYS_signalfd4:
    case SYS_pidfd_open:
    case SYS_dup:
    case SYS_pipe2:
    case SYS_fcntl:
      return EMFILE;
    case SYS_mmap:
    case SYS_epoll_ctl:
    case SYS_getsockopt:
    case SYS_setsockopt:
    case SYS_poll:
    case SYS_vfork:
    case SYS_clone:
    case SYS_clone3:
    case SYS_brk:
      return ENOMEM;
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_ftruncate:
    case SYS_mkdir:
    case SYS_rename:
      return ENOSPC;
    case SYS_sendmsg:
    case SYS_sendto:
      return ENOBUFS;
    case SYS_recvmsg:
      return ENOMEM;
    case SYS_epoll_wait:
    case SYS_close:
      return EINTR;
    case SYS_read:
    case SYS_pread64:
    case SYS_newfstatat:
    case SYS_fstat:
    case SYS_readlink:
    case SYS_getdents64:
    case SYS_unlink:
    case SYS_chmod:
    case SYS_flock:
    case SYS_bind:
    case SYS_listen:
    case SYS_ioctl:
    case SYS_access:
    case SYS_prlimit64:
      return EIO;
    default:
      return 0;
  }
}

static int marked(pid_t thread, const struct user_regs_struct* regs, const char* mark) {
  if (regs->orig_rax != SYS_openat) return 0;
  char path[256] = {0};
  for (size_t have = 0; have + 8 < sizeof path; have += 8) {
    const long word = ptrace(PTRACE_PEEKDATA, thread, (void*)(regs->rsi + have), NULL);
    memcpy(path + have, &word, sizeof word);
    if (memchr(&word, 0, sizeof word) != NULL) break;
  }
  const size_t length = strlen(path), wanted = strlen(mark);
  return length >= wanted && strcmp(path + length - wanted, mark) == 0;
}

/* At the entry of a call. The error with which it is to fail, or 0. */
static int enter(pid_t thread, struct user_regs_struct* regs, const char* mark) {
  if (control[4] == 0) {
    if (!marked(thread, regs, mark)) return 0;
    control[4] = 1;
  }
  const int kills = control[5] != 0;
  const int error = error_of((long)regs->orig_rax);
  if ((error == 0 && !kills) || control[0] == 0) return 0;
  control[1] = control[1] + 1;
  if (control[1] != control[0]) return 0;
  control[0] = 0;
  control[2] = regs->orig_rax + 1;
  if (kills) {
    kill(child, SIGKILL);
    return 0;
  }
  if (regs->orig_rax == SYS_close) return error;
  regs->orig_rax = (unsigned long long)-1;
  ptrace(PTRACE_SETREGS, thread, NULL, regs);
  return error;
}

/* A thread that is traced, and the call that it is in. */
struct Thread {
  pid_t id; /* 0 = none */
  int inside, error;
};

static struct Thread* thread_of(pid_t id) {
  static struct Thread threads[64]; /* the broker has a few */
  struct Thread* unused = NULL;
  for (size_t i = 0; i < sizeof threads / sizeof *threads; ++i) {
    if (threads[i].id == id) return &threads[i];
    if (threads[i].id == 0) unused = &threads[i];
  }
  if (unused == NULL) exit(70);
  *unused = (struct Thread){id, 0, 0};
  return unused;
}

/* At the entry or the exit of a call. */
static void call_stop(struct Thread* thread, const char* mark) {
  struct user_regs_struct regs;
  if (ptrace(PTRACE_GETREGS, thread->id, NULL, &regs) < 0) return;
  if (!thread->inside) {
    thread->error = enter(thread->id, &regs, mark);
  } else if (thread->error != 0) {
    regs.rax = (unsigned long long)-thread->error;
    ptrace(PTRACE_SETREGS, thread->id, NULL, &regs);
    thread->error = 0;
  }
  thread->inside = !thread->inside;
}

static int trace(const char* mark) {
  if (ptrace(PTRACE_SYSCALL, child, NULL, NULL) < 0) return 70;
  for (;;) {
    int status;
    const pid_t id = waitpid(-1, &status, __WALL);
    if (id < 0 && errno == EINTR) continue;
    if (id < 0) return 70;
    struct Thread* thread = thread_of(id);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (id == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      thread->id = 0;
      continue;
    }
    int pass = WSTOPSIG(status);
    if (pass == (SIGTRAP | 0x80)) {
      call_stop(thread, mark);
      pass = 0;
    } else if (pass == SIGTRAP || pass == SIGSTOP) {
      pass = 0; /* an exec, a new thread */
    }
    if (ptrace(PTRACE_SYSCALL, id, NULL, (void*)(long)pass) < 0 && errno != ESRCH) return 70;
  }
}

int main(int argc, char** argv) {
  if (argc < 4) return 64;
  const int fd = open(argv[1], O_RDWR | O_CLOEXEC);
  if (fd < 0) return 66;
  control = mmap(NULL, 6 * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (control == MAP_FAILED) return 66;
  child = fork();
  if (child < 0) return 71;
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    execv(argv[3], argv + 3);
    _exit(127);
  }
  for (int own = 3; own < 256; ++own) close(own); /* or their other ends would never see an end */
  control[3] = (uint64_t)child;
  signal(SIGTERM, pass_on);
  signal(SIGHUP, pass_on);
  int status;
  if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) return 70;
  ptrace(PTRACE_SETOPTIONS, child, NULL,
         (void*)(long)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC |
                       PTRACE_O_TRACECLONE));
  return trace(argv[2]);
}
#endif

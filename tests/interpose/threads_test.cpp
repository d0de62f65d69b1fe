// The asymmetric protocol where its barrier is taken away in the middle.
#include "interpose/threads.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace sluice::interpose;

bool membarrier_deny() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter = {sizeof code / sizeof *code, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

enum Ended : int { kRight = 0, kNoBarrier, kNoFilter, kUnfencedBefore, kWrong };

// A process of its own, which keeps its filter.
Ended barrier_lost() {
  threads_prepare();
  if (strict_fences != 0) return kNoBarrier;
  ThreadRecord* thread = thread_record();
  const uint32_t lease = 0;
  thread->lease = &lease;
  threads_barrier();
  if (strict_fences != 0 || thread->lease != &lease) return kUnfencedBefore;
  if (!membarrier_deny()) return kNoFilter;
  threads_barrier();
  return strict_fences == 1 && thread->lease == nullptr ? kRight : kWrong;
}

// Nobody may raise a word without a fence any more.
TEST(ThreadsTest, ABarrierThatIsTakenAwayLeavesNoShortWays) {
  const pid_t pid = fork();
  if (pid == 0) _exit(barrier_lost());
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kNoBarrier) GTEST_SKIP() << "no membarrier here";
  if (WEXITSTATUS(status) == kNoFilter) GTEST_SKIP() << "no filters for system calls here";
  EXPECT_EQ(WEXITSTATUS(status), kRight);
}

}  // namespace

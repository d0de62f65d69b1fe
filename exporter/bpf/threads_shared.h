/* What the BPF programs that watch threads and their loader both know: layouts of map entries and
 * records, and what each system call waits for. Plain C types with fixed sizes. */
#pragma once

#include <linux/types.h>

/* Watched at a time; more are not seen, and count as lost. */
#define THREADS_PROCESSES_MAX 8192
#define THREADS_MAX 32768
/* Room for about 80,000 periods between two reads. A power of two, and of pages. */
#define THREADS_RING_BYTES (4 << 20)
/* CPUs with larger numbers share a slot of `sections` with smaller ones. A power of two. */
#define THREADS_CPUS_MAX 1024
/* So many descriptors of a poll, select or epoll are looked at. */
#define THREADS_POLL_MAX 8

/* As WaitKind of exporter/idle/thread_watch.h, whose source asserts it. */
enum thread_wait {
  THREAD_WAIT_NONE,
  THREAD_WAIT_DISK,
  THREAD_WAIT_NETWORK,
  THREAD_WAIT_LOCAL,
  THREAD_WAIT_LOCK,
  THREAD_WAIT_TIMER,
  THREAD_WAIT_DEVICE,
  THREAD_WAIT_OTHER,
  /* Never handed out: a set of internet sockets and local things. Who wakes decides: a process,
   * then it was local; an interrupt, then the network. */
  THREAD_WAIT_MIXED,
};

/* Value of the map `processes`, by number. */
struct thread_process {
  __u32 root;  /* the process of the caller's list that it is or descends from */
  __u32 alive; /* 0: only listed so far, and maybe nobody's number */
};

/* Value of the map `threads`, by number: every thread of a watched process. */
struct thread_now {
  __u64 left_ns;   /* when it left its CPU; 0 while it is on one */
  __u64 waking_ns; /* when it was last woken; counts for this period if not before left_ns */
  __u64 queued_ns; /* for how long it had ever waited for a CPU when it left; 0: not told */
  __u32 process;
  __u32 waker_thread; /* of that waking; 0: an interrupt, or the kernel itself */
  __u32 waker_process;
  __u8 kind;   /* enum thread_wait */
  __u8 asleep; /* 0: it left its CPU and could have gone on */
  __u16 reserved;
};

/* A record of the ring: one period off the CPU, written when the thread is back. */
struct thread_period {
  __u64 left_ns;
  __u64 woken_ns;
  __u64 back_ns;
  __u32 thread;
  __u32 process;
  __u32 waker_thread;
  __u32 waker_process;
  __u32 kind;
  __u32 reserved;
};

/* For each CPU a count that is odd while a program is between taking the time and having written
 * what it says: what a reader that finds all of them even (or changed) reads is complete up to the
 * time it took before. A cache line each. */
struct thread_section {
  __u64 count;
  __u64 pad[7];
};

/* The variables of the programs, mapped by the loader. */
struct thread_shared {
  __u64 lost_periods;    /* for which the ring had no room */
  __u64 lost_threads;    /* for which a map had none; processes among them */
  __u64 found_processes; /* by threads_list: that were not in the map before */
  __u64 pad[5];
  struct thread_section sections[THREADS_CPUS_MAX];
};

/* How a system call is to be looked at to know what it waits for. */
enum thread_call {
  THREAD_CALL_UNKNOWN, /* nothing is known: kOther */
  THREAD_CALL_FD,      /* on the descriptor in its first argument */
  THREAD_CALL_FD2,     /* first or second, whichever is no file: sendfile, splice, tee */
  THREAD_CALL_IOCTL,   /* as FD, but what is no file or socket is a device */
  THREAD_CALL_PATH,    /* names files: sleeping deeply (D) means the disk */
  THREAD_CALL_DISK,    /* waits for writing out, or for asynchronous file I/O */
  THREAD_CALL_LOCK,
  THREAD_CALL_FCNTL, /* a lock for two commands of fcntl */
  THREAD_CALL_TIMER,
  THREAD_CALL_LOCAL, /* messages between processes of this machine */
  THREAD_CALL_POLL,
  THREAD_CALL_SELECT,
  THREAD_CALL_EPOLL,
  THREAD_CALL_URING,   /* may be disk or network, and sets in_iowait for both */
  THREAD_CALL_RESTART, /* goes on with what a signal interrupted */
};

/* Numbers of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl). On other architectures the table is
 * empty: sleeps that are not block I/O are kOther. X(number, name, class without its prefix). */
#if defined(__x86_64__) || defined(__TARGET_ARCH_x86)
/* clang-format off */
#define THREAD_CALLS(X) \
  X(0, read, FD) X(1, write, FD) X(2, open, PATH) X(4, stat, PATH) X(6, lstat, PATH) \
  X(7, poll, POLL) X(16, ioctl, IOCTL) X(17, pread64, FD) X(18, pwrite64, FD) X(19, readv, FD) \
  X(20, writev, FD) X(21, access, PATH) X(23, select, SELECT) X(26, msync, DISK) \
  X(35, nanosleep, TIMER) X(40, sendfile, FD2) X(42, connect, FD) X(43, accept, FD) \
  X(44, sendto, FD) X(45, recvfrom, FD) X(46, sendmsg, FD) X(47, recvmsg, FD) \
  X(59, execve, PATH) X(65, semop, LOCK) X(69, msgsnd, LOCAL) X(70, msgrcv, LOCAL) \
  X(72, fcntl, FCNTL) X(73, flock, LOCK) X(74, fsync, DISK) X(75, fdatasync, DISK) \
  X(76, truncate, PATH) X(77, ftruncate, FD) X(78, getdents, FD) X(82, rename, PATH) \
  X(83, mkdir, PATH) X(84, rmdir, PATH) X(85, creat, PATH) X(86, link, PATH) \
  X(87, unlink, PATH) X(88, symlink, PATH) X(89, readlink, PATH) X(90, chmod, PATH) \
  X(162, sync, DISK) X(187, readahead, FD) X(202, futex, LOCK) X(208, io_getevents, DISK) \
  X(217, getdents64, FD) X(219, restart_syscall, RESTART) X(220, semtimedop, LOCK) \
  X(230, clock_nanosleep, TIMER) X(232, epoll_wait, EPOLL) X(242, mq_timedsend, LOCAL) \
  X(243, mq_timedreceive, LOCAL) X(257, openat, PATH) X(258, mkdirat, PATH) \
  X(262, newfstatat, PATH) X(263, unlinkat, PATH) X(264, renameat, PATH) \
  X(269, faccessat, PATH) X(270, pselect6, SELECT) X(271, ppoll, POLL) X(275, splice, FD2) \
  X(276, tee, FD2) X(277, sync_file_range, DISK) X(278, vmsplice, FD) \
  X(281, epoll_pwait, EPOLL) X(285, fallocate, FD) X(288, accept4, FD) X(295, preadv, FD) \
  X(296, pwritev, FD) X(299, recvmmsg, FD) X(306, syncfs, DISK) X(307, sendmmsg, FD) \
  X(316, renameat2, PATH) X(322, execveat, PATH) X(326, copy_file_range, FD) \
  X(327, preadv2, FD) X(328, pwritev2, FD) X(332, statx, PATH) X(333, io_pgetevents, DISK) \
  X(426, io_uring_enter, URING) X(437, openat2, PATH) X(439, faccessat2, PATH) \
  X(441, epoll_pwait2, EPOLL) X(449, futex_waitv, LOCK) X(455, futex_wait, LOCK)
/* clang-format on */
#else
#define THREAD_CALLS(X)
#endif
#define THREAD_CALLS_MAX 512

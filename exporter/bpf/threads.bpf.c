/* Watches every thread of watched processes from the kernel: when it leaves a CPU, what for, when it
 * is woken and by whom, and when it is back. Only scheduler tracepoints: what a thread waits for is
 * read at the moment it leaves, from its saved registers (system call and arguments) and its table of
 * files. Declares the kernel fields it reads and lets libbpf relocate them (CO-RE), as watch.bpf.c.
 * Threads of other processes cost one failed map lookup for each tracepoint they pass.
 *
 * One record for each period off the CPU goes to the ring `periods` when the thread is back; what
 * still goes on is in the map `threads`. See exporter/idle/thread_watch_bpf.cpp for the other side. */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "threads_shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The few fields that are read; the real structs are much larger. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct counter {
  int counter;
};
struct signal_struct {
  struct counter live;
};
struct inode {
  unsigned short i_mode;
  __u32 i_rdev;
};
struct qstr {
  const unsigned char* name;
};
struct dentry {
  struct qstr d_name;
};
struct path {
  struct dentry* dentry;
};
struct file {
  struct inode* f_inode;
  void* private_data;
  struct path f_path;
};
struct fdtable {
  unsigned int max_fds;
  struct file** fd;
};
struct files_struct {
  struct fdtable* fdt;
};
struct sock_common {
  unsigned short skc_family;
};
struct sock {
  struct sock_common __sk_common;
};
struct socket {
  struct sock* sk;
};
struct rb_node {
  struct rb_node* rb_right;
  struct rb_node* rb_left;
};
struct rb_root {
  struct rb_node* rb_node;
};
struct rb_root_cached {
  struct rb_root rb_root;
};
struct eventpoll {
  struct rb_root_cached rbr;
};
struct epoll_filefd {
  struct file* file;
};
struct epitem {
  struct rb_node rbn;
  struct epoll_filefd ffd;
};
struct thread_info {
  unsigned int status;
};
struct seq_file;
struct bpf_iter_meta {
  struct seq_file* seq;
};
struct sched_info {
  unsigned long long run_delay;
};
struct task_struct {
  struct thread_info thread_info;
  int pid;
  int tgid;
  unsigned int flags;
  unsigned int __state;
  unsigned in_iowait : 1;
  struct files_struct* files;
  struct signal_struct* signal;
  struct task_struct* real_parent;
  struct sched_info sched_info;
};
struct bpf_iter__task {
  struct bpf_iter_meta* meta;
  struct task_struct* task;
};
/* The saved registers of x86-64, by the kernel's names; struct pt_regs itself is declared by libbpf's
 * headers with others. */
struct pt_regs___kernel {
  unsigned long di, si, dx, orig_ax;
};
/* From 6.2 to 6.14 the count of nested interrupts was in here. */
struct pcpu_hot {
  int preempt_count;
};
#pragma clang attribute pop

/* Built three times, and the loader takes the first that the kernel takes: with the count of nested
 * interrupts from one or the other place (needs CONFIG_KALLSYMS_ALL), and without. A kernel that lacks
 * a symbol refuses the whole object, even where it is weak, if the loader has no CAP_SYS_ADMIN. */
#if defined(THREADS_COUNT)
extern const int __preempt_count __ksym;
#elif defined(THREADS_COUNT_HOT)
extern const struct pcpu_hot pcpu_hot __ksym;
#endif

/* include/linux/sched.h, include/linux/preempt.h, arch/x86/include/asm/thread_info.h */
#define STATE_UNINTERRUPTIBLE 2
#define FLAG_EXITING 4
#define FLAG_IO_WORKER 0x10
#define FLAG_KERNEL_THREAD 0x200000
#define COUNT_SERVING_SOFTIRQ 0x100
#define COUNT_HARDIRQ_NMI 0xff0000
#define STATUS_COMPAT 2
/* include/uapi/linux/stat.h, major.h; a device's number is major << 20 | minor */
#define MODE_TYPE 0170000
#define MODE_SOCKET 0140000
#define MODE_REGULAR 0100000
#define MODE_BLOCK 0060000
#define MODE_DIRECTORY 0040000
#define MODE_CHARACTER 0020000
#define MODE_PIPE 0010000
#define FCNTL_SETLKW 7
#define FCNTL_OFD_SETLKW 38

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, THREADS_PROCESSES_MAX);
  __type(key, __u32);
  __type(value, struct thread_process);
} processes SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, THREADS_MAX);
  __type(key, __u32);
  __type(value, struct thread_now);
} threads SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, THREADS_RING_BYTES);
} periods SEC(".maps");

struct thread_shared shared;

static const __u8 calls[THREAD_CALLS_MAX] = {
#define CALL(number, name, class) [number] = THREAD_CALL_##class,
    THREAD_CALLS(CALL)
#undef CALL
};

static __always_inline struct thread_section* section_begin(void) {
  struct thread_section* here = &shared.sections[bpf_get_smp_processor_id() & (THREADS_CPUS_MAX - 1)];
  __sync_fetch_and_add(&here->count, 1);
  return here;
}

/* Nobody else writes it. */
static __always_inline void section_end(struct thread_section* here) { ++here->count; }

static __always_inline struct thread_now* thread_find(struct task_struct* task) {
  if (task->flags & FLAG_KERNEL_THREAD) return 0; /* idle among them */
  __u32 thread = task->pid;
  struct thread_now* found = bpf_map_lookup_elem(&threads, &thread);
  /* A number that was not seen to end may have come to belong to another process. */
  return found && found->process == (__u32)task->tgid ? found : 0;
}

static __always_inline void thread_add(struct task_struct* task, __u64 now) {
  /* New, or new by this number: it can run, and has not been on a CPU yet. */
  struct thread_now fresh = {.left_ns = now, .process = task->tgid};
  __u32 thread = task->pid;
  if (bpf_map_update_elem(&threads, &thread, &fresh, BPF_ANY) != 0)
    __sync_fetch_and_add(&shared.lost_threads, 1);
}

/* ---- what a descriptor of the current task is ----
 *
 * Functions that are not static are verified once each, for any arguments, instead of once for every
 * path that leads to them; what they get are numbers, and what those point to is only probed. */

__noinline __u32 file_wait(__u64 pointer) {
  struct file* file = (void*)pointer;
  struct inode* inode = BPF_CORE_READ(file, f_inode);
  unsigned short mode = BPF_CORE_READ(inode, i_mode) & MODE_TYPE;
  if (mode == MODE_PIPE) return THREAD_WAIT_LOCAL;
  if (mode == MODE_SOCKET) {
    struct socket* socket = BPF_CORE_READ(file, private_data);
    unsigned short family = BPF_CORE_READ(socket, sk, __sk_common.skc_family);
    /* AF_UNIX; AF_INET, AF_INET6, AF_SMC */
    if (family == 1) return THREAD_WAIT_LOCAL;
    return family == 2 || family == 10 || family == 43 ? THREAD_WAIT_NETWORK : THREAD_WAIT_OTHER;
  }
  if (mode == MODE_CHARACTER) {
    /* At the other end of a terminal are people and programs. */
    __u32 major = BPF_CORE_READ(inode, i_rdev) >> 20;
    return major == 4 || major == 5 || (major >= 136 && major <= 143) ? THREAD_WAIT_LOCAL
                                                                      : THREAD_WAIT_DEVICE;
  }
  if (mode == MODE_REGULAR || mode == MODE_BLOCK || mode == MODE_DIRECTORY)
    return THREAD_WAIT_DISK;
  /* Eventfds and the like have no type. */
  char name[8] = {};
  bpf_probe_read_kernel(name, sizeof name, BPF_CORE_READ(file, f_path.dentry, d_name.name));
  return __builtin_memcmp(name, "[timerfd", sizeof name) == 0 ? THREAD_WAIT_TIMER
                                                              : THREAD_WAIT_LOCAL;
}

static __always_inline __u64 file_of(__u32 fd) {
  struct task_struct* task = bpf_get_current_task_btf();
  struct files_struct* files = task->files;
  if (!files) return 0;
  struct fdtable* table = files->fdt;
  __u64 file = 0;
  if (!table || fd >= table->max_fds) return 0;
  bpf_probe_read_kernel(&file, sizeof file, table->fd + fd);
  return file;
}

__noinline __u32 fd_wait(__u32 fd) {
  __u64 file = file_of(fd);
  return file ? file_wait(file) : THREAD_WAIT_OTHER;
}

/* The same of another task, by probing. */
static __always_inline __u64 file_of_task(struct task_struct* task, __u32 fd) {
  struct fdtable* table = BPF_CORE_READ(task, files, fdt);
  __u64 file = 0;
  if (fd >= BPF_CORE_READ(table, max_fds)) return 0;
  bpf_probe_read_kernel(&file, sizeof file, BPF_CORE_READ(table, fd) + fd);
  return file;
}

/* ---- several at once: bits of what is among them ---- */

#define BIT(kind) (1U << ((kind)&15))

static __always_inline __u32 set_wait(__u32 seen) {
  if (seen & BIT(THREAD_WAIT_NETWORK))
    return seen & BIT(THREAD_WAIT_LOCAL) ? THREAD_WAIT_MIXED : THREAD_WAIT_NETWORK;
  if (seen & BIT(THREAD_WAIT_DEVICE)) return THREAD_WAIT_DEVICE;
  if (seen & BIT(THREAD_WAIT_LOCAL)) return THREAD_WAIT_LOCAL;
  if (seen & BIT(THREAD_WAIT_TIMER)) return THREAD_WAIT_TIMER;
  return THREAD_WAIT_OTHER;
}

struct user_pollfd {
  int fd;
  short events, revents;
};

__noinline __u32 poll_wait(__u64 set, __u64 count) {
  __u32 seen = 0;
  __u32 asked = 0;
  for (__u32 i = 0; i < THREADS_POLL_MAX && i < count; ++i) {
    struct user_pollfd one;
    if (bpf_probe_read_user(&one, sizeof one, (struct user_pollfd*)set + i) != 0)
      return THREAD_WAIT_OTHER;
    if (one.fd < 0) continue; /* ignored by poll */
    ++asked;
    seen |= BIT(fd_wait(one.fd));
  }
  return asked == 0 && count <= THREADS_POLL_MAX ? THREAD_WAIT_TIMER : set_wait(seen);
}

/* BPF has no instruction for it. `bits` is not 0. */
__noinline __u32 bit_lowest(__u64 bits) {
  __u32 at = 0;
  for (__u32 half = 32; half; half /= 2) {
    if (bits << (64 - half)) continue;
    bits >>= half;
    at += half;
  }
  return at;
}

/* Descriptors up to 63 only: the first word of each set. */
__noinline __u32 select_wait(__u32 count, __u64 reads, __u64 writes) {
  __u64 word = 0, bits = 0;
  __u32 seen = 0;
  if (count == 0 || (!reads && !writes)) return THREAD_WAIT_TIMER;
  if (reads && bpf_probe_read_user(&bits, sizeof bits, (void*)reads) != 0)
    return THREAD_WAIT_OTHER;
  if (writes && bpf_probe_read_user(&word, sizeof word, (void*)writes) == 0) bits |= word;
  if (count < 64) bits &= (1ULL << count) - 1;
  if (bits == 0) return count <= 64 ? THREAD_WAIT_TIMER : THREAD_WAIT_OTHER;
  for (int i = 0; i < THREADS_POLL_MAX && bits; ++i) {
    seen |= BIT(fd_wait(bit_lowest(bits)));
    bits &= bits - 1;
  }
  return set_wait(seen);
}

static __always_inline __u32 item_wait(struct rb_node* node) {
  struct epitem* item = (void*)node - bpf_core_field_offset(struct epitem, rbn);
  struct file* file = BPF_CORE_READ(item, ffd.file);
  return file ? BIT(file_wait((__u64)file)) : 0;
}

/* The upper three levels of the tree of what is watched: root, its children, theirs. */
__noinline __u32 epoll_items_wait(__u64 pointer) {
  struct file* file = (void*)pointer;
  if (!file) return THREAD_WAIT_LOCAL;
  struct eventpoll* poll = BPF_CORE_READ(file, private_data);
  struct rb_node* queue[7] = {BPF_CORE_READ(poll, rbr.rb_root.rb_node)};
  __u32 seen = 0;
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    struct rb_node* node = queue[i];
    if (!node) continue;
    seen |= item_wait(node);
    if (i < 3) {
      queue[2 * i + 1] = BPF_CORE_READ(node, rb_left);
      queue[2 * i + 2] = BPF_CORE_READ(node, rb_right);
    }
  }
  return seen ? set_wait(seen) : THREAD_WAIT_LOCAL;
}

static __always_inline __u32 epoll_wait(__u32 fd) { return epoll_items_wait(file_of(fd)); }

/* ---- what the current thread goes to sleep for ---- */

static __always_inline __u32 call_wait(__u32 class, __u32 before, __u64 a, __u64 b, __u64 c) {
  __u32 kind;
  switch (class) {
    case THREAD_CALL_FD: return fd_wait(a);
    case THREAD_CALL_FD2:
      kind = fd_wait(a);
      return kind == THREAD_WAIT_DISK || kind == THREAD_WAIT_OTHER ? fd_wait(b) : kind;
    case THREAD_CALL_IOCTL:
      kind = fd_wait(a);
      return kind == THREAD_WAIT_DISK || kind == THREAD_WAIT_NETWORK ? kind : THREAD_WAIT_DEVICE;
    case THREAD_CALL_DISK: return THREAD_WAIT_DISK;
    case THREAD_CALL_LOCK: return THREAD_WAIT_LOCK;
    case THREAD_CALL_FCNTL:
      return b == FCNTL_SETLKW || b == FCNTL_OFD_SETLKW ? THREAD_WAIT_LOCK : THREAD_WAIT_OTHER;
    case THREAD_CALL_TIMER: return THREAD_WAIT_TIMER;
    case THREAD_CALL_LOCAL: return THREAD_WAIT_LOCAL;
    case THREAD_CALL_POLL: return poll_wait(a, b);
    case THREAD_CALL_SELECT: return select_wait(a, b, c);
    case THREAD_CALL_EPOLL: return epoll_wait(a);
    case THREAD_CALL_RESTART: return before;
    default: return THREAD_WAIT_OTHER;
  }
}

/* 32-bit programs have other numbers, and kernel threads no registers. */
static __always_inline __u32 call_class(struct task_struct* task, unsigned long call) {
#ifdef __TARGET_ARCH_x86
  if (call < THREAD_CALLS_MAX && !(task->flags & (FLAG_IO_WORKER | FLAG_KERNEL_THREAD)) &&
      !(task->thread_info.status & STATUS_COMPAT))
    return calls[call];
#endif
  return THREAD_CALL_UNKNOWN;
}

/* The saved registers as far as they matter; call: -1 in a page fault. */
struct call_registers {
  __u64 call, a, b, c;
};

static __always_inline void registers_read(struct task_struct* task, struct call_registers* out) {
#ifdef __TARGET_ARCH_x86
  struct pt_regs___kernel* regs = (void*)bpf_task_pt_regs(task);
  *out = (struct call_registers){regs->orig_ax, regs->di, regs->si, regs->dx};
#else
  *out = (struct call_registers){-1};
#endif
}

/* What is known without the call's arguments; THREAD_WAIT_MIXED: that has to be looked at. */
static __always_inline __u32 state_wait(struct task_struct* task, __u32 class, long state) {
  if (class != THREAD_CALL_URING && BPF_CORE_READ_BITFIELD(task, in_iowait))
    return THREAD_WAIT_DISK;
  if (class == THREAD_CALL_PATH)
    return state & STATE_UNINTERRUPTIBLE ? THREAD_WAIT_DISK : THREAD_WAIT_OTHER;
  if (class == THREAD_CALL_UNKNOWN || class == THREAD_CALL_URING) return THREAD_WAIT_OTHER;
  return THREAD_WAIT_MIXED;
}

static __always_inline __u32 sleep_wait(struct task_struct* task, long state, __u32 before) {
  struct call_registers regs;
  registers_read(task, &regs);
  __u32 class = call_class(task, regs.call);
  __u32 kind = state_wait(task, class, state);
  return kind == THREAD_WAIT_MIXED ? call_wait(class, before, regs.a, regs.b, regs.c) : kind;
}

/* The same for a task that sleeps already: its memory cannot be read, so the sets of poll and select
 * are not known. */
static __always_inline __u32 asleep_wait(struct task_struct* task, long state) {
  struct call_registers regs;
  registers_read(task, &regs);
  __u32 class = call_class(task, regs.call);
  __u32 kind = state_wait(task, class, state);
  __u64 file;
  if (kind != THREAD_WAIT_MIXED) return kind;
  switch (class) {
    case THREAD_CALL_FD:
    case THREAD_CALL_FD2: file = file_of_task(task, regs.a);
      return file ? file_wait(file) : THREAD_WAIT_OTHER;
    case THREAD_CALL_IOCTL: return THREAD_WAIT_DEVICE;
    case THREAD_CALL_EPOLL: return epoll_items_wait(file_of_task(task, regs.a));
    case THREAD_CALL_POLL: return regs.b ? THREAD_WAIT_OTHER : THREAD_WAIT_TIMER;
    case THREAD_CALL_SELECT: return regs.a ? THREAD_WAIT_OTHER : THREAD_WAIT_TIMER;
    case THREAD_CALL_RESTART: return THREAD_WAIT_OTHER;
    default: return call_wait(class, THREAD_WAIT_OTHER, regs.a, regs.b, regs.c);
  }
}

/* ---- the scheduler's tracepoints ---- */

/* For how long the task has waited for a CPU since it began; 0 in a kernel that does not count it. */
static __always_inline __u64 queued_ns(struct task_struct* task) {
  if (!bpf_core_field_exists(task->sched_info)) return 0;
  return task->sched_info.run_delay;
}

/* Another CPU may wake a thread before it has left entirely. */
static __always_inline __u64 woken_ns(struct thread_now* thread) {
  _Bool woken = thread->asleep && thread->waking_ns > thread->left_ns;
  return woken ? thread->waking_ns : thread->left_ns;
}

static __always_inline void period_write(struct thread_now* thread, struct task_struct* task,
                                         __u64 back_ns) {
  struct thread_period* out = bpf_ringbuf_reserve(&periods, sizeof *out, 0);
  if (!out) {
    __sync_fetch_and_add(&shared.lost_periods, 1);
    return;
  }
  __u8 asleep = thread->asleep;
  __u32 kind = thread->kind;
  __u64 woken = woken_ns(thread);
  out->left_ns = thread->left_ns;
  out->woken_ns = woken < back_ns ? woken : back_ns;
  out->back_ns = back_ns;
  out->thread = task->pid;
  out->process = task->tgid;
  out->waker_thread = asleep ? thread->waker_thread : 0;
  out->waker_process = asleep ? thread->waker_process : 0;
  if (kind == THREAD_WAIT_MIXED)
    kind = out->waker_process ? THREAD_WAIT_LOCAL : THREAD_WAIT_NETWORK;
  out->kind = kind;
  out->reserved = 0;
  bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}

static __always_inline void back(struct thread_now* thread, struct task_struct* task, __u64 now) {
  if (thread->left_ns == 0) return; /* it was on a CPU when the watch began */
  period_write(thread, task, now);
  thread->left_ns = 0;
}

/* A thread that leaves and was not seen to come back: kernels that hide a task from tracepoints hide
 * the switch from it to the next one too. It came back when it had waited for a CPU as long as the
 * kernel counted since. */
static __always_inline void back_unseen(struct thread_now* thread, struct task_struct* task,
                                        __u64 now) {
  __u64 queued = queued_ns(task) - thread->queued_ns;
  __u64 came = woken_ns(thread) + queued;
  period_write(thread, task, came < now ? came : now);
}

static __always_inline void leave(struct thread_now* thread, struct task_struct* task,
                                  _Bool preempted, __u64 now) {
  if (thread->left_ns != 0) back_unseen(thread, task, now);
  long state = preempted ? 0 : task->__state;
  thread->asleep = state != 0;
  thread->kind = state == 0 ? THREAD_WAIT_NONE : sleep_wait(task, state, thread->kind);
  thread->queued_ns = queued_ns(task);
  barrier();
  thread->left_ns = now; /* last: with it the rest is valid */
}

SEC("tp_btf/sched_switch")
int BPF_PROG(threads_switch, _Bool preempted, struct task_struct* before,
             struct task_struct* next) {
  struct thread_now* leaving = thread_find(before);
  struct thread_now* coming = thread_find(next);
  if (!leaving) {
    barrier(); /* else clang asks for both pointers at once, by arithmetic that is forbidden */
    if (!coming) return 0;
  }
  struct thread_section* here = section_begin();
  __u64 now = bpf_ktime_get_ns();
  if (leaving) leave(leaving, before, preempted, now);
  if (coming) back(coming, next, now);
  section_end(here);
  return 0;
}

static __always_inline int interrupt_count(void) {
#if defined(THREADS_COUNT)
  return *(int*)bpf_this_cpu_ptr(&__preempt_count);
#elif defined(THREADS_COUNT_HOT)
  return ((struct pcpu_hot*)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
#else
  return 0;
#endif
}

/* The current task wakes `task`, unless it is only what an interrupt happened to interrupt. Where
 * those are not counted an interrupt of user code is still seen (no system call is going on), one of
 * the kernel's own code is not. */
SEC("tp_btf/sched_waking")
int BPF_PROG(threads_waking, struct task_struct* task) {
  struct thread_now* thread = thread_find(task);
  if (!thread) return 0;
  struct task_struct* waker = bpf_get_current_task_btf();
  __u32 kind = thread->kind;
  /* A timer, a disk and a network wake by interrupts, whoever is interrupted. */
  _Bool known = kind != THREAD_WAIT_TIMER && kind != THREAD_WAIT_DISK &&
                kind != THREAD_WAIT_NETWORK && !(interrupt_count() & (COUNT_SERVING_SOFTIRQ | COUNT_HARDIRQ_NMI)) &&
                !(waker->flags & FLAG_KERNEL_THREAD);
#ifdef __TARGET_ARCH_x86
  if (known) {
    struct pt_regs___kernel* regs = (void*)bpf_task_pt_regs(waker);
    unsigned long call = regs->orig_ax;
    if (call >= THREAD_CALLS_MAX) known = 0;
    /* Sending over loopback wakes the receiver from an interrupt that the sender runs itself. */
    else if (kind == THREAD_WAIT_MIXED && calls[call] == THREAD_CALL_FD)
      known = fd_wait(regs->di) != THREAD_WAIT_NETWORK;
  }
#endif
  struct thread_section* here = section_begin();
  thread->waker_thread = known ? waker->pid : 0;
  thread->waker_process = known ? waker->tgid : 0;
  thread->waking_ns = bpf_ktime_get_ns();
  section_end(here);
  return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(threads_fork, struct task_struct* parent, struct task_struct* child) {
  __u32 process = parent->tgid;
  struct thread_process* found = bpf_map_lookup_elem(&processes, &process);
  if (!found) return 0;
  __u32 started = child->tgid;
  struct thread_process entry = {found->root, 1};
  if (started != process && bpf_map_update_elem(&processes, &started, &entry, BPF_ANY) != 0) {
    __sync_fetch_and_add(&shared.lost_threads, 1);
    return 0;
  }
  struct thread_section* here = section_begin();
  thread_add(child, bpf_ktime_get_ns());
  section_end(here);
  return 0;
}

/* A thread that calls exec takes its process's number, whose thread has ended. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(threads_exec, struct task_struct* task, int before) {
  __u32 process = task->tgid;
  __u32 gone = before;
  if (gone == process || !bpf_map_lookup_elem(&processes, &process)) return 0;
  bpf_map_delete_elem(&threads, &gone);
  struct thread_now running = {.process = process};
  if (bpf_map_update_elem(&threads, &process, &running, BPF_ANY) != 0)
    __sync_fetch_and_add(&shared.lost_threads, 1);
  return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(threads_exit, struct task_struct* task) {
  __u32 number = task->pid;
  if (thread_find(task)) bpf_map_delete_elem(&threads, &number);
  number = task->tgid;
  if (task->signal->live.counter == 0) bpf_map_delete_elem(&processes, &number);
  return 0;
}

/* ---- what was there before ---- */

/* Run for every thread of the machine when the loader asks: those of processes in the map are added,
 * and processes whose parents are in it. Needs no /proc, which may hide other users' processes from the
 * loader. */
SEC("iter/task")
int threads_list(struct bpf_iter__task* context) {
  struct task_struct* task = context->task;
  if (!task || task->flags & (FLAG_KERNEL_THREAD | FLAG_EXITING)) return 0;
  __u32 process = task->tgid;
  struct thread_process* found = bpf_map_lookup_elem(&processes, &process);
  if (!found) {
    __u32 parent = BPF_CORE_READ(task, real_parent, tgid);
    found = bpf_map_lookup_elem(&processes, &parent);
    if (!found || !found->alive) return 0;
    struct thread_process entry = {found->root, 1};
    if (bpf_map_update_elem(&processes, &process, &entry, BPF_NOEXIST) != 0) {
      __sync_fetch_and_add(&shared.lost_threads, 1);
      return 0;
    }
    __sync_fetch_and_add(&shared.found_processes, 1);
  } else if (!found->alive) {
    found->alive = 1;
    __sync_fetch_and_add(&shared.found_processes, 1);
  }
  __u32 thread = task->pid;
  if (bpf_map_lookup_elem(&threads, &thread)) return 0;
  struct thread_now now = {.process = process};
  long state = task->__state;
  if (state != 0) { /* asleep since some time: for this watch, since now */
    now.left_ns = bpf_ktime_get_ns();
    now.asleep = 1;
    now.kind = asleep_wait(task, state);
    now.queued_ns = queued_ns(task);
  }
  if (bpf_map_update_elem(&threads, &thread, &now, BPF_NOEXIST) != 0) {
    __sync_fetch_and_add(&shared.lost_threads, 1);
    return 0;
  }
  /* What happened meanwhile the other programs have not seen. */
  if (task->flags & FLAG_EXITING) {
    bpf_map_delete_elem(&threads, &thread);
    if (task->signal->live.counter == 0) bpf_map_delete_elem(&processes, &process);
    return 0;
  }
  struct thread_now* added = bpf_map_lookup_elem(&threads, &thread);
  if (added && added->left_ns == now.left_ns && task->__state == 0) added->left_ns = 0;
  return 0;
}

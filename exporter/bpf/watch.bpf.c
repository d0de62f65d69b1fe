/* Watches registered processes from the kernel: when their threads leave and regain a CPU, and how
 * they end. Reads only what it declares below; offsets are relocated by libbpf against the running
 * kernel (CO-RE), so no kernel header is needed to build it. Unregistered processes cost one failed
 * map lookup per switch. */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "watch_shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The few fields that are read; the real structs are much larger. */
struct counter {
  int counter;
} __attribute__((preserve_access_index));

struct signal_struct {
  struct counter live;
  int group_exit_code;
} __attribute__((preserve_access_index));

struct task_struct {
  int pid;
  int tgid;
  int exit_code;
  unsigned int __state;
  struct signal_struct* signal;
} __attribute__((preserve_access_index));

/* Before Linux 5.14 the field was called `state`. */
struct task_struct___old {
  long state;
} __attribute__((preserve_access_index));

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, WATCHED_MAX);
  __type(key, __u32);
  __type(value, struct watched_process);
} watched SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, EXIT_COUNTS);
  __type(key, __u32);
  __type(value, __u64);
} exits SEC(".maps");

/* When a thread left its CPU, and why. LRU: threads that died off the CPU need no cleaning up. */
struct left {
  __u64 since_ns;
  __u32 runnable;
  __u32 process;
};

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 4 * WATCHED_MAX);
  __type(key, __u32);
  __type(value, struct left);
} off_cpu SEC(".maps");

static __always_inline struct watched_process* watched_find(__u32 process) {
  struct watched_process* found = bpf_map_lookup_elem(&watched, &process);
  return found && !found->ended ? found : 0;
}

static __always_inline long task_state(struct task_struct* task) {
  if (bpf_core_field_exists(task->__state)) return BPF_CORE_READ(task, __state);
  return BPF_CORE_READ((struct task_struct___old*)task, state);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(watch_switch, _Bool preempted, struct task_struct* before, struct task_struct* next) {
  __u64 now = bpf_ktime_get_ns();
  __u32 process = before->tgid;
  struct watched_process* leaving = watched_find(process);
  if (leaving) {
    __u32 thread = before->pid;
    struct left left = {now, preempted || task_state(before) == 0, process};
    bpf_map_update_elem(&off_cpu, &thread, &left, BPF_ANY);
    __sync_fetch_and_add(&leaving->switches, 1);
  }
  process = next->tgid;
  struct watched_process* coming = watched_find(process);
  if (coming) {
    __u32 thread = next->pid;
    struct left* left = bpf_map_lookup_elem(&off_cpu, &thread);
    /* The thread's number may have belonged to another process. */
    if (left && left->process == process && now > left->since_ns) {
      __u64 gone = now - left->since_ns;
      __sync_fetch_and_add(left->runnable ? &coming->runnable_ns : &coming->sleeping_ns, gone);
    }
    if (left) bpf_map_delete_elem(&off_cpu, &thread);
  }
  return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(watch_exit, struct task_struct* task) {
  __u32 process = task->tgid;
  struct watched_process* found = watched_find(process);
  if (!found) return 0;
  struct signal_struct* signal = task->signal;
  if (signal->live.counter != 0) return 0; /* other threads live on */
  found->ended = 1;
  int code = signal->group_exit_code ? signal->group_exit_code : task->exit_code;
  __u32 result = (code & 0x7f) ? EXIT_SIGNAL_COUNT
                 : (code >> 8) ? EXIT_FAILURE_COUNT
                               : EXIT_SUCCESS_COUNT;
  __u64* count = bpf_map_lookup_elem(&exits, &result);
  if (count) __sync_fetch_and_add(count, 1);
  return 0;
}

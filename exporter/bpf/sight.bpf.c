/* Who comes to a GPU, whatever libraries it was or was not started with: calls into the driver
 * library (uprobes, attached by the loader to those few that everybody makes once), and system
 * calls that open the driver's character devices or, later, go to them. All from the ends of system
 * calls, where a descriptor's file tells which device it is, whatever its node was called. */
#include <linux/bpf.h>
/* clang-format off */
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
/* clang-format on */
#include "sight_shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define relocated __attribute__((preserve_access_index))
struct inode {
  unsigned short i_mode;
  __u32 i_rdev;
} relocated;
struct file {
  struct inode* f_inode;
} relocated;
struct fdtable {
  unsigned int max_fds;
  struct file** fd;
} relocated;
struct files_struct {
  struct fdtable* fdt;
} relocated;
struct task_struct {
  struct files_struct* files;
  struct task_struct* group_leader;
  __u64 start_boottime;
} relocated;
/* The saved registers of x86-64: the number of the call and its first two arguments. */
struct pt_regs___kernel {
  unsigned long orig_ax;
  unsigned long di;
  unsigned long si;
} relocated;

#define MODE_KIND 0170000
#define MODE_CHARACTER 0020000
/* arch/x86/entry/syscalls/syscall_64.tbl */
#define CALL_OPEN 2
#define CALL_IOCTL 16
#define CALL_OPENAT 257
#define CALL_OPENAT2 437

#define DEVICE_MINOR_BITS 20

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, SIGHT_MAJORS_MAX);
  __type(key, __u32);
  __type(value, __u8);
} majors SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, SIGHT_SEEN_MAX);
  __type(key, struct sight_key);
  __type(value, __u64);
} seen SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, SIGHT_RING_BYTES);
} events SEC(".maps");

static __always_inline int tell(__u32 what) {
  struct task_struct* task = (struct task_struct*)bpf_get_current_task();
  struct sight_key key = {bpf_get_current_pid_tgid() >> 32, what,
                          BPF_CORE_READ(task, group_leader, start_boottime)};
  __u64 now = bpf_ktime_get_ns();
  __u64* last = bpf_map_lookup_elem(&seen, &key);
  if (last && now - *last < SIGHT_AGAIN_NS) return 0;
  bpf_map_update_elem(&seen, &key, &now, BPF_ANY);
  struct sight_event* event = bpf_ringbuf_reserve(&events, sizeof *event, 0);
  if (!event) return 0; /* it is told about a second later, if it goes on */
  event->process = key.process;
  event->what = what;
  event->started_ns = key.started_ns;
  bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
  return 0;
}

#ifdef __TARGET_ARCH_x86
/* What the kernel answers of any descriptor, and no driver hears of: FIONBIO, FIONCLEX, FIOCLEX and
 * FIOASYNC of asm-generic/ioctls.h. */
static __always_inline int is_for_no_driver(__u32 request) {
  return request == 0x5421 || (request >= 0x5450 && request <= 0x5452);
}

/* Whether the current task's descriptor is of a watched device. */
static __always_inline int is_watched(unsigned long descriptor) {
  struct task_struct* task = bpf_get_current_task_btf();
  struct fdtable* table = BPF_CORE_READ(task, files, fdt);
  struct file* file = 0;
  if (descriptor >= BPF_CORE_READ(table, max_fds)) return 0;
  bpf_probe_read_kernel(&file, sizeof file, BPF_CORE_READ(table, fd) + descriptor);
  if (!file || (BPF_CORE_READ(file, f_inode, i_mode) & MODE_KIND) != MODE_CHARACTER) return 0;
  __u32 major = BPF_CORE_READ(file, f_inode, i_rdev) >> DEVICE_MINOR_BITS;
  return bpf_map_lookup_elem(&majors, &major) != 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(sight_call, struct pt_regs___kernel* registers, long result) {
  unsigned long call = registers->orig_ax;
  if (call == CALL_IOCTL) {
    /* Whatever came of it: it holds the device. */
    if (is_for_no_driver(registers->si)) return 0;
    return is_watched((__u32)registers->di) ? tell(SIGHT_CALL) : 0;
  }
  if ((call != CALL_OPENAT && call != CALL_OPEN && call != CALL_OPENAT2) || result < 0) return 0;
  return is_watched(result) ? tell(SIGHT_OPEN) : 0;
}
#else
SEC("tp_btf/sys_exit")
int sight_call(void* context) { return 0; }
#endif

SEC("uprobe")
int sight_driver(void* context) { return tell(SIGHT_DRIVER); }

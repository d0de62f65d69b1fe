/* Who comes to a GPU, whatever libraries it was or was not started with: calls into the driver
 * library (uprobes, attached by the loader to those few that everybody makes once) and opens of the
 * driver's character devices. The kernel opens every character device by chrdev_open, whatever its
 * node is called: where kernels let themselves be traced by function, that one is, and no system
 * call. Elsewhere the ends of system calls are, and of those that open, what they opened. */
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
} relocated;
/* The saved registers of x86-64, by the kernel's name of the number of the call. */
struct pt_regs___kernel {
  unsigned long orig_ax;
} relocated;

#define MODE_KIND 0170000
#define MODE_CHARACTER 0020000
/* arch/x86/entry/syscalls/syscall_64.tbl */
#define CALL_OPEN 2
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
  struct sight_key key = {bpf_get_current_pid_tgid() >> 32, what};
  __u64 now = bpf_ktime_get_ns();
  __u64* last = bpf_map_lookup_elem(&seen, &key);
  if (last && now - *last < SIGHT_AGAIN_NS) return 0;
  bpf_map_update_elem(&seen, &key, &now, BPF_ANY);
  struct sight_event* event = bpf_ringbuf_reserve(&events, sizeof *event, 0);
  if (!event) return 0; /* it is told about a second later, if it goes on */
  event->process = key.process;
  event->what = what;
  bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
  return 0;
}

SEC("fexit/chrdev_open")
int BPF_PROG(sight_device, struct inode* inode, struct file* file, int result) {
  __u32 major = inode->i_rdev >> DEVICE_MINOR_BITS;
  if (result != 0 || !bpf_map_lookup_elem(&majors, &major)) return 0;
  return tell(SIGHT_DEVICE);
}

#ifdef __TARGET_ARCH_x86
SEC("tp_btf/sys_exit")
int BPF_PROG(sight_call, struct pt_regs___kernel* registers, long result) {
  unsigned long call = registers->orig_ax;
  if ((call != CALL_OPENAT && call != CALL_OPEN && call != CALL_OPENAT2) || result < 0) return 0;
  struct task_struct* task = bpf_get_current_task_btf();
  struct fdtable* table = BPF_CORE_READ(task, files, fdt);
  struct file* file = 0;
  if (result >= BPF_CORE_READ(table, max_fds)) return 0;
  bpf_probe_read_kernel(&file, sizeof file, BPF_CORE_READ(table, fd) + result);
  if (!file || (BPF_CORE_READ(file, f_inode, i_mode) & MODE_KIND) != MODE_CHARACTER) return 0;
  __u32 major = BPF_CORE_READ(file, f_inode, i_rdev) >> DEVICE_MINOR_BITS;
  return bpf_map_lookup_elem(&majors, &major) ? tell(SIGHT_DEVICE) : 0;
}
#else
SEC("tp_btf/sys_exit")
int sight_call(void* context) { return 0; }
#endif

SEC("uprobe")
int sight_driver(void* context) { return tell(SIGHT_DRIVER); }

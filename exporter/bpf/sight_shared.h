/* What the BPF programs that see who comes to a GPU and their loader both know. Plain C types with
 * fixed sizes. */
#pragma once

#include <linux/types.h>

#define SIGHT_MAJORS_MAX 16
#define SIGHT_RING_BYTES (256 << 10)
/* Processes that are remembered, so that each is told about once a second and not at every call. */
#define SIGHT_SEEN_MAX 4096
#define SIGHT_AGAIN_NS 1000000000ULL

enum sight_what {
  SIGHT_DRIVER, /* it called the driver library */
  SIGHT_OPEN,   /* it opened the driver's device */
  SIGHT_CALL,   /* it called the device: ioctl, on a descriptor that it may have had for long */
};

struct sight_key {
  __u32 process;
  __u32 what;
  __u64 started_ns;
};

/* A record of the ring. */
struct sight_event {
  __u32 process;    /* the host's number */
  __u32 what;       /* enum sight_what */
  __u64 started_ns; /* when it started, since the machine booted: its number is given again */
};

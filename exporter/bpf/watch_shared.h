/* What the BPF programs and their loader both know: the layouts of the map entries. Plain C types
 * with fixed sizes. */
#pragma once

#include <linux/types.h>

/* Processes that can be watched at a time; more are ignored, and the loader says so. */
#define WATCHED_MAX 16384

/* Value of the map `watched`, by process (thread group) number. Counters only grow. */
struct watched_process {
  __u64 switches;
  __u64 sleeping_ns;
  __u64 runnable_ns;
  __u32 ended; /* 1 once its last thread is gone: the number may be given to another process any
                  time */
  __u32 reserved;
};

/* Indices of the map `exits`. */
enum { EXIT_SUCCESS_COUNT = 0, EXIT_FAILURE_COUNT = 1, EXIT_SIGNAL_COUNT = 2, EXIT_COUNTS = 3 };

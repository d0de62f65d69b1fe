// A driver for tests and benchmarks: it answers at once, remembers what it was asked, and can be
// told to misbehave. It is built as libcuda.so.1 and knows nothing of Sluice. Programs reach its
// state through the exported `fake`.
#pragma once

#include "interpose/cuda_api.h"

struct FakeEntry {
  const char* base;
  int since;
  int per_thread;
  void* function;
};
extern const FakeEntry fake_entries[];
extern const int fake_entry_count;

/// What cuLaunchKernel or its per-thread twin was called with.
struct FakeLaunch {
  CUfunction f;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  void** params;
  void** extra;
};

struct FakeState {
  unsigned long long capacity_bytes;
  unsigned long long used_bytes;
  unsigned long long calls_launch;
  unsigned long long calls_launch_ptsz;
  unsigned long long calls_alloc_v1;
  unsigned long long calls_free;
  unsigned long long calls_event_record;
  unsigned long long calls_on_capturing;  // fences or queries on a capturing stream: must stay 0
  CUresult alloc_result;                  // what allocations answer when there is room
  int events_pending;                     // 1: events do not pass
  int device_count;
  int capturing;  // a stream is capturing
  CUstream capturing_stream;
  double device_ns;  // device time that the next event gets
  double launch_ns;  // how much one launch adds to it
  unsigned long long pool_reserved_bytes;
  unsigned long long pool_used_bytes;
  unsigned long long pool_step_bytes;
  int context_active;
  int errno_to_set;                          // 0 = leave errno alone
  CUresult (*on_launch)(const FakeLaunch&);  // asked in the middle of a launch; nullptr = succeed
  // A test's broker has unmapped the memory: whatever touches it or a handle is counted, and the
  // last such function named.
  int held;
  unsigned long long calls_while_held;
  const char* held_offender;
  // Virtual memory and copies (fake_memory.cpp): from the fail_at'th call on, so many fail.
  unsigned long long calls_memory;
  unsigned long long fail_at;  // 0 = none
  unsigned long long fail_times;
  unsigned long long calls_failed;
  unsigned long long reserved_ranges;
  unsigned long long accessible;  // a bit for each device that was given access last
  int wait_on_sync;               // 1: synchronisations of streams do not return,
  int syncs_waiting;              // and so many wait now
  void (*on_pool_read)();  // between what a pool's attribute is and its answer; nullptr = nothing
  CUcontext context;       // the current one of every thread; nullptr = the primary one
  int graph_depth;  // how many graphs lie within each other in any graph; the innermost allocates
  unsigned long long graph_node_bytes;     // so much; 0 = none does
  void (*on_enter)(const char* function);  // at the beginning of fake_enter; nullptr = nothing
  void (*on_released)();                   // behind all that cuMemRelease does; nullptr = nothing
  int handles_again;                       // 1: cuMemCreate gives out the handle that ended last
  unsigned long long arrays;               // of all kinds, that are there
  CUstream stream_elsewhere;  // the one that is in a context of the second device; nullptr = none
  CUmemLocationType graph_node_place;  // where it allocates
  void (*on_state)();  // behind what the state of a primary context is; nullptr = nothing
  unsigned long long graph_reserved_bytes;  // of the device, for graphs,
  unsigned long long graph_used_bytes;      // and so much is in use; nothing here changes them
  CUresult graph_end_result;                // what the end of an executable graph answers
  int pool_pieces;  // 1: pools give out pieces of chunks, whole steps each, and end chunks alone
  int pool_stuck;   // 1: a trim gives nothing back, as while all that was freed is outstanding
  CUresult event_result;  // what the making of an event answers
};
extern "C" FakeState fake;
/// 1: cuGetProcAddress answers with functions that dlsym does not know.
extern "C" int fake_lookup_private;
/// What cuGetProcAddress was asked for, in the order of the requests; the first of them only.
struct FakeLookup {
  char symbol[64];
  int version;
  unsigned long long flags;
};
constexpr int kFakeLookupsMax = 1024;
extern "C" FakeLookup fake_lookups[kFakeLookupsMax];
extern "C" int fake_lookup_count;
/// What every function does first that touches memory or handles, or does nothing else.
void fake_enter(const char* function);
/// The UUID of fake device n: sixteen bytes of 0xA0 + n.
constexpr unsigned char kFakeUuidBase = 0xA0;

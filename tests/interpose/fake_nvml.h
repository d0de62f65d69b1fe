// An NVML for tests: two devices with 8 GiB of which 3 are used, the first of them the fake
// driver's, whose second one is known by its UUID. It says of processes what it is told through the
// exported `fake_nvml`.
#pragma once

#include "interpose/cuda_api.h"

struct FakeNvml {
  nvmlProcessInfo_t processes[8];  // on the first device
  unsigned process_count;
  unsigned sm_util[8];          // of the same processes; 0 = no sample
  nvmlReturn_t samples_result;  // what the calls for samples answer
  nvmlReturn_t init_result;
  unsigned long long hidden_reads;   // so many lists are empty before they tell
  unsigned long long process_reads;  // lists given with room for entries
  unsigned long long used_more;      // in use on the devices, besides the 3 GiB
  unsigned long long late_reads;     // so many lists still have
  unsigned long long late_bytes;     // so much more of the first process, which is gone already
  unsigned long long second_bytes;  // what that has on the fake driver's second device; 0 = nothing
  void (*on_memory_read)();  // before the answer to what is in use on a device; nullptr = nothing
};

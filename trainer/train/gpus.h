// What a launcher must know of the GPUs before it starts ranks, asked in a child: a process that
// has used the driver cannot fork others that do. And what a rank must do before it uses them.
#pragma once

#include "trainer/train/options.h"

namespace sluice::train {

struct GpusSeen {
  int count = 0;
  bool nccl = false;  // ranks will speak by NCCL
};

/// Only from a process with one thread. Throws Failure.
GpusSeen gpus_look(Engine engine);

/// For a rank, before it has other threads: where it shares its GPU with another, NCCL is told so
/// (nccl_sharing.h), and in a network which interface to take. Nothing where the ranks will not
/// speak by NCCL.
void gpu_sharing_prepare(const TrainOptions& options);

}  // namespace sluice::train

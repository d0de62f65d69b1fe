// Where this process stands between lock and unlock. Touched by the answering thread only.
#pragma once

#include "softgpu/driver/cuda_api.h"

namespace softgpu::driver {

struct CheckpointState {
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  bool broken = false;  // a restore found no room: on hardware it never succeeds afterwards
};
CheckpointState& checkpoint_progress();

}  // namespace softgpu::driver

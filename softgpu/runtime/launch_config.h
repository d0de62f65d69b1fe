// The runtime's launch configuration as the driver wants it; shared by launches and occupancy
// questions.
#pragma once

#include "softgpu/runtime/driver.h"

namespace softgpu::runtime {

inline CUlaunchConfig to_driver(const cudaLaunchConfig_t& config) {
  static_assert(sizeof(CUlaunchAttribute) == sizeof(cudaLaunchAttribute),
                "one layout in both headers");
  CUlaunchConfig out = {};
  out.gridDimX = config.gridDim.x;
  out.gridDimY = config.gridDim.y;
  out.gridDimZ = config.gridDim.z;
  out.blockDimX = config.blockDim.x;
  out.blockDimY = config.blockDim.y;
  out.blockDimZ = config.blockDim.z;
  out.sharedMemBytes = static_cast<unsigned>(config.dynamicSmemBytes);
  out.hStream = config.stream;
  out.attrs = reinterpret_cast<CUlaunchAttribute*>(config.attrs);
  out.numAttrs = config.numAttrs;
  return out;
}

}  // namespace softgpu::runtime

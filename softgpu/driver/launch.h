// Validation of a kernel launch and its parameters: the same for streams and for graph nodes.
#pragma once

#include "softgpu/driver/command.h"

namespace softgpu::driver {

struct LaunchRequest {
  CUfunction function = nullptr;
  ptx::Dim3 grid, block;
  std::uint32_t shared_bytes = 0;
  void** params = nullptr;
  void** extra = nullptr;
  bool cooperative = false;
  std::optional<int> priority = std::nullopt;
  CUevent event_complete = nullptr;      // recorded with the launch
  CUevent event_programmatic = nullptr;  // the same; blocks cannot trigger it early
};

/// What every entry point that launches does; `name` is its name.
CUresult launch_submit(const LaunchRequest& request, CUstream stream, const char* name);

CUresult launch_prepare(const LaunchRequest& request, const ContextRef& context,
                        KernelCommand& command);

}  // namespace softgpu::driver

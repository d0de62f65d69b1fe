// Everything that submits kernels but graphs (hooks_graph.cpp). Each hook: the gate, the real call,
// the count. The `_ptsz` twins mean the per-thread default stream by a null handle; the legacy
// calls have no stream and use the null stream.
#include "interpose/gate.h"

using namespace sluice::interpose;

SLUICE_HOOK_SHAPED(cuLaunchKernel, CUresult launch_kernel(CUfunction, unsigned, unsigned, unsigned,
                                                          unsigned, unsigned, StackArguments));
CUresult launch_kernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                       unsigned int bx, unsigned int by, StackArguments stack) {
  return launch_kernel_through<&DriverTable::cuLaunchKernel, NullStream::kLegacy>(f, gx, gy, gz, bx,
                                                                                  by, stack);
}

SLUICE_HOOK_SHAPED(cuLaunchKernel_ptsz,
                   CUresult launch_kernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned,
                                               unsigned, StackArguments));
CUresult launch_kernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                            unsigned int bx, unsigned int by, StackArguments stack) {
  return launch_kernel_through<&DriverTable::cuLaunchKernel_ptsz, NullStream::kPerThread>(
      f, gx, gy, gz, bx, by, stack);
}

SLUICE_HOOK CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params,
                                      void** extra) {
  return launch_kernel_through<&DriverTable::cuLaunchKernelEx, NullStream::kLegacy>(config, f,
                                                                                    params, extra);
}

SLUICE_HOOK CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f,
                                           void** params, void** extra) {
  return launch_kernel_through<&DriverTable::cuLaunchKernelEx_ptsz, NullStream::kPerThread>(
      config, f, params, extra);
}

SLUICE_HOOK CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy,
                                               unsigned int gz, unsigned int bx, unsigned int by,
                                               unsigned int bz, unsigned int shared,
                                               CUstream stream, void** params) {
  return launch_kernel_through<&DriverTable::cuLaunchCooperativeKernel, NullStream::kLegacy>(
      f, gx, gy, gz, bx, by, bz, shared, stream, params);
}

SLUICE_HOOK CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy,
                                                    unsigned int gz, unsigned int bx,
                                                    unsigned int by, unsigned int bz,
                                                    unsigned int shared, CUstream stream,
                                                    void** params) {
  return launch_kernel_through<&DriverTable::cuLaunchCooperativeKernel_ptsz,
                               NullStream::kPerThread>(f, gx, gy, gz, bx, by, bz, shared, stream,
                                                       params);
}

// The devices may be several; the tenant's leases on them open and close together, so the current
// one's gate stands for all. Its streams are not the current context's to fence: the drain sees the
// first one's.
SLUICE_HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches,
                                                          unsigned int count, unsigned int flags) {
  return launch_kernel_through<&DriverTable::cuLaunchCooperativeKernelMultiDevice,
                               NullStream::kLegacy>(launches, count, flags);
}

SLUICE_HOOK CUresult cuLaunch(CUfunction f) {
  return launch_kernel_through<&DriverTable::cuLaunch, NullStream::kLegacy>(f);
}

SLUICE_HOOK CUresult cuLaunchGrid(CUfunction f, int width, int height) {
  return launch_kernel_through<&DriverTable::cuLaunchGrid, NullStream::kLegacy>(f, width, height);
}

SLUICE_HOOK CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  return launch_kernel_through<&DriverTable::cuLaunchGridAsync, NullStream::kLegacy>(
      f, width, height, stream);
}

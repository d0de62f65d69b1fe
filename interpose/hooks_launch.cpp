// Everything that submits kernels. Each hook: the gate, the real call, the count. The `_ptsz` twins
// mean the per-thread default stream by a null handle; the legacy calls have no stream and use the
// null stream.
#include "interpose/gate.h"

using namespace sluice::interpose;

SLUICE_HOOK CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                    unsigned int bx, unsigned int by, unsigned int bz,
                                    unsigned int shared, CUstream stream, void** params,
                                    void** extra) {
  return launch_through(stream, LaunchKind::kKernel, [&] {
    return driver.cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
  });
}

SLUICE_HOOK CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy,
                                         unsigned int gz, unsigned int bx, unsigned int by,
                                         unsigned int bz, unsigned int shared, CUstream stream,
                                         void** params, void** extra) {
  return launch_through(stream_per_thread(stream), LaunchKind::kKernel, [&] {
    return driver.cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
  });
}

SLUICE_HOOK CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params,
                                      void** extra) {
  return launch_through(config != nullptr ? config->hStream : nullptr, LaunchKind::kKernel,
                        [&] { return driver.cuLaunchKernelEx(config, f, params, extra); });
}

SLUICE_HOOK CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f,
                                           void** params, void** extra) {
  return launch_through(stream_per_thread(config != nullptr ? config->hStream : nullptr),
                        LaunchKind::kKernel,
                        [&] { return driver.cuLaunchKernelEx_ptsz(config, f, params, extra); });
}

SLUICE_HOOK CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy,
                                               unsigned int gz, unsigned int bx, unsigned int by,
                                               unsigned int bz, unsigned int shared,
                                               CUstream stream, void** params) {
  return launch_through(stream, LaunchKind::kKernel, [&] {
    return driver.cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params);
  });
}

SLUICE_HOOK CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy,
                                                    unsigned int gz, unsigned int bx,
                                                    unsigned int by, unsigned int bz,
                                                    unsigned int shared, CUstream stream,
                                                    void** params) {
  return launch_through(stream_per_thread(stream), LaunchKind::kKernel, [&] {
    return driver.cuLaunchCooperativeKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, stream, params);
  });
}

// The devices may be several; the tenant's leases on them open and close together, so the current
// one's gate stands for all. Its streams are not the current context's to fence: the drain sees the
// first one's.
SLUICE_HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches,
                                                          unsigned int count, unsigned int flags) {
  CUstream first = launches != nullptr && count > 0 ? launches[0].hStream : nullptr;
  return launch_through(first, LaunchKind::kKernel, [&] {
    return driver.cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
  });
}

SLUICE_HOOK CUresult cuLaunch(CUfunction f) {
  return launch_through(nullptr, LaunchKind::kKernel, [&] { return driver.cuLaunch(f); });
}

SLUICE_HOOK CUresult cuLaunchGrid(CUfunction f, int width, int height) {
  return launch_through(nullptr, LaunchKind::kKernel,
                        [&] { return driver.cuLaunchGrid(f, width, height); });
}

SLUICE_HOOK CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  return launch_through(stream, LaunchKind::kKernel,
                        [&] { return driver.cuLaunchGridAsync(f, width, height, stream); });
}

SLUICE_HOOK CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return launch_through(stream, LaunchKind::kGraph,
                        [&] { return driver.cuGraphLaunch(graph, stream); });
}

SLUICE_HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  return launch_through(stream_per_thread(stream), LaunchKind::kGraph,
                        [&] { return driver.cuGraphLaunch_ptsz(graph, stream); });
}

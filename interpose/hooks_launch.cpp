// Everything that submits kernels but graphs (hooks_graph.cpp), and decompression, which keeps the
// GPU as busy. Each hook: the gate, the real call, the count. The `_ptsz` twins mean the per-thread
// default stream by a null handle; the legacy calls have no stream and use the null stream.
#include <stddef.h>

#include "interpose/gate.h"
#include "interpose/launch_layout.h"
#include "interpose/say.h"
#include "interpose/touch.h"

using namespace sluice::interpose;

// The short way is launch.S, which reads these types by their layout.
SLUICE_HOOK_ASSEMBLED(cuLaunchKernel);
SLUICE_HOOK_ASSEMBLED(cuLaunchKernel_ptsz);
static_assert(offsetof(ThreadRecord, inside) == SLUICE_THREAD_INSIDE &&
              offsetof(ThreadRecord, lease) == SLUICE_THREAD_LEASE &&
              offsetof(ThreadRecord, raised) == SLUICE_THREAD_RAISED &&
              offsetof(ThreadRecord, recent) == SLUICE_THREAD_RECENT &&
              offsetof(ThreadRecord, exclusive_count) == SLUICE_THREAD_EXCLUSIVE_COUNT &&
              offsetof(ThreadRecord, caller) == SLUICE_THREAD_CALLER &&
              offsetof(ThreadRecord, caller_rbx) == SLUICE_THREAD_CALLER_RBX);
static_assert(offsetof(StreamCache, stream) == SLUICE_CACHE_STREAM &&
              offsetof(StreamCache, record) == SLUICE_CACHE_RECORD &&
              offsetof(StreamCache, generation) == SLUICE_CACHE_GENERATION &&
              offsetof(StreamCache, budget_ns) == SLUICE_CACHE_BUDGET &&
              offsetof(StreamCache, kernel_ns) == SLUICE_CACHE_KERNEL);
static_assert(offsetof(StreamRecord, owner_launches) == SLUICE_STREAM_OWNER_LAUNCHES &&
              offsetof(StreamRecord, generation) == SLUICE_STREAM_GENERATION);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // private members further down change nothing
static_assert(offsetof(Process, mode) == 0 &&
              static_cast<uint32_t>(Mode::kInert) == SLUICE_MODE_INERT);
#pragma GCC diagnostic pop
static_assert(sluice::protocol::kLeaseOpen == SLUICE_LEASE_OPEN &&
              sluice::protocol::kLeaseExclusive == SLUICE_LEASE_EXCLUSIVE);

extern "C" {
CUresult sluice_launch_kernel_long(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, StackArguments stack) {
  return launch_long<&DriverTable::cuLaunchKernel, LaunchKind::kKernel, NullStream::kLegacy>(
      f, gx, gy, gz, bx, by, stack);
}
CUresult sluice_launch_kernel_long_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                        unsigned bx, unsigned by, StackArguments stack) {
  return launch_long<&DriverTable::cuLaunchKernel_ptsz, LaunchKind::kKernel,
                     NullStream::kPerThread>(f, gx, gy, gz, bx, by, stack);
}
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

namespace {

RateLimit several_said;

void several_say() {
  const ErrnoGuard guard;
  uint64_t skipped = 0;
  if (!several_said.allow(clock_now_ns(), &skipped)) return;
  Line line;
  line.text("refused a launch on several GPUs at once (cuLaunchCooperativeKernelMultiDevice)");
  line.text(": under limits a launch is held back and counted on one GPU. Launch on each GPU by ");
  line.text("itself, or run the program without limits");
  several_said.say(line, skipped);
}

// The stream whose gate stands for the launch: the first one on a GPU of the tenant's. False: they
// lie on several of these.
bool gate_stream(const CUDA_LAUNCH_PARAMS* launches, unsigned count, CUstream* stream) {
  const ErrnoGuard guard;
  if (launches == nullptr || count < 2 || process_begin(0) != Mode::kActive) return true;
  ThreadRecord* thread = thread_record();
  if (thread == nullptr || (thread->depth | thread->inside) != 0) return true;
  const DepthScope depth(thread);
  // More launches than there are devices are no list to look at: the driver refuses two on one.
  (void)device_gpu(0);
  if (count > static_cast<unsigned>(process.device_total)) return true;
  int gpu = -1;
  bool one = true;
  touch_begin(*thread);
  for (unsigned i = 0; i < count; ++i) {
    StreamPlace place;
    if (!stream_place(*thread, launches[i].hStream, &place) || place.gpu < 0) continue;
    if (gpu < 0) *stream = launches[i].hStream;
    one &= gpu < 0 || gpu == place.gpu;
    gpu = place.gpu;
  }
  touch_end(*thread);
  return one;
}

}  // namespace

// It launches on every device or on none, so it would have to be inside of every gate at once.
// Superseded since CUDA 11.3, it is refused where that would matter. No short way.
SLUICE_HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches,
                                                          unsigned int count, unsigned int flags) {
  const auto call = [&] {
    return driver.cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
  };
  if (process_mode() == Mode::kInert) return call();
  CUstream stream = stream_of(launches, count, flags);
  if (SLUICE_UNLIKELY(!gate_stream(launches, count, &stream))) {
    several_say();
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // More launches than there are devices are no list to look at.
  const bool is_list = launches != nullptr && count <= static_cast<unsigned>(process.device_total);
  for (unsigned i = 0; is_list && kernels_need() && i < count; ++i) {
    const CUresult loaded = kernel_load_for(launches[i].function, launches[i].hStream);
    if (SLUICE_UNLIKELY(loaded != CUDA_SUCCESS)) return loaded;
  }
  return launch_gated(stream, nullptr, LaunchKind::kKernel, call);
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

SLUICE_HOOK CUresult cuMemBatchDecompressAsync(CUmemDecompressParams* list, size_t count,
                                               unsigned int flags, size_t* error_index,
                                               CUstream stream) {
  return launch_kernel_through<&DriverTable::cuMemBatchDecompressAsync, NullStream::kLegacy>(
      list, count, flags, error_index, stream);
}

SLUICE_HOOK CUresult cuMemBatchDecompressAsync_ptsz(CUmemDecompressParams* list, size_t count,
                                                    unsigned int flags, size_t* error_index,
                                                    CUstream stream) {
  return launch_kernel_through<&DriverTable::cuMemBatchDecompressAsync_ptsz,
                               NullStream::kPerThread>(list, count, flags, error_index, stream);
}

#include "trainer/load/gpu.h"

#include <cstdio>

namespace sluice::train {
namespace {

// A chain of multiplications of a given number of rounds: work that takes the time that the GPU
// spends on it, and not the time that goes by while another process has the GPU.
constexpr char kKernels[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry NAME(.param .u64 rounds)
{
  .reg .pred %p;
  .reg .b64 %rd<2>;
  .reg .f32 %f;
  ld.param.u64 %rd0, [rounds];
  mov.u64 %rd1, 0;
  mov.f32 %f, 0f3F800000;
LOOP:
  fma.rn.f32 %f, %f, %f, %f;
  sub.u64 %rd0, %rd0, 1;
  setp.ne.u64 %p, %rd0, 0;
  @%p bra LOOP;
  setp.eq.f32 %p, %f, 0f3F000000;
  @%p st.global.f32 [%rd1], %f;
  ret;
}
.visible .entry sluice_collective(.param .u64 steps, .param .u32 rank, .param .u32 ranks, .param .u32 step)
{
  .reg .pred %p;
  .reg .b32 %r<5>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [steps];
  ld.param.u32 %r0, [rank];
  ld.param.u32 %r1, [ranks];
  ld.param.u32 %r2, [step];
  mul.wide.u32 %rd1, %r0, 128;
  add.u64 %rd1, %rd0, %rd1;
  st.volatile.global.u32 [%rd1], %r2;
  mov.u32 %r3, 0;
NEXT:
  mul.wide.u32 %rd2, %r3, 128;
  add.u64 %rd2, %rd0, %rd2;
LOOP:
  ld.volatile.global.u32 %r4, [%rd2];
  setp.ge.u32 %p, %r4, %r2;
  @%p bra THERE;
  nanosleep.u32 1000;
  bra LOOP;
THERE:
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p, %r3, %r1;
  @%p bra NEXT;
  ret;
}
)";

constexpr unsigned kThreads = 128;  // of a block

}  // namespace

LoadGpu::LoadGpu(const LoadOptions& options, int gpu)
    : length_ns_(static_cast<std::uint64_t>(options.kernel_us) * 1000) {
  CUdevice device = 0;
  SLUICE_DRIVER(cuDeviceGet, &device, gpu);
  SLUICE_DRIVER(cuDevicePrimaryCtxRetain, &context_, device);
  make_current();
  std::string ptx = kKernels;
  ptx.replace(ptx.find("NAME"), 4, options.kernel);
  CUmodule module = nullptr;
  SLUICE_DRIVER(cuModuleLoadData, &module, ptx.c_str());
  SLUICE_DRIVER(cuModuleGetFunction, &kernel_, module, options.kernel.c_str());
  SLUICE_DRIVER(cuModuleGetFunction, &collective_, module, "sluice_collective");
  SLUICE_DRIVER(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
  if (options.rounds_per_us <= 0) return;
  rounds_ = static_cast<std::uint64_t>(options.rounds_per_us * options.kernel_us);
  int processors = 0;
  SLUICE_DRIVER(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                device);
  blocks_ = static_cast<unsigned>(processors);
}

void LoadGpu::make_current() { SLUICE_DRIVER(cuCtxSetCurrent, context_); }

void LoadGpu::launch(CUstream stream, unsigned blocks) {
  void* parameters[] = {&rounds_};
  SLUICE_DRIVER(cuLaunchKernel, kernel_, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters,
                nullptr);
}

void LoadGpu::launch() { launch(stream_, blocks_); }
void LoadGpu::launch_block(CUstream stream) { launch(stream, 1); }
void LoadGpu::synchronize() { SLUICE_DRIVER(cuStreamSynchronize, stream_); }
void LoadGpu::record(CUevent event) { SLUICE_DRIVER(cuEventRecord, event, stream_); }

CUevent LoadGpu::event_make() {
  CUevent event = nullptr;
  SLUICE_DRIVER(cuEventCreate, &event, CU_EVENT_DEFAULT);
  return event;
}

Lane LoadGpu::lane_make() {
  Lane lane;
  SLUICE_DRIVER(cuStreamCreate, &lane.stream, CU_STREAM_NON_BLOCKING);
  for (CUevent& end : lane.ends) end = event_make();
  return lane;
}

CUgraphExec LoadGpu::graph_make(int kernels) {
  SLUICE_DRIVER(cuStreamBeginCapture, stream_, CU_STREAM_CAPTURE_MODE_GLOBAL);
  for (int i = 0; i < kernels; ++i) launch();
  CUgraph graph = nullptr;
  SLUICE_DRIVER(cuStreamEndCapture, stream_, &graph);
  CUgraphExec exec = nullptr;
  SLUICE_DRIVER(cuGraphInstantiateWithFlags, &exec, graph, 0);
  return exec;
}

void LoadGpu::graph_launch(CUgraphExec graph) { SLUICE_DRIVER(cuGraphLaunch, graph, stream_); }

void LoadGpu::collective(CUdeviceptr steps, unsigned rank, unsigned ranks, unsigned step) {
  void* parameters[] = {&steps, &rank, &ranks, &step};
  SLUICE_DRIVER(cuLaunchKernel, collective_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr);
}

double LoadGpu::rounds_per_us() {
  constexpr int kKernels = 20;
  rounds_ = 1000 * 1000;  // of a length beside which its start is nothing
  const CUevent begin = event_make();
  const CUevent end = event_make();
  float least_ms = 0;
  for (int i = 0; i < kKernels; ++i) {
    record(begin);
    launch();
    record(end);
    synchronize();
    float ms = 0;
    SLUICE_DRIVER(cuEventElapsedTime, &ms, begin, end);
    if (i == 0 || ms < least_ms) least_ms = ms;
  }
  return static_cast<double>(rounds_) / (static_cast<double>(least_ms) * 1000);
}

void LoadGpu::done(int kernels) {
  done_ns_ += length_ns_ * static_cast<unsigned>(kernels);
  std::printf("done %llu\n", static_cast<unsigned long long>(done_ns_));
}

}  // namespace sluice::train

// Patterns of launches. The runner gives the kernels their times by name (SOFTGPU_TIMED): k_tiny 20
// us, k_mid 2 ms, k_long 100 ms, k_huge 700 ms, k_endless an hour. They are not executed, so that a
// busy host slows no attack and no victim.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>

#include <array>
#include <csignal>
#include <map>
#include <random>
#include <thread>

#include "tests/attacks/attacker/attack.h"

namespace attacks {
namespace {

int launches_made = 0;

bool more() { return options.kernels == 0 || launches_made < options.kernels; }

CUfunction kernel(const char* name) {
  static CUmodule module = [] {
    CUmodule made = nullptr;
    (void)cuModuleLoadData(&made, module_text(0).c_str());
    return made;
  }();
  CUfunction function = nullptr;
  (void)cuModuleGetFunction(&function, module, name);
  return function;
}

constexpr unsigned kBlocks = 64;  // more than there are multiprocessors: a kernel has the whole GPU

void launch(CUfunction function, CUstream stream = nullptr) {
  ++launches_made;
  (void)cuLaunchKernel(function, kBlocks, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
}

CUstream stream_make(int priority = 0) {
  CUstream stream = nullptr;
  (void)cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority);
  return stream;
}

/// Always wants the GPU: two bursts are queued at any time. What a victim runs.
void steady() {
  const CUfunction mid = kernel("k_mid");
  std::array<CUevent, 2> ends{};
  for (CUevent& end : ends) (void)cuEventCreate(&end, CU_EVENT_DISABLE_TIMING);
  for (unsigned n = 0; more(); ++n) {
    if (n >= ends.size()) (void)cuEventSynchronize(ends[n % ends.size()]);
    for (int i = 0; i < 16; ++i) launch(mid);
    (void)cuEventRecord(ends[n % ends.size()], nullptr);
  }
  (void)cuCtxSynchronize();
}

void flood(const char* name, int streams, int burst) {
  const CUfunction function = kernel(name);
  std::vector<CUstream> all;
  for (int n = 0; n < streams; ++n) all.push_back(stream_make());
  while (more()) {
    for (CUstream stream : all)
      for (int n = 0; n < burst; ++n) launch(function, stream);
    (void)cuCtxSynchronize();
  }
}

void tiny() { flood("k_tiny", 1, 400); }
void tiny_many_streams() { flood("k_tiny", 64, 20); }
void mid_many_streams() { flood("k_mid", 32, 4); }
void long_kernels() { flood("k_long", 1, 2); }
void long_many_streams() { flood("k_long", 8, 1); }
void huge_kernels() { flood("k_huge", 1, 1); }
void huge_queued() { flood("k_huge", 1, 4); }
void waits_each() { flood("k_tiny", 1, 1); }

/// The meter sees many that are short, and then one that is not.
void long_behind_tiny() {
  const CUfunction small = kernel("k_tiny");
  const CUfunction large = kernel("k_long");
  while (more()) {
    for (int n = 0; n < 300; ++n) launch(small);
    launch(large);
    (void)cuCtxSynchronize();
  }
}

void endless() {
  launch(kernel("k_endless"));
  (void)cuCtxSynchronize();
}

void endless_many() {
  for (int n = 0; n < 8; ++n) launch(kernel("k_endless"), stream_make());
  (void)cuCtxSynchronize();
}

CUgraphExec graph_of(const char* name, int nodes, bool chain) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_KERNEL_NODE_PARAMS what{};
  what.func = kernel(name);
  what.gridDimX = kBlocks;
  what.gridDimY = what.gridDimZ = what.blockDimY = what.blockDimZ = 1;
  what.blockDimX = 32;
  (void)cuGraphCreate(&graph, 0);
  CUgraphNode last = nullptr;
  for (int n = 0; n < nodes; ++n) {
    CUgraphNode node = nullptr;
    (void)cuGraphAddKernelNode(&node, graph, &last, chain && n > 0 ? 1 : 0, &what);
    last = node;
  }
  (void)cuGraphInstantiate(&exec, graph, 0);
  return exec;
}

void graphs_run(CUgraphExec exec, int burst) {
  while (more()) {
    for (int n = 0; n < burst; ++n) {
      ++launches_made;
      (void)cuGraphLaunch(exec, nullptr);
    }
    (void)cuCtxSynchronize();
  }
}

void graphs_small() { graphs_run(graph_of("k_tiny", 4, true), 50); }
void graphs_deep() { graphs_run(graph_of("k_mid", 100, true), 2); }
void graphs_wide() { graphs_run(graph_of("k_mid", 60, false), 2); }
void graphs_long() { graphs_run(graph_of("k_long", 6, true), 1); }

/// A new graph for every launch, so that what one costs is never known.
void graphs_new() {
  while (more()) {
    const CUgraphExec exec = graph_of("k_mid", 40, true);
    ++launches_made;
    (void)cuGraphLaunch(exec, nullptr);
    (void)cuCtxSynchronize();
    (void)cuGraphExecDestroy(exec);
  }
}

void cooperative() {
  const CUfunction function = kernel("k_mid");
  while (more()) {
    for (int n = 0; n < 20; ++n) {
      ++launches_made;
      (void)cuLaunchCooperativeKernel(function, 8, 1, 1, 32, 1, 1, 0, nullptr, nullptr);
    }
    (void)cuCtxSynchronize();
  }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/// The calls of old: each of an ABI of its own.
void legacy_calls() {
  const CUfunction function = kernel("k_mid");
  (void)cuFuncSetBlockShape(function, 32, 1, 1);
  while (more()) {
    for (int n = 0; n < 10; ++n) {
      launches_made += 2;
      (void)cuLaunchGrid(function, static_cast<int>(kBlocks), 1);
      (void)cuLaunchGridAsync(function, static_cast<int>(kBlocks), 1, nullptr);
    }
    (void)cuCtxSynchronize();
  }
}
#pragma GCC diagnostic pop

void launch_ex() {
  CUlaunchConfig how{};
  how.gridDimX = kBlocks;
  how.gridDimY = how.gridDimZ = how.blockDimY = how.blockDimZ = 1;
  how.blockDimX = 32;
  const CUfunction function = kernel("k_mid");
  while (more()) {
    for (int n = 0; n < 20; ++n) {
      ++launches_made;
      (void)cuLaunchKernelEx(&how, function, nullptr, nullptr);
    }
    (void)cuCtxSynchronize();
  }
}

/// While one stream captures, events cannot be queried; another stream launches.
void during_captures() {
  const CUstream capturing = stream_make();
  const CUstream working = stream_make();
  const CUfunction function = kernel("k_mid");
  while (more()) {
    CUgraph graph = nullptr;
    (void)cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL);
    launch(function, capturing);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    for (int n = 0; n < 30; ++n) launch(function, working);
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    (void)cuStreamEndCapture(capturing, &graph);
    (void)cuGraphDestroy(graph);
    (void)cuStreamSynchronize(working);
  }
}

void idle_then_burst() {
  const CUfunction function = kernel("k_mid");
  while (more()) {
    usleep(200000);
    for (int n = 0; n < 150; ++n) launch(function);
    (void)cuCtxSynchronize();
  }
}

/// Processes that launch, are gone before anything is charged, and come again.
void exits(const char* name, int launches) {
  while (more()) {
    ++launches_made;
    const pid_t pid = fork();
    if (pid == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (gpu_open() != CUDA_SUCCESS) _exit(0);
      for (int n = 0; n < launches; ++n) launch(kernel(name));
      if (launches % 2 == 0) (void)cuCtxSynchronize();
      _exit(0);
    }
    (void)waitpid(pid, nullptr, 0);
  }
}

void exits_mid() { exits("k_mid", 20); }
void exits_long() { exits("k_long", 3); }

void crowd(const char* name, int processes) {
  for (int n = 0; n < processes; ++n)
    if (fork() == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (gpu_open() == CUDA_SUCCESS) flood(name, 1, 20);
      _exit(0);
    }
  park();
}

void crowd_mid() { crowd("k_mid", 8); }
void crowd_tiny() { crowd("k_tiny", 16); }
void crowd_long() { crowd("k_long", 6); }

/// Work that is in flight when its context ends cannot be measured afterwards.
void resets() {
  while (more()) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    (void)cuModuleLoadData(&module, module_text(0).c_str());
    (void)cuModuleGetFunction(&function, module, "k_mid");
    for (int n = 0; n < 30; ++n) launch(function, stream_make());
    (void)cuDevicePrimaryCtxReset(options.device);
    (void)gpu_open();
  }
}

/// A new stream for every launch, destroyed at once.
void streams_destroyed() {
  const CUfunction function = kernel("k_mid");
  while (more()) {
    for (int n = 0; n < 40; ++n) {
      const CUstream stream = stream_make();
      launch(function, stream);
      (void)cuStreamDestroy(stream);
    }
    (void)cuCtxSynchronize();
  }
}

void priorities() {
  const CUfunction function = kernel("k_mid");
  int least = 0;
  int greatest = 0;
  (void)cuCtxGetStreamPriorityRange(&least, &greatest);
  const CUstream stream = stream_make(greatest);
  while (more()) {
    for (int n = 0; n < 60; ++n) launch(function, stream);
    (void)cuStreamSynchronize(stream);
  }
}

void threads_many() {
  std::vector<std::thread> all;
  for (int n = 0; n < 12; ++n)
    all.emplace_back([] {
      (void)gpu_open();
      flood("k_mid", 1, 4);
    });
  for (std::thread& thread : all) thread.join();
}

/// Work that waits for a word in memory is queued far ahead, and let go at once.
void dammed_up() {
  const CUfunction function = kernel("k_mid");
  CUdeviceptr word = 0;
  (void)cuMemAlloc(&word, 4);
  (void)cuMemsetD32(word, 0, 1);
  const CUstream stream = stream_make();
  for (unsigned turn = 1; more(); ++turn) {
    (void)cuStreamWaitValue32(stream, word, turn, CU_STREAM_WAIT_VALUE_GEQ);
    for (int n = 0; n < 60; ++n) launch(function, stream);
    (void)cuMemcpyHtoD(word, &turn, 4);
    (void)cuStreamSynchronize(stream);
  }
}

void host_functions() {
  const CUfunction function = kernel("k_mid");
  const CUstream stream = stream_make();
  while (more()) {
    for (int n = 0; n < 20; ++n) {
      launch(function, stream);
      (void)cuLaunchHostFunc(
          stream, [](void*) { usleep(200); }, nullptr);
    }
    (void)cuStreamSynchronize(stream);
  }
}

/// Nothing runs while a host function keeps the stream between two kernels.
void holds() {
  const CUfunction function = kernel("k_tiny");
  const CUstream stream = stream_make();
  while (more()) {
    launch(function, stream);
    (void)cuLaunchHostFunc(
        stream, [](void*) { usleep(30'000); }, nullptr);
    launch(function, stream);
    (void)cuStreamSynchronize(stream);
  }
}

/// A job of two GPUs that uses one of them: others wait for both.
void ranks_uneven() {
  if (fork() == 0) {
    options.device = 1;
    if (gpu_open() != CUDA_SUCCESS) _exit(0);
    flood("k_tiny", 1, 1);
    _exit(0);
  }
  if (gpu_open() == CUDA_SUCCESS) flood("k_huge", 1, 1);
}

/// One kernel, and the end: the job is started anew by others.
void one(const char* name) {
  launch(kernel(name));
  (void)cuCtxSynchronize();
  std::_Exit(0);
}
void one_long() { one("k_long"); }
void one_huge() { one("k_huge"); }

/// Copies and fills need no launch; the lease is kept by a kernel now and then.
void copies() {
  constexpr std::size_t kBytes = 8 * kMiB;
  CUdeviceptr here = 0;
  CUdeviceptr there = 0;
  (void)cuMemAlloc(&here, kBytes);
  (void)cuMemAlloc(&there, kBytes);
  std::vector<char> host(kBytes);
  while (more()) {
    (void)cuMemcpyHtoD(here, host.data(), kBytes);
    for (int n = 0; n < 8; ++n) (void)cuMemcpyDtoDAsync(there, here, kBytes, nullptr);
    launch(kernel("k_tiny"));
    (void)cuMemcpyDtoH(host.data(), there, kBytes);
  }
}

void fills() {
  constexpr std::size_t kBytes = 16 * kMiB;
  CUdeviceptr at = 0;
  (void)cuMemAlloc(&at, kBytes);
  while (more()) {
    for (int n = 0; n < 16; ++n)
      (void)cuMemsetD8Async(at, static_cast<unsigned char>(n), kBytes, nullptr);
    launch(kernel("k_tiny"));
    (void)cuCtxSynchronize();
  }
}

/// Sleeps inside of its turn, as often as a turn would otherwise be given back.
void hogs_its_turn() {
  const CUfunction function = kernel("k_tiny");
  while (more()) {
    launch(function);
    usleep(300);
  }
}

/// Each child launches a kernel that never ends, leaves a process that keeps it, and dies.
void kept_endless() {
  constexpr useconds_t kLaunched_us = 30'000;
  constexpr useconds_t kPause_us = 200'000;
  while (more()) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (gpu_open() != CUDA_SUCCESS) _exit(1);
      launch(kernel("k_endless"));
      usleep(kLaunched_us);
      keeper_start();
      (void)raise(SIGKILL);
    }
    (void)waitpid(pid, nullptr, 0);
    usleep(kPause_us);
  }
}

struct Pattern {
  const char* name;
  void (*run)();
  bool forks = false;  // its children open the GPU, and it does not
};
constexpr Pattern kPatterns[] = {{"steady", steady},
                                 {"tiny", tiny},
                                 {"tiny_many_streams", tiny_many_streams},
                                 {"mid_many_streams", mid_many_streams},
                                 {"long", long_kernels},
                                 {"long_many_streams", long_many_streams},
                                 {"huge", huge_kernels},
                                 {"huge_queued", huge_queued},
                                 {"waits_each", waits_each},
                                 {"long_behind_tiny", long_behind_tiny},
                                 {"endless", endless},
                                 {"endless_many", endless_many},
                                 {"graphs_small", graphs_small},
                                 {"graphs_deep", graphs_deep},
                                 {"graphs_wide", graphs_wide},
                                 {"graphs_long", graphs_long},
                                 {"graphs_new", graphs_new},
                                 {"cooperative", cooperative},
                                 {"legacy_calls", legacy_calls},
                                 {"launch_ex", launch_ex},
                                 {"during_captures", during_captures},
                                 {"idle_then_burst", idle_then_burst},
                                 {"exits_mid", exits_mid, true},
                                 {"exits_long", exits_long, true},
                                 {"crowd_mid", crowd_mid, true},
                                 {"crowd_tiny", crowd_tiny, true},
                                 {"crowd_long", crowd_long, true},
                                 {"resets", resets},
                                 {"streams_destroyed", streams_destroyed},
                                 {"priorities", priorities},
                                 {"threads_many", threads_many},
                                 {"dammed_up", dammed_up},
                                 {"host_functions", host_functions},
                                 {"holds", holds},
                                 {"ranks_uneven", ranks_uneven, true},
                                 {"one_long", one_long},
                                 {"one_huge", one_huge},
                                 {"copies", copies},
                                 {"fills", fills},
                                 {"hogs_its_turn", hogs_its_turn},
                                 {"kept_endless", kept_endless, true}};

}  // namespace

bool launches_run(const std::string& name) {
  for (const Pattern& pattern : kPatterns) {
    if (name != pattern.name) continue;
    if (!pattern.forks && gpu_open() != CUDA_SUCCESS) return true;
    tell("started " + std::to_string(getpid()));
    pattern.run();
    return true;
  }
  return false;
}

}  // namespace attacks

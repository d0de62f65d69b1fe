// A tenant for the share and priority benchmarks: launches kernels of known length in one of the
// patterns below until its standard input is closed. On the software GPU the kernels are timed
// (SOFTGPU_TIMED, by name); on hardware a block on each multiprocessor computes for as many rounds
// as the length takes there (SHARES_ROUNDS_PER_US, which `calibrate` prints).
//
//   shares_program calibrate WORK          prints rounds in a microsecond, and ends
//   shares_program once WORK COUNT EACH    EACH kernels of one block in each of COUNT streams;
//   prints
//                                          `took NS`, and ends
//   shares_program loop WORK DEPTH         kernels, DEPTH of them in flight
//   shares_program bursts WORK COUNT PAUSE COUNT kernels, a synchronisation, PAUSE on average
//   shares_program graph WORK KERNELS      graphs of KERNELS kernels, two in flight
//   shares_program sync WORK               launch, synchronise, again
//   shares_program streams WORK COUNT      kernels of one block in COUNT streams, four in flight
//   each
//   shares_program requests WORK COUNT GAP SEED COUNT kernels at random times, GAP on average
//   shares_program gang WORK COUNT HOST GPUS
//                                          a rank on each GPU: COUNT kernels, HOST on the host, a
//                                          kernel that spins until every rank's has begun, HOST
//
// WORK is NAME=MICROSECONDS: the name of the kernel and its length; times are microseconds. On
// standard output: `done NS` whenever something has been seen to end, the kernel time up to then;
// `request NS` for each request, from when it was meant to start until its last kernel's end.
#include <cuda.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// A chain of multiplications of a given number of rounds: work that takes the time that the GPU
// spends on it, and not the time that goes by while another process has the GPU.
constexpr char kModule[] = R"(
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
// A collective as NCCL's are: says that its rank has come to a step, and spins until all have.
.visible .entry meet(.param .u64 steps, .param .u32 rank, .param .u32 ranks, .param .u32 step)
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

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "shares_program: %s failed\n", what);
  exit(1);
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  fail((std::string(what) + " (" + (text != nullptr ? text : "unknown error") + ")").c_str());
}

#define CHECK(call) check(call, #call)

class Tenant {
 public:
  explicit Tenant(const std::string& work, int gpu = 0) {
    const std::size_t split = work.find('=');
    if (split == std::string::npos) fail("WORK: NAME=MICROSECONDS");
    const std::string name = work.substr(0, split);
    length_ns_ = strtoull(work.c_str() + split + 1, nullptr, 10) * 1000;
    CHECK(cuInit(0));
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, gpu));
    CHECK(cuDevicePrimaryCtxRetain(&context_, device));
    make_current();
    std::string ptx = kModule;
    ptx.replace(ptx.find("NAME"), 4, name);
    CUmodule module = nullptr;
    CHECK(cuModuleLoadData(&module, ptx.c_str()));
    CHECK(cuModuleGetFunction(&kernel_, module, name.c_str()));
    CHECK(cuModuleGetFunction(&meet_, module, "meet"));
    CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    if (const char* rate = getenv("SHARES_ROUNDS_PER_US"); rate != nullptr) {
      rounds_ = static_cast<unsigned long long>(strtod(rate, nullptr) * 1e-3 *
                                                static_cast<double>(length_ns_));
      int processors = 0;
      CHECK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
      blocks_ = static_cast<unsigned>(processors);
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
  }

  void make_current() { CHECK(cuCtxSetCurrent(context_)); }
  void launch() { launch(stream_, blocks_); }
  /// `steps` is a word of 128 bytes for each rank, which all ranks' GPUs see.
  void meet(CUdeviceptr steps, unsigned rank, unsigned ranks, unsigned step) {
    void* parameters[] = {&steps, &rank, &ranks, &step};
    CHECK(cuLaunchKernel(meet_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  }
  void launch(CUstream stream, unsigned blocks) {
    void* parameters[] = {&rounds_};
    CHECK(cuLaunchKernel(kernel_, blocks, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr));
  }
  /// How many rounds a kernel has in a microsecond: the fastest of some kernels, measured by the
  /// device, of a length beside which their start is nothing.
  double calibrate() {
    constexpr int kKernels = 20;
    rounds_ = 1000 * 1000;
    const CUevent begin = event_make();
    const CUevent end = event_make();
    float least_ms = 0;
    for (int i = 0; i < kKernels; ++i) {
      record(begin);
      launch();
      record(end);
      synchronize();
      float ms = 0;
      CHECK(cuEventElapsedTime(&ms, begin, end));
      if (i == 0 || ms < least_ms) least_ms = ms;
    }
    return static_cast<double>(rounds_) / (static_cast<double>(least_ms) * 1000);
  }
  void synchronize() { CHECK(cuStreamSynchronize(stream_)); }
  CUevent event_make() {
    CUevent event = nullptr;
    CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    return event;
  }
  struct Lane {
    CUstream stream = nullptr;
    CUevent ends[4] = {};
  };
  Lane lane_make() {
    Lane lane;
    CHECK(cuStreamCreate(&lane.stream, CU_STREAM_NON_BLOCKING));
    for (CUevent& end : lane.ends) end = event_make();
    return lane;
  }
  void record(CUevent event) { CHECK(cuEventRecord(event, stream_)); }

  CUgraphExec graph_make(int kernels) {
    CHECK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < kernels; ++i) launch();
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream_, &graph));
    CUgraphExec exec = nullptr;
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    return exec;
  }
  void graph_launch(CUgraphExec exec) { CHECK(cuGraphLaunch(exec, stream_)); }

  void done(int kernels) {
    done_ns_ += length_ns_ * static_cast<unsigned>(kernels);
    printf("done %llu\n", done_ns_);
  }

 private:
  CUcontext context_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUfunction meet_ = nullptr;
  CUstream stream_ = nullptr;
  unsigned long long length_ns_ = 0, done_ns_ = 0;
  unsigned long long rounds_ = 1;
  unsigned blocks_ = 1;
};

/// Standard input is closed: the benchmark is over.
bool over() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

/// Launches again and again, so many at a time in flight. `one` submits so many kernels.
template <class One>
void pipeline(Tenant& tenant, int depth, int kernels, const One& one) {
  std::vector<CUevent> ends;
  for (int i = 0; i < depth; ++i) ends.push_back(tenant.event_make());
  for (unsigned long round = 0; !over(); ++round) {
    const CUevent end = ends[round % ends.size()];
    if (round >= ends.size()) {
      CHECK(cuEventSynchronize(end));
      tenant.done(kernels);
    }
    one();
    tenant.record(end);
  }
}

void bursts(Tenant& tenant, int count, int pause_us) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> pause(1.0 / pause_us);
  while (!over()) {
    for (int i = 0; i < count; ++i) tenant.launch();
    tenant.synchronize();
    tenant.done(count);
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(pause(random)));
  }
}

/// Records the event that ends are measured from; the host's time of it, as near as a few tries
/// come.
Clock::time_point base_record(Tenant& tenant, CUevent base) {
  constexpr int kTries = 200;
  constexpr auto kNear = std::chrono::microseconds(20);
  for (int i = 0;; ++i) {
    const Clock::time_point before = Clock::now();
    tenant.record(base);
    tenant.synchronize();
    const auto took = Clock::now() - before;
    if (took <= kNear || i == kTries) return before + took / 2;
  }
}

/// Kernels of a block each in many streams, which a GPU runs side by side.
void streams(Tenant& tenant, int count) {
  std::vector<Tenant::Lane> lanes;
  for (int i = 0; i < count; ++i) lanes.push_back(tenant.lane_make());
  constexpr std::size_t kInFlight = 4;
  for (std::size_t round = 0; !over(); ++round)
    for (Tenant::Lane& lane : lanes) {
      const CUevent end = lane.ends[round % kInFlight];
      if (round >= kInFlight) {
        CHECK(cuEventSynchronize(end));
        tenant.done(1);
      }
      tenant.launch(lane.stream, 1);
      CHECK(cuEventRecord(end, lane.stream));
    }
}

/// What many streams are given at once takes from the first launch to the last end.
void once(Tenant& tenant, int count, int each) {
  std::vector<Tenant::Lane> lanes;
  for (int i = 0; i < count; ++i) lanes.push_back(tenant.lane_make());
  const Clock::time_point begin = Clock::now();
  for (const Tenant::Lane& lane : lanes)
    for (int i = 0; i < each; ++i) tenant.launch(lane.stream, 1);
  CHECK(cuCtxSynchronize());
  printf("took %lld\n", static_cast<long long>(nanoseconds(Clock::now() - begin).count()));
}

/// Requests at the times of a Poisson process. A request that comes while another is served waits
/// for it. Ends are the device's time of an event, so that how fast this host wakes is no part of
/// them.
void requests(Tenant& tenant, int count, int gap_us, unsigned seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(1.0 / gap_us);
  const CUevent base = tenant.event_make();
  const CUevent end = tenant.event_make();
  const Clock::time_point base_at = base_record(tenant, base);
  Clock::time_point meant = Clock::now();
  while (!over()) {
    meant += nanoseconds(static_cast<long long>(gap(random) * 1000));
    std::this_thread::sleep_until(meant);
    for (int i = 0; i < count; ++i) tenant.launch();
    tenant.record(end);
    CHECK(cuEventSynchronize(end));
    float ms = 0;
    CHECK(cuEventElapsedTime(&ms, base, end));
    printf("request %lld\n", static_cast<long long>(static_cast<double>(ms) * 1e6) -
                                 static_cast<long long>((meant - base_at).count()));
    tenant.done(count);
  }
}

/// A job with a rank on each GPU, which ends together after the input is closed.
class Gang {
 public:
  Gang(const std::string& work, int kernels, int host_us, int gpus)
      : kernels_(kernels), host_(host_us) {
    for (int gpu = 0; gpu < gpus; ++gpu) ranks_.push_back(std::make_unique<Tenant>(work, gpu));
    CHECK(cuMemHostAlloc(&words_, 128 * ranks_.size(),
                         CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(words_, 0, 128 * ranks_.size());
    for (const auto& rank : ranks_) {
      rank->make_current();
      rank->launch();
      rank->synchronize();
    }
  }

  void run() {
    std::vector<std::thread> others;
    for (unsigned rank = 1; rank < ranks_.size(); ++rank)
      others.emplace_back([this, rank] { rank_run(rank); });
    rank_run(0);
    for (std::thread& other : others) other.join();
  }

 private:
  /// The first rank that sees the end finishes the step that it begins, and the others with it:
  /// none is further, because no step ends before all ranks have begun its collective.
  bool goes_on(unsigned step) {
    unsigned never = UINT_MAX;
    if (over()) last_.compare_exchange_strong(never, step);
    return step <= last_;
  }
  void rank_run(unsigned index) {
    Tenant& rank = *ranks_[index];
    rank.make_current();
    CUdeviceptr steps = 0;
    CHECK(cuMemHostGetDevicePointer(&steps, words_, 0));
    for (unsigned step = 1; goes_on(step); ++step) {
      for (int i = 0; i < kernels_; ++i) rank.launch();
      host_work(rank);
      rank.meet(steps, index, static_cast<unsigned>(ranks_.size()), step);
      rank.synchronize();
      host_work(rank);
      if (index == 0) rank.done(kernels_);
    }
  }
  void host_work(Tenant& rank) const {
    if (host_.count() == 0) return;
    rank.synchronize();
    std::this_thread::sleep_for(host_);
  }

  const int kernels_;
  const std::chrono::microseconds host_;
  std::vector<std::unique_ptr<Tenant>> ranks_;
  void* words_ = nullptr;
  std::atomic<unsigned> last_{UINT_MAX};
};

int gang(int argc, char** argv) {
  if (argc != 6) fail("gang WORK COUNT HOST GPUS");
  Gang job(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
  printf("ready\n");
  job.run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) fail("usage");
  const std::string pattern = argv[1];
  auto number = [&](int i) { return i < argc ? atoi(argv[i]) : 1; };
  if (pattern == "gang") return gang(argc, argv);
  Tenant tenant(argv[2]);
  if (pattern == "calibrate") {
    printf("%.3f\n", tenant.calibrate());
    return 0;
  }
  if (pattern == "once") {
    once(tenant, number(3), number(4));
    return 0;
  }
  tenant.launch();
  tenant.synchronize();
  printf("ready\n");
  if (pattern == "loop")
    pipeline(tenant, number(3), 1, [&] { tenant.launch(); });
  else if (pattern == "bursts")
    bursts(tenant, number(3), number(4));
  else if (pattern == "graph") {
    const CUgraphExec exec = tenant.graph_make(number(3));
    pipeline(tenant, 2, number(3), [&] { tenant.graph_launch(exec); });
  } else if (pattern == "sync") {
    pipeline(tenant, 1, 1, [&] {
      tenant.launch();
      tenant.synchronize();
    });
  } else if (pattern == "streams")
    streams(tenant, number(3));
  else if (pattern == "requests")
    requests(tenant, number(3), number(4), static_cast<unsigned>(number(5)));
  else
    fail("the pattern: calibrate, once, loop, bursts, graph, sync, streams, requests or gang");
  tenant.synchronize();
  return 0;
}

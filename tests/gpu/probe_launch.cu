// How long a launch takes the host, through the CUDA runtime: an empty kernel, in batches that the
// driver can take without waiting for the GPU; the same with a pair of events round every launch.
// One JSON line, which also says how many launches passed the wrapper of probe_change.cpp, if that
// is preloaded.
//
//   probe_launch LAUNCHES
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void nothing() {}

namespace {

constexpr long kBatch = 500;

double now_ns() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Figures {
  double median_ns, least_ns;
};

template <class Launch>
Figures measure(long launches, Launch launch) {
  std::vector<double> batches;
  for (long done = 0; done < launches; done += kBatch) {
    const double begin = now_ns();
    for (long i = 0; i < kBatch; ++i) launch();
    batches.push_back((now_ns() - begin) / kBatch);
    cudaDeviceSynchronize();
  }
  std::sort(batches.begin(), batches.end());
  return {batches[batches.size() / 2], batches.front()};
}

}  // namespace

int main(int argc, char** argv) {
  const long launches = std::max(argc > 1 ? std::atol(argv[1]) : 0, kBatch);
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  measure(kBatch, [] { nothing<<<1, 1>>>(); });  // loads the kernel
  const Figures plain = measure(launches, [] { nothing<<<1, 1>>>(); });
  const Figures sampled = measure(std::max(launches / 10, kBatch), [&] {
    cudaEventRecord(begin);
    nothing<<<1, 1>>>();
    cudaEventRecord(end);
  });
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    std::printf("{\"error\": %d}\n", static_cast<int>(error));
    return 1;
  }
  const auto* wrapped =
      static_cast<const unsigned long*>(dlsym(RTLD_DEFAULT, "probe_wrapped_launches"));
  std::printf(
      "{\"error\": 0, \"launches\": %ld, \"wrapped_launches\": %lu, \"launch_ns\": %.1f, "
      "\"launch_least_ns\": %.1f, \"with_event_pair_ns\": %.1f, \"with_event_pair_least_ns\": "
      "%.1f}\n",
      launches, wrapped != nullptr ? *wrapped : 0, plain.median_ns, plain.least_ns,
      sampled.median_ns, sampled.least_ns);
  return 0;
}

// One process with a rank on each GPU. Each step ends with a collective that spins on the GPUs.
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "trainer/job/command_line.h"
#include "trainer/load/gpu.h"
#include "trainer/load/patterns.h"

namespace sluice::train {
namespace {

constexpr std::size_t kWordBytes = 128;  // a rank's own, in the page that all GPUs see

class Gang {
 public:
  explicit Gang(const LoadOptions& options) : options_(options) {
    for (int gpu = 0; gpu < options.ranks; ++gpu)
      ranks_.push_back(std::make_unique<LoadGpu>(options, gpu));
    SLUICE_DRIVER(cuMemHostAlloc, &words_, kWordBytes * ranks_.size(),
                  CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    std::memset(words_, 0, kWordBytes * ranks_.size());
    for (const auto& rank : ranks_) {
      rank->make_current();
      rank->launch();
      rank->synchronize();
    }
  }

  void run() {
    std::vector<std::thread> others;
    for (unsigned rank = 1; rank < ranks_.size(); ++rank)
      others.emplace_back([this, rank] {
        const auto run = [&] {
          rank_run(rank);
          return 0;
        };
        if (const int failed = program_main("sluice-load", run); failed != 0) std::_Exit(failed);
      });
    rank_run(0);
    for (std::thread& other : others) other.join();
  }

 private:
  /// The first rank that sees the end finishes the step that it begins, and the others with it:
  /// none is further, because no step ends before all ranks have begun its collective.
  bool goes_on(unsigned step) {
    unsigned never = UINT_MAX;
    if (load_is_over()) last_.compare_exchange_strong(never, step);
    return step <= last_;
  }

  void rank_run(unsigned index) {
    LoadGpu& rank = *ranks_[index];
    rank.make_current();
    CUdeviceptr steps = 0;
    SLUICE_DRIVER(cuMemHostGetDevicePointer, &steps, words_, 0);
    auto begin = std::chrono::steady_clock::now();
    for (unsigned step = 1; goes_on(step); ++step) {
      for (int i = 0; i < options_.kernels; ++i) rank.launch();
      host_work(rank);
      rank.collective(steps, index, static_cast<unsigned>(ranks_.size()), step);
      rank.synchronize();
      host_work(rank);
      if (index != 0) continue;
      const auto end = std::chrono::steady_clock::now();
      std::printf("step %lld\n",
                  static_cast<long long>(std::chrono::nanoseconds(end - begin).count()));
      rank.done(options_.kernels);
      begin = end;
    }
  }

  void host_work(LoadGpu& rank) const {
    if (options_.host_us == 0) return;
    rank.synchronize();
    std::this_thread::sleep_for(std::chrono::microseconds(options_.host_us));
  }

  const LoadOptions& options_;
  std::vector<std::unique_ptr<LoadGpu>> ranks_;
  void* words_ = nullptr;
  std::atomic<unsigned> last_{UINT_MAX};
};

}  // namespace

void load_gang_run(const LoadOptions& options) {
  Gang gang(options);
  std::printf("ready\n");
  gang.run();
}

}  // namespace sluice::train

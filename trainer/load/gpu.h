// A program's work on one GPU in kernels of known length. On a software GPU the kernels are timed
// there by their name (SOFTGPU_TIMED); on hardware a block on each multiprocessor computes for as
// many rounds as the length takes.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "trainer/device/driver.h"
#include "trainer/load/options.h"

namespace sluice::train {

/// Calls a function of the driver. Throws DriverFailure.
#define SLUICE_DRIVER(function, ...) \
  ::sluice::train::driver_check(::sluice::train::driver().function(__VA_ARGS__), #function)

/// A stream and the events behind its last launches.
struct Lane {
  static constexpr std::size_t kInFlight = 4;
  CUstream stream = nullptr;
  CUevent ends[kInFlight] = {};
};

/// One GPU's primary context, a stream, and the kernels. What it makes lives until the process
/// ends.
class LoadGpu {
 public:
  /// Makes the context of the GPU with this index and loads the kernels. Throws Failure.
  LoadGpu(const LoadOptions& options, int gpu);

  /// Makes the context current to the calling thread. The constructor did so for its own.
  void make_current();
  /// Launches the kernel into the own stream: one block, on hardware one for each multiprocessor.
  void launch();
  /// Launches one block into `stream`.
  void launch_block(CUstream stream);
  void synchronize();
  void record(CUevent event);
  CUevent event_make();
  Lane lane_make();
  CUgraphExec graph_make(int kernels);
  void graph_launch(CUgraphExec graph);
  /// Launches a collective as NCCL's are: it tells that its rank has come to `step`, and spins
  /// until all have. `steps` is a word in each 128 bytes for each rank, which all GPUs see.
  void collective(CUdeviceptr steps, unsigned rank, unsigned ranks, unsigned step);
  /// Returns the rounds of the kernel in a microsecond: the most of some kernels, measured by the
  /// device.
  double rounds_per_us();
  /// Prints `done NS`: the kernel time that was seen to end up to now, with these kernels.
  void done(int kernels);

 private:
  void launch(CUstream stream, unsigned blocks);

  CUcontext context_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUfunction collective_ = nullptr;
  CUstream stream_ = nullptr;
  std::uint64_t length_ns_ = 0, done_ns_ = 0;
  std::uint64_t rounds_ = 1;
  unsigned blocks_ = 1;
};

}  // namespace sluice::train

// How the ranks of a job speak: the three collectives that data parallelism needs, on device
// memory, with NCCL's meaning. Two engines: Gloo over loopback TCP (software GPUs, or several ranks
// on one GPU) and NCCL (a GPU per rank). A dead or silent peer is a Failure here, never a hang
// beyond the timeout.
#pragma once

#include <memory>
#include <string>

#include "trainer/comm/link.h"
#include "trainer/device/device.h"

namespace sluice::train {

/// Another rank has ended or hangs: the echo of somebody else's failure.
class PeerFailure : public Failure {
 public:
  using Failure::Failure;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual const char* name() const = 0;
  /// Every rank's data[0..count) becomes the sum over all ranks. Ordered after the stream's earlier
  /// work and before its later work; may return before it is done.
  virtual void allreduce_sum(Stream& stream, CUdeviceptr data, std::size_t count) = 0;
  /// Rank 0's data[0..count) becomes everyone's.
  virtual void broadcast(Stream& stream, CUdeviceptr data, std::size_t count) = 0;
  /// Returns when every rank has come here.
  virtual void barrier(Stream& stream) = 0;
};

struct CommOptions {
  int rank = 0;
  int rank_count = 1;
  std::string directory;  // private to the job, empty at its start: where ranks find each other
  Algorithm algorithm = Algorithm::kRing;
  LinkModel link;
  double timeout_s = 60;
};

/// One rank alone: every collective is the identity.
std::unique_ptr<Communicator> alone_comm();
std::unique_ptr<Communicator> gloo_comm(const CommOptions& options);
/// Throws Failure when NCCL is not there (nccl_missing() says so beforehand).
std::unique_ptr<Communicator> nccl_comm(const CommOptions& options);
/// Empty when NCCL can be used, else why not.
std::string nccl_missing();

enum class Engine : std::uint8_t { kAuto, kGloo, kNccl };
std::optional<Engine> engine_parse(const std::string& name);

/// The engine for a job, made. kAuto takes NCCL where it is there, the GPUs are hardware and every
/// rank has its own.
std::unique_ptr<Communicator> comm_make(const CommOptions& options, Engine engine,
                                        bool own_gpu_each, bool software);

}  // namespace sluice::train

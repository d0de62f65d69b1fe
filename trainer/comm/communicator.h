// How the ranks of a job speak: NCCL's operations with NCCL's meaning, on device memory. Two
// engines: Gloo over TCP (software GPUs, or where NCCL is not installed) and NCCL (hardware); and
// `alone`, for a job of one. A dead or silent peer is a Failure here, never a hang
// beyond the timeout.
//
// Every rank calls the same collectives in the same order with the same counts. Each is ordered
// after the stream's earlier work and before its later work, and may return before it is done. One
// thread at a time. A count of 0 does nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trainer/comm/gloo_wire.h"
#include "trainer/comm/link.h"
#include "trainer/device/device.h"

namespace sluice::train {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual const char* name() const = 0;

  /// Every rank's data [count] becomes the reduction over all ranks; the same bits everywhere.
  virtual void all_reduce(Stream& stream, CUdeviceptr data, std::size_t count,
                          DataType type = DataType::kFloat32,
                          Reduction reduction = Reduction::kSum) = 0;
  /// receive [count] becomes the part of this rank of the reduction of all ranks' send
  /// [rank_count x count]. receive may be that part of send.
  virtual void reduce_scatter(Stream& stream, CUdeviceptr send, CUdeviceptr receive,
                              std::size_t count, DataType type = DataType::kFloat32,
                              Reduction reduction = Reduction::kSum) = 0;
  /// receive [rank_count x count] becomes all ranks' send [count], in the order of ranks. send may
  /// be this rank's part of receive.
  virtual void all_gather(Stream& stream, CUdeviceptr send, CUdeviceptr receive, std::size_t count,
                          DataType type = DataType::kFloat32) = 0;
  /// root's data [count] becomes everyone's.
  virtual void broadcast(Stream& stream, CUdeviceptr data, std::size_t count,
                         DataType type = DataType::kFloat32, int root = 0) = 0;
  /// root's data [count] becomes the reduction over all ranks; the others keep theirs.
  virtual void reduce(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
                      Reduction reduction, int root) = 0;

  /// What one rank sends, the other must receive in the same order and size. Ranks that send to
  /// each other do so in a group: outside of one, a send may wait for its reception.
  virtual void send(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
                    int peer) = 0;
  virtual void receive(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
                       int peer) = 0;
  /// Sends and receptions between these go out together. May be nested; the outermost end counts.
  virtual void group_begin() = 0;
  virtual void group_end() = 0;

  /// Returns when every rank has come here.
  virtual void barrier(Stream& stream) = 0;

  /// From another thread: collectives that are under way, and all later ones, end soon with a
  /// Failure instead of waiting for ranks that are lost. What data they leave is undefined.
  virtual void abort() {}

  /// What this rank sent so far, as counted by the transport; none where the engine cannot tell.
  virtual std::optional<Traffic> traffic() const { return std::nullopt; }
  /// Whether the modelled link's time is put on the streams by the operations themselves (on
  /// software GPUs; on hardware there is no such time). Off: the caller does it, as the overlap of
  /// the reduction does, which knows the moment from which the link was free to begin.
  virtual void link_charge(bool) {}
  /// What that time is for a collective over `bytes` in all: of an all-reduce or a broadcast those
  /// of a rank, of a reduce-scatter or an all-gather those of all parts. 0 where no link is
  /// modelled.
  virtual Nanos link_ns(Operation, std::size_t bytes) const { return static_cast<void>(bytes), 0; }
};

struct CommOptions {
  int rank = 0;
  int rank_count = 1;
  std::string directory;  // where ranks find each other, theirs alone: see WireOptions
  Algorithm algorithm = Algorithm::kRing;  // of Gloo's all-reduce
  LinkModel link;
  double timeout_s = 60;
  WireThrottle throttle = {};  // of Gloo's messages, in real time
  /// Asked while the ranks meet; true ends that with a PeerFailure. Empty = never.
  std::function<bool()> cancelled = {};
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

/// What kAuto means: NCCL where it is there and the GPUs are hardware. Others as they are.
Engine engine_chosen(Engine engine, bool software);

/// The engine for a job, made. NCCL takes ranks that share a GPU only if each of them has an
/// NCCL_HOSTID of its own (nccl_sharing.h): without any that is a Failure here.
std::unique_ptr<Communicator> comm_make(const CommOptions& options, Engine engine,
                                        bool own_gpu_each, bool software);

}  // namespace sluice::train

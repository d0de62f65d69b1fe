// Collectives between the host memories of the ranks, by Gloo over TCP, counted. Knows
// nothing of GPUs: gloo_comm.cpp stages device memory through it, and tests and benchmarks use it
// without a driver. Every rank must call the same things in the same order; one thread of a rank
// at a time. A peer that ends or stays silent is a PeerFailure, after which nothing works any more.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/comm/link.h"
#include "trainer/comm/operation.h"
#include "trainer/comm/peer_failure.h"

namespace gloo {
class Context;
}

namespace sluice::train {

class WireMeter;
struct WireEvent;

struct WireOptions {
  int rank = 0;
  int rank_count = 1;
  /// Where ranks find each other (store.h): a directory that is private to the job and empty at its
  /// start, or a place in the network.
  std::string directory;
  Algorithm algorithm = Algorithm::kRing;
  double timeout_s = 60;
  WireThrottle throttle = {};
  /// Asked while the ranks meet; true ends that with a PeerFailure. Empty = never.
  std::function<bool()> cancelled = {};
};

/// Host memory for staging: what it returns lives as long as the pointer. Empty = the heap.
using HostMemory = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

/// A collective that is set up: fill input(), run(), read output(). They may be the same memory.
class Exchange {
 public:
  virtual ~Exchange() = default;
  std::byte* input() const { return input_.get(); }
  std::byte* output() const { return output_.get(); }
  /// Throws PeerFailure.
  void run() { run_(); }

 private:
  friend class GlooWire;
  std::shared_ptr<std::byte> input_, output_;
  std::function<void()> run_;
};

/// One direction of a point-to-point exchange. `memory` stays the caller's.
struct Transfer {
  enum class Way : std::uint8_t { kSend, kReceive };
  Way way;
  int peer;
  std::byte* memory;
  std::size_t bytes;
};

class GlooWire {
 public:
  /// Meets the other ranks. Throws PeerFailure when they do not come in time.
  explicit GlooWire(const WireOptions& options, HostMemory memory = {});
  ~GlooWire();
  GlooWire(const GlooWire&) = delete;
  GlooWire& operator=(const GlooWire&) = delete;

  // Each is set up when it is first asked for, which is a collective by itself, and kept. Types
  // that are reduced are floats. Throw PeerFailure, and Failure above Gloo's 2 GiB.

  /// output [count] = the reduction of all ranks' input [count]; the same bits on every rank.
  Exchange& all_reduce(std::size_t count, DataType type, Reduction reduction);
  /// output [count] = part `rank` of the reduction of input [rank_count * count].
  Exchange& reduce_scatter(std::size_t count, DataType type, Reduction reduction);
  /// output [rank_count * bytes] = all ranks' input [bytes], in the order of ranks.
  Exchange& all_gather(std::size_t bytes);
  /// output [bytes] = root's input.
  Exchange& broadcast(std::size_t bytes, int root);
  /// As all_reduce, at the root only; elsewhere output is undefined.
  Exchange& reduce(std::size_t count, DataType type, Reduction reduction, int root);

  /// All at once; returns when each is done. What one rank sends to another is received in the
  /// order in which it was sent, with the same sizes.
  void transfer(std::span<const Transfer> transfers);
  void barrier();
  /// From another thread, where WireOptions::cancelled is given: ends the connections to all ranks,
  /// so that whatever waits for them ends with a PeerFailure.
  void abort();

  const Traffic& traffic() const;
  /// Notes every message from now on (or no more), for wire_steps().
  void trace(bool on);
  std::vector<WireEvent> trace_take();

 private:
  struct State;
  using Key = std::tuple<Operation, std::size_t, DataType, Reduction, int>;

  Exchange& prepared(const Key& key, std::size_t input_bytes, std::size_t output_bytes,
                     const std::function<void(Exchange&)>& make);
  void guarded(const char* what, const std::function<void()>& work);
  std::shared_ptr<std::byte> memory_take(std::size_t bytes);

  const WireOptions options_;
  const HostMemory memory_;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::train

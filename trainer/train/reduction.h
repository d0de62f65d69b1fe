// The reduction of a step's gradients over all ranks, bucket by bucket, beside the backward pass. A
// bucket begins when the last of its gradients is final: the last layers' first. The collectives
// run on a stream and in a thread of their own, because Gloo's block theirs.
//
// Which buckets there are and in which order they are reduced does not depend on the overlap, so
// the results are the same bits with and without.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/train/plan.h"

namespace sluice::train {

/// What the communication of one step took: the reduction of gradients, and in a grid what the
/// passes themselves wait for.
struct ReductionTimes {
  /// Of this process, in which it only waited: from the end of its backward pass to the end of the
  /// reduction, and in sums and for messages within the passes.
  Nanos wall_ns = 0;
  /// In the device's time; where the GPU and the link are modelled, in modelled time.
  Nanos collective_ns = 0;  // all collectives of the step, and its waits for other stages
  Nanos exposed_ns = 0;     // what of it nothing hid
  // Parts of both of those.
  Nanos tensor_ns = 0;      // sums within layers
  Nanos stage_wait_ns = 0;  // for other stages: their messages, and until they come
  /// What sums within layers and of the two ends moved, as busbw counts bytes.
  double bus_bytes = 0;

  ReductionTimes& operator+=(const ReductionTimes& other) {
    wall_ns += other.wall_ns;
    collective_ns += other.collective_ns;
    exposed_ns += other.exposed_ns;
    tensor_ns += other.tensor_ns;
    stage_wait_ns += other.stage_wait_ns;
    bus_bytes += other.bus_bytes;
    return *this;
  }

  /// How much of the communication the passes hid.
  static double overlap_ratio(Nanos exposed_ns, Nanos collective_ns) {
    if (collective_ns <= 0) return 0;
    return std::max(0.0, 1 - static_cast<double>(exposed_ns) / static_cast<double>(collective_ns));
  }
};

/// What becomes of a bucket: a collective on `stream`, and how long the modelled link takes for it.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  virtual void reduce(Stream& stream, const Bucket& bucket) = 0;
  virtual Nanos link_ns(const Bucket& bucket) const = 0;
  /// Bytes that this rank hands to the collective, and how often the link carries them, as
  /// nccl-tests counts busbw: 2 (N-1)/N for an all-reduce, (N-1)/N for a reduce-scatter.
  virtual double bus_bytes(const Bucket& bucket) const = 0;
  /// What this rank keeps back for its next gradients, on the device, one float a parameter; 0 =
  /// nothing. The sum over the ranks is what the model has yet to get.
  virtual CUdeviceptr errors() const { return 0; }
  /// What the next step begins with, the same on every rank, one float a parameter; empty =
  /// nothing. Between steps; both wait.
  virtual std::vector<float> warm_take(Stream&) const { return {}; }
  virtual void warm_put(Stream&, std::span<const float>) {}
};

/// Every rank's gradients become the sum over all ranks, in 32 bits.
class PlainReduction final : public BucketReduction {
 public:
  PlainReduction(Communicator& comm, int rank_count, CUdeviceptr gradients)
      : comm_(comm), rank_count_(rank_count), gradients_(gradients) {}
  void reduce(Stream& stream, const Bucket& bucket) override;
  Nanos link_ns(const Bucket& bucket) const override;
  double bus_bytes(const Bucket& bucket) const override;

 private:
  Communicator& comm_;
  const int rank_count_;
  const CUdeviceptr gradients_;
};

class GradientReducer {
 public:
  /// `buckets` from the highest to the lowest. Everything must outlive it.
  GradientReducer(Communicator& comm, BucketReduction& reduction, Stream& compute,
                  std::span<const Bucket> buckets, bool overlaps);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// On the compute stream everything from gradients[begin] on is final.
  void ready(std::size_t begin);
  /// After the backward pass is on the compute stream: waits until all is reduced. What is put on
  /// the compute stream then comes after it. Throws what the collectives threw.
  ReductionTimes finish();

  /// After finish(), of every bucket in turn: when the link had it, from `origin` on.
  struct Span {
    Nanos begin, end;
  };
  std::vector<Span> spans(const Event& origin) const;

 private:
  struct Slot {
    Event ready, begin, end;
  };

  void post(std::size_t number, const Event& after);
  void worker_run();
  void reduce(std::size_t number);
  ReductionTimes times(Nanos wall_ns) const;

  Communicator& comm_;
  BucketReduction& reduction_;
  Stream& compute_;
  const std::span<const Bucket> buckets_;
  const bool overlaps_;
  /// Modelled time is put on a stream of its own at the moment from which it counts; the
  /// collectives themselves take the host's time, which is nobody's affair then.
  const bool modelled_;
  Stream collectives_;
  Stream link_;
  std::vector<Slot> slots_;
  Event backward_end_;
  std::size_t posted_ = 0;  // of this step

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::size_t, const Event*>> work_;
  bool busy_ = false;
  bool ends_ = false;
  std::exception_ptr failure_;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace sluice::train

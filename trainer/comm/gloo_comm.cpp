// Collectives by Gloo over loopback TCP: device memory is staged through pinned host memory. Only
// Gloo's class-style algorithms are used; its function-style ring stalls for tens of milliseconds
// per segment on a loopback with its usual 64 KiB MTU. Ranks meet through files in the job's
// private directory. After a failure the connection cannot be used again.
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <map>

#include "trainer/comm/communicator.h"

namespace sluice::train {
namespace {

class GlooComm final : public Communicator {
 public:
  explicit GlooComm(const CommOptions& options) : options_(options) {
    guarded("meeting the other ranks", [&] {
      gloo::transport::tcp::attr attributes("127.0.0.1");
      auto device = gloo::transport::tcp::CreateDevice(attributes);
      gloo::rendezvous::FileStore store(options.directory);
      auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.rank_count);
      context->setTimeout(
          std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1e3)));
      context->connectFullMesh(store, device);
      context_ = context;
      barrier_ = std::make_unique<gloo::BarrierAllToAll>(context_);
    });
  }

  const char* name() const override { return "gloo"; }

  void allreduce_sum(Stream& stream, CUdeviceptr data, std::size_t count) override {
    Staged& staged = staged_for(count);
    const std::size_t bytes = count * sizeof(float);
    stream.download(staged.buffer.data(), data, bytes);
    stream.synchronize();
    guarded("the all-reduce", [&] {
      staged.algorithm->run();
      if (needs_barrier()) barrier_->run();
    });
    stream.link_delay(options_.link.allreduce_ns(options_.algorithm, options_.rank_count, bytes));
    stream.upload(data, staged.buffer.data(), bytes);
    // The buffer is used again by the next bucket of this size.
    stream.synchronize();
  }

  void broadcast(Stream& stream, CUdeviceptr data, std::size_t count) override {
    const std::size_t bytes = count * sizeof(float);
    PinnedArray<float> buffer(count);
    if (options_.rank == 0) stream.download(buffer.data(), data, bytes);
    stream.synchronize();
    guarded("the broadcast", [&] {
      gloo::BroadcastOneToAll<float> algorithm(context_, {buffer.data()}, count, 0);
      algorithm.run();
    });
    stream.link_delay(options_.link.broadcast_ns(options_.rank_count, bytes));
    if (options_.rank != 0) stream.upload(data, buffer.data(), bytes);
    stream.synchronize();
  }

  void barrier(Stream& stream) override {
    stream.synchronize();
    guarded("the barrier", [&] { barrier_->run(); });
  }

 private:
  /// Gloo's bcube ends when the peers of its first step have read what was sent to them. With more
  /// steps than one a fast rank would write into what a slow one still reads.
  bool needs_barrier() const {
    return options_.algorithm == Algorithm::kBcube && options_.rank_count > 2;
  }

  /// A host buffer and the algorithm bound to it. Made once per size, by all ranks in the same
  /// order: Gloo numbers its connections' slots in order of construction.
  struct Staged {
    explicit Staged(std::size_t count) : buffer(count) {}
    PinnedArray<float> buffer;
    std::unique_ptr<gloo::Algorithm> algorithm;
  };

  Staged& staged_for(std::size_t count) {
    std::unique_ptr<Staged>& slot = staged_[count];
    if (!slot) {
      auto made = std::make_unique<Staged>(count);
      guarded("setting up the all-reduce", [&] {
        made->algorithm = algorithm_make(made->buffer.data(), static_cast<int>(count));
      });
      slot = std::move(made);
    }
    return *slot;
  }

  std::unique_ptr<gloo::Algorithm> algorithm_make(float* data, int count) {
    const std::vector<float*> pointers{data};
    switch (options_.algorithm) {
      case Algorithm::kHalvingDoubling:
        return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, pointers, count);
      case Algorithm::kBcube:
        return std::make_unique<gloo::AllreduceBcube<float>>(context_, pointers, count);
      case Algorithm::kRing:
        break;
    }
    return std::make_unique<gloo::AllreduceRingChunked<float>>(context_, pointers, count);
  }

  /// Gloo reports by exceptions of its own; they become ours here.
  template <class Work>
  void guarded(const char* what, Work work) {
    try {
      work();
    } catch (const gloo::Exception& error) {
      throw PeerFailure(text_format(
          "lost the other ranks in %s (%s); one of them has ended or hangs", what, error.what()));
    }
  }

  CommOptions options_;
  std::shared_ptr<gloo::Context> context_;
  std::unique_ptr<gloo::BarrierAllToAll> barrier_;
  std::map<std::size_t, std::unique_ptr<Staged>> staged_;
};

}  // namespace

std::unique_ptr<Communicator> gloo_comm(const CommOptions& options) {
  return std::make_unique<GlooComm>(options);
}

}  // namespace sluice::train

// See gloo_wire.h. Only Gloo's class-style algorithms are used: its function-style ring stalls for
// tens of milliseconds per segment on a loopback with its usual 64 KiB MTU. It has no class for a
// reduction to one rank, and its reduce-scatter sends every part once more to bring it to its
// place; these two are here, in Gloo's form.
#include "trainer/comm/gloo_wire.h"

#include <gloo/allgather_ring.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "trainer/base/bfloat16.h"
#include "trainer/comm/counted_transport.h"
#include "trainer/comm/cutter.h"
#include "trainer/comm/store.h"

namespace sluice::train {
namespace {

/// Of messages between two ranks; Gloo's bound buffers count their slots apart.
constexpr std::uint64_t kTransferSlot = 1;

template <class T>
void wire_min(T* into, const T* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] = from[i] < into[i] ? from[i] : into[i];
}
template <class T>
void wire_max(T* into, const T* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] = into[i] < from[i] ? from[i] : into[i];
}
template <class T>
void wire_sum(T* into, const T* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] += from[i];
}

template <class T>
const gloo::ReductionFunction<T>* reduction_function(Reduction reduction) {
  static const gloo::ReductionFunction<T> sum(gloo::CUSTOM, &wire_sum<T>);
  static const gloo::ReductionFunction<T> least(gloo::CUSTOM, &wire_min<T>);
  static const gloo::ReductionFunction<T> most(gloo::CUSTOM, &wire_max<T>);
  switch (reduction) {
    case Reduction::kSum:
      break;
    case Reduction::kMin:
      return &least;
    case Reduction::kMax:
      return &most;
  }
  return &sum;
}

/// Calls `work` with a null pointer of the element's type.
template <class Work>
void with_type(DataType type, Work work) {
  switch (type) {
    case DataType::kFloat32:
      return work(static_cast<float*>(nullptr));
    case DataType::kFloat16:
      return work(static_cast<gloo::float16*>(nullptr));
    case DataType::kBfloat16:
      return work(static_cast<Bfloat16*>(nullptr));
    case DataType::kByte:
      break;
  }
  throw Failure("bytes cannot be reduced, only floats");
}

/// The root takes the others' data in the order of ranks, each after saying that it is ready: so
/// the result depends on no race, and one inbox is enough.
template <class T>
class ReduceToOne final : public gloo::Algorithm {
 public:
  ReduceToOne(const std::shared_ptr<gloo::Context>& context, T* data, std::size_t count, int root,
              const gloo::ReductionFunction<T>* function)
      : Algorithm(context), data_(data), count_(count), root_(root), function_(function) {
    const int slot = context->nextSlot();
    const std::size_t bytes = count * sizeof(T);
    if (contextRank_ != root) {
      data_out_ = getPair(root)->createSendBuffer(slot, data, bytes);
      ready_in_.push_back(getPair(root)->createRecvBuffer(slot, &dummy_, sizeof dummy_));
      return;
    }
    inbox_.resize(count);
    for (int peer = 0; peer < contextSize_; ++peer) {
      if (peer == root) continue;
      data_in_.push_back(getPair(peer)->createRecvBuffer(slot, inbox_.data(), bytes));
      ready_out_.push_back(getPair(peer)->createSendBuffer(slot, &dummy_, sizeof dummy_));
    }
  }

  void run() override {
    if (contextRank_ != root_) {
      ready_in_.front()->waitRecv();
      data_out_->send();
      data_out_->waitSend();
      return;
    }
    for (std::size_t i = 0; i < data_in_.size(); ++i) {
      ready_out_[i]->send();
      data_in_[i]->waitRecv();
      function_->call(data_, inbox_.data(), count_);
    }
  }

 private:
  T* const data_;
  const std::size_t count_;
  const int root_;
  const gloo::ReductionFunction<T>* const function_;
  std::vector<T> inbox_;
  int dummy_ = 0;
  std::unique_ptr<gloo::transport::Buffer> data_out_;
  std::vector<std::unique_ptr<gloo::transport::Buffer>> ready_in_, data_in_, ready_out_;
};

/// The first half of a ring all-reduce: parts travel to the right and gather the sum on their way;
/// after N-1 steps each rank has its own. Two inboxes, so that a part travels while the one before
/// it is added.
template <class T>
class ReduceScatterRing final : public gloo::Algorithm {
 public:
  ReduceScatterRing(const std::shared_ptr<gloo::Context>& context, T* data, std::size_t count,
                    const gloo::ReductionFunction<T>* function)
      : Algorithm(context),
        data_(data),
        count_(count),
        function_(function),
        steps_(contextSize_ - 1),
        inboxes_(2 * count) {
    auto& left = getLeftPair();
    auto& right = getRightPair();
    const std::size_t all = count * sizeof(T) * static_cast<std::size_t>(contextSize_);
    for (std::size_t i = 0; i < 2; ++i) {
      const int slot = context->nextSlot();
      out_[i] = right->createSendBuffer(slot, data, all);
      in_[i] = left->createRecvBuffer(slot, &inboxes_[i * count], count * sizeof(T));
    }
    const int slot = context->nextSlot();
    free_out_ = left->createSendBuffer(slot, &dummy_, sizeof dummy_);
    free_in_ = right->createRecvBuffer(slot, &dummy_, sizeof dummy_);
  }

  void run() override {
    for (int step = 0; step < steps_; ++step) {
      const auto box = static_cast<std::size_t>(step % 2);
      if (step >= 2) free_in_->waitRecv();  // the right one has emptied this inbox
      out_[box]->send(part_at(contextRank_ - 1 - step) * sizeof(T), count_ * sizeof(T));
      in_[box]->waitRecv();
      function_->call(data_ + part_at(contextRank_ - 2 - step), &inboxes_[box * count_], count_);
      free_out_->send();
    }
    for (int left = std::min(steps_, 2); left > 0; --left) free_in_->waitRecv();
  }

 private:
  std::size_t part_at(int number) const {
    return count_ * static_cast<std::size_t>((number + 2 * contextSize_) % contextSize_);
  }

  T* const data_;
  const std::size_t count_;
  const gloo::ReductionFunction<T>* const function_;
  const int steps_;
  std::vector<T> inboxes_;
  int dummy_ = 0;
  std::unique_ptr<gloo::transport::Buffer> out_[2], in_[2], free_out_, free_in_;
};

template <class T>
std::shared_ptr<gloo::Algorithm> all_reduce_make(Algorithm algorithm,
                                                 const std::shared_ptr<gloo::Context>& context,
                                                 T* data, int count, Reduction reduction) {
  const std::vector<T*> pointers{data};
  const auto* function = reduction_function<T>(reduction);
  switch (algorithm) {
    case Algorithm::kHalvingDoubling:
      return std::make_shared<gloo::AllreduceHalvingDoubling<T>>(context, pointers, count,
                                                                 function);
    case Algorithm::kBcube:
      return std::make_shared<gloo::AllreduceBcube<T>>(context, pointers, count, function);
    case Algorithm::kRing:
      break;
  }
  return std::make_shared<gloo::AllreduceRingChunked<T>>(context, pointers, count, function);
}

int gloo_count(std::size_t count, std::size_t bytes) {
  if (bytes > INT32_MAX) {
    throw Failure(text_format("%zu bytes in one collective; Gloo takes less than 2 GiB", bytes));
  }
  return static_cast<int>(count);
}

/// Gloo gives a socket a send buffer of the size of the largest message so far, and Linux counts a
/// message as several times its bytes. After a small one (a barrier's is 52 bytes) two chunks of a
/// ring do not fit: the second leaves when the first is acknowledged, which a receiver with nothing
/// to say puts off for 40 ms. So the first message of every connection is a large one.
constexpr std::size_t kFirstMessageBytes = 256 * 1024;

void connections_widen(const std::shared_ptr<gloo::Context>& context) {
  std::vector<std::byte> out(kFirstMessageBytes), in(kFirstMessageBytes);
  std::vector<std::unique_ptr<gloo::transport::Buffer>> sends, receptions;
  const int slot = context->nextSlot();
  for (int peer = 0; peer < context->size; ++peer) {
    if (peer == context->rank) continue;
    sends.push_back(context->getPair(peer)->createSendBuffer(slot, out.data(), out.size()));
    receptions.push_back(context->getPair(peer)->createRecvBuffer(slot, in.data(), in.size()));
  }
  for (const auto& one : sends) one->send();
  for (const auto& one : receptions) one->waitRecv();
  for (const auto& one : sends) one->waitSend();
}

/// Where the ranks say at which addresses they listen, for Gloo.
class MeetingStore final : public gloo::rendezvous::Store {
 public:
  explicit MeetingStore(const WireOptions& options)
      : patience_(static_cast<std::int64_t>(options.timeout_s * 1e3)),
        store_(store_open(options.directory, options.timeout_s, options.cancelled)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(key, {data.begin(), data.end()});
  }
  /// Waits as well: not every version of Gloo does so before.
  std::vector<char> get(const std::string& key) override {
    wait({key}, patience_);
    const std::string& value = here_.at(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, patience_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    const Nanos deadline = now_ns() + timeout.count() * kNanosPerMilli;
    for (const std::string& key : keys) {
      if (here_.count(key) > 0) continue;
      auto value = store_->get(key, deadline);
      if (!value) {
        throw PeerFailure(text_format(
            "lost the other ranks in meeting: not all came within %g s (--comm-timeout)",
            static_cast<double>(timeout.count()) / 1e3));
      }
      here_[key] = std::move(*value);
    }
  }

 private:
  const std::chrono::milliseconds patience_;
  const std::unique_ptr<RankStore> store_;
  std::map<std::string, std::string> here_;  // what has been waited for
};

}  // namespace

// What is destroyed last is first: buffers need pairs, pairs the context, all of them the meter.
struct GlooWire::State {
  explicit State(WireThrottle throttle) : meter(throttle) {}
  WireMeter meter;
  std::shared_ptr<gloo::Context> context;
  std::unique_ptr<gloo::BarrierAllToAll> barrier;
  std::map<Key, Exchange> exchanges;
  std::unique_ptr<Cutter> cutter;  // where it may be called off
};

GlooWire::GlooWire(const WireOptions& options, HostMemory memory)
    : options_(options), memory_(std::move(memory)) {
  state_ = std::make_unique<State>(options.throttle);
  guarded("meeting the other ranks", [&] {
    gloo::transport::tcp::attr attributes(place_address(options_.directory).c_str());
    auto device = counted_device(gloo::transport::tcp::CreateDevice(attributes), state_->meter);
    MeetingStore store(options_);
    auto context = std::make_shared<gloo::rendezvous::Context>(options_.rank, options_.rank_count);
    context->setTimeout(
        std::chrono::milliseconds(static_cast<std::int64_t>(options_.timeout_s * 1e3)));
    if (options_.cancelled) state_->cutter = std::make_unique<Cutter>();
    context->connectFullMesh(store, device);
    if (state_->cutter) state_->cutter->made();
    state_->context = context;
    connections_widen(context);
    state_->barrier = std::make_unique<gloo::BarrierAllToAll>(context);
  });
}

GlooWire::~GlooWire() = default;

/// Gloo reports by exceptions of its own; they become ours here.
void GlooWire::guarded(const char* what, const std::function<void()>& work) {
  try {
    work();
  } catch (const gloo::Exception& error) {
    throw PeerFailure(text_format("lost the other ranks in %s (%s); one of them has ended or hangs",
                                  what, error.what()));
  }
}

std::shared_ptr<std::byte> GlooWire::memory_take(std::size_t bytes) {
  if (memory_) return memory_(bytes);
  return {static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), std::free};
}

/// Gloo numbers its connections' slots in order of construction, so all ranks must construct in the
/// same order. The barrier afterwards: what arrives for a slot that is not there yet stays in the
/// socket, and Gloo's thread asks the socket about it without a pause until it is; on a machine
/// with few cores the ranks that are behind then wait for the very core that spins for them.
Exchange& GlooWire::prepared(const Key& key, std::size_t input_bytes, std::size_t output_bytes,
                             const std::function<void(Exchange&)>& make) {
  const auto known = state_->exchanges.find(key);
  if (known != state_->exchanges.end()) return known->second;
  Exchange made;
  made.input_ = memory_take(input_bytes);
  made.output_ = output_bytes == 0 ? made.input_ : memory_take(output_bytes);
  state_->meter.data_mark(made.input_.get(), input_bytes);
  if (output_bytes > 0) state_->meter.data_mark(made.output_.get(), output_bytes);
  guarded("setting up a collective", [&] {
    make(made);
    state_->barrier->run();
  });
  made.run_ = [this, operation = std::get<0>(key), run = std::move(made.run_)] {
    state_->meter.operation_set(operation);
    run();
  };
  return state_->exchanges.emplace(key, std::move(made)).first->second;
}

Exchange& GlooWire::all_reduce(std::size_t count, DataType type, Reduction reduction) {
  const std::size_t bytes = count * type_bytes(type);
  return prepared({Operation::kAllReduce, count, type, reduction, 0}, bytes, 0, [&](Exchange& to) {
    with_type(type, [&](auto* null) {
      using T = std::remove_pointer_t<decltype(null)>;
      auto algorithm =
          all_reduce_make(options_.algorithm, state_->context, reinterpret_cast<T*>(to.input()),
                          gloo_count(count, bytes), reduction);
      // Gloo's bcube ends when the peers of its first step have read what was sent to them. With
      // more steps than one a fast rank would write into what a slow one still reads.
      const bool barrier_after = options_.algorithm == Algorithm::kBcube && options_.rank_count > 2;
      to.run_ = [this, algorithm, barrier_after] {
        guarded("the all-reduce", [&] {
          algorithm->run();
          if (barrier_after) state_->barrier->run();
        });
      };
    });
  });
}

Exchange& GlooWire::reduce_scatter(std::size_t count, DataType type, Reduction reduction) {
  const std::size_t part = count * type_bytes(type);
  const std::size_t bytes = static_cast<std::size_t>(options_.rank_count) * part;
  const Key key{Operation::kReduceScatter, count, type, reduction, 0};
  return prepared(key, bytes, 0, [&](Exchange& to) {
    with_type(type, [&](auto* null) {
      using T = std::remove_pointer_t<decltype(null)>;
      auto algorithm =
          std::make_shared<ReduceScatterRing<T>>(state_->context, reinterpret_cast<T*>(to.input()),
                                                 count, reduction_function<T>(reduction));
      // This rank's part of the input, which stays alive with it.
      to.output_ = {to.input_, to.input() + static_cast<std::size_t>(options_.rank) * part};
      to.run_ = [this, algorithm] { guarded("the reduce-scatter", [&] { algorithm->run(); }); };
    });
  });
}

Exchange& GlooWire::all_gather(std::size_t bytes) {
  const std::size_t all = bytes * static_cast<std::size_t>(options_.rank_count);
  const Key key{Operation::kAllGather, bytes, DataType::kByte, Reduction::kSum, 0};
  return prepared(key, bytes, all, [&](Exchange& to) {
    gloo_count(0, all);
    auto algorithm = std::make_shared<gloo::AllgatherRing<std::byte>>(
        state_->context, std::vector<const std::byte*>{to.input()}, to.output(),
        static_cast<int>(bytes));
    // It writes into the neighbour's output; the barrier says that all have read theirs.
    to.run_ = [this, algorithm] {
      guarded("the all-gather", [&] {
        state_->barrier->run();
        algorithm->run();
      });
    };
  });
}

Exchange& GlooWire::broadcast(std::size_t bytes, int root) {
  const Key key{Operation::kBroadcast, bytes, DataType::kByte, Reduction::kSum, root};
  return prepared(key, bytes, 0, [&](Exchange& to) {
    auto algorithm = std::make_shared<gloo::BroadcastOneToAll<std::byte>>(
        state_->context, std::vector<std::byte*>{to.input()}, bytes, root);
    to.run_ = [this, algorithm] { guarded("the broadcast", [&] { algorithm->run(); }); };
  });
}

Exchange& GlooWire::reduce(std::size_t count, DataType type, Reduction reduction, int root) {
  const std::size_t bytes = count * type_bytes(type);
  return prepared({Operation::kReduce, count, type, reduction, root}, bytes, 0, [&](Exchange& to) {
    with_type(type, [&](auto* null) {
      using T = std::remove_pointer_t<decltype(null)>;
      auto algorithm =
          std::make_shared<ReduceToOne<T>>(state_->context, reinterpret_cast<T*>(to.input()), count,
                                           root, reduction_function<T>(reduction));
      to.run_ = [this, algorithm] { guarded("the reduction", [&] { algorithm->run(); }); };
    });
  });
}

void GlooWire::transfer(std::span<const Transfer> transfers) {
  state_->meter.operation_set(Operation::kPointToPoint);
  guarded("sending and receiving", [&] {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
    for (const Transfer& one : transfers) {
      assert(one.peer != options_.rank && one.peer >= 0 && one.peer < options_.rank_count);
      buffers.push_back(state_->context->createUnboundBuffer(one.memory, one.bytes));
      if (one.way == Transfer::Way::kSend) {
        buffers.back()->send(one.peer, kTransferSlot);
      } else {
        buffers.back()->recv(one.peer, kTransferSlot);
      }
    }
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (transfers[i].way == Transfer::Way::kSend) {
        buffers[i]->waitSend();
      } else {
        buffers[i]->waitRecv();
      }
    }
  });
}

void GlooWire::barrier() {
  state_->meter.operation_set(Operation::kBarrier);
  guarded("the barrier", [&] { state_->barrier->run(); });
}

void GlooWire::abort() {
  if (state_->cutter) state_->cutter->cut();
}

const Traffic& GlooWire::traffic() const { return state_->meter.traffic(); }
void GlooWire::trace(bool on) { state_->meter.trace(on); }
std::vector<WireEvent> GlooWire::trace_take() { return state_->meter.trace_take(); }

}  // namespace sluice::train

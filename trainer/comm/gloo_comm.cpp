// The Communicator over Gloo: device memory is staged through pinned host memory, the collectives
// run there (gloo_wire.cpp), and on software GPUs the time that the modelled link would take is put
// on the stream. Waits for the stream, so nothing is enqueued ahead of what others send.
#include <algorithm>
#include <utility>
#include <vector>

#include "trainer/comm/communicator.h"

namespace sluice::train {
namespace {

std::shared_ptr<std::byte> pinned_memory(std::size_t bytes) {
  auto array = std::make_shared<PinnedArray<std::byte>>(bytes);
  return {array, array->data()};
}

class GlooComm final : public Communicator {
 public:
  explicit GlooComm(const CommOptions& options)
      : options_(options),
        wire_({options.rank, options.rank_count, options.directory, options.algorithm,
               options.timeout_s, options.throttle, options.cancelled},
              pinned_memory) {}

  const char* name() const override { return "gloo"; }

  void all_reduce(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
                  Reduction reduction) override {
    if (count == 0) return;
    const std::size_t bytes = count * type_bytes(type);
    run(stream, wire_.all_reduce(count, type, reduction), data, bytes, data, bytes,
        link_ns(Operation::kAllReduce, bytes));
  }

  void reduce_scatter(Stream& stream, CUdeviceptr send, CUdeviceptr receive, std::size_t count,
                      DataType type, Reduction reduction) override {
    if (count == 0) return;
    const std::size_t part = count * type_bytes(type);
    run(stream, wire_.reduce_scatter(count, type, reduction), send, part * ranks(), receive, part,
        link_ns(Operation::kReduceScatter, part * ranks()));
  }

  void all_gather(Stream& stream, CUdeviceptr send, CUdeviceptr receive, std::size_t count,
                  DataType type) override {
    if (count == 0) return;
    const std::size_t part = count * type_bytes(type);
    run(stream, wire_.all_gather(part), send, part, receive, part * ranks(),
        link_ns(Operation::kAllGather, part * ranks()));
  }

  void broadcast(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
                 int root) override {
    if (count == 0) return;
    const std::size_t bytes = count * type_bytes(type);
    const bool sends = options_.rank == root;
    run(stream, wire_.broadcast(bytes, root), data, sends ? bytes : 0, data, sends ? 0 : bytes,
        link_ns(Operation::kBroadcast, bytes));
  }

  void reduce(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
              Reduction reduction, int root) override {
    if (count == 0) return;
    const std::size_t bytes = count * type_bytes(type);
    run(stream, wire_.reduce(count, type, reduction, root), data, bytes, data,
        options_.rank == root ? bytes : 0, link_ns(Operation::kReduce, bytes));
  }

  void send(Stream& stream, CUdeviceptr data, std::size_t count, DataType type, int peer) override {
    put({Transfer::Way::kSend, peer, nullptr, count * type_bytes(type)}, stream, data);
  }
  void receive(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
               int peer) override {
    put({Transfer::Way::kReceive, peer, nullptr, count * type_bytes(type)}, stream, data);
  }

  void group_begin() override { ++depth_; }
  void group_end() override {
    if (--depth_ == 0) transfers_flush();
  }

  void barrier(Stream& stream) override {
    stream.synchronize();
    wire_.barrier();
  }

  void abort() override { wire_.abort(); }
  std::optional<Traffic> traffic() const override { return wire_.traffic(); }
  void link_charge(bool on) override { charges_ = on; }
  Nanos link_ns(Operation operation, std::size_t bytes) const override {
    const LinkModel& link = options_.link;
    switch (operation) {
      case Operation::kAllReduce:
        return link.allreduce_ns(options_.algorithm, options_.rank_count, bytes);
      case Operation::kReduceScatter:
      case Operation::kAllGather:
        return link.half_ring_ns(options_.rank_count, bytes);
      case Operation::kBroadcast:
      case Operation::kReduce:
        return link.broadcast_ns(options_.rank_count, bytes);
      case Operation::kPointToPoint:
      case Operation::kBarrier:
        break;
    }
    return link.transfer_ns(1, static_cast<double>(bytes));
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(options_.rank_count); }

  void run(Stream& stream, Exchange& exchange, CUdeviceptr from, std::size_t from_bytes,
           CUdeviceptr to, std::size_t to_bytes, Nanos link_ns) {
    if (from_bytes > 0) stream.download(exchange.input(), from, from_bytes);
    stream.synchronize();
    exchange.run();
    if (charges_) {
      stream.peers_awaited();
      stream.link_delay(link_ns);
    }
    if (to_bytes > 0) stream.upload(to, exchange.output(), to_bytes);
    // The staging memory is used again by the next collective of this kind and size.
    stream.synchronize();
    if (charges_) stream.peers_awaited();
  }

  struct Pending {
    Transfer transfer;
    Stream* stream;
    CUdeviceptr data;
  };

  void put(const Transfer& transfer, Stream& stream, CUdeviceptr data) {
    if (transfer.peer < 0 || transfer.peer >= options_.rank_count ||
        transfer.peer == options_.rank) {
      throw Failure(text_format("rank %d of %d cannot send to or receive from rank %d",
                                options_.rank, options_.rank_count, transfer.peer));
    }
    if (transfer.bytes == 0) return;
    pending_.push_back({transfer, &stream, data});
    if (depth_ == 0) transfers_flush();
  }

  void transfers_flush() {
    std::vector<Pending> now = std::exchange(pending_, {});
    if (now.empty()) return;
    std::vector<Transfer> transfers;
    std::size_t count[2] = {}, bytes[2] = {};
    for (std::size_t i = 0; i < now.size(); ++i) {
      Pending& one = now[i];
      one.transfer.memory = staging(i, one.transfer.bytes);
      const bool sends = one.transfer.way == Transfer::Way::kSend;
      if (sends) one.stream->download(one.transfer.memory, one.data, one.transfer.bytes);
      ++count[sends];
      bytes[sends] += one.transfer.bytes;
      transfers.push_back(one.transfer);
    }
    for (const Pending& one : now) one.stream->synchronize();
    wire_.transfer(transfers);
    // A link carries both directions at once.
    for (const Pending& one : now) one.stream->peers_awaited();
    if (charges_) {
      now.front().stream->link_delay(
          options_.link.transfer_ns(static_cast<double>(std::max(count[0], count[1])),
                                    static_cast<double>(std::max(bytes[0], bytes[1]))));
    }
    for (const Pending& one : now) {
      if (one.transfer.way == Transfer::Way::kReceive)
        one.stream->upload(one.data, one.transfer.memory, one.transfer.bytes);
    }
    for (const Pending& one : now) one.stream->synchronize();
    for (const Pending& one : now) one.stream->peers_awaited();
  }

  /// Of the i-th transfer of a group; grows to the largest there was.
  std::byte* staging(std::size_t i, std::size_t bytes) {
    if (staging_.size() <= i) staging_.resize(i + 1);
    if (!staging_[i] || staging_[i]->size() < bytes)
      staging_[i] = std::make_unique<PinnedArray<std::byte>>(bytes);
    return staging_[i]->data();
  }

  const CommOptions options_;
  std::vector<std::unique_ptr<PinnedArray<std::byte>>> staging_;
  GlooWire wire_;
  bool charges_ = true;
  int depth_ = 0;
  std::vector<Pending> pending_;
};

}  // namespace

std::unique_ptr<Communicator> gloo_comm(const CommOptions& options) {
  return std::make_unique<GlooComm>(options);
}

}  // namespace sluice::train

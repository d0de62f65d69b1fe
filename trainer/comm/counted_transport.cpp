// See counted_transport.h. Gloo's classes hold the decorated ones as if they were its own.
#include "trainer/comm/counted_transport.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <tuple>

namespace sluice::train {
namespace {

namespace wire = gloo::transport;

class CountedBuffer final : public wire::Buffer {
 public:
  CountedBuffer(std::unique_ptr<wire::Buffer> inner, WireMeter& meter, int peer, int slot,
                void* memory, std::size_t bytes)
      : Buffer(slot, memory, bytes),
        inner_(std::move(inner)),
        meter_(meter),
        peer_(peer),
        data_(meter.is_data(memory)) {}

  using Buffer::send;
  void send(std::size_t offset, std::size_t length, std::size_t remote_offset) override {
    meter_.sending(peer_, static_cast<std::uint64_t>(slot_), length, data_);
    inner_->send(offset, length, remote_offset);
  }
  void waitRecv() override {
    inner_->waitRecv();
    meter_.received(peer_, static_cast<std::uint64_t>(slot_));
  }
  void waitSend() override { inner_->waitSend(); }
  void setDebug(bool debug) override { inner_->setDebug(debug); }

 private:
  std::unique_ptr<wire::Buffer> inner_;
  WireMeter& meter_;
  const int peer_;
  const bool data_;
};

class CountedPair final : public wire::Pair {
 public:
  CountedPair(wire::Pair& inner, WireMeter& meter, int peer)
      : inner_(inner), meter_(meter), peer_(peer) {}

  const wire::Address& address() const override { return inner_.address(); }
  void connect(const std::vector<char>& bytes) override { inner_.connect(bytes); }
  void close() override { inner_.close(); }
  void setSync(bool enable, bool busy_poll) override { inner_.setSync(enable, busy_poll); }
  std::unique_ptr<wire::Buffer> createSendBuffer(int slot, void* memory,
                                                 std::size_t bytes) override {
    return std::make_unique<CountedBuffer>(inner_.createSendBuffer(slot, memory, bytes), meter_,
                                           peer_, slot, memory, bytes);
  }
  std::unique_ptr<wire::Buffer> createRecvBuffer(int slot, void* memory,
                                                 std::size_t bytes) override {
    return std::make_unique<CountedBuffer>(inner_.createRecvBuffer(slot, memory, bytes), meter_,
                                           peer_, slot, memory, bytes);
  }
  // Only unbound buffers call these, and theirs are the inner pairs.
  void send(wire::UnboundBuffer* buffer, std::uint64_t tag, std::size_t offset,
            std::size_t bytes) override {
    inner_.send(buffer, tag, offset, bytes);
  }
  void recv(wire::UnboundBuffer* buffer, std::uint64_t tag, std::size_t offset,
            std::size_t bytes) override {
    inner_.recv(buffer, tag, offset, bytes);
  }

 private:
  wire::Pair& inner_;
  WireMeter& meter_;
  const int peer_;
};

class CountedUnboundBuffer final : public wire::UnboundBuffer {
 public:
  CountedUnboundBuffer(std::unique_ptr<wire::UnboundBuffer> inner, WireMeter& meter)
      : UnboundBuffer(inner->ptr, inner->size), inner_(std::move(inner)), meter_(meter) {}

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    return inner_->waitRecv(rank, timeout);
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return inner_->waitSend(rank, timeout);
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }
  void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    meter_.sending(peer, slot, bytes == kUnspecifiedByteCount ? size - offset : bytes, true);
    inner_->send(peer, slot, offset, bytes);
  }
  void recv(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    inner_->recv(peer, slot, offset, bytes);
  }
  void recv(std::vector<int> peers, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    inner_->recv(std::move(peers), slot, offset, bytes);
  }

 private:
  std::unique_ptr<wire::UnboundBuffer> inner_;
  WireMeter& meter_;
};

class CountedContext final : public wire::Context {
 public:
  CountedContext(std::shared_ptr<wire::Context> inner, WireMeter& meter)
      : Context(inner->rank, inner->size), inner_(std::move(inner)), meter_(meter) {}

  std::unique_ptr<wire::Pair>& createPair(int peer) override {
    inner_->setTimeout(getTimeout());  // a pair takes it along when it is made
    wire::Pair& pair = *inner_->createPair(peer);
    auto& slot = pairs_[static_cast<std::size_t>(peer)];
    slot = std::make_unique<CountedPair>(pair, meter_, peer);
    return slot;
  }
  std::unique_ptr<wire::UnboundBuffer> createUnboundBuffer(void* memory,
                                                           std::size_t bytes) override {
    return std::make_unique<CountedUnboundBuffer>(inner_->createUnboundBuffer(memory, bytes),
                                                  meter_);
  }

 private:
  std::shared_ptr<wire::Context> inner_;
  WireMeter& meter_;
};

class CountedDevice final : public wire::Device {
 public:
  CountedDevice(std::shared_ptr<wire::Device> inner, WireMeter& meter)
      : inner_(std::move(inner)), meter_(meter) {}

  std::string str() const override { return inner_->str(); }
  const std::string& getPCIBusID() const override { return inner_->getPCIBusID(); }
  int getInterfaceSpeed() const override { return inner_->getInterfaceSpeed(); }
  bool hasGPUDirect() const override { return inner_->hasGPUDirect(); }
  std::shared_ptr<wire::Context> createContext(int rank, int size) override {
    return std::make_shared<CountedContext>(inner_->createContext(rank, size), meter_);
  }

 private:
  std::shared_ptr<wire::Device> inner_;
  WireMeter& meter_;
};

}  // namespace

void WireMeter::data_mark(const void* memory, std::size_t bytes) {
  data_.emplace_back(static_cast<const std::byte*>(memory), bytes);
}

void WireMeter::data_forget(const void* memory) {
  std::erase_if(data_, [&](const auto& range) { return range.first == memory; });
}

bool WireMeter::is_data(const void* memory) const {
  const auto* at = static_cast<const std::byte*>(memory);
  return std::any_of(data_.begin(), data_.end(), [&](const auto& range) {
    const std::less<const std::byte*> before;
    return !before(at, range.first) && before(at, range.first + range.second);
  });
}

void WireMeter::sending(int peer, std::uint64_t slot, std::size_t bytes, bool data) {
  WireCount& count = traffic_.of(operation_);
  if (data) {
    ++count.messages;
    count.bytes += bytes;
  } else {
    ++count.control_messages;
  }
  if (traced_) events_.push_back({WireEvent::Kind::kSend, peer, slot, bytes, data});
  if (data && throttle_.any()) hold_back(bytes);
}

void WireMeter::received(int peer, std::uint64_t slot) {
  if (traced_) events_.push_back({WireEvent::Kind::kReceive, peer, slot, 0, false});
}

void WireMeter::hold_back(std::size_t bytes) {
  const double wire_ns = throttle_.megabytes_per_s > 0
                             ? static_cast<double>(bytes) * 1e3 / throttle_.megabytes_per_s
                             : 0.0;
  free_ns_ = std::max(free_ns_, now_ns()) + static_cast<Nanos>(throttle_.alpha_us * 1e3 + wire_ns);
  sleep_until(free_ns_);
}

int wire_steps(const std::vector<std::vector<WireEvent>>& ranks) {
  // As a vector clock of one number: a message is one deeper than what its sender had received.
  std::vector<std::size_t> at(ranks.size(), 0);
  std::vector<int> depth(ranks.size(), 0);
  std::map<std::tuple<std::size_t, std::size_t, std::uint64_t>, std::deque<int>> under_way;
  int longest = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (; at[rank] < ranks[rank].size(); ++at[rank], moved = true) {
        const WireEvent& event = ranks[rank][at[rank]];
        const auto peer = static_cast<std::size_t>(event.peer);
        if (event.kind == WireEvent::Kind::kSend) {
          const int deep = depth[rank] + (event.data ? 1 : 0);
          under_way[{rank, peer, event.slot}].push_back(deep);
          longest = std::max(longest, deep);
          continue;
        }
        std::deque<int>& queue = under_way[{peer, rank, event.slot}];
        if (queue.empty()) break;  // its sender is looked at first
        depth[rank] = std::max(depth[rank], queue.front());
        queue.pop_front();
      }
    }
  }
  return longest;
}

std::shared_ptr<gloo::transport::Device> counted_device(
    std::shared_ptr<gloo::transport::Device> inner, WireMeter& meter) {
  return std::make_shared<CountedDevice>(std::move(inner), meter);
}

}  // namespace sluice::train

// The words of collective communication, as NCCL has them: what is done, with elements of what
// type, and what it sent.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace sluice::train {

enum class DataType : std::uint8_t { kFloat32, kFloat16, kBfloat16, kByte };
enum class Reduction : std::uint8_t { kSum, kMin, kMax };

constexpr std::size_t type_bytes(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kByte:
      return 1;
  }
  return 0;
}

enum class Operation : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kPointToPoint,
  kBarrier,
};
inline constexpr std::size_t kOperationCount = 7;

constexpr const char* operation_name(Operation operation) {
  constexpr std::array<const char*, kOperationCount> kNames = {
      "all-reduce", "reduce-scatter", "all-gather", "broadcast",
      "reduce",     "send/receive",   "barrier"};
  return kNames[static_cast<std::size_t>(operation)];
}

/// What one rank sent. Control messages say "ready" or "arrived" and carry no data; headers of the
/// transport are not in the bytes.
struct WireCount {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t control_messages = 0;

  WireCount operator-(const WireCount& earlier) const {
    return {messages - earlier.messages, bytes - earlier.bytes,
            control_messages - earlier.control_messages};
  }
};

/// By operation, since the communicator was made.
class Traffic {
 public:
  WireCount& of(Operation operation) { return counts_[static_cast<std::size_t>(operation)]; }
  const WireCount& of(Operation operation) const {
    return counts_[static_cast<std::size_t>(operation)];
  }
  WireCount total() const {
    WireCount sum;
    for (const WireCount& one : counts_) {
      sum.messages += one.messages;
      sum.bytes += one.bytes;
      sum.control_messages += one.control_messages;
    }
    return sum;
  }

 private:
  std::array<WireCount, kOperationCount> counts_{};
};

/// A link for experiments: a rank's messages leave one after the other, each after alpha and its
/// bytes over the bandwidth, in real time.
struct WireThrottle {
  double alpha_us = 0;
  double megabytes_per_s = 0;  // 0 = as fast as it goes

  bool any() const { return alpha_us > 0 || megabytes_per_s > 0; }
};

}  // namespace sluice::train

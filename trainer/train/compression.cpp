// See compression.h.
#include "trainer/train/compression.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kernels/optimizers.h"

namespace sluice::train {
namespace {

/// Extras as they are; the rest is the derived class's.
class ApartReduction : public BucketReduction {
 public:
  ApartReduction(Communicator& comm, int rank_count, CUdeviceptr gradients,
                 std::size_t parameter_count)
      : comm_(comm),
        rank_count_(rank_count),
        gradients_(gradients),
        parameter_count_(parameter_count),
        plain_(comm, rank_count, gradients) {}

  void reduce(Stream& stream, const Bucket& bucket) override {
    is_extra(bucket) ? plain_.reduce(stream, bucket) : parameters_reduce(stream, bucket);
  }
  Nanos link_ns(const Bucket& bucket) const override {
    return is_extra(bucket) ? plain_.link_ns(bucket) : parameters_link_ns(bucket.count);
  }
  double bus_bytes(const Bucket& bucket) const override {
    return is_extra(bucket) ? plain_.bus_bytes(bucket) : parameters_bus_bytes(bucket.count);
  }

 protected:
  virtual void parameters_reduce(Stream& stream, const Bucket& bucket) = 0;
  virtual Nanos parameters_link_ns(std::size_t count) const = 0;
  virtual double parameters_bus_bytes(std::size_t count) const = 0;

  CUdeviceptr at(const Bucket& bucket) const { return gradients_ + bucket.begin * sizeof(float); }

  Communicator& comm_;
  const int rank_count_;

 private:
  bool is_extra(const Bucket& bucket) const { return bucket.begin >= parameter_count_; }

  const CUdeviceptr gradients_;
  const std::size_t parameter_count_;
  PlainReduction plain_;
};

class HalfReduction final : public ApartReduction {
 public:
  HalfReduction(kernels::HalfFormat format, Communicator& comm, int rank_count,
                CUdeviceptr gradients, std::size_t parameter_count, std::size_t bucket_floats_max)
      : ApartReduction(comm, rank_count, gradients, parameter_count),
        format_(format),
        narrow_(bucket_floats_max) {}

 private:
  void parameters_reduce(Stream& stream, const Bucket& bucket) override {
    const auto count = static_cast<int>(bucket.count);
    stream.launch(kernels::cast_to_half(format_, count, at(bucket), narrow_.at()));
    comm_.all_reduce(
        stream, narrow_.at(), bucket.count,
        format_ == kernels::HalfFormat::kFp16 ? DataType::kFloat16 : DataType::kBfloat16);
    stream.launch(kernels::cast_from_half(format_, count, narrow_.at(), at(bucket)));
    // The next bucket uses the same memory, and Gloo waits for its collective alone.
    stream.synchronize();
  }
  Nanos parameters_link_ns(std::size_t count) const override {
    return comm_.link_ns(Operation::kAllReduce, count * 2);
  }
  double parameters_bus_bytes(std::size_t count) const override {
    return static_cast<double>(count * 2) * 2 * (rank_count_ - 1) / rank_count_;
  }

  const kernels::HalfFormat format_;
  const DeviceArray<std::uint16_t> narrow_;
};

class TopkReduction final : public ApartReduction {
 public:
  TopkReduction(double ratio, Communicator& comm, int rank_count, Stream& stream,
                CUdeviceptr gradients, std::size_t parameter_count, std::size_t bucket_floats_max)
      : ApartReduction(comm, rank_count, gradients, parameter_count),
        ratio_(ratio),
        errors_(parameter_count),
        histogram_(256),
        above_(static_cast<std::size_t>(kernels::topk_blocks(static_cast<int>(bucket_floats_max)))),
        equal_(above_.size()),
        mine_(topk_of(ratio, bucket_floats_max) * kPairBytes),
        all_(mine_.size() * static_cast<std::size_t>(rank_count)) {
    stream.zero(errors_.at(), errors_.size());
    stream.zero(histogram_.at(), histogram_.size());
    stream.synchronize();
  }
  CUdeviceptr errors() const override { return errors_.at(); }

 private:
  void parameters_reduce(Stream& stream, const Bucket& bucket) override {
    const auto count = static_cast<int>(bucket.count);
    const std::size_t k = topk_of(ratio_, bucket.count);
    const CUdeviceptr error = errors_.at(bucket.begin);
    stream.launch(kernels::array_add(count, at(bucket), error));
    take(stream, count, k, error);
    comm_.all_gather(stream, mine_.at(), all_.at(), k * kPairBytes, DataType::kByte);
    // In the order of ranks, so that the sums are the same bits on each of them.
    stream.zero(at(bucket), bucket.count);
    for (int rank = 0; rank < rank_count_; ++rank) {
      const CUdeviceptr pairs = all_.at(static_cast<std::size_t>(rank) * k * kPairBytes);
      stream.launch(
          kernels::topk_add(static_cast<int>(k), pairs, pairs + k * sizeof(int), at(bucket)));
    }
    stream.synchronize();  // the next bucket uses the same memory
  }

  /// The k largest out of x, which keeps the rest, as indices [k] and values [k] into mine_.
  void take(Stream& stream, int count, std::size_t k, CUdeviceptr x) {
    search_start_[0] = 0;
    search_start_[1] = static_cast<std::uint32_t>(k);
    stream.upload(search_.at(), search_start_.data(), search_.bytes());
    for (const int shift : {24, 16, 8, 0}) {
      stream.launch(kernels::topk_histogram(count, shift, search_.at(), x, histogram_.at()));
      stream.launch(kernels::topk_pick(shift, search_.at(), histogram_.at()));
    }
    stream.launch(kernels::topk_count(count, search_.at(), x, above_.at(), equal_.at()));
    stream.launch(kernels::topk_offsets(count, above_.at(), equal_.at()));
    stream.launch(kernels::topk_take(count, search_.at(), above_.at(), equal_.at(), x, mine_.at(),
                                     mine_.at(k * sizeof(int))));
  }

  Nanos parameters_link_ns(std::size_t count) const override {
    return comm_.link_ns(Operation::kAllGather, all_bytes(count));
  }
  double parameters_bus_bytes(std::size_t count) const override {
    return static_cast<double>(all_bytes(count)) * (rank_count_ - 1) / rank_count_;
  }
  std::size_t all_bytes(std::size_t count) const {
    return topk_of(ratio_, count) * kPairBytes * static_cast<std::size_t>(rank_count_);
  }

  const double ratio_;
  const DeviceArray<float> errors_;
  const DeviceArray<std::uint32_t> histogram_, above_, equal_;
  const DeviceArray<std::byte> mine_, all_;
  const DeviceArray<std::uint32_t> search_{2};
  PinnedArray<std::uint32_t> search_start_{2};
};

}  // namespace

std::string CompressionSettings::text() const {
  switch (kind) {
    case Compression::kNone:
      return "none";
    case Compression::kFp16:
      return "fp16";
    case Compression::kBf16:
      return "bf16";
    case Compression::kPowersgd:
      return text_format("powersgd:%d", rank);
    case Compression::kTopk:
      break;
  }
  return text_format("topk:%g", ratio);
}

std::optional<CompressionSettings> compression_parse(const std::string& text) {
  for (const Compression kind : {Compression::kNone, Compression::kFp16, Compression::kBf16}) {
    if (const CompressionSettings plain{kind, 1}; text == plain.text()) return plain;
  }
  CompressionSettings low{Compression::kPowersgd};
  if (std::sscanf(text.c_str(), "powersgd:%d", &low.rank) == 1 && low.text() == text &&
      low.rank >= 1 && low.rank <= kPowersgdRankMax) {
    return low;
  }
  if (!text.starts_with("topk:")) return std::nullopt;
  const char* number = text.c_str() + 5;
  char* end = nullptr;
  const double ratio = std::strtod(number, &end);
  if (end == number || *end != '\0' || !(ratio > 0 && ratio <= 1)) return std::nullopt;
  return CompressionSettings{Compression::kTopk, ratio};
}

std::size_t topk_of(double ratio, std::size_t count) {
  const auto k = static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(count)));
  return std::min(std::max<std::size_t>(k, 1), count);
}

std::unique_ptr<BucketReduction> compressed_reduction(const CompressionSettings& settings,
                                                      Communicator& comm, int rank_count,
                                                      Stream& stream, CUdeviceptr gradients,
                                                      std::size_t parameter_count,
                                                      std::size_t bucket_floats_max) {
  if (settings.kind == Compression::kTopk) {
    return std::make_unique<TopkReduction>(settings.ratio, comm, rank_count, stream, gradients,
                                           parameter_count, bucket_floats_max);
  }
  if (settings.kind == Compression::kNone)
    return std::make_unique<PlainReduction>(comm, rank_count, gradients);
  const auto format =
      settings.kind == Compression::kFp16 ? kernels::HalfFormat::kFp16 : kernels::HalfFormat::kBf16;
  return std::make_unique<HalfReduction>(format, comm, rank_count, gradients, parameter_count,
                                         bucket_floats_max);
}

}  // namespace sluice::train

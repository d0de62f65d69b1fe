// See powersgd.h.
#include "trainer/train/powersgd.h"

#include <map>

#include "kernels/kernels.h"
#include "trainer/base/random.h"
#include "trainer/model/products.h"

namespace sluice::train {
namespace {

constexpr std::uint64_t kFirstSeed = 0x706f776572;  // of the first Q, the same on every rank

class PowersgdReduction final : public BucketReduction {
 public:
  PowersgdReduction(int rank, Communicator& comm, int rank_count, Stream& stream,
                    CUdeviceptr gradients, std::span<const ParameterRange> ranges)
      : rank_(rank),
        comm_(comm),
        rank_count_(rank_count),
        gradients_(gradients),
        errors_(ranges.back().end()),
        plain_(comm, rank_count, gradients) {
    stream.zero(errors_.at(), errors_.size());
    std::size_t left_max = 1;
    for (const ParameterRange& range : ranges) {
      const auto matrix = powersgd_matrix(range, rank);
      if (!matrix) continue;
      left_max = std::max(left_max, matrix->left(rank));
      right_draw(stream, range.begin, *matrix);
    }
    left_ = std::make_unique<DeviceArray<float>>(left_max);
    stream.synchronize();
  }

  void reduce(Stream& stream, const Bucket& bucket) override {
    const auto found = matrices_.find(bucket.begin);
    if (found == matrices_.end()) return plain_.reduce(stream, bucket);
    // All buckets come on one stream, that of the collectives.
    if (!products_) products_ = std::make_unique<Products>(stream, Precision::kFp32);
    const ThinMatrix& shape = found->second.shape;
    const CUdeviceptr sum = gradients_ + bucket.begin * sizeof(float);
    const CUdeviceptr mine = errors_.at(bucket.begin);
    const CUdeviceptr p = left_->at(), q = found->second.right->at();
    const int count = static_cast<int>(bucket.count);
    stream.launch(kernels::array_add(count, sum, mine));
    products_->run(kernels::GemmForm::kNn, {shape.rows, rank_, shape.columns}, mine, q, p);
    comm_.all_reduce(stream, p, shape.left(rank_));
    stream.launch(kernels::gram_schmidt(shape.rows, rank_, p));
    products_->run(kernels::GemmForm::kTn, {shape.columns, rank_, shape.rows}, mine, p, q);
    comm_.all_reduce(stream, q, shape.right(rank_));
    products_->run(kernels::GemmForm::kNt, {shape.rows, shape.columns, rank_}, p, q, sum);
    stream.launch(
        kernels::array_add_scaled(count, -1.0f / static_cast<float>(rank_count_), sum, mine));
    stream.synchronize();  // what follows the collectives waits for them alone
  }

  Nanos link_ns(const Bucket& bucket) const override {
    const auto found = matrices_.find(bucket.begin);
    if (found == matrices_.end()) return plain_.link_ns(bucket);
    const ThinMatrix& shape = found->second.shape;
    return comm_.link_ns(Operation::kAllReduce, shape.left(rank_) * sizeof(float)) +
           comm_.link_ns(Operation::kAllReduce, shape.right(rank_) * sizeof(float));
  }

  CUdeviceptr errors() const override { return errors_.at(); }

  /// Every Q at its matrix's place, which is larger.
  std::vector<float> warm_take(Stream& stream) const override {
    std::vector<float> out(errors_.size());
    for (const auto& [begin, matrix] : matrices_)
      stream.download(&out[begin], matrix.right->at(), matrix.right->bytes());
    stream.synchronize();
    return out;
  }
  void warm_put(Stream& stream, std::span<const float> values) override {
    for (const auto& [begin, matrix] : matrices_)
      stream.upload(matrix.right->at(), &values[begin], matrix.right->bytes());
    stream.synchronize();
  }

  double bus_bytes(const Bucket& bucket) const override {
    const auto found = matrices_.find(bucket.begin);
    if (found == matrices_.end()) return plain_.bus_bytes(bucket);
    const ThinMatrix& shape = found->second.shape;
    return plain_.bus_bytes({bucket.begin, shape.left(rank_) + shape.right(rank_)});
  }

 private:
  struct Matrix {
    ThinMatrix shape;
    std::unique_ptr<DeviceArray<float>> right;  // Q
  };

  void right_draw(Stream& stream, std::size_t begin, const ThinMatrix& shape) {
    std::vector<float> values(shape.right(rank_));
    Random random(kFirstSeed, begin);
    for (float& value : values) value = static_cast<float>(2 * random.uniform() - 1);
    auto right = std::make_unique<DeviceArray<float>>(values.size());
    stream.upload(right->at(), values.data(), right->bytes());
    stream.synchronize();
    matrices_.emplace(begin, Matrix{shape, std::move(right)});
  }

  const int rank_;
  Communicator& comm_;
  const int rank_count_;
  const CUdeviceptr gradients_;
  const DeviceArray<float> errors_;
  PlainReduction plain_;
  std::map<std::size_t, Matrix> matrices_;    // by where they begin
  std::unique_ptr<DeviceArray<float>> left_;  // P, of one at a time
  std::unique_ptr<Products> products_;
};

}  // namespace

std::optional<ThinMatrix> powersgd_matrix(const ParameterRange& range, int rank) {
  if (range.columns == 0) return std::nullopt;
  const ThinMatrix matrix{static_cast<int>(range.count / range.columns),
                          static_cast<int>(range.columns)};
  if (matrix.left(rank) + matrix.right(rank) >= range.count) return std::nullopt;
  return matrix;
}

std::optional<ThinMatrix> powersgd_matrix(std::span<const ParameterRange> ranges,
                                          const Bucket& bucket, int rank) {
  for (const ParameterRange& range : ranges) {
    if (range.begin == bucket.begin) return powersgd_matrix(range, rank);
  }
  return std::nullopt;
}

std::vector<Bucket> powersgd_buckets(std::span<const ParameterRange> ranges, int rank) {
  std::vector<Bucket> buckets;
  bool open = false;  // the last bucket takes what travels as it is
  for (std::size_t i = ranges.size(); i-- > 0;) {
    const ParameterRange& range = ranges[i];
    const bool thin = powersgd_matrix(range, rank).has_value();
    if (open && !thin) {
      buckets.back() = {range.begin, buckets.back().count + range.count};
    } else {
      buckets.push_back({range.begin, range.count});
    }
    open = !thin;
  }
  return buckets;
}

std::unique_ptr<BucketReduction> powersgd_reduction(int rank, Communicator& comm, int rank_count,
                                                    Stream& stream, CUdeviceptr gradients,
                                                    std::span<const ParameterRange> ranges) {
  return std::make_unique<PowersgdReduction>(rank, comm, rank_count, stream, gradients, ranges);
}

}  // namespace sluice::train

// See tensor_sums.h.
#include "trainer/train/tensor_sums.h"

#include <utility>

namespace sluice::train {

TensorSums::TensorSums(Communicator& comm, Stream& stream, int rank_count, bool modelled)
    : comm_(comm), stream_(stream), rank_count_(rank_count), modelled_(modelled) {}

void TensorSums::sum(CUdeviceptr data, std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  since_.bus_bytes += 2.0 * (rank_count_ - 1) / rank_count_ * static_cast<double>(bytes);
  if (!modelled_) {
    if (spans_.size() == spans_used_) spans_.push_back(std::make_unique<Span>());
    Span& span = *spans_[spans_used_++];
    span.begin.record(stream_);
    comm_.all_reduce(stream_, data, count);
    span.end.record(stream_);
    return;
  }
  // This rank's own work is not the others' communication.
  stream_.synchronize();
  stream_.peers_awaited();
  const Nanos begin = now_ns();
  comm_.all_reduce(stream_, data, count);
  since_.wall_ns += now_ns() - begin;
  since_.tensor_ns += comm_.link_ns(Operation::kAllReduce, bytes);
}

ReductionTimes TensorSums::take() {
  ReductionTimes out = std::exchange(since_, {});
  const std::size_t used = std::exchange(spans_used_, 0);
  for (std::size_t i = 0; i < used; ++i) {
    spans_[i]->end.synchronize();
    const Nanos took = spans_[i]->end.since(spans_[i]->begin);
    out.tensor_ns += took;
    out.wall_ns += took;
  }
  out.collective_ns = out.exposed_ns = out.tensor_ns;
  return out;
}

}  // namespace sluice::train

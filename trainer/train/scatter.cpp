// See scatter.h.
#include "trainer/train/scatter.h"

namespace sluice::train {
namespace {

std::size_t room_of(const RankPlace& place, int part_max) {
  return static_cast<std::size_t>(part_max) *
         static_cast<std::size_t>(place.rank == 0 ? place.rank_count : 1);
}

}  // namespace

Scatter::Scatter(Communicator& comm, Stream& stream, const RankPlace& place, int part_max,
                 const SampleShape& sample)
    : comm_(comm),
      stream_(stream),
      place_(place),
      sample_(sample),
      inputs_(room_of(place, part_max) * sample.inputs),
      targets_(room_of(place, part_max) * sample.targets),
      arrived_(static_cast<std::size_t>(place.rank == 0 ? 1 : part_max), sample) {}

LoadedBatch Scatter::send(const LoadedBatch& whole) {
  const Nanos begin = now_ns();
  const auto ranks = static_cast<std::uint32_t>(place_.rank_count);
  stream_.upload(inputs_.at(), whole.inputs, whole.count * sample_.inputs * sizeof(std::uint32_t));
  stream_.upload(targets_.at(), whole.targets, whole.count * sample_.targets * sizeof(int));
  comm_.group_begin();
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    const Sampler::Part part = Sampler::part_of(whole.count, rank, ranks);
    const int peer = static_cast<int>(rank);
    comm_.send(stream_, inputs_.at(part.begin * sample_.inputs), part.count * sample_.inputs,
               DataType::kFloat32, peer);
    comm_.send(stream_, targets_.at(part.begin * sample_.targets), part.count * sample_.targets,
               DataType::kFloat32, peer);
  }
  comm_.group_end();
  taken_ns_ = now_ns() - begin;
  return {whole.inputs, whole.targets, Sampler::part_of(whole.count, 0, ranks).count, whole.count};
}

LoadedBatch Scatter::receive(std::uint32_t global_count) {
  const Nanos begin = now_ns();
  const std::uint32_t count =
      Sampler::part_of(global_count, static_cast<std::uint32_t>(place_.rank),
                       static_cast<std::uint32_t>(place_.rank_count))
          .count;
  comm_.group_begin();
  comm_.receive(stream_, inputs_.at(), count * sample_.inputs, DataType::kFloat32, 0);
  comm_.receive(stream_, targets_.at(), count * sample_.targets, DataType::kFloat32, 0);
  comm_.group_end();
  if (count > 0) {
    stream_.download(arrived_.inputs.data(), inputs_.at(),
                     count * sample_.inputs * sizeof(std::uint32_t));
    stream_.download(arrived_.targets.data(), targets_.at(), count * sample_.targets * sizeof(int));
  }
  stream_.synchronize();
  taken_ns_ = now_ns() - begin;
  return {arrived_.inputs.data(), arrived_.targets.data(), count, global_count};
}

}  // namespace sluice::train

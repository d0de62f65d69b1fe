// See grid.h.
#include "trainer/train/grid.h"

#include "trainer/comm/store.h"

namespace sluice::train {
namespace {

/// One group of a rank: which of the groups of its kind, and where the rank is in it.
struct GroupPlace {
  const char* kind;
  int number;
  int rank;
  int rank_count;
};

std::unique_ptr<Communicator> group_make(const GroupPlace& place, CommOptions options,
                                         Engine engine, bool own_gpu_each, bool software) {
  if (place.rank_count == 1) return alone_comm();
  options.directory = place_part(options.directory, text_format("%s-%d", place.kind, place.number));
  options.rank = place.rank;
  options.rank_count = place.rank_count;
  return comm_make(options, engine, own_gpu_each, software);
}

}  // namespace

Grid Grid::of(int rank_count, int tensor, int pipeline) {
  const int replica = tensor * pipeline;
  if (rank_count < 1 || rank_count % replica != 0) {
    throw Failure(
        text_format("%d rank%s cannot be a grid of --tensor %d x --pipeline %d: %d ranks make one "
                    "copy of the model, so take --nproc %d or a multiple of it",
                    rank_count, rank_count == 1 ? "" : "s", tensor, pipeline, replica, replica));
  }
  return {rank_count / replica, pipeline, tensor};
}

std::string Grid::text() const {
  return text_format("%d data x %d pipeline x %d tensor", data, pipeline, tensor);
}

std::uint64_t Groups::sent_bytes() const {
  std::uint64_t sum = 0;
  for (const auto* comm : {&data, &tensor, &pipeline, &replica, &ends}) {
    const auto traffic = *comm ? (*comm)->traffic() : std::nullopt;
    if (traffic) sum += traffic->total().bytes;
  }
  return sum;
}

void Groups::barrier(Stream& stream) {
  // Who has passed the first knows its replica to be here; after the second all replicas are.
  replica->barrier(stream);
  data->barrier(stream);
}

Groups groups_make(const Grid& grid, const CommOptions& options, Engine engine, bool own_gpu_each,
                   bool software) {
  const auto make = [&](const GroupPlace& place) {
    return group_make(place, options, engine, own_gpu_each, software);
  };
  const int rank = options.rank;
  const int tensor = grid.tensor_of(rank);
  const int stage = grid.stage_of(rank);
  const int data = grid.data_of(rank);
  Groups groups;
  if (!grid.is_split()) {
    groups.data = comm_make(options, engine, own_gpu_each, software);
  } else {
    groups.data = make({"data", stage * grid.tensor + tensor, data, grid.data});
  }
  groups.tensor = make({"tensor", data * grid.pipeline + stage, tensor, grid.tensor});
  groups.pipeline = make({"pipeline", data * grid.tensor + tensor, stage, grid.pipeline});
  groups.replica = make({"replica", data, stage * grid.tensor + tensor, grid.replica()});
  const bool is_end = stage == 0 || stage == grid.pipeline - 1;
  if (grid.pipeline > 1 && is_end)
    groups.ends = make({"ends", data * grid.tensor + tensor, stage == 0 ? 0 : 1, 2});
  return groups;
}

}  // namespace sluice::train

// The ranks of a job as a grid: data x pipeline x tensor. Neighbours in rank split the same layers
// (tensor, the innermost, which speaks most), then come the stages of a pipeline, then the replicas
// that share out the data. A grid of data alone is what a job is without --tensor and --pipeline.
//
//   rank = (data index x pipeline + stage) x tensor + tensor index
//
// Each rank speaks in groups of its own: with those that have the same weights (data), the other
// parts of its layers (tensor), the other stages (pipeline), and its whole replica.
#pragma once

#include <memory>
#include <string>

#include "trainer/comm/communicator.h"

namespace sluice::train {

struct Grid {
  int data = 1;
  int pipeline = 1;
  int tensor = 1;

  /// Throws Failure where `rank_count` ranks are no such grid.
  static Grid of(int rank_count, int tensor, int pipeline);

  int rank_count() const { return data * pipeline * tensor; }
  /// Ranks that have one copy of the weights together.
  int replica() const { return pipeline * tensor; }
  bool is_split() const { return replica() > 1; }
  int tensor_of(int rank) const { return rank % tensor; }
  int stage_of(int rank) const { return rank / tensor % pipeline; }
  int data_of(int rank) const { return rank / replica(); }
  int rank_at(int data_index, int stage, int tensor_index) const {
    return (data_index * pipeline + stage) * tensor + tensor_index;
  }
  /// "2 data x 2 pipeline x 1 tensor"
  std::string text() const;
};

/// A rank's communicators; of a group of one it is `alone_comm`. Ranks of a group count as the grid
/// does: by data index, tensor index, stage, or place in the replica.
struct Groups {
  std::unique_ptr<Communicator> data;
  std::unique_ptr<Communicator> tensor;
  std::unique_ptr<Communicator> pipeline;
  std::unique_ptr<Communicator> replica;
  /// The first and the last stage, which both have the embedding; null on other ranks.
  std::unique_ptr<Communicator> ends;

  /// Of all groups together; none where an engine cannot tell.
  std::uint64_t sent_bytes() const;
  /// Returns when every rank of the job has come here.
  void barrier(Stream& stream);
};

/// Meets the other ranks, group by group. `options` are those of the whole job; groups find each
/// other in directories within its directory.
Groups groups_make(const Grid& grid, const CommOptions& options, Engine engine, bool own_gpu_each,
                   bool software);

}  // namespace sluice::train

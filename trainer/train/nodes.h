// A launcher's place among the launchers of a job on several machines: its connection to their
// rendezvous (rendezvous.h), which it serves itself where it is node 0. What its ranks write on the
// board goes out to the others, and theirs comes in onto the same lines of this board, so that
// sums, and ranks that wait for each other to be done, need not know where a rank is.
#pragma once

#include <memory>
#include <string>

#include "trainer/train/board.h"
#include "trainer/train/gpus.h"
#include "trainer/train/rendezvous.h"

namespace sluice::train {

class Nodes {
 public:
  /// Returns when all nodes are there; each has `own_count` ranks. Throws Failure, also when asked
  /// to stop meanwhile. From a process with one thread, which has more from here on.
  Nodes(const TrainOptions& options, int own_count, const GpusSeen& gpus);
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  int first_rank() const { return options_.nodes.node * own_count_; }
  int own_count() const { return own_count_; }
  /// Where ranks meet: NetworkPlace's text.
  const std::string& place() const { return place_; }

  /// Sends how far the own ranks are, and takes what the others have sent. Often.
  void exchange(BoardMap& board);
  /// Something has gone wrong here, and ends the job on all nodes. Once.
  void report(const std::string& text);
  /// What has gone wrong elsewhere, for people; empty = nothing, or not yet.
  const std::string& trouble() const { return trouble_; }

  /// The own ranks have ended, well or not. Waits until those of all nodes have, for `limit` at
  /// most where this is not `ok`; true where all of them ended well.
  bool finish(BoardMap& board, bool ok, Nanos limit);

 private:
  void meet(const GpusSeen& gpus);
  void hear(const Frame& frame, BoardMap& board);
  void lines_send(BoardMap& board);
  void lines_take(const std::string& body, BoardMap& board);
  void lost_say(const std::string& how);

  const TrainOptions& options_;
  const int own_count_;
  const HostPort at_;
  std::unique_ptr<Rendezvous> serves_;   // on node 0
  std::unique_ptr<FrameSocket> socket_;  // goes first
  std::string place_;
  std::string trouble_;
  bool reported_ = false;
  int verdict_ = -1;  // none yet; 0 = failed, 1 = all went well
  Nanos heard_ns_ = 0;
  Nanos looked_ns_ = 0;
};

}  // namespace sluice::train

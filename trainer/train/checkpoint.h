// Checkpoints: a job's state in files of a directory, so that a job that was killed at any instant
// can go on. Of the job alone; no GPU.
//
//   step-N.ckpt   a header of text lines ("model 784-128-10"), the arrays, a CRC-32 over all of it
//   manifest      names the complete ones, the newest last
//   lock          held by the job that writes here
//
// A file is written under another name, brought to the disk, renamed, and the directory brought to
// the disk; then the manifest the same way; and what the manifest names no more is removed last. So
// at any instant the manifest names files that are whole. What cannot be read (a damaged disk) is
// passed over with a line for the one before it; a manifest that is gone is made up for by looking
// at all files. Nothing is ever removed because it could not be read.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/train/options.h"
#include "trainer/train/state.h"

namespace sluice::train {

/// What must be the same in the job that wrote a checkpoint and the one that goes on from it, as
/// pairs of a word for people and a value.
using CheckpointIdentity = std::vector<std::pair<std::string, std::string>>;
/// train_count: samples of all ranks; 0 = not known yet, then left out.
CheckpointIdentity checkpoint_identity(const TrainOptions& options, const ModelShape& shape,
                                       int rank_count, std::uint32_t train_count);

/// One whole file, without its place in the world.
std::string checkpoint_encode(const TrainState& state, const CheckpointIdentity& identity);
struct Checkpoint {
  TrainState state;
  CheckpointIdentity identity;
};
/// Throws Failure that says why `bytes` are none, in a half sentence.
Checkpoint checkpoint_decode(const std::string& bytes);

/// Empty, or in what of `wanted` a job differs from the one that wrote `found`, for people.
std::string identity_difference(const CheckpointIdentity& found, const CheckpointIdentity& wanted);

class CheckpointDirectory {
 public:
  /// Called after every step of a writing, with its name: for tests that end the process there.
  using Step = std::function<void(const char* done)>;

  explicit CheckpointDirectory(std::string path, int keep = 2, Step step = nullptr);

  /// Makes the directory where there is none, and holds it against other jobs as long as the
  /// returned descriptor (which children may inherit) is open. Waits a moment for a job that is
  /// just ending. Throws Failure.
  int lock_take();

  /// Names of complete checkpoints, the newest last; empty where there is none.
  std::vector<std::string> names() const;
  /// The newest that can be read. What is passed over is said through `say`. None where there is
  /// none at all. Throws Failure where none can be read, or where the newest readable is of another
  /// kind of job.
  std::optional<Checkpoint> newest(const CheckpointIdentity& wanted,
                                   const std::function<void(const std::string&)>& say);
  /// Adds one, and removes the oldest beyond `keep`; what newest() has passed over stays, and does
  /// not count. Throws Failure; then what was there is there.
  void write(const TrainState& state, const CheckpointIdentity& identity);

 private:
  void file_put(const std::string& name, const std::string& bytes);
  void done(const char* what) const {
    if (step_) step_(what);
  }

  const std::string path_;
  const int keep_;
  const Step step_;
  std::vector<std::string> passed_over_;
};

}  // namespace sluice::train

// sluice-train pack: writes a data set as shards (data/shard.h).
#pragma once

namespace sluice::train {

/// The words after "pack", with that one first; returns the exit code.
int pack_run(int argc, char** argv);

}  // namespace sluice::train

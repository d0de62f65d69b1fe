// What swap.cpp and swap_move.cpp share: the blocks, their lock, and how a block is put behind its
// addresses.
#pragma once

#include "interpose/swap.h"
#include "interpose/swap_blocks.h"

namespace sluice::interpose {

extern Blocks swap_blocks;
extern Lock swap_lock;

/// Creates the block's memory, maps it, and gives its device and the peers access. On failure
/// nothing of that is left.
CUresult block_fill(Block& block);
/// Maps memory that the block still has a handle of, unless it is mapped, and gives access.
CUresult block_map(Block& block);
CUresult block_unmap(Block& block);
/// Gives the memory back; the mapping is gone already.
CUresult block_release(Block& block);

}  // namespace sluice::interpose

// Steps of random programs: what is in memory. A block that was written is read again later,
// whatever was done to it meanwhile besides being written to: kept where it was, moved to the host
// and back. Not in every program (RANDOM_ALSO): the steps of others would be different ones.
#include <algorithm>
#include <cstring>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

std::vector<unsigned char> contents_of(std::uint64_t pattern, std::size_t bytes) {
  Random random(pattern, 0);
  std::vector<unsigned char> contents(bytes + 8);
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = random.next();
    memcpy(contents.data() + at, &word, 8);
  }
  contents.resize(bytes);
  return contents;
}

/// A block of the current context that nothing uses any more, so that what is written stays; of the
/// others' work nobody knows. nullptr: there is none.
BlockSlot* block_at_rest(Step& step, bool known) {
  auto& blocks = step.world.blocks;
  const std::size_t begin = step.random.below(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    BlockSlot& block = blocks[(begin + i) % blocks.size()];
    const bool kind = block.kind == BlockKind::kLinear || block.kind == BlockKind::kManaged;
    if (!block.live || !kind || block.context < 0 || block.context != step.here()) continue;
    if (known && block.pattern == 0) continue;
    return CALL(step, cuCtxSynchronize) == CUDA_SUCCESS ? &block : nullptr;
  }
  return nullptr;
}

void block_say(Step& step, const BlockSlot& block) {
  step.say("b" + std::to_string(step.world.blocks.number(block)));
}

void contents_write(Step& step) {
  BlockSlot* block = block_at_rest(step, false);
  if (block == nullptr) return;
  block_say(step, *block);
  const std::uint64_t pattern = step.random.next() | 1;
  const std::size_t bytes = std::min(block->bytes, 2 * kMiBytes);
  const std::vector<unsigned char> contents = contents_of(pattern, bytes);
  block->pattern = 0;
  if (CALL(step, cuMemcpyHtoD, block->address, contents.data(), bytes) != CUDA_SUCCESS) return;
  block->pattern = pattern;
  block->pattern_bytes = bytes;
}

void contents_read(Step& step) {
  const BlockSlot* block = block_at_rest(step, true);
  if (block == nullptr) return;
  block_say(step, *block);
  std::vector<unsigned char> back(block->pattern_bytes);
  if (CALL(step, cuMemcpyDtoH, back.data(), block->address, back.size()) != CUDA_SUCCESS) return;
  const std::vector<unsigned char> wanted = contents_of(block->pattern, back.size());
  const auto [is, is_not] = std::mismatch(back.begin(), back.end(), wanted.begin());
  if (is != back.end())
    step.fault("other contents from byte " + std::to_string(is - back.begin()) + " of " +
               std::to_string(back.size()));
}

void contents_copy(Step& step) {
  const BlockSlot* from = block_at_rest(step, true);
  BlockSlot* to = step.world.blocks.live_one(step.random);
  if (from == nullptr || to == from || to->context != from->context ||
      (to->kind != BlockKind::kLinear && to->kind != BlockKind::kManaged))
    return;
  block_say(step, *from);
  block_say(step, *to);
  to->pattern = 0;
  const std::size_t bytes = std::min(from->pattern_bytes, to->bytes);
  if (CALL(step, cuMemcpyDtoD, to->address, from->address, bytes) != CUDA_SUCCESS ||
      CALL(step, cuCtxSynchronize) != CUDA_SUCCESS)
    return;
  to->pattern = from->pattern;
  to->pattern_bytes = bytes;
}

}  // namespace

void contents_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"contents", "contents_write", 10, contents_write},
                             {"contents", "contents_read", 16, contents_read},
                             {"contents", "contents_copy", 5, contents_copy}});
}

}  // namespace sluice::test

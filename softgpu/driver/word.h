// Words of memory that streams and graphs write and wait for: what of their description is refused.
#pragma once

#include "softgpu/driver/command.h"

namespace softgpu::driver {

/// INVALID_VALUE for what is wrong, NOT_SUPPORTED for what the device says it cannot.
CUresult word_check(const Word& word);

/// The words of a batch, checked.
CUresult words_read(const CUstreamBatchMemOpParams* ops, unsigned count, WordsCommand& words);

}  // namespace softgpu::driver

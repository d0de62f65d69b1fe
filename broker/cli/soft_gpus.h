// The software GPUs that `--soft N` finds from before.
#pragma once

#include <string>

namespace sluice::cli {

/// How many software GPUs `directory` has; 0 = none yet.
unsigned soft_gpus_count(const std::string& directory);

/// Makes sure that `--soft count` gets `count` software GPUs where an earlier one made another
/// number: removes those, as softgpu-ctl reset does, or, where they are in use, has this process
/// and what it starts use others (SOFTGPU_DIR).
void soft_gpus_renew(unsigned count);

}  // namespace sluice::cli

// What the images of modules say of the device memory that their variables take. The layout of
// cubins (ELF), fat binaries and PTX text; nothing of CUDA's calls or of the account.
//
// The figure is a lower bound. The CUDA programming guide ("Lazy Loading") says that cuModuleLoad
// and its kin load variables at once; code may come later, so code is not in the figure. Nor are
// managed variables, which may be in host memory. A fat binary counts with its smallest entry,
// because the driver chooses; a compressed entry tells nothing of its variables and makes that 0.
#pragma once

#include <stdint.h>

namespace sluice::interpose {

/// Returns the bytes that the variables of `image` take in a context at least; 0 = nothing is
/// known. `image` is what cuModuleLoadData takes: a cubin, a fat binary or PTX that ends with 0.
/// Damaged images are read safely.
uint64_t image_bytes_least(const void* image);
/// Returns the figure of image_bytes_least() for a file; 0 also if it cannot be read.
uint64_t image_file_bytes_least(const char* path);

}  // namespace sluice::interpose

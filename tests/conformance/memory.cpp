// Rows of family `memory`: device, pitched, managed and host memory; what pointers tell of
// themselves.
#include "tests/conformance/harness.h"

namespace conformance {
namespace {

TEST(memory, alloc_zero_refused) {
  const Context context;
  CUdeviceptr p = 0x5a5a;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
}

TEST(memory, free_null_is_nothing) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, cuMemFree(0));
}

}  // namespace
}  // namespace conformance

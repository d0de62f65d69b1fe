// Where the shim of these tests looks for the policy file; the one that is installed has no such
// variable.
#include <stdlib.h>

#include "interpose/limits.h"

namespace sluice::interpose {

const char* policy_path() {
  const char* path = getenv("TEST_SLUICE_POLICY");
  return path != nullptr ? path : "/nonexistent";
}

}  // namespace sluice::interpose

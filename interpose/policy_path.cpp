// The one place of the policy file. No variable names another: who starts a program must not choose
// the policy that it is under.
#include "interpose/limits.h"

namespace sluice::interpose {

const char* policy_path() { return protocol::kShimPolicyPath; }

}  // namespace sluice::interpose

// Starts a sluiced of its own for one command tree, on a machine where nobody set one up. It is no
// child of ours for long: it is handed to init, has no terminal, and ends by itself after its last
// job, so that nothing is left behind however the commands end.
#pragma once

#include <string>

namespace sluice::cli {

struct PrivateBrokerOptions {
  unsigned soft = 0;  // software GPUs to serve; 0 = the machine's
};

/// True with its socket once it is ready to serve; false with `error` (without prefix).
[[nodiscard]] bool private_broker_start(const PrivateBrokerOptions& options, std::string* socket,
                                        std::string* error);

}  // namespace sluice::cli

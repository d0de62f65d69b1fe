// The resource limits of the shell or the unit that started the broker. A private broker inherits
// those that a user has set for a job.
#pragma once

#include <string>

namespace sluice::daemon {

/// Raises the soft limits to the hard ones, and has a write beyond the limit of file sizes fail
/// instead of ending the broker. Returns a sentence for people that names the first limit that is
/// too low all the same and what to do; empty = all suffice. To be called before anything is
/// written.
std::string inherited_limits_take();

/// What the refusals for want of descriptors advise.
inline constexpr char kDescriptorsRemedy[] =
    "end some programs, or raise the broker's limit of open files (ulimit -n, or LimitNOFILE of "
    "its unit)";

}  // namespace sluice::daemon

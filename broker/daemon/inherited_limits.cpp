// See inherited_limits.h.
#include "broker/daemon/inherited_limits.h"

#include <sys/resource.h>

#include "broker/protocol/pages.h"
#include "config/reader/config.h"

namespace sluice::daemon {
namespace {

/// A limit that the broker cannot work under, and how it is raised.
struct Need {
  int resource;
  rlim_t least;
  const char* what;
  const char* remedy;
};
constexpr rlim_t kFileBytesLeast = rlim_t{16} << 20;
static_assert(sizeof(protocol::ClaimsPage) < kFileBytesLeast, "a page is a file to the kernel");
constexpr Need kNeeds[] = {
    // Its own 64, and those of a few jobs with a few processes.
    {RLIMIT_NOFILE, 128, "128 open files", "ulimit -n, or LimitNOFILE of its unit"},
    {RLIMIT_FSIZE, kFileBytesLeast, "files of 16 MiB", "ulimit -f, or LimitFSIZE of its unit"},
};
constexpr int kRaised[] = {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_AS,
                           RLIMIT_DATA,   RLIMIT_CPU,   RLIMIT_NPROC};

void soft_limit_raise(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

std::string lack(const Need& need) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(need.resource), &limit) != 0 ||
      limit.rlim_cur >= need.least)
    return "";
  return std::string("the broker needs ") + need.what + " and the limit is " +
         (need.resource == RLIMIT_FSIZE ? config::size_format(limit.rlim_cur)
                                        : std::to_string(limit.rlim_cur)) +
         "; raise it (" + need.remedy + ")";
}

}  // namespace

std::string inherited_limits_take() {
  for (const int resource : kRaised) soft_limit_raise(resource);
  for (const Need& need : kNeeds)
    if (std::string text = lack(need); !text.empty()) return text;
  return "";
}

}  // namespace sluice::daemon

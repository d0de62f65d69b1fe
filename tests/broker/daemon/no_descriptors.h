// A process that has run out of descriptors.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "broker/devices/fd.h"

namespace sluice::daemon {

/// No descriptor can be opened while it lives, but for those that are closed meanwhile.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{256, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    while (devices::Fd fd{dup(0)}) taken_.push_back(std::move(fd));
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  void give(std::size_t number) { taken_.resize(taken_.size() - number); }

 private:
  rlimit before_{};
  std::vector<devices::Fd> taken_;
};

}  // namespace sluice::daemon

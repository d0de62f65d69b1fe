// What is certain about the order of two streams while their work is still queued. See stream.h.
#include <set>

#include "softgpu/driver/stream.h"

namespace softgpu::driver {

bool Stream::follows(Stream& stream, const Op& op) {
  std::set<const Op*> seen;
  std::vector<OpRef> open{stream.last()};
  while (!open.empty()) {
    const OpRef at = std::move(open.back());
    open.pop_back();
    if (at == nullptr || !seen.insert(at.get()).second) continue;
    const std::lock_guard lock(at->stream->mutex_);
    if (at->done()) continue;
    for (const OpRef& before : at->stream->ops_) {
      if (before.get() == &op) return true;
      open.insert(open.end(), before->after.begin(), before->after.end());
      if (before == at) break;
    }
  }
  return false;
}

}  // namespace softgpu::driver

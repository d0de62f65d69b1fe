// The streams that runs of graphs borrow; see graph_run.h. They belong to their contexts, which
// retire them; here they are only remembered.
#include "softgpu/driver/graph_run.h"

namespace softgpu::driver {
namespace {

struct Lending {
  std::mutex mutex;
  std::map<std::uint64_t, std::vector<std::weak_ptr<Stream>>> idle;  // by the id of the context
};

Lending& lending() {
  static auto* lending = new Lending;  // never destroyed: workers may still run at exit
  return *lending;
}

}  // namespace

StreamRef lane_take(const ContextRef& context, int priority) {
  {
    const std::lock_guard lock(lending().mutex);
    auto& idle = lending().idle[context->id];
    while (!idle.empty()) {
      StreamRef lane = idle.back().lock();
      idle.pop_back();
      if (lane == nullptr || lane->owner().closed) continue;
      lane->priority = priority;
      return lane;
    }
  }
  StreamRef lane;
  if (context->closed) return nullptr;
  const CUresult made =
      stream_create(context, Stream::kCreated, CU_STREAM_NON_BLOCKING, priority, lane);
  return made == CUDA_SUCCESS ? lane : nullptr;
}

void lane_give(const StreamRef& lane) {
  const std::lock_guard lock(lending().mutex);
  lending().idle[lane->owner().id].push_back(lane);
}

}  // namespace softgpu::driver

// See gpus.h.
#include "trainer/train/gpus.h"

#include <cstdio>
#include <filesystem>

#include "trainer/comm/nccl_sharing.h"
#include "trainer/comm/store.h"
#include "trainer/device/device.h"
#include "trainer/job/child.h"

namespace sluice::train {

GpusSeen gpus_look(Engine engine) {
  const auto answer = children_ask(1, "counting the GPUs", [&](int) {
    const int count = device_count();
    return text_format("%d %d", count,
                       engine_chosen(engine, driver().stream_delay != nullptr) == Engine::kNccl);
  });
  GpusSeen seen;
  int nccl = 0;
  std::sscanf(answer.front().c_str(), "%d %d", &seen.count, &nccl);
  seen.nccl = nccl != 0;
  return seen;
}

void gpu_sharing_prepare(const TrainOptions& options) {
  const RankPlace& place = options.place;
  if (options.engine == Engine::kGloo) return;
  if (const auto network = network_place_parse(place.directory)) {
    const std::string interface = interface_of(network->address);
    if (network->shares)
      nccl_sharing_set(nccl_sharing_variables(network->token, place.slot, interface));
    if (!interface.empty()) nccl_sharing_set({{"NCCL_SOCKET_IFNAME", interface}});
    return;
  }
  if (place.rank_count <= place.gpu_count) return;
  const std::string job = std::filesystem::path(place.directory).filename();
  nccl_sharing_set(nccl_sharing_variables(job, place.slot, "lo"));
}

}  // namespace sluice::train

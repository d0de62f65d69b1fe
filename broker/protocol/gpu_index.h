// GPUs are numbered by their place in a list, and named by their UUIDs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "broker/protocol/words.h"

namespace sluice::protocol {

/// The place of the GPU in a list of things that have a `uuid`, or of pointers to such; the list's
/// size where it is none of them.
template <class List>
std::uint32_t gpu_index(const List& gpus, const GpuUuid& uuid) {
  const auto is_it = [&](const auto& gpu) {
    if constexpr (requires { gpu.uuid; })
      return gpu.uuid == uuid;
    else
      return gpu->uuid == uuid;
  };
  return static_cast<std::uint32_t>(
      std::distance(std::begin(gpus), std::find_if(std::begin(gpus), std::end(gpus), is_it)));
}

}  // namespace sluice::protocol

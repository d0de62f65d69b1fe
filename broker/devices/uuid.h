// GPU UUIDs as people and CUDA_VISIBLE_DEVICES write them: "GPU-" and 32 hexadecimal digits in
// groups of 8-4-4-4-12.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "broker/protocol/words.h"

namespace sluice::devices {

std::string uuid_format(const protocol::GpuUuid& uuid);
/// Nothing for anything but the exact form (digits of either case).
std::optional<protocol::GpuUuid> uuid_parse(std::string_view text);

}  // namespace sluice::devices

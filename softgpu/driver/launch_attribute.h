// Launch attributes: which of them streams, graph nodes and launches have, and which values are
// refused (cuda.h, CUlaunchAttributeID and CUlaunchAttributeValue).
#pragma once

#include "softgpu/driver/cuda_api.h"

namespace softgpu::driver {

enum class AttributeUse : unsigned { kStream = 1, kNode = 2, kLaunch = 4 };

/// INVALID_VALUE: it is not for this use, or its value is none. Events are not looked at.
CUresult attribute_check(CUlaunchAttributeID id, const CUlaunchAttributeValue& value,
                         AttributeUse use);

/// Whether `id` is for this use.
bool attribute_has(CUlaunchAttributeID id, AttributeUse use);

/// What the device makes of a priority: the nearest one that it has.
int priority_clamp(int priority);
/// The greatest priority; the least is 0.
inline constexpr int kPriorityGreatest = -5;

}  // namespace softgpu::driver

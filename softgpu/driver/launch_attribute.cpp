// See launch_attribute.h.
#include "softgpu/driver/launch_attribute.h"

#include <algorithm>

namespace softgpu::driver {
namespace {

unsigned uses_of(CUlaunchAttributeID id) {
  constexpr auto kStream = static_cast<unsigned>(AttributeUse::kStream),
                 kNode = static_cast<unsigned>(AttributeUse::kNode),
                 kLaunch = static_cast<unsigned>(AttributeUse::kLaunch);
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return kStream | kNode | kLaunch;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return kStream;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:  // CU_KERNEL_NODE_ATTRIBUTE_*
      return kNode | kLaunch;
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return kLaunch;
    default:
      return 0;
  }
}

bool window_valid(const CUaccessPolicyWindow& window) {
  return window.hitRatio >= 0 && window.hitRatio <= 1 &&
         window.hitProp >= CU_ACCESS_PROPERTY_NORMAL &&
         window.hitProp <= CU_ACCESS_PROPERTY_PERSISTING &&
         window.missProp >= CU_ACCESS_PROPERTY_NORMAL &&
         window.missProp <= CU_ACCESS_PROPERTY_STREAMING;
}

bool value_valid(CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      return window_valid(value.accessPolicyWindow);
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return value.syncPolicy >= CU_SYNC_POLICY_AUTO &&
             value.syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return value.clusterSchedulingPolicyPreference <= CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT ||
             value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return value.deviceUpdatableKernelNode.deviceUpdatable == 0 ||
             value.deviceUpdatableKernelNode.deviceUpdatable == 1;
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return value.nvlinkUtilCentricScheduling <= 1;
    default:
      return true;
  }
}

}  // namespace

bool attribute_has(CUlaunchAttributeID id, AttributeUse use) {
  return (uses_of(id) & static_cast<unsigned>(use)) != 0;
}

CUresult attribute_check(CUlaunchAttributeID id, const CUlaunchAttributeValue& value,
                         AttributeUse use) {
  return attribute_has(id, use) && value_valid(id, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int priority_clamp(int priority) { return std::clamp(priority, kPriorityGreatest, 0); }

}  // namespace softgpu::driver

// Attributes of kernel nodes: which there are, and what of them reaches the kernel's command. See
// graph_nodes.h.
#include "softgpu/driver/graph_nodes.h"
#include "softgpu/driver/launch_attribute.h"

namespace softgpu::driver {
namespace {

/// What this device lacks: clusters are of compute capability 9, and no kernel changes graphs.
bool lacking(CUkernelNodeAttrID attribute, const CUkernelNodeAttrValue& value) {
  const auto several = [](const auto& dim) { return dim.x > 1 || dim.y > 1 || dim.z > 1; };
  if (attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return several(value.clusterDim);
  if (attribute == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION)
    return several(value.preferredClusterDim);
  return attribute == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE &&
         value.deviceUpdatableKernelNode.deviceUpdatable != 0;
}

}  // namespace

CUresult attribute_get(const Node& node, CUkernelNodeAttrID attribute,
                       CUkernelNodeAttrValue& value) {
  if (!attribute_has(attribute, AttributeUse::kNode)) return CUDA_ERROR_INVALID_VALUE;
  value = {};
  const auto set = node.detail.attributes.find(attribute);
  if (set != node.detail.attributes.end())
    value = set->second;
  else if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    value.cooperative = std::get<KernelCommand>(node.command).cooperative ? 1 : 0;
  else if (attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP)
    value.memSyncDomainMap = {0, 1};
  return CUDA_SUCCESS;
}

CUresult attribute_set(Node& node, CUkernelNodeAttrID attribute,
                       const CUkernelNodeAttrValue& value) {
  const CUresult result = attribute_check(attribute, value, AttributeUse::kNode);
  if (result != CUDA_SUCCESS) return result;
  if (lacking(attribute, value)) return CUDA_ERROR_NOT_SUPPORTED;
  if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && value.cooperative != 0 && node.detail.packed)
    return CUDA_ERROR_INVALID_VALUE;
  node.detail.attributes[attribute] = value;
  attributes_apply(node);
  return CUDA_SUCCESS;
}

void attributes_apply(Node& node) {
  const auto cooperative = node.detail.attributes.find(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  if (cooperative != node.detail.attributes.end())
    std::get<KernelCommand>(node.command).cooperative = cooperative->second.cooperative != 0;
}

int node_priority(const NodeDetail& detail) {
  const auto set = detail.attributes.find(CU_LAUNCH_ATTRIBUTE_PRIORITY);
  return set == detail.attributes.end() ? 0 : set->second.priority;
}

}  // namespace softgpu::driver

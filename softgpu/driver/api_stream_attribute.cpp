// Entry points: what a stream carries besides its queue - attributes and attached memory.
#include "softgpu/driver/api_stream.h"
#include "softgpu/driver/launch_attribute.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

void attribute_store(StreamAttributes& kept, CUstreamAttrID id, const CUstreamAttrValue& value) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      kept.window = value.accessPolicyWindow;
      break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      kept.policy = value.syncPolicy;
      break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      kept.domains = value.memSyncDomainMap;
      break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      kept.domain = value.memSyncDomain;
      break;
    default:
      kept.nvlink_centric = value.nvlinkUtilCentricScheduling;
  }
}

void attribute_tell(const StreamAttributes& kept, CUstreamAttrID id, CUstreamAttrValue& value) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      value.accessPolicyWindow = kept.window;
      break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      value.syncPolicy = kept.policy;
      break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      value.memSyncDomainMap = kept.domains;
      break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      value.memSyncDomain = kept.domain;
      break;
    default:
      value.nvlinkUtilCentricScheduling = kept.nvlink_centric;
  }
}

bool attach_flag_known(unsigned flags) {
  return flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST ||
         flags == CU_MEM_ATTACH_SINGLE;
}

}  // namespace

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue* value) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = attribute_check(id, *value, AttributeUse::kStream);
  if (result != CUDA_SUCCESS) return result;
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
    stream->priority = priority_clamp(value->priority);
  else
    stream->attributes_change([&](StreamAttributes& kept) { attribute_store(kept, id, *value); });
  return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue* value) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = stream_enter(handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (value == nullptr || !attribute_has(id, AttributeUse::kStream))
    return CUDA_ERROR_INVALID_VALUE;
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
    value->priority = stream->priority;
  else
    attribute_tell(stream->attributes(), id, *value);
  return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
  ContextRef context;
  StreamRef to, from;
  CUresult result = stream_enter(to_handle, context, to);
  if (result == CUDA_SUCCESS) result = stream_find(from_handle, context, from);
  if (result != CUDA_SUCCESS) return result;
  if (to->context() != from->context()) return CUDA_ERROR_INVALID_VALUE;
  to->attributes_change([copy = from->attributes()](StreamAttributes& kept) { kept = copy; });
  to->priority = from->priority.load();
  return CUDA_SUCCESS;
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, std::size_t length,
                                unsigned int flags) {
  ContextRef context;
  StreamRef stream;
  CUresult result = stream_enter(handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream);
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = MemoryMap::get().find(address);
  const bool whole =
      allocation && allocation->is_managed() && (length == 0 || length == allocation->size);
  if (!whole || !attach_flag_known(flags)) return CUDA_ERROR_INVALID_VALUE;
  // The null stream, in both of its forms, is no particular stream.
  const bool particular = handle != nullptr && stream->kind != Stream::kLegacy;
  return flags == CU_MEM_ATTACH_SINGLE && !particular ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

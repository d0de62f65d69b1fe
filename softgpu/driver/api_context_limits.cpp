// Entry points: what a context tells of itself, its flags and its limits.
#include "softgpu/driver/state.h"

namespace softgpu::driver {

bool context_flags_valid(unsigned flags) {
  const unsigned scheduling = flags & CU_CTX_SCHED_MASK;
  return (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) == 0 &&
         (scheduling & (scheduling - 1)) == 0;
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

CUresult cuCtxGetFlags(unsigned int* flags) {
  ContextRef context;
  const CUresult result = enter_failed(context);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (!context_flags_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  result = context_find(handle, context);
  if (result != CUDA_SUCCESS) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  result = context_find(handle, context);
  if (result != CUDA_SUCCESS) return result;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (value == nullptr || limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = context->limits[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
  ContextRef context;
  const CUresult result = enter(context);
  return result == CUDA_SUCCESS ? context->limit_set(limit, value) : result;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = static_cast<CUfunc_cache>(context->cache_config.load());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
    return CUDA_ERROR_INVALID_VALUE;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig) {
  ContextRef context;
  return enter(context);
}

CUresult cuCtxResetPersistingL2Cache() {
  ContextRef context;
  return enter(context);
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

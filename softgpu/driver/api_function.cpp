// Entry points: functions, their attributes, and occupancy.
#include <algorithm>

#include "softgpu/driver/api_module.h"
#include "softgpu/driver/occupancy.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {

CUresult attribute_get(const ptx::KernelInfo& info, const FunctionChoices& choices,
                       std::uint32_t registers, CUfunction_attribute attribute, int* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto give = [&](std::uint64_t v) {
    *value = static_cast<int>(v);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return give(std::min({info.threads_max, kThreadsPerBlock, threads_for(registers)}));
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return give(info.shared_bytes);
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      return give(info.const_bytes);
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return give(info.local_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return give(registers);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      return give(info.target);
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return give(kComputeMajor * 10 + kComputeMinor);
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = choices.dynamic_shared_max.value_or(static_cast<int>(dynamic_shared_default(info)));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = choices.carveout.value_or(-1);
      return CUDA_SUCCESS;
    default:
      if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      return give(0);
  }
}

CUresult attribute_choose(const ptx::KernelInfo& info, CUfunction_attribute attribute, int value,
                          FunctionChoices& choices) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || static_cast<std::uint32_t>(value) + info.shared_bytes > kSharedPerBlockOptin)
        return CUDA_ERROR_INVALID_VALUE;
      choices.dynamic_shared_max = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      choices.carveout = value;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // the others are read-only, or of later devices
  }
}

CUresult cache_choose(CUfunc_cache config, FunctionChoices& choices) {
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
    return CUDA_ERROR_INVALID_VALUE;
  choices.cache = config;
  return CUDA_SUCCESS;
}

CUresult param_info(const ptx::KernelInfo& info, std::size_t index, std::size_t* offset,
                    std::size_t* size) {
  if (index >= info.params.size() || offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *offset = info.params[index].offset;
  if (size != nullptr) *size = info.params[index].size;
  return CUDA_SUCCESS;
}

namespace {

CUresult function_get(CUfunction handle, FunctionRef& function,
                      const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  return result == CUDA_SUCCESS ? function_find(handle, context, function) : result;
}

/// Attributes that only a loaded function can tell (cuda.h, cuFuncGetAttribute).
bool needs_loading(CUfunction_attribute attribute) {
  return attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ||
         attribute == CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES ||
         attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
}

CUresult function_choose(const FunctionRef& function, const FunctionChoices& choices) {
  function->module->choose(*function, choices, false);
  return CUDA_SUCCESS;
}

FunctionChoices choices_in_force(const Function& function) {
  FunctionChoices choices;
  choices.dynamic_shared_max = function.dynamic_shared_max.load();
  choices.carveout = function.carveout.load();
  return choices;
}

}  // namespace
}  // namespace softgpu::driver

using namespace softgpu::driver;

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (needs_loading(attribute) && !function->loaded) return CUDA_ERROR_FUNCTION_NOT_LOADED;
  return attribute_get(function->info(), choices_in_force(*function), function->registers(),
                       attribute, value);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  FunctionRef function;
  CUresult result = function_get(handle, function);
  FunctionChoices choices;
  if (result == CUDA_SUCCESS)
    result = attribute_choose(function->info(), attribute, value, choices);
  return result == CUDA_SUCCESS ? function_choose(function, choices) : result;
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  FunctionRef function;
  CUresult result = function_get(handle, function);
  FunctionChoices choices;
  if (result == CUDA_SUCCESS) result = cache_choose(config, choices);
  return result == CUDA_SUCCESS ? function_choose(function, choices) : result;
}

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  FunctionRef function;
  return function_get(handle, function);
}

CUresult cuFuncGetModule(CUmodule* out, CUfunction handle) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = function->module->handle();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** out, CUfunction handle) {
  if (out == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result == CUDA_SUCCESS) *out = function->info().name.c_str();
  return result;
}

CUresult cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset,
                            std::size_t* size) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  return result == CUDA_SUCCESS ? param_info(function->info(), index, offset, size) : result;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = function->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction handle) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  return result == CUDA_SUCCESS ? function->load() : result;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle,
                                                              int threads, std::size_t shared,
                                                              unsigned int flags) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (blocks == nullptr || threads <= 0 || (flags & ~1U) != 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = occupancy_blocks(*function, static_cast<std::uint32_t>(threads), shared);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads,
                                                     std::size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction handle,
                                                   CUoccupancyB2DSize size_of, std::size_t shared,
                                                   int limit, unsigned int flags) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (grid == nullptr || block == nullptr || limit < 0 || (flags & ~1U) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const BlockSize best = occupancy_best(*function, size_of, shared, limit);
  *block = best.threads;
  *grid = best.blocks * static_cast<int>(function->module->owner().gpu.model.settings().sm_count);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction handle,
                                          CUoccupancyB2DSize size_of, std::size_t shared,
                                          int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, size_of, shared, limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, CUfunction handle, int blocks,
                                                 int threads) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (bytes == nullptr || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  return occupancy_shared(*function, blocks, static_cast<std::uint32_t>(threads), *bytes)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

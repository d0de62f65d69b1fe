// Entry points: the launch interface of CUDA 1 to 3, deprecated since, in which a function carries
// its block shape, shared memory and parameters from call to call.
#include <cstring>

#include "softgpu/driver/launch.h"

using namespace softgpu::driver;

namespace {

constexpr std::size_t kParamsMax = 4096;  // of functions in those days

/// What the next launch of a function is given.
struct Setting {
  std::weak_ptr<Function> of;  // an address may be used again
  softgpu::ptx::Dim3 block;
  unsigned shared_bytes = 0;
  std::vector<std::byte> params;
};

std::mutex settings_mutex;

CUresult setting_change(CUfunction handle, const char* name,
                        const std::function<CUresult(Setting&)>& how) {
  static auto* settings = new std::unordered_map<CUfunction, Setting>;
  ContextRef context;
  FunctionRef function;
  CUresult result = enter(context, name);
  if (result == CUDA_SUCCESS) result = function_find(handle, context, function);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(settings_mutex);
  Setting& setting = (*settings)[handle];
  if (setting.of.lock() != function) {
    setting = Setting{};
    setting.of = function;
  }
  return how(setting);
}

CUresult param_set(CUfunction handle, int offset, const void* from, std::size_t bytes,
                   const char* name) {
  return setting_change(handle, name, [&](Setting& setting) {
    const auto at = static_cast<std::size_t>(offset);
    if (offset < 0 || from == nullptr || bytes > kParamsMax || at > kParamsMax - bytes)
      return CUDA_ERROR_INVALID_VALUE;
    if (setting.params.size() < at + bytes) setting.params.resize(at + bytes);
    std::memcpy(setting.params.data() + at, from, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult launch_set(CUfunction handle, int width, int height, CUstream stream, const char* name) {
  Setting setting;
  const CUresult result = setting_change(handle, name, [&](Setting& kept) {
    setting = kept;
    return width > 0 && height > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
  if (result != CUDA_SUCCESS) return result;
  std::size_t bytes = setting.params.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, setting.params.data(),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  const softgpu::ptx::Dim3 grid{static_cast<unsigned>(width), static_cast<unsigned>(height), 1};
  return launch_submit(
      {handle, grid, setting.block, setting.shared_bytes, nullptr, bytes == 0 ? nullptr : extra},
      stream, name);
}

}  // namespace

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  return setting_change(function, __func__, [&](Setting& setting) {
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    setting.block = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
    return CUDA_SUCCESS;
  });
}
CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
  return setting_change(function, __func__, [&](Setting& setting) {
    setting.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSetSize(CUfunction function, unsigned int bytes) {
  return setting_change(function, __func__, [&](Setting& setting) {
    if (bytes > kParamsMax) return CUDA_ERROR_INVALID_VALUE;
    setting.params.resize(bytes);
    return CUDA_SUCCESS;
  });
}
CUresult cuParamSeti(CUfunction function, int offset, unsigned int value) {
  return param_set(function, offset, &value, sizeof value, __func__);
}
CUresult cuParamSetf(CUfunction function, int offset, float value) {
  return param_set(function, offset, &value, sizeof value, __func__);
}
CUresult cuParamSetv(CUfunction function, int offset, void* value, unsigned int bytes) {
  return param_set(function, offset, value, bytes, __func__);
}

CUresult cuLaunch(CUfunction function) { return launch_set(function, 1, 1, nullptr, __func__); }
CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  return launch_set(function, width, height, nullptr, __func__);
}
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  return launch_set(function, width, height, stream, __func__);
}

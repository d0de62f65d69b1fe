// Entry points: modules.
#include "softgpu/driver/api_module.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <sstream>

#include "softgpu/driver/command.h"

namespace softgpu::driver {

bool file_read(const char* path, std::string& bytes) {
  if (path == nullptr) return false;
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  std::ostringstream all;
  all << file.rdbuf();
  bytes = all.str();
  return true;
}

JitRequest::JitRequest(unsigned count, CUjit_option* options, void** values)
    : count_(options == nullptr || values == nullptr ? 0 : count),
      options_(options),
      values_(values),
      given_(values, values + count_),
      started_ns_(device::clock_ns()) {}

CUresult JitRequest::read(LoadOptions& load, bool whole) const {
  for (unsigned i = 0; i < count_; ++i) {
    const auto number = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(values_[i]));
    switch (options_[i]) {
      case CU_JIT_MAX_REGISTERS:
        load.registers_max = number == 0 ? 255 : std::clamp(number, 16U, 255U);
        break;
      case CU_JIT_TARGET:
        load.target = number;
        [[fallthrough]];
      case CU_JIT_TARGET_FROM_CUCONTEXT:
      case CU_JIT_WALL_TIME:
      case CU_JIT_INFO_LOG_BUFFER:
      case CU_JIT_ERROR_LOG_BUFFER:
        if (!whole) return CUDA_ERROR_INVALID_VALUE;
        break;
      case CU_JIT_OPTIMIZATION_LEVEL:
        if (number > 4) return CUDA_ERROR_INVALID_VALUE;
        break;
      default:
        if (options_[i] < 0 || options_[i] >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

void JitRequest::buffer_fill(CUjit_option buffer, CUjit_option size,
                             const std::string& text) const {
  const auto at = [&](CUjit_option option) {
    return static_cast<std::size_t>(std::find(options_, options_ + count_, option) - options_);
  };
  const std::size_t place = at(buffer), room = at(size);
  if (place == count_ || given_[place] == nullptr || room == count_) return;
  const auto bytes = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(given_[room]));
  if (bytes == 0) return;
  const std::size_t length = std::min<std::size_t>(text.size(), bytes - 1);
  char* const out = static_cast<char*>(given_[place]);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
  values_[room] = reinterpret_cast<void*>(length == 0 ? 0 : length + 1);
}

void JitRequest::report(const std::string& error_log) {
  buffer_fill(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error_log);
  buffer_fill(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
  spent_ns_ += device::clock_ns() - started_ns_;
  resume();
  for (unsigned i = 0; i < count_; ++i) {
    if (options_[i] != CU_JIT_WALL_TIME) continue;
    const auto milliseconds = static_cast<float>(spent_ns_ / 1e6);
    values_[i] =
        reinterpret_cast<void*>(std::uintptr_t{std::bit_cast<std::uint32_t>(milliseconds)});
  }
}

CUresult variable_give(const std::shared_ptr<Module>& module, CUdeviceptr* address,
                       std::size_t* bytes, const char* name) {
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const ptx::Variable* variable = module->variable(name);
  // Hardware clears both places when there is no such variable.
  if (address != nullptr) *address = variable == nullptr ? 0 : variable->address;
  if (bytes != nullptr) *bytes = variable == nullptr ? 0 : variable->size;
  if (variable != nullptr) return CUDA_SUCCESS;
  const bool of_something_else = *name == '\0' || module->has_kernel(name);
  return of_something_else ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

namespace {

CUresult module_load(CUmodule* out, const void* image, LoadOptions& options, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  std::shared_ptr<Module> module;
  result = image_choose(image, options, text);
  if (result == CUDA_SUCCESS) result = Module::load(context, text, options, module);
  if (result == CUDA_SUCCESS) *out = module->handle();
  return result;
}

CUresult module_find(CUmodule handle, std::shared_ptr<Module>& module,
                     const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  module = Registry<Module>::all().find(handle);
  return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

}  // namespace
}  // namespace softgpu::driver

using namespace softgpu::driver;

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = loading_eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  LoadOptions options;
  return module_load(out, image, options, __func__);
}

CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  LoadOptions options;
  return module_load(out, image, options, __func__);
}

CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned int count,
                            CUjit_option* options, void** values) {
  if (count > 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  JitRequest request(count, options, values);
  LoadOptions load;
  CUresult result = request.read(load);
  if (result != CUDA_SUCCESS) return result;
  result = module_load(out, image, load, __func__);
  request.report(result == CUDA_SUCCESS ? std::string() : load.log);
  return result;
}

CUresult cuModuleLoad(CUmodule* out, const char* path) {
  std::string image;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!file_read(path, image)) return CUDA_ERROR_FILE_NOT_FOUND;
  LoadOptions options;
  return module_load(out, image.c_str(), options, __func__);
}

CUresult cuModuleUnload(CUmodule handle) {
  ContextRef context;
  CUresult result = enter(context);
  const std::shared_ptr<Module> module = Registry<Module>::all().find(handle);
  // A module says whose it is, so that one is unloaded where no context is current, too.
  if (result == CUDA_ERROR_INVALID_CONTEXT && module != nullptr) result = module->owner().status();
  if (result != CUDA_SUCCESS) return result;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (module->of_library) return CUDA_ERROR_NOT_PERMITTED;
  if (Registry<Module>::all().take(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  module->owner().wait_all();
  module->unload();
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  std::shared_ptr<Module> module;
  CUresult result = module_find(handle, module);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
  const FunctionRef function = module->function(name);
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  result = function->load();
  if (result == CUDA_SUCCESS) *out = function->handle();
  return result;
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  std::shared_ptr<Module> module;
  const CUresult result = module_find(handle, module);
  if (result != CUDA_SUCCESS) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->functions().size());
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* out, unsigned int count, CUmodule handle) {
  std::shared_ptr<Module> module;
  const CUresult result = module_find(handle, module);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
  const auto functions = module->functions();
  for (unsigned i = 0; i < count && i < functions.size(); ++i) out[i] = functions[i]->handle();
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes, CUmodule handle,
                              const char* name) {
  std::shared_ptr<Module> module;
  const CUresult result = module_find(handle, module);
  return result == CUDA_SUCCESS ? variable_give(module, address, bytes, name) : result;
}

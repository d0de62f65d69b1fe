// Entry points: modules, libraries, kernels, functions and their attributes.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "softgpu/driver/command.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/occupancy.h"
#include "softgpu/driver/profile.h"

using namespace softgpu::driver;
namespace ptx = softgpu::ptx;

namespace {

bool file_read(const char* path, std::string& text) {
  if (path == nullptr) return false;
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  std::ostringstream all;
  all << file.rdbuf();
  text = all.str();
  return true;
}

CUresult module_load(CUmodule* out, const void* image, std::string* log, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  if (result == CUDA_SUCCESS) result = capture_refuses(nullptr);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module;
  result = Module::load(context, image, module, log);
  if (result == CUDA_SUCCESS) *out = module->handle();
  return result;
}

/// The error log buffer among the options of cuModuleLoadDataEx.
void log_give(const std::string& log, unsigned count, CUjit_option* options, void** values) {
  char* buffer = nullptr;
  std::size_t size = 0;
  for (unsigned i = 0; i < count && options != nullptr && values != nullptr; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
      size = reinterpret_cast<std::size_t>(values[i]);
  }
  if (buffer != nullptr && size > 0) std::snprintf(buffer, size, "%s", log.c_str());
}

CUresult module_find(CUmodule handle, std::shared_ptr<Module>& module,
                     const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  module = Registry<Module>::all().find(handle);
  return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult variable_give(const std::shared_ptr<Module>& module, CUdeviceptr* address,
                       std::size_t* bytes, const char* name) {
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const ptx::Variable* variable = module->variable(name);
  if (variable == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = variable->address;
  if (bytes != nullptr) *bytes = variable->size;
  return CUDA_SUCCESS;
}

CUresult function_get(CUfunction handle, FunctionRef& function,
                      const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  return result == CUDA_SUCCESS ? function_find(handle, context, function) : result;
}

/// A kernel's function in the primary context of `device`, or in the current context.
CUresult kernel_function(CUkernel handle, CUdevice device, FunctionRef& function,
                         const char* name) {
  CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  Gpu* gpu = Process::get().gpu(device);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  ContextRef context;
  result = context_find(nullptr, context);
  if (result != CUDA_SUCCESS || &context->gpu != gpu) {
    const std::lock_guard lock(gpu->mutex);
    context = gpu->primary;
  }
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return function_find(reinterpret_cast<CUfunction>(handle), context, function);
}

CUresult attribute_get(const Function& function, CUfunction_attribute attribute, int* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ptx::KernelInfo& info = function.info();
  const auto give = [&](std::uint64_t v) {
    *value = static_cast<int>(v);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return give(std::min(info.threads_max, kThreadsPerBlock));
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return give(info.shared_bytes);
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      return give(info.const_bytes);
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return give(info.local_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return give(info.registers);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      return give(info.target);
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return give(kComputeMajor * 10 + kComputeMinor);
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function.dynamic_shared_max;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = function.carveout;
      return CUDA_SUCCESS;
    default:
      if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      return give(0);
  }
}

CUresult attribute_set(Function& function, CUfunction_attribute attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 ||
          static_cast<std::uint32_t>(value) + function.info().shared_bytes > kSharedPerBlockOptin)
        return CUDA_ERROR_INVALID_VALUE;
      function.dynamic_shared_max = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      function.carveout = value;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult param_info(const Function& function, std::size_t index, std::size_t* offset,
                    std::size_t* size) {
  const auto& params = function.info().params;
  if (index >= params.size() || offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *offset = params[index].offset;
  if (size != nullptr) *size = params[index].size;
  return CUDA_SUCCESS;
}

std::shared_ptr<Library> library_find(CUlibrary handle) {
  return Registry<Library>::all().find(handle);
}

CUresult library_load(CUlibrary* out, const void* image, const char* name) {
  CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto library = std::make_shared<Library>();
  result = image_choose(image, library->ptx, nullptr);
  if (result != CUDA_SUCCESS) return result;
  Registry<Library>::all().add(library);
  *out = library->handle();
  return CUDA_SUCCESS;
}

CUresult library_module(CUlibrary handle, std::shared_ptr<Module>& module, const char* name) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  const auto library = library_find(handle);
  return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : library->module_in(context, module);
}

}  // namespace

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  return module_load(out, image, nullptr, __func__);
}
CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  return module_load(out, image, nullptr, __func__);
}

CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned int count,
                            CUjit_option* options, void** values) {
  std::string log;
  const CUresult result = module_load(out, image, &log, __func__);
  if (result != CUDA_SUCCESS) log_give(log, count, options, values);
  return result;
}

CUresult cuModuleLoad(CUmodule* out, const char* path) {
  std::string image;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return file_read(path, image) ? module_load(out, image.c_str(), nullptr, __func__)
                                : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule handle) {
  std::shared_ptr<Module> module;
  const CUresult result = module_find(handle, module);
  if (result != CUDA_SUCCESS) return result;
  if (Registry<Module>::all().take(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<StreamRef> streams;
  Context& owner = module->owner();
  {
    const std::lock_guard lock(owner.order);
    streams = owner.streams;
    streams.push_back(owner.legacy);
  }
  for (const StreamRef& stream : streams)
    if (stream != nullptr) (void)Stream::wait(stream->last());
  module->unload();
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  std::shared_ptr<Module> module;
  const CUresult result = module_find(handle, module);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
  const FunctionRef function = module->function(name);
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = function->handle();
  return CUDA_SUCCESS;
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

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  return result == CUDA_SUCCESS ? attribute_get(*function, attribute, value) : result;
}
CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  return result == CUDA_SUCCESS ? attribute_set(*function, attribute, value) : result;
}
CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  FunctionRef function;
  return function_get(handle, function);
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
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = function->info().name.c_str();
  return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset,
                            std::size_t* size) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  return result == CUDA_SUCCESS ? param_info(*function, index, offset, size) : result;
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction handle) {
  FunctionRef function;
  return function_get(handle, function);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle,
                                                              int threads, std::size_t shared,
                                                              unsigned int) {
  FunctionRef function;
  const CUresult result = function_get(handle, function);
  if (result != CUDA_SUCCESS) return result;
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = occupancy_blocks(*function, static_cast<std::uint32_t>(threads), shared);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads,
                                                     std::size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction handle,
                                                   CUoccupancyB2DSize size_of, std::size_t shared,
                                                   int limit, unsigned int) {
  ContextRef context;
  CUresult result = enter(context);
  FunctionRef function;
  if (result == CUDA_SUCCESS) result = function_find(handle, context, function);
  if (result != CUDA_SUCCESS) return result;
  if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int best = 0;
  const int most = static_cast<int>(std::min(function->info().threads_max, kThreadsPerBlock));
  for (int threads = limit > 0 ? std::min(limit, most) : most; threads > 0; threads -= 32) {
    const std::size_t dynamic = size_of != nullptr ? size_of(threads) : shared;
    const int blocks = occupancy_blocks(*function, static_cast<std::uint32_t>(threads), dynamic);
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    *block = threads;
    *grid = blocks * static_cast<int>(context->gpu.model.settings().sm_count);
  }
  return best > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
  const std::size_t each = kSharedPerSm / static_cast<unsigned>(blocks);
  const std::size_t taken = function->info().shared_bytes + kSharedReserved;
  *bytes = each > taken ? std::min<std::size_t>(
                              each - taken, kSharedPerBlockOptin - function->info().shared_bytes)
                        : 0;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* out, const void* image, CUjit_option*, void**, unsigned int,
                           CUlibraryOption*, void**, unsigned int) {
  return library_load(out, image, __func__);
}

CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option*, void**,
                               unsigned int, CUlibraryOption*, void**, unsigned int) {
  std::string image;
  return file_read(path, image) ? library_load(out, image.c_str(), __func__)
                                : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cuLibraryUnload(CUlibrary handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const auto library = Registry<Library>::all().take(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  library->unload();
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const auto library = library_find(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ContextRef context;
  if (context_find(nullptr, context) != CUDA_SUCCESS) context = nullptr;
  const auto kernel = library->kernel(context, name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = kernel->handle();
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module(handle, module, __func__);
  if (result == CUDA_SUCCESS) *out = module->handle();
  return result;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* bytes, CUlibrary handle,
                            const char* name) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module(handle, module, __func__);
  return result == CUDA_SUCCESS ? variable_give(module, address, bytes, name) : result;
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, std::size_t* bytes, CUlibrary handle,
                             const char* name) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module(handle, module, __func__);
  if (result != CUDA_SUCCESS) return result;
  const ptx::Variable* variable = name == nullptr ? nullptr : module->variable(name);
  if (variable == nullptr || !variable->managed) return CUDA_ERROR_NOT_FOUND;
  return variable_give(module, address, bytes, name);
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module(handle, module, __func__);
  if (result != CUDA_SUCCESS) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->functions().size());
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* out, unsigned int count, CUlibrary handle) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module(handle, module, __func__);
  if (result != CUDA_SUCCESS) return result;
  ContextRef context;
  if (context_find(nullptr, context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  const auto functions = module->functions();
  for (unsigned i = 0; i < count && i < functions.size(); ++i)
    out[i] = library_find(handle)->kernel(context, functions[i]->info().name)->handle();
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  FunctionRef function;
  const CUresult result = function_get(reinterpret_cast<CUfunction>(handle), function);
  if (result == CUDA_SUCCESS) *out = function->handle();
  return result;
}

CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const auto kernel = Registry<Kernel>::all().find(handle);
  const auto library = kernel == nullptr ? nullptr : kernel->library.lock();
  if (library == nullptr || out == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = library->handle();
  return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device) {
  FunctionRef function;
  const CUresult result = kernel_function(kernel, device, function, __func__);
  return result == CUDA_SUCCESS ? attribute_get(*function, attribute, value) : result;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  FunctionRef function;
  const CUresult result = kernel_function(kernel, device, function, __func__);
  return result == CUDA_SUCCESS ? attribute_set(*function, attribute, value) : result;
}
CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice device) {
  FunctionRef function;
  return kernel_function(kernel, device, function, __func__);
}
CUresult cuKernelGetName(const char** out, CUkernel handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  const auto kernel = Registry<Kernel>::all().find(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = kernel->name.c_str();
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel handle, std::size_t index, std::size_t* offset,
                              std::size_t* size) {
  FunctionRef function;
  const CUresult result = function_get(reinterpret_cast<CUfunction>(handle), function);
  return result == CUDA_SUCCESS ? param_info(*function, index, offset, size) : result;
}

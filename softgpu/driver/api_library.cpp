// Entry points: libraries and their kernels. Most of them need no context: a library is loaded into
// a context when that context first needs it.
#include "softgpu/driver/api_module.h"

namespace softgpu::driver {
namespace {

CUresult library_find(CUlibrary handle, std::shared_ptr<Library>& library,
                      const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  library = Registry<Library>::all().find(handle);
  return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

/// The library's module in the current context; loads it.
CUresult library_module(CUlibrary handle, std::shared_ptr<Module>& module,
                        const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  const auto library = Registry<Library>::all().find(handle);
  return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : library->module_in(context, module);
}

/// Where managed variables live: in the module of any context, or in the current one's.
CUresult library_module_any(CUlibrary handle, std::shared_ptr<Module>& module, const char* name) {
  std::shared_ptr<Library> library;
  const CUresult result = library_find(handle, library, name);
  if (result != CUDA_SUCCESS) return result;
  module = library->module_any();
  if (module != nullptr) return CUDA_SUCCESS;
  ContextRef context;
  if (context_find(nullptr, context) != CUDA_SUCCESS) return CUDA_ERROR_NOT_FOUND;
  return library->module_in(context, module);
}

CUresult kernel_find(CUkernel handle, std::shared_ptr<Kernel>& kernel,
                     std::shared_ptr<Library>& library, const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  kernel = Registry<Kernel>::all().find(handle);
  library = kernel == nullptr ? nullptr : kernel->library.lock();
  return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

/// A kernel and the device that an attribute of it is about.
struct KernelOnDevice {
  std::shared_ptr<Kernel> kernel;
  std::shared_ptr<Library> library;
  Gpu* gpu = nullptr;

  CUresult find(CUkernel handle, CUdevice device, const char* name = __builtin_FUNCTION()) {
    const CUresult result = kernel_find(handle, kernel, library, name);
    if (result != CUDA_SUCCESS) return result;
    gpu = Process::get().gpu(device);
    return gpu == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
  }
  CUresult choose(const FunctionChoices& choices) const {
    library->choose(*kernel, *gpu, choices);
    return CUDA_SUCCESS;
  }
};

/// Options of the library itself. That the caller keeps the image is a hint which is not needed; a
/// table of host functions is for devices that share their code with the host.
CUresult library_options_check(unsigned count, const CUlibraryOption* options, bool from_file) {
  if (count > 0 && options == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED && !from_file) continue;
    if (options[i] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE) continue;
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult library_load(CUlibrary* out, const void* image, unsigned count, CUjit_option* options,
                      void** values) {
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (count > 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  JitRequest request(count, options, values);
  LoadOptions load;
  CUresult result = request.read(load);
  if (result != CUDA_SUCCESS) return result;
  std::shared_ptr<Library> library;
  result = Library::load(image, load, library);
  request.report(result == CUDA_SUCCESS ? std::string() : load.log);
  if (result == CUDA_SUCCESS) *out = library->handle();
  return result;
}

}  // namespace
}  // namespace softgpu::driver

using namespace softgpu::driver;

CUresult cuLibraryLoadData(CUlibrary* out, const void* image, CUjit_option* options, void** values,
                           unsigned int count, CUlibraryOption* library_options, void**,
                           unsigned int library_option_count) {
  CUresult result = enter_any();
  if (result == CUDA_SUCCESS)
    result = library_options_check(library_option_count, library_options, false);
  return result == CUDA_SUCCESS ? library_load(out, image, count, options, values) : result;
}

CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option* options,
                               void** values, unsigned int count, CUlibraryOption* library_options,
                               void**, unsigned int library_option_count) {
  CUresult result = enter_any();
  if (result == CUDA_SUCCESS)
    result = library_options_check(library_option_count, library_options, true);
  if (result != CUDA_SUCCESS) return result;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string image;
  if (!file_read(path, image)) return CUDA_ERROR_FILE_NOT_FOUND;
  return library_load(out, image.c_str(), count, options, values);
}

CUresult cuLibraryUnload(CUlibrary handle) {
  std::shared_ptr<Library> library;
  const CUresult result = library_find(handle, library);
  if (result != CUDA_SUCCESS) return result;
  if (Registry<Library>::all().take(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  library->unload();
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  std::shared_ptr<Library> library;
  const CUresult result = library_find(handle, library);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
  const auto kernel = library->kernel(name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = kernel->handle();
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  std::shared_ptr<Library> library;
  const CUresult result = library_find(handle, library);
  if (result != CUDA_SUCCESS) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(library->kernels().size());
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* out, unsigned int count, CUlibrary handle) {
  std::shared_ptr<Library> library;
  const CUresult result = library_find(handle, library);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
  const auto kernels = library->kernels();
  for (unsigned i = 0; i < count && i < kernels.size(); ++i) out[i] = kernels[i]->handle();
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module(handle, module);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = module->handle();
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* bytes, CUlibrary handle,
                            const char* name) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module(handle, module);
  return result == CUDA_SUCCESS ? variable_give(module, address, bytes, name) : result;
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, std::size_t* bytes, CUlibrary handle,
                             const char* name) {
  std::shared_ptr<Module> module;
  const CUresult result = library_module_any(handle, module, __func__);
  if (result != CUDA_SUCCESS) return result;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const softgpu::ptx::Variable* variable = module->variable(name);
  if (variable == nullptr || !variable->managed) return CUDA_ERROR_NOT_FOUND;
  return variable_give(module, address, bytes, name);
}

/// No device here shares function pointers with the host (UNIFIED_FUNCTION_POINTERS is 0): every
/// name is refused, as hardware without them does.
CUresult cuLibraryGetUnifiedFunction(void**, CUlibrary handle, const char*) {
  std::shared_ptr<Library> library;
  const CUresult result = library_find(handle, library);
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  std::shared_ptr<Kernel> kernel;
  std::shared_ptr<Library> library;
  result = kernel_find(handle, kernel, library);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionRef function;
  result = library->function_in(context, *kernel, function);
  if (result == CUDA_SUCCESS) result = function->load();
  if (result == CUDA_SUCCESS) *out = function->handle();
  return result;
}

CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  std::shared_ptr<Kernel> kernel;
  std::shared_ptr<Library> library;
  const CUresult result = kernel_find(handle, kernel, library);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = library->handle();
  return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                              CUdevice device) {
  KernelOnDevice on;
  const CUresult result = on.find(handle, device);
  if (result != CUDA_SUCCESS) return result;
  FunctionChoices choices;
  {
    const std::lock_guard lock(on.kernel->mutex);
    const auto kept = on.kernel->choices.find(on.gpu->ordinal);
    if (kept != on.kernel->choices.end()) choices = kept->second;
  }
  return attribute_get(*on.kernel->info, choices, on.library->registers(*on.kernel), attribute,
                       value);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                              CUdevice device) {
  KernelOnDevice on;
  CUresult result = on.find(handle, device);
  FunctionChoices choices;
  if (result == CUDA_SUCCESS)
    result = attribute_choose(*on.kernel->info, attribute, value, choices);
  return result == CUDA_SUCCESS ? on.choose(choices) : result;
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device) {
  KernelOnDevice on;
  CUresult result = on.find(handle, device);
  FunctionChoices choices;
  if (result == CUDA_SUCCESS) result = cache_choose(config, choices);
  return result == CUDA_SUCCESS ? on.choose(choices) : result;
}

CUresult cuKernelGetName(const char** out, CUkernel handle) {
  if (out == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Kernel> kernel;
  std::shared_ptr<Library> library;
  const CUresult result = kernel_find(handle, kernel, library);
  if (result == CUDA_SUCCESS) *out = kernel->name.c_str();
  return result;
}

CUresult cuKernelGetParamInfo(CUkernel handle, std::size_t index, std::size_t* offset,
                              std::size_t* size) {
  std::shared_ptr<Kernel> kernel;
  std::shared_ptr<Library> library;
  const CUresult result = kernel_find(handle, kernel, library);
  return result == CUDA_SUCCESS ? param_info(*kernel->info, index, offset, size) : result;
}

// Libraries and their kernels; see module.h.
#include <cstdlib>
#include <cstring>

#include "softgpu/driver/module.h"

namespace softgpu::driver {

void* HostMemory::allocate(std::size_t bytes, std::size_t) {
  return std::calloc(1, bytes == 0 ? 1 : bytes);
}

void HostMemory::release(void* p) { std::free(p); }

bool loading_eager() {
  static const bool eager = [] {
    const char* text = std::getenv("CUDA_MODULE_LOADING");
    return text != nullptr && std::strcmp(text, "EAGER") == 0;
  }();
  return eager;
}

CUresult libraries_load_eager(const ContextRef& context) {
  if (!loading_eager()) return CUDA_SUCCESS;
  for (const auto& library : Registry<Library>::all().list()) {
    std::shared_ptr<Module> module;
    const CUresult result = library->module_in(context, module);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult Library::load(const void* image, LoadOptions& options, std::shared_ptr<Library>& library) {
  library = std::make_shared<Library>();
  CUresult result = image_choose(image, options, library->text_);
  if (result == CUDA_SUCCESS)
    result = text_load(library->text_, library->memory_, options, library->code_);
  if (result != CUDA_SUCCESS) return result;
  library->options_ = options;
  for (const ptx::Kernel* code : ptx::module_kernels(*library->code_)) {
    const auto kernel = std::make_shared<Kernel>();
    kernel->library = library;
    kernel->info = &ptx::kernel_info(*code);
    kernel->name = kernel->info->name;
    library->kernels_[kernel->name] = kernel;
    Registry<Kernel>::all().add(kernel);
  }
  Registry<Library>::all().add(library);
  if (!loading_eager()) return CUDA_SUCCESS;
  for (const ContextRef& context : Registry<Context>::all().list()) {
    std::shared_ptr<Module> module;
    result = library->module_in(context, module);
    if (result == CUDA_SUCCESS) continue;
    Registry<Library>::all().take(library.get());
    library->unload();
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult Library::module_in(const ContextRef& context, std::shared_ptr<Module>& module) {
  const std::lock_guard lock(mutex_);
  std::erase_if(modules_, [](const auto& entry) { return entry.second->owner().closed.load(); });
  std::shared_ptr<Module>& mine = modules_[context->id];
  if (mine == nullptr) {
    LoadOptions options = options_;
    const CUresult result = Module::load(context, text_, options, mine);
    if (result != CUDA_SUCCESS) {
      modules_.erase(context->id);
      return result;
    }
    mine->of_library = true;
  }
  module = mine;
  return CUDA_SUCCESS;
}

std::shared_ptr<Module> Library::module_any() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, module] : modules_)
    if (!module->owner().closed) return module;
  return nullptr;
}

std::shared_ptr<Kernel> Library::kernel(const std::string& name) {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Kernel>> Library::kernels() {
  std::vector<std::shared_ptr<Kernel>> result;
  for (const auto& [name, kernel] : kernels_) result.push_back(kernel);
  return result;
}

CUresult Library::function_in(const ContextRef& context, Kernel& kernel, FunctionRef& function) {
  std::shared_ptr<Module> module;
  const CUresult result = module_in(context, module);
  if (result != CUDA_SUCCESS) return result;
  function = module->function(kernel.name);
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  const std::lock_guard lock(kernel.mutex);
  const auto choices = kernel.choices.find(context->gpu.ordinal);
  if (choices != kernel.choices.end()) module->choose(*function, choices->second, true);
  return CUDA_SUCCESS;
}

void Library::choose(Kernel& kernel, const Gpu& gpu, const FunctionChoices& choices) {
  {
    const std::lock_guard lock(kernel.mutex);
    FunctionChoices& kept = kernel.choices[gpu.ordinal];
    if (choices.dynamic_shared_max) kept.dynamic_shared_max = choices.dynamic_shared_max;
    if (choices.carveout) kept.carveout = choices.carveout;
    if (choices.cache) kept.cache = choices.cache;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [id, module] : modules_) {
    if (&module->owner().gpu != &gpu || module->owner().closed) continue;
    const FunctionRef function = module->function(kernel.name);
    if (function != nullptr) module->choose(*function, choices, true);
  }
}

void Library::unload() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, kernel] : kernels_) Registry<Kernel>::all().take(kernel.get());
  for (const auto& [id, module] : modules_) {
    Registry<Module>::all().take(module.get());
    if (module->owner().closed) continue;
    module->owner().wait_all();
    module->unload();
  }
  kernels_.clear();
  modules_.clear();
}

}  // namespace softgpu::driver

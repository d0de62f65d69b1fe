// See module.h.
#include "softgpu/driver/module.h"

#include <cstdio>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {

/// Variables of a module are device memory of its context.
class Module::ContextMemory : public ptx::Memory {
 public:
  explicit ContextMemory(Context& context) : context_(context) {}
  void* allocate(std::size_t bytes, std::size_t) override {
    CUdeviceptr address = 0;
    if (memory_allocate(context_, bytes == 0 ? 1 : bytes, MemoryKind::kModule, address) !=
        CUDA_SUCCESS)
      return nullptr;
    return reinterpret_cast<void*>(address);
  }
  void release(void* p) override {
    const auto allocation = MemoryMap::get().take(address_of(p));
    if (allocation) memory_release(*allocation);
  }

 private:
  Context& context_;
};

Module::Module(const ContextRef& context) : context_(context), owner_(context) {
  memory_ = std::make_unique<ContextMemory>(*context);
}

Module::~Module() = default;

CUresult image_choose(const void* image, std::string& ptx, std::string* log) {
  std::string error;
  std::vector<ptx::PtxImage> images = ptx::fatbin_images(image, &error);
  for (ptx::PtxImage& candidate : images) {
    if (candidate.target > kComputeMajor * 10 + kComputeMinor) continue;
    ptx = std::move(candidate.text);
    return CUDA_SUCCESS;
  }
  if (!images.empty())
    error = "only PTX for compute_" + std::to_string(images.back().target) +
            " or later: build with -arch=compute_" +
            std::to_string(kComputeMajor * 10 + kComputeMinor) + " or lower";
  if (Process::get().log_level() > 0)
    std::fprintf(stderr, "softgpu: module not loaded: %s\n", error.c_str());
  if (log != nullptr) *log = error;
  return images.empty() && error.find("machine code") == std::string::npos
             ? CUDA_ERROR_INVALID_IMAGE
             : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

namespace {

CUresult load_error(ptx::LoadStatus status) {
  switch (status) {
    case ptx::LoadStatus::kOk:
      return CUDA_SUCCESS;
    case ptx::LoadStatus::kInvalidPtx:
      return CUDA_ERROR_INVALID_PTX;
    case ptx::LoadStatus::kUnsupported:
      return CUDA_ERROR_NOT_SUPPORTED;
    case ptx::LoadStatus::kNoMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_ERROR_UNKNOWN;
}

CUresult ptx_load(Module&, std::string_view text, ptx::Memory& memory, ptx::LoadResult& result,
                  std::string* log) {
  result = ptx::module_load(text, memory);
  if (result.status == ptx::LoadStatus::kOk) return CUDA_SUCCESS;
  if (Process::get().log_level() > 0)
    std::fprintf(stderr, "softgpu: PTX not loaded: %s\n", result.log.c_str());
  if (log != nullptr) *log = result.log;
  return load_error(result.status);
}

}  // namespace

CUresult Module::load(const ContextRef& context, const void* image, std::shared_ptr<Module>& module,
                      std::string* log) {
  std::string text;
  CUresult result = image_choose(image, text, log);
  if (result != CUDA_SUCCESS) return result;
  module = std::make_shared<Module>(context);
  ptx::LoadResult loaded;
  result = ptx_load(*module, text, *module->memory_, loaded, log);
  if (result != CUDA_SUCCESS) return result;
  module->code_ = std::move(loaded.module);
  Registry<Module>::all().add(module);
  return CUDA_SUCCESS;
}

FunctionRef Module::function(const std::string& name) {
  const std::lock_guard lock(mutex_);
  FunctionRef& function = functions_[name];
  if (function != nullptr) return function;
  const ptx::Kernel* kernel = code_ == nullptr ? nullptr : ptx::module_kernel(*code_, name);
  if (kernel == nullptr) {
    functions_.erase(name);
    return nullptr;
  }
  function = std::make_shared<Function>();
  function->kernel = kernel;
  function->module = this;
  Registry<Function>::all().add(function);
  return function;
}

std::vector<FunctionRef> Module::functions() {
  std::vector<FunctionRef> result;
  if (code_ == nullptr) return result;
  for (const ptx::Kernel* kernel : ptx::module_kernels(*code_))
    result.push_back(function(ptx::kernel_info(*kernel).name));
  return result;
}

const ptx::Variable* Module::variable(const std::string& name) const {
  if (code_ == nullptr) return nullptr;
  for (const ptx::Variable& variable : ptx::module_variables(*code_))
    if (variable.name == name) return &variable;
  return nullptr;
}

void Module::unload() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, function] : functions_) Registry<Function>::all().take(function.get());
  functions_.clear();
  code_.reset();
}

CUresult Library::module_in(const ContextRef& context, std::shared_ptr<Module>& module) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Module>& mine = modules_[context->id];
  if (mine == nullptr) {
    const CUresult result = Module::load(context, ptx.c_str(), mine, nullptr);
    if (result != CUDA_SUCCESS) {
      modules_.erase(context->id);
      return result;
    }
  }
  module = mine;
  return CUDA_SUCCESS;
}

std::shared_ptr<Kernel> Library::kernel(const ContextRef& context, const std::string& name) {
  // Without a context the name cannot be checked against the code; the text of the entry is.
  std::shared_ptr<Module> module;
  if (context != nullptr &&
      (module_in(context, module) != CUDA_SUCCESS || module->function(name) == nullptr))
    return nullptr;
  if (context == nullptr && ptx.find(" " + name + "(") == std::string::npos) return nullptr;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Kernel>& kernel = kernels[name];
  if (kernel == nullptr) {
    kernel = std::make_shared<Kernel>();
    kernel->library = weak_from_this();
    kernel->name = name;
    Registry<Kernel>::all().add(kernel);
  }
  return kernel;
}

void Library::unload() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, kernel] : kernels) Registry<Kernel>::all().take(kernel.get());
  for (const auto& [id, module] : modules_) {
    Registry<Module>::all().take(module.get());
    if (!module->owner().closed) module->unload();
  }
  kernels.clear();
  modules_.clear();
}

CUresult function_find(CUfunction handle, const ContextRef& context, FunctionRef& function) {
  function = Registry<Function>::all().find(handle);
  if (function != nullptr) return CUDA_SUCCESS;
  const auto kernel = Registry<Kernel>::all().find(handle);
  const auto library = kernel == nullptr ? nullptr : kernel->library.lock();
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module;
  const CUresult result = library->module_in(context, module);
  if (result != CUDA_SUCCESS) return result;
  function = module->function(kernel->name);
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

}  // namespace softgpu::driver

// Modules and functions; see module.h. Images are in module_image.cpp, libraries in
// module_library.cpp.
#include "softgpu/driver/module.h"

#include <algorithm>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/memory_strict.h"
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

std::uint32_t dynamic_shared_default(const ptx::KernelInfo& info) {
  return kSharedPerBlock - std::min(kSharedPerBlock, info.shared_bytes);
}

CUresult Function::load() {
  if (loaded) return CUDA_SUCCESS;
  Context& context = module->owner();
  // CUDA programming guide, "Heap memory allocation": a heap that does not fit fails the load.
  if (needs.heap && context.heap_need() != CUDA_SUCCESS)
    return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  if (needs.fifo && context.fifo_need() != CUDA_SUCCESS)
    return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  loaded = true;
  return CUDA_SUCCESS;
}

bool Function::skipped() const {
  const auto timed = module->owner().gpu.model.timed(info().name);
  return timed && timed->skip != 0;
}

CUresult Function::launch_need() {
  const std::string& trouble = ptx::kernel_trouble(*kernel);
  if (!trouble.empty() && !skipped()) {
    Process::get().complain("kernel not launched: " + trouble + "; the call returns " +
                            error_name(CUDA_ERROR_NOT_SUPPORTED));
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const CUresult result = load();
  return result == CUDA_SUCCESS ? module->owner().local_need(info().local_bytes) : result;
}

Module::Module(const ContextRef& context) : owner_(context) {
  memory_ = std::make_unique<ContextMemory>(*context);
}

Module::~Module() = default;

CUresult Module::load(const ContextRef& context, const std::string& text, LoadOptions& options,
                      std::shared_ptr<Module>& module) {
  module = std::make_shared<Module>(context);
  module->registers_max_ = options.registers_max;
  const DeviceSide device;  // variables are initialised
  CUresult result = text_load(text, *module->memory_, options, module->code_);
  if (result != CUDA_SUCCESS) return result;
  for (const ptx::Variable& variable : ptx::module_variables(*module->code_)) {
    if (variable.managed) result = memory_share_variable(variable.address);
    if (result != CUDA_SUCCESS) return result;
  }
  module->needs_ = text_needs(text_outline(text));
  context->print_flush();
  Registry<Module>::all().add(module);
  if (!loading_eager()) return CUDA_SUCCESS;
  for (const FunctionRef& function : module->functions()) {
    result = function->load();
    if (result == CUDA_SUCCESS) continue;
    Registry<Module>::all().take(module.get());
    module->unload();
    return result;
  }
  return CUDA_SUCCESS;
}

FunctionRef Module::function(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto known = functions_.find(name);
  if (known != functions_.end()) return known->second;
  const ptx::Kernel* kernel = code_ == nullptr ? nullptr : ptx::module_kernel(*code_, name);
  if (kernel == nullptr) return nullptr;
  const auto function = std::make_shared<Function>();
  function->kernel = kernel;
  function->module = this;
  function->dynamic_shared_max = static_cast<int>(dynamic_shared_default(function->info()));
  function->registers_max = registers_max_;
  const auto needs = needs_.find(name);
  if (needs != needs_.end()) function->needs = needs->second;
  Registry<Function>::all().add(function);
  functions_[name] = function;
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

bool Module::has_kernel(const std::string& name) const {
  return code_ != nullptr && ptx::module_kernel(*code_, name) != nullptr;
}

bool Module::has_managed() const {
  if (code_ == nullptr) return false;
  const auto& variables = ptx::module_variables(*code_);
  return std::any_of(variables.begin(), variables.end(),
                     [](const ptx::Variable& variable) { return variable.managed; });
}

void Module::choose(Function& function, const FunctionChoices& choices, bool through_kernel) {
  const std::lock_guard lock(mutex_);
  const auto set = [&](const std::optional<int>& choice, std::optional<int>& own,
                       std::atomic<int>& value) {
    if (!choice || (through_kernel && own)) return;
    if (!through_kernel) own = choice;
    value = *choice;
  };
  set(choices.dynamic_shared_max, function.own.dynamic_shared_max, function.dynamic_shared_max);
  set(choices.carveout, function.own.carveout, function.carveout);
  set(choices.cache, function.own.cache, function.cache);
}

void Module::unload() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, function] : functions_) Registry<Function>::all().take(function.get());
  functions_.clear();
  code_.reset();
  owner_->print_flush();
}

CUresult function_find(CUfunction handle, const ContextRef& context, FunctionRef& function) {
  function = Registry<Function>::all().find(handle);
  if (function != nullptr) return CUDA_SUCCESS;
  const auto kernel = Registry<Kernel>::all().find(handle);
  const auto library = kernel == nullptr ? nullptr : kernel->library.lock();
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return library->function_in(context, *kernel, function);
}

}  // namespace softgpu::driver

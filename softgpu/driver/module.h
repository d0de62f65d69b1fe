// Modules, libraries, kernels and functions: PTX of a context, and the context-independent handles
// over it.
#pragma once

#include "softgpu/driver/state.h"
#include "softgpu/ptx/machine.h"

namespace softgpu::driver {

class Module;

struct Function {
  const ptx::Kernel* kernel = nullptr;
  Module* module = nullptr;
  std::atomic<int> dynamic_shared_max{48 * 1024};
  std::atomic<int> carveout{-1};
  std::atomic<int> cache{0};
  const ptx::KernelInfo& info() const { return ptx::kernel_info(*kernel); }
  CUfunction handle() { return reinterpret_cast<CUfunction>(this); }
};
using FunctionRef = std::shared_ptr<Function>;

class Module : public std::enable_shared_from_this<Module> {
 public:
  explicit Module(const ContextRef& context);
  ~Module();
  static CUresult load(const ContextRef& context, const void* image,
                       std::shared_ptr<Module>& module, std::string* log);
  FunctionRef function(const std::string& name);
  std::vector<FunctionRef> functions();
  const ptx::Variable* variable(const std::string& name) const;
  void unload();
  CUmodule handle() { return reinterpret_cast<CUmodule>(this); }
  Context& owner() const { return *owner_; }

 private:
  class ContextMemory;
  std::weak_ptr<Context> context_;
  ContextRef owner_;
  std::unique_ptr<ContextMemory> memory_;
  std::unique_ptr<ptx::Module, void (*)(ptx::Module*)> code_{nullptr, nullptr};
  std::mutex mutex_;
  std::map<std::string, FunctionRef> functions_;
};

class Library;

/// A kernel of a library: in each context it is a function of that context's module.
struct Kernel {
  std::weak_ptr<Library> library;
  std::string name;
  CUkernel handle() { return reinterpret_cast<CUkernel>(this); }
};

/// An image kept until some context needs it.
class Library : public std::enable_shared_from_this<Library> {
 public:
  CUresult module_in(const ContextRef& context, std::shared_ptr<Module>& module);
  std::shared_ptr<Kernel> kernel(const ContextRef& context, const std::string& name);
  void unload();
  CUlibrary handle() { return reinterpret_cast<CUlibrary>(this); }

  std::string ptx;  // the image that was chosen
  std::map<std::string, std::shared_ptr<Kernel>> kernels;

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Module>> modules_;  // by context id
};

/// The PTX that this device executes, out of whatever cuModuleLoadData accepts.
CUresult image_choose(const void* image, std::string& ptx, std::string* log);

/// A CUfunction, or a CUkernel cast to one, in the current context.
CUresult function_find(CUfunction handle, const ContextRef& context, FunctionRef& function);

}  // namespace softgpu::driver

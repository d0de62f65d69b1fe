// Modules, libraries, kernels and functions: PTX of a context, and the context-independent handles
// over it.
#pragma once

#include <optional>

#include "softgpu/driver/module_text.h"
#include "softgpu/driver/state.h"
#include "softgpu/ptx/machine.h"

namespace softgpu::driver {

class Module;

/// Attributes that a program sets; what it has not set has no value.
struct FunctionChoices {
  std::optional<int> dynamic_shared_max, carveout, cache;
};

struct Function {
  const ptx::Kernel* kernel = nullptr;
  Module* module = nullptr;
  TextNeeds needs;
  std::uint32_t registers_max = 255;  // CU_JIT_MAX_REGISTERS
  // What is in force: set here, else through the kernel, else the default.
  std::atomic<int> dynamic_shared_max{0};  // besides what is static
  std::atomic<int> carveout{-1};
  std::atomic<int> cache{CU_FUNC_CACHE_PREFER_NONE};
  FunctionChoices own;  // set through cuFunc*, which wins over cuKernel*; guarded by the module
  std::atomic<bool> loaded{false};

  const ptx::KernelInfo& info() const { return ptx::kernel_info(*kernel); }
  std::uint32_t registers() const { return std::min(info().registers, registers_max); }
  /// Takes what the code needs to run: the device heap and the output FIFO of its context.
  CUresult load();
  /// Everything a launch needs: loaded, and local memory for its threads. NOT_SUPPORTED, with a
  /// line on stderr, if the kernel has an instruction that the interpreter does not know.
  CUresult launch_need();
  /// Takes its time without being executed (SOFTGPU_TIMED, "/skip").
  bool skipped() const;
  CUfunction handle() { return reinterpret_cast<CUfunction>(this); }
};
using FunctionRef = std::shared_ptr<Function>;

inline constexpr std::uint32_t kRegistersUnlimited = 255;

/// What the options of a load ask for, and what the load has to tell.
struct LoadOptions {
  std::uint32_t registers_max = kRegistersUnlimited;
  std::uint32_t target = 0;  // 0 = of the device
  std::string log;           // of errors, as the vendor's compiler words them
  std::string trouble;       // the error in one sentence
};

class Module : public std::enable_shared_from_this<Module> {
 public:
  explicit Module(const ContextRef& context);
  ~Module();
  static CUresult load(const ContextRef& context, const std::string& text, LoadOptions& options,
                       std::shared_ptr<Module>& module);
  /// Loads the function, too, unless `enumerated`. nullptr: there is none of this name.
  FunctionRef function(const std::string& name);
  std::vector<FunctionRef> functions();
  const ptx::Variable* variable(const std::string& name) const;
  bool has_kernel(const std::string& name) const;
  /// Sets attributes of a function, through itself or through its kernel.
  void choose(Function& function, const FunctionChoices& choices, bool through_kernel);
  /// Some variable of it is managed memory.
  bool has_managed() const;
  void unload();
  CUmodule handle() { return reinterpret_cast<CUmodule>(this); }
  Context& owner() const { return *owner_; }

  bool of_library = false;  // unloaded with its library only

 private:
  class ContextMemory;
  ContextRef owner_;
  std::unique_ptr<ContextMemory> memory_;
  std::unique_ptr<ptx::Module, void (*)(ptx::Module*)> code_{nullptr, nullptr};
  std::map<std::string, TextNeeds, std::less<>> needs_;
  std::uint32_t registers_max_ = 255;
  std::mutex mutex_;
  std::map<std::string, FunctionRef> functions_;
};

/// Variables of code that belongs to no context: never touched by a kernel, not charged.
class HostMemory : public ptx::Memory {
 public:
  void* allocate(std::size_t bytes, std::size_t align) override;
  void release(void* p) override;
};

/// The dynamic shared memory that a launch may have without asking for more.
std::uint32_t dynamic_shared_default(const ptx::KernelInfo& info);

class Library;

/// A kernel of a library: in each context it is a function of that context's module.
struct Kernel {
  std::weak_ptr<Library> library;
  std::string name;
  const ptx::KernelInfo* info = nullptr;   // of the library's own copy of the code
  std::mutex mutex;                        // of what follows
  std::map<int, FunctionChoices> choices;  // by device
  CUkernel handle() { return reinterpret_cast<CUkernel>(this); }
};

/// An image kept until some context needs it. What does not depend on a context is answered from a
/// copy of the code that belongs to none.
class Library : public std::enable_shared_from_this<Library> {
 public:
  static CUresult load(const void* image, LoadOptions& options, std::shared_ptr<Library>& library);
  CUresult module_in(const ContextRef& context, std::shared_ptr<Module>& module);
  /// Of any context that has it.
  std::shared_ptr<Module> module_any();
  std::shared_ptr<Kernel> kernel(const std::string& name);
  std::vector<std::shared_ptr<Kernel>> kernels();
  CUresult function_in(const ContextRef& context, Kernel& kernel, FunctionRef& function);
  /// Attributes of a kernel on a device: in the contexts that exist and in those to come.
  void choose(Kernel& kernel, const Gpu& gpu, const FunctionChoices& choices);
  /// A thread's, after what the load asked for.
  std::uint32_t registers(const Kernel& kernel) const {
    return std::min(kernel.info->registers, options_.registers_max);
  }
  void unload();
  CUlibrary handle() { return reinterpret_cast<CUlibrary>(this); }

 private:
  std::string text_;  // the image that was chosen
  LoadOptions options_;
  HostMemory memory_;
  std::unique_ptr<ptx::Module, void (*)(ptx::Module*)> code_{nullptr, nullptr};
  std::map<std::string, std::shared_ptr<Kernel>> kernels_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Module>> modules_;  // by context id
};

/// The PTX that this device executes, out of whatever cuModuleLoadData accepts.
CUresult image_choose(const void* image, LoadOptions& options, std::string& text);

/// Parses PTX into memory of the caller's choice. What is wrong is in the log.
CUresult text_load(const std::string& text, ptx::Memory& memory, LoadOptions& options,
                   std::unique_ptr<ptx::Module, void (*)(ptx::Module*)>& code);

/// Whether a text that others complete is one: its functions may be elsewhere.
CUresult text_examine(const std::string& text, LoadOptions& options);

/// A CUfunction, or a CUkernel cast to one, in the current context.
CUresult function_find(CUfunction handle, const ContextRef& context, FunctionRef& function);

/// CUDA_MODULE_LOADING=EAGER: everything is loaded when it is handed over, into every context.
bool loading_eager();
CUresult libraries_load_eager(const ContextRef& context);

}  // namespace softgpu::driver

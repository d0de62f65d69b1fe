// Registered fat binaries, kernels and variables: see registry.h.
#include "softgpu/runtime/registry.h"

#include <atomic>
#include <cstdlib>

namespace softgpu::runtime {
namespace {

std::atomic<bool> g_exiting{false};

/// Exit handlers run last in, first out: registered when code is first loaded, this one comes
/// before those of the object files (registered before main), which must then leave the dying
/// driver alone.
void watch_exit() {
  static const int once = std::atexit([] { g_exiting.store(true); });
  (void)once;
}

}  // namespace

Registry& Registry::get() {
  static auto* const once = new Registry;
  return *once;
}

Binary* Registry::add_binary(const void* wrapper) {
  auto binary = std::make_unique<Binary>();
  binary->wrapper = wrapper;
  Binary* handle = binary.get();
  const std::unique_lock lock(mutex_);
  binaries_[handle] = std::move(binary);
  return handle;
}

void Registry::add_function(Binary* binary, const void* host, const char* name) {
  const std::unique_lock lock(mutex_);
  functions_[host] = Function{binary, name};
}

void Registry::add_variable(Binary* binary, const void* host, const char* name, size_t size_bytes) {
  const std::unique_lock lock(mutex_);
  variables_[host] = Variable{binary, name, size_bytes};
}

void Registry::add_managed(Binary* binary, void** host, const char* name, size_t size_bytes) {
  const std::unique_lock lock(mutex_);
  variables_[host] = Variable{binary, name, size_bytes, host};
}

void Registry::remove_binary(Binary* binary) {
  CUlibrary library = nullptr;
  {
    const std::unique_lock lock(mutex_);
    std::erase_if(functions_, [&](const auto& entry) {
      if (entry.second.binary != binary) return false;
      kernel_names_.erase(entry.second.kernel);
      return true;
    });
    std::erase_if(variables_, [&](const auto& entry) { return entry.second.binary == binary; });
    const auto found = binaries_.find(binary);
    if (found == binaries_.end()) return;
    library = binary->library;
    binaries_.erase(found);
  }
  if (library != nullptr && !g_exiting.load()) (void)driver().LibraryUnload(library);
}

cudaError_t Registry::load(Binary* binary) {
  watch_exit();
  std::call_once(binary->loading, [&] {
    const CUresult result = driver().LibraryLoadData(&binary->library, binary->wrapper, nullptr,
                                                     nullptr, 0, nullptr, nullptr, 0);
    binary->load_error = static_cast<cudaError_t>(result);
  });
  return binary->load_error;
}

cudaError_t Registry::find_kernel(const void* host, CUkernel* kernel) {
  Binary* binary = nullptr;
  std::string name;
  {
    const std::shared_lock lock(mutex_);
    const auto found = functions_.find(host);
    if (found == functions_.end()) {
      if (!kernel_names_.contains(host)) return cudaErrorInvalidDeviceFunction;
      *kernel = static_cast<CUkernel>(const_cast<void*>(host));
      return cudaSuccess;
    }
    if (found->second.kernel != nullptr) {
      *kernel = found->second.kernel;
      return cudaSuccess;
    }
    binary = found->second.binary;
    name = found->second.name;
  }
  if (const cudaError_t error = load(binary); error != cudaSuccess) return error;
  const CUresult result = driver().LibraryGetKernel(kernel, binary->library, name.c_str());
  if (result == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidDeviceFunction;
  if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  const std::unique_lock lock(mutex_);
  kernel_names_[*kernel] = host;
  if (const auto found = functions_.find(host); found != functions_.end())
    found->second.kernel = *kernel;
  return cudaSuccess;
}

const void* Registry::name_of(CUkernel kernel) {
  const std::shared_lock lock(mutex_);
  const auto found = kernel_names_.find(kernel);
  return found == kernel_names_.end() ? kernel : found->second;
}

cudaError_t Registry::find_variable(const void* host, CUdeviceptr* address, size_t* size_bytes) {
  Variable variable;
  {
    const std::shared_lock lock(mutex_);
    const auto found = variables_.find(host);
    if (found == variables_.end()) return cudaErrorInvalidSymbol;
    variable = found->second;
  }
  if (variable.managed != nullptr) {
    if (const cudaError_t error = prepare(variable.binary); error != cudaSuccess) return error;
    *address = reinterpret_cast<CUdeviceptr>(*variable.managed);
    *size_bytes = variable.size_bytes;
    return cudaSuccess;
  }
  if (const cudaError_t error = load(variable.binary); error != cudaSuccess) return error;
  const CUresult result = driver().LibraryGetGlobal(address, size_bytes, variable.binary->library,
                                                    variable.name.c_str());
  return result == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidSymbol : static_cast<cudaError_t>(result);
}

cudaError_t Registry::prepare(Binary* binary) {
  if (const cudaError_t error = load(binary); error != cudaSuccess) return error;
  return bind_managed(binary);
}

cudaError_t Registry::bind_managed(Binary* binary) {
  const std::unique_lock lock(mutex_);
  for (auto& [host, variable] : variables_) {
    if (variable.binary != binary || variable.managed == nullptr) continue;
    CUdeviceptr address = 0;
    size_t size_bytes = 0;
    const CUresult result =
        driver().LibraryGetManaged(&address, &size_bytes, binary->library, variable.name.c_str());
    if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
    *variable.managed = reinterpret_cast<void*>(address);
  }
  return cudaSuccess;
}

void Registry::add_kernel_handle(CUkernel kernel) {
  const std::unique_lock lock(mutex_);
  kernel_names_.emplace(kernel, kernel);
}

}  // namespace softgpu::runtime

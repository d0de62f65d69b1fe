// What the program's object files registered before main: fat binaries, and the host addresses that
// stand for kernels and device variables. Code is loaded into the driver on first use. Knows
// nothing of launches or copies.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "softgpu/runtime/driver.h"

namespace softgpu::runtime {

/// One fat binary of the program. Its address is the handle the object file gets.
struct Binary {
  const void* wrapper = nullptr;  // what the compiler emitted; the driver reads it
  std::once_flag loading;
  CUlibrary library = nullptr;
  cudaError_t load_error = cudaSuccess;
};

class Registry {
 public:
  static Registry& get();

  Binary* add_binary(const void* wrapper);
  void add_function(Binary* binary, const void* host, const char* name);
  void add_variable(Binary* binary, const void* host, const char* name, size_t size_bytes);
  void add_managed(Binary* binary, void** host, const char* name, size_t size_bytes);
  void remove_binary(Binary* binary);

  /// The kernel behind a host function (or behind a kernel handle passed in its place).
  [[nodiscard]] cudaError_t find_kernel(const void* host, CUkernel* kernel);
  /// What names a kernel towards the program: its host function, or the handle itself where the
  /// program has none.
  [[nodiscard]] const void* name_of(CUkernel kernel);
  /// Address and size of a device variable in the current context. Needs one.
  [[nodiscard]] cudaError_t find_variable(const void* host, CUdeviceptr* address,
                                          size_t* size_bytes);
  /// Loads a binary and gives its managed variables their addresses. Needs a context.
  [[nodiscard]] cudaError_t prepare(Binary* binary);
  /// Kernel handles that did not come from a registered function (libraries the program loaded
  /// itself).
  void add_kernel_handle(CUkernel kernel);

 private:
  struct Function {
    Binary* binary;
    std::string name;
    CUkernel kernel = nullptr;
  };
  struct Variable {
    Binary* binary;
    std::string name;
    size_t size_bytes;
    void** managed = nullptr;
  };

  cudaError_t load(Binary* binary);
  cudaError_t bind_managed(Binary* binary);

  std::shared_mutex mutex_;
  std::map<const void*, Function> functions_;
  std::map<const void*, Variable> variables_;
  std::map<const void*, const void*> kernel_names_;  // by handle; see name_of()
  std::map<Binary*, std::unique_ptr<Binary>> binaries_;
};

}  // namespace softgpu::runtime

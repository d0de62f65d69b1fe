// What the entry points of modules, libraries and the linker share: files, and the options of the
// just-in-time compiler.
#pragma once

#include <string>

#include "softgpu/driver/module.h"

namespace softgpu::driver {

bool file_read(const char* path, std::string& bytes);

/// The options array of a load. Buffers and sizes go both ways (cuda.h, CUjit_option): what was
/// written, and how long it took, replaces the option's value.
class JitRequest {
 public:
  JitRequest(unsigned count, CUjit_option* options, void** values);
  /// INVALID_VALUE for an option that does not exist, or, unless `whole`, for one that the linker
  /// takes at its creation only.
  [[nodiscard]] CUresult read(LoadOptions& load, bool whole = true) const;
  /// Work for this request begins (construction begins it, too), and ends.
  void resume() { started_ns_ = device::clock_ns(); }
  void report(const std::string& error_log);

 private:
  void buffer_fill(CUjit_option buffer, CUjit_option size, const std::string& text) const;

  unsigned count_;
  CUjit_option* options_;
  void** values_;
  std::vector<void*> given_;  // the values before anything was reported
  double started_ns_;
  double spent_ns_ = 0;
};

CUresult variable_give(const std::shared_ptr<Module>& module, CUdeviceptr* address,
                       std::size_t* bytes, const char* name);
CUresult attribute_get(const ptx::KernelInfo& info, const FunctionChoices& choices,
                       std::uint32_t registers, CUfunction_attribute attribute, int* value);
/// Checks and notes what is to be set.
CUresult attribute_choose(const ptx::KernelInfo& info, CUfunction_attribute attribute, int value,
                          FunctionChoices& choices);
CUresult cache_choose(CUfunc_cache config, FunctionChoices& choices);
CUresult param_info(const ptx::KernelInfo& info, std::size_t index, std::size_t* offset,
                    std::size_t* size);

}  // namespace softgpu::driver

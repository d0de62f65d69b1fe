// The linker: several PTX texts become one, in which every name that one of them declares and
// another defines is the same thing. What comes out is an image for cuModuleLoadData: PTX again,
// for that is what this device executes.
#pragma once

#include <string>
#include <vector>

#include "softgpu/driver/api_module.h"

namespace softgpu::driver {

class Linker {
 public:
  Linker(const JitRequest& request, LoadOptions options)
      : request_(request), options_(std::move(options)) {}

  /// Takes one input; `name` is for messages. INVALID_PTX with a log when it cannot be parsed.
  CUresult add(CUjitInputType type, const void* data, std::size_t bytes, const char* name);
  /// Joins everything added so far; the image lives as long as the linker.
  CUresult complete(void** image, std::size_t* bytes);
  CUlinkState handle() { return reinterpret_cast<CUlinkState>(this); }

 private:
  struct Input {
    std::string name;
    std::string text;
  };
  CUresult refuse(CUresult result, const std::string& trouble);
  /// refuse(), and a line on stderr.
  CUresult fail(CUresult result, const std::string& trouble);

  JitRequest request_;
  LoadOptions options_;
  std::vector<Input> inputs_;
  std::string log_;
  std::string linked_;
};

/// One text out of several, whose kernels take at most so many registers. `trouble` says what keeps
/// them from being joined; empty: nothing.
std::string texts_join(const std::vector<std::string_view>& texts,
                       const std::vector<std::string>& names, std::uint32_t registers_max,
                       std::string& trouble);

}  // namespace softgpu::driver

// Where the variables of a kernel and of the functions it reaches live: shared memory is laid out
// per kernel, local memory and call parameters per function.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "softgpu/ptx/code/code.h"

namespace softgpu::ptx {

struct FunctionLayout {
  std::vector<u64> offsets;  // of FunctionText::variables, in their space
  u32 local_bytes = 0;
  u32 param_bytes = 0;
  std::vector<Param> kernel_params;  // of an entry
  u32 kernel_param_bytes = 0;
};

struct Layout {
  std::vector<const FunctionText*> functions;  // the entry first
  std::unordered_map<const FunctionText*, FunctionLayout> places;
  std::unordered_map<std::string_view, u64> shared;  // module-scope shared variables
  u32 shared_bytes = 0;
  bool has_indirect_calls = false;
  bool reserves_shared = false;  // cooperative groups of several warps keep their barriers there
  u32 reserved_offset = 0;
};

Layout layout_make(const Module& module, const FunctionText& entry);

}  // namespace softgpu::ptx

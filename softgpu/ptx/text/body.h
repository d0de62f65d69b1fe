// The body of one PTX function: scopes, registers, variables, labels and instructions.
#pragma once

#include "softgpu/ptx/text/cursor.h"
#include "softgpu/ptx/text/syntax.h"

namespace softgpu::ptx {

/// Reads from "{" to the matching "}" into `function`.
void body_parse(Cursor& at, FunctionText& function);

}  // namespace softgpu::ptx

// One variable declaration, the same wherever it stands: at module scope, in a body or in a
// parameter list.
#pragma once

#include "softgpu/ptx/text/cursor.h"
#include "softgpu/ptx/text/syntax.h"

namespace softgpu::ptx {

/// Reads ".align 8 .b8 name[16][4]" up to but not including "=", "," or ";". The state space was
/// already read.
VariableText variable_declare(Cursor& at, Space space);

}  // namespace softgpu::ptx

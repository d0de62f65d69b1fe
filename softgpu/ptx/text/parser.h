// PTX text to a Unit. Syntax only: whether an instruction is known is the decoder's business.
#pragma once

#include <string_view>

#include "softgpu/ptx/text/syntax.h"

namespace softgpu::ptx {

/// The views in the result point into `text`. Throws TextError.
Unit unit_parse(std::string_view text);

}  // namespace softgpu::ptx

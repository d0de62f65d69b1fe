// f64: the arithmetic of real.h.
#include "softgpu/ptx/exec/real.h"

namespace softgpu::ptx::SOFTGPU_ISA {

Handler double_handler(const Form& form) { return real_handler<f64>(form); }

}  // namespace softgpu::ptx::SOFTGPU_ISA

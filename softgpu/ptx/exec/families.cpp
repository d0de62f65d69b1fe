// The HandlerSet of this build's instruction set.
#include "softgpu/ptx/exec/lanes.h"

namespace softgpu::ptx::SOFTGPU_ISA {

Handler integer_handler(const Form& form);
Handler bits_handler(const Form& form);
Handler float_handler(const Form& form);
Handler double_handler(const Form& form);
Handler half_handler(const Form& form);
Handler compare_handler(const Form& form);
Handler convert_handler(const Form& form);
Handler load_handler(const Form& form);
Handler store_handler(const Form& form);
Handler warp_handler(const Form& form);
Handler matrix_handler(const Form& form);
Handler atomic_handler(const Form& form);

namespace {

/// The handlers are built without the vzeroupper that compilers put at the end of every function:
/// one at the end of a turn does.
void leave() {
#if defined(__AVX2__)
  _mm256_zeroupper();
#endif
}

}  // namespace

#define SOFTGPU_TEXT_OF(name) #name
#define SOFTGPU_TEXT(name) SOFTGPU_TEXT_OF(name)

// In the order of Family.
const HandlerSet kHandlers{
    SOFTGPU_TEXT(SOFTGPU_ISA),
    leave,
    {integer_handler, bits_handler, float_handler, double_handler, half_handler, compare_handler,
     convert_handler, load_handler, store_handler, warp_handler, matrix_handler, atomic_handler}};

}  // namespace softgpu::ptx::SOFTGPU_ISA

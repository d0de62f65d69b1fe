// f64: the arithmetic of real.h, and the two approximations that read and give the upper half of a
// number.
#include "softgpu/ptx/exec/real.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

constexpr u64 kUpperHalf = 0xffffffff00000000ull;

/// .approx.ftz: of the upper 32 bits of the operand; the lower 32 of the result are zero.
template <class Fn>
struct Gross {
  static f64 eval(f64 a) {
    const f64 upper = flushed(real_from_bits<f64>(bits_of_real(a) & kUpperHalf));
    const f64 exact = flushed(Fn::eval(upper));
    const f64 rough = real_from_bits<f64>(bits_of_real(exact) & kUpperHalf);
    return a != a || exact != exact ? nan_of<f64>() : rough;
  }
};

}  // namespace

Handler double_handler(const Form& form) {
  if (form.flush && form.op == Op::kRcp) return unary<f64, Gross<RealRcp>>;
  if (form.flush && form.op == Op::kRsqrt) return unary<f64, Gross<RealRsqrt>>;
  return real_handler<f64>(form);
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

// Real arithmetic: PTX ISA, section 9.7.3. Exact operations come from the host's floating point in
// each rounding mode, approximate ones from its double precision, with the errors that the ISA
// states.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"

namespace softgpu::ptx::test {
namespace {

int host_mode(Rounding rounding) {
  switch (rounding) {
    case Rounding::kZero:
      return FE_TOWARDZERO;
    case Rounding::kDown:
      return FE_DOWNWARD;
    case Rounding::kUp:
      return FE_UPWARD;
    default:
      return FE_TONEAREST;
  }
}

template <class T>
T of_bits(u64 bits) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<float>(static_cast<u32>(bits));
  if constexpr (sizeof(T) == 8) return std::bit_cast<double>(bits);
}
template <class T>
u64 bits_in(T x) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<u32>(x);
  if constexpr (sizeof(T) == 8) return std::bit_cast<u64>(x);
}

/// One operation of the host in a rounding mode; volatile keeps it there.
template <class T>
T computed(std::string_view op, T a, T b, T c, Rounding rounding) {
  volatile T x = a, y = b, z = c;
  std::fesetround(host_mode(rounding));
  volatile T result = 0;
  if (op == "add") result = x + y;
  if (op == "sub") result = x - y;
  if (op == "mul") result = x * y;
  if (op == "div") result = x / y;
  if (op == "rcp") result = T{1} / x;
  if (op == "sqrt") result = std::sqrt(x);
  if (op == "fma" || op == "mad") result = std::fma(x, y, z);
  std::fesetround(FE_TONEAREST);
  return result;
}

/// Before and after an operation: .ftz, .sat, and the canonical NaN.
struct Care {
  const Format* format;
  bool flush, saturate;

  explicit Care(const FormCase& form)
      : format(&format_of(form.type())), flush(form.has("ftz")), saturate(form.has("sat")) {}
  u64 in(u64 bits) const { return flush ? flushed(bits, *format) : bits; }
  u64 out(u64 bits) const {
    if (is_nan(bits, *format)) bits = format->nan;
    if (flush) bits = flushed(bits, *format);
    return saturate ? saturated(bits, *format) : bits;
  }
};

template <class T>
Reference exact_reference(const FormCase& form) {
  const Care care(form);
  const Rounding rounding = rounding_of(form);
  const std::string_view op = form.op;
  return value_of([=](const u64* in) {
    return care.out(bits_in(computed<T>(op, of_bits<T>(care.in(in[0])), of_bits<T>(care.in(in[1])),
                                        of_bits<T>(care.in(in[2])), rounding)));
  });
}

std::optional<Proof> prove_exact(const FormCase& form) {
  const std::string_view op = form.op;
  const std::size_t operands = op == "fma" || op == "mad"                                 ? 3
                               : op == "add" || op == "sub" || op == "mul" || op == "div" ? 2
                               : op == "rcp" || op == "sqrt"                              ? 1
                                                                                          : 0;
  if (operands == 0 || form.has("approx") || form.has("full")) return std::nullopt;
  const char letter = letter_of(form.type());
  Proof proof = plain_proof(form, operands, letter, letter);
  proof.reference = letter == 'f' ? exact_reference<float>(form) : exact_reference<double>(form);
  return proof;
}

std::optional<Proof> prove_smaller(const FormCase& form) {
  if (form.op != "min" && form.op != "max") return std::nullopt;
  const char letter = letter_of(form.type());
  Proof proof = plain_proof(form, 2, letter, letter);
  const Care care(form);
  proof.reference = value_of(
      [=](const u64* in) { return care.out(smaller(form, care.in(in[0]), care.in(in[1]))); });
  return proof;
}

std::optional<Proof> prove_sign(const FormCase& form) {
  const bool copies = form.op == "copysign";
  if (!copies && form.op != "abs" && form.op != "neg") return std::nullopt;
  const char letter = letter_of(form.type());
  Proof proof = plain_proof(form, copies ? 2 : 1, letter, letter);
  const Format& format = format_of(form.type());
  const u64 sign = u64{1} << (format.exponent_bits + format.mantissa_bits);
  const Care care(form);
  const bool negates = form.op == "neg";
  proof.reference = value_of([=](const u64* in) {
    if (copies) return (in[1] & (sign - 1)) | (in[0] & sign);
    const u64 a = care.in(in[0]);
    return negates ? a ^ sign : a & (sign - 1);
  });
  return proof;
}

std::optional<Proof> prove_testp(const FormCase& form) {
  if (form.op != "testp") return std::nullopt;
  Proof proof = plain_proof(form, 1, 'p', letter_of(form.type()));
  const bool single = form.type() == "f32";
  proof.reference = value_of([=](const u64* in) -> u64 {
    const int kind =
        single ? std::fpclassify(of_bits<float>(in[0])) : std::fpclassify(of_bits<double>(in[0]));
    if (form.has("finite")) return kind != FP_NAN && kind != FP_INFINITE;
    if (form.has("infinite")) return kind == FP_INFINITE;
    if (form.has("number")) return kind != FP_NAN;
    if (form.has("notanumber")) return kind == FP_NAN;
    return form.has("normal") ? kind == FP_NORMAL : kind == FP_SUBNORMAL;
  });
  return proof;
}

/// An approximate function: its true value, and the error that the ISA allows.
struct Approximation {
  std::string_view op;
  double (*value)(double, double);
  std::size_t operands;
  double relative, absolute;
};
constexpr double kUlp = 0x1p-23;
const Approximation kApproximations[] = {
    {"div", [](double a, double b) { return a / b; }, 2, 2 * kUlp, 0},
    {"rcp", [](double a, double) { return 1 / a; }, 1, kUlp, 0},
    {"sqrt", [](double a, double) { return std::sqrt(a); }, 1, kUlp, 0},
    {"rsqrt", [](double a, double) { return 1 / std::sqrt(a); }, 1, 0x1p-22, 0},
    {"ex2", [](double a, double) { return std::exp2(a); }, 1, 2 * kUlp, 0},
    {"lg2", [](double a, double) { return std::log2(a); }, 1, 0x1p-22, 0x1p-22},
    {"sin", [](double a, double) { return std::sin(a); }, 1, 0, 0x1p-20},
    {"cos", [](double a, double) { return std::cos(a); }, 1, 0, 0x1p-20},
    {"tanh", [](double a, double) { return std::tanh(a); }, 1, 0x1p-11, 0},
};

/// Operands that an approximation is stated for: sin and cos of moderate angles, ex2 of exponents
/// that do not all overflow.
std::string narrowed_operand(const FormCase& form) {
  if (form.op == "sin" || form.op == "cos")
    return "abs.f32 %f0, A; setp.gtu.f32 %p0, %f0, 0f439D0000; setp.eq.f32 %p1, %f0, 0f7F800000; "
           "xor.pred %p0, %p0, %p1; @%p0 mov.f32 A, 0f3F800000;\n";
  return "";
}

u64 approximated(const Approximation& function, const Care& care, bool divides, u64 a, u64 b) {
  const double x = of_bits<float>(care.in(a)), y = of_bits<float>(care.in(b));
  if (divides && std::fabs(y) > 0x1p126 && std::isfinite(y)) {
    // PTX ISA, div.approx: such a divisor gives zero, and a NaN with an infinite dividend.
    if (std::isinf(x)) return kF32.nan;
    if (x == x) return care.out(bits_in(static_cast<float>(std::copysign(0.0, x * y))));
  }
  return care.out(bits_in(static_cast<float>(function.value(x, y))));
}

std::optional<Proof> prove_approximate(const FormCase& form) {
  const auto* found = std::find_if(std::begin(kApproximations), std::end(kApproximations),
                                   [&](const Approximation& a) { return a.op == form.op; });
  const bool approximate = form.has("approx") || form.has("full");
  if (found == std::end(kApproximations) || !approximate || form.type() != "f32")
    return std::nullopt;
  Proof proof = plain_proof(form, found->operands, 'f', 'f');
  proof.text = narrowed_operand(form) + proof.text;
  proof.relative = found->relative;
  proof.absolute = found->absolute + 0x1p-149;
  const Care care(form);
  const Approximation function = *found;
  const bool bounded = !narrowed_operand(form).empty(),
             divides = form.op == "div" && form.has("approx");
  proof.reference = value_of([=](const u64* in) {
    const float a = of_bits<float>(in[0]);
    const bool outside = !(std::fabs(a) <= 314) && !std::isinf(a);
    return approximated(function, care, divides, bounded && outside ? 0x3f800000 : in[0], in[1]);
  });
  return proof;
}

/// rcp and rsqrt .approx.ftz.f64 see and give the upper 32 bits; rsqrt.approx.f64 all of them.
std::optional<Proof> prove_gross(const FormCase& form) {
  if (form.type() != "f64" || !form.has("approx")) return std::nullopt;
  Proof proof = plain_proof(form, 1, 'g', 'g');
  proof.relative = 0x1p-19;
  const Care care(form);
  const bool root = form.op == "rsqrt", flush = form.has("ftz");
  proof.reference = value_of([=](const u64* in) {
    const u64 seen = flush ? care.in(in[0] & 0xffffffff00000000) : in[0];
    const double x = of_bits<double>(is_nan(in[0], kF64) ? kF64.nan : seen);
    return care.out(bits_in(1 / (root ? std::sqrt(x) : x)));
  });
  if (!flush) return proof;
  // The lower half of the result is zero: nothing but the error may be in it.
  proof.text += " mov.b64 {%t8, %t9}, D; and.b32 E, %t8, 0xffffffff;";
  proof.results = "gr";
  const Reference value = proof.reference;
  proof.reference = [value](WarpLanes& warp) {
    value(warp);
    for (u32 l = 0; l < 32; ++l) {
      if ((warp.mask >> l & 1) == 0) continue;
      Lane& lane = warp.lanes[l];
      lane.out[1] = is_nan(lane.out[0], kF64) ? 0xffffffff : 0;
    }
  };
  return proof;
}

}  // namespace

std::optional<Proof> prove_real(const FormCase& form) {
  const auto types = form.types();
  if (types.size() != 1 || (types[0] != "f32" && types[0] != "f64")) return std::nullopt;
  for (const Prover prover :
       {prove_gross, prove_exact, prove_smaller, prove_sign, prove_testp, prove_approximate}) {
    if (auto proof = prover(form)) return proof;
  }
  return std::nullopt;
}

}  // namespace softgpu::ptx::test

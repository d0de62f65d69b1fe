// Atomics: PTX ISA, section 9.7.13 (atom, red). Every lane has a cell of its own, so that the old
// value and the new one are known; that lanes do not disturb each other is flow_test.cpp's.
#include <bit>
#include <cstring>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"

namespace softgpu::ptx::test {
namespace {

u64 half_sum(std::string_view type, u64 a, u64 b) {
  const Format& format = format_of(type);
  const Sum sum = fused(1, number(a, format), number(b, format));
  return rounded(sum.value, sum.rest, format, Rounding::kNearest);
}

/// f32 in global memory flushes subnormals, in shared memory it does not.
u64 real_sum(std::string_view type, bool shared, u64 a, u64 b) {
  if (type == "f64") {
    const double sum = std::bit_cast<double>(a) + std::bit_cast<double>(b);
    return sum != sum ? kF64.nan : std::bit_cast<u64>(sum);
  }
  if (type == "f32") {
    const auto in = [&](u64 x) { return shared ? x : flushed(x, kF32); };
    const float sum = std::bit_cast<float>(static_cast<u32>(in(a))) +
                      std::bit_cast<float>(static_cast<u32>(in(b)));
    return sum != sum ? kF32.nan : in(std::bit_cast<u32>(sum));
  }
  if (bits_of(type) == 16) return half_sum(type, a, b);
  return half_sum(type, a & 0xffff, b & 0xffff) | half_sum(type, a >> 16, b >> 16) << 16;
}

bool is_less(std::string_view type, u64 a, u64 b) {
  if (!is_signed(type)) return a < b;
  if (type == "s32") return static_cast<s32>(a) < static_cast<s32>(b);
  return static_cast<s64>(a) < static_cast<s64>(b);
}

u64 updated(const FormCase& form, u64 old, u64 b, u64 c) {
  const std::string_view type = form.type();
  const bool shared = form.has("shared") || form.has("shared::cta");
  if (form.has("and")) return old & b;
  if (form.has("or")) return old | b;
  if (form.has("xor")) return old ^ b;
  if (form.has("exch")) return b;
  if (form.has("cas")) return old == b ? c : old;
  if (form.has("min")) return is_less(type, b, old) ? b : old;
  if (form.has("max")) return is_less(type, old, b) ? b : old;
  if (form.has("inc")) return old >= b ? 0 : old + 1;
  if (form.has("dec")) return old == 0 || old > b ? b : old - 1;
  if (type[0] == 'f' || type.substr(0, 2) == "bf") return real_sum(type, shared, old, b);
  return bits_of(type) == 32 ? (old + b) & 0xffffffff : old + b;
}

}  // namespace

std::optional<Proof> prove_atomic(const FormCase& form) {
  const bool result = form.op == "atom";
  if (!result && form.op != "red") return std::nullopt;
  const std::string_view type = form.type();
  const char letter = letter_of(type);
  const u32 bytes = bits_of(type) / 8;
  const bool shared = form.has("shared") || form.has("shared::cta"), swap = form.has("cas");
  Proof proof;
  proof.cells = shared ? Cells::kShared : Cells::kGlobal;
  proof.cell_bytes = bytes;
  proof.writes_cell = true;
  proof.results = result ? std::string(1, letter) : "";
  proof.operands = std::string(2, letter) + "r";
  const std::string memory =
      (shared ? "shared" : "global") + std::string(".b") + std::to_string(bits_of(type));
  // Every second swap finds what it expects.
  if (swap)
    proof.text = "and.b32 %t8, C, 1; setp.eq.u32 %p0, %t8, 0; @%p0 ld." + memory + " A, ADDR;\n";
  proof.text += form.name() + (result ? " D, ADDR, A" : " ADDR, A") + (swap ? ", B;" : ";");
  proof.reference = lanewise([=](Lane& lane) {
    u64 old = 0;
    std::memcpy(&old, lane.cell, bytes);
    const u64 b = swap && lane.in[2] % 2 == 0 ? old : lane.in[0];
    const u64 next = updated(form, old, b, lane.in[1]);
    std::memcpy(lane.cell, &next, bytes);
    if (result) lane.out[0] = old;
  });
  return proof;
}

}  // namespace softgpu::ptx::test

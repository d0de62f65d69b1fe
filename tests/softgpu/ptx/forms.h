// Proofs of instruction forms. Every form that the interpreter lists (softgpu/ptx/code/forms.h) is
// run on edge values and random ones, in all warps, under full and partial masks, on every
// instruction set this processor runs, and compared with a scalar reference that knows nothing of
// the interpreter. A form without a proof fails.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/ptx/texture.h"

namespace softgpu::ptx::test {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

/// One concrete instruction: opcode and modifiers in the order of the ISA.
struct FormCase {
  std::string_view op;
  std::vector<std::string_view> mods;

  bool has(std::string_view mod) const;
  /// The scalar types among the modifiers, in order.
  std::vector<std::string_view> types() const;
  /// The last of them; empty when there is none.
  std::string_view type() const;
  std::string name() const;
};

inline constexpr std::size_t kInputs = 4, kResults = 4, kCellBytes = 64;

/// What one lane is given and what it leaves behind.
struct Lane {
  u64 in[kInputs];      // A, B, C, H
  u64 out[kResults];    // D, E, F, G: preset, so that what is not written shows
  u8 cell[kCellBytes];  // the memory that ADDR names
  u32 thread;           // in the block
};

struct WarpLanes {
  std::array<Lane, 32> lanes;
  u32 mask;  // the lanes that execute the form
};

using Reference = std::function<void(WarpLanes&)>;

/// Where the lane's cell is, in the words of the state space.
enum class Cells : u8 { kNone, kGlobal, kShared, kLocal, kConst, kEntryParam, kCallParam };

/// How a form is run and what it must do. `text` is PTX with the registers A, B, C, H (operands),
/// D, E, F, G (results), ADDR (the lane's cell), MASK (the lanes that execute) and NUMBER (the
/// kernel's, for names). Operands and
/// results have one letter each: p predicate, h r d integers of 16, 32 and 64 bits, s a shift
/// count, f g reals of 32 and 64 bits, H K a half and a bfloat16, X Y pairs of them; small whole
/// numbers as I J pairs of halves and bfloat16, M a 64-bit real, N a 32-bit real in a register of
/// bits.
struct Proof {
  std::string text;
  std::string results, operands;
  Reference reference;
  // Approximate results: error allowed relative to the result, or absolute.
  double relative = 0, absolute = 0;
  Cells cells = Cells::kNone;
  u32 cell_bytes = 0;
  bool same_cell = false;  // all lanes of a block share one cell
  bool writes_cell = false;
  bool aligned = false;   // only whole warps may execute it
  std::string variables;  // declarations in front of the kernel
  std::string before;     // declarations inside it
  bool traps = false;     // the launch must end with a trap
  // Not empty: the words (of M: pairs of words) of the cells of a warp's lower and upper half are
  // values of these kinds.
  std::string cell_letters;
  std::optional<Image> image;  // every lane's cell is one of these; the handle is its address
};

/// For references that look at one lane at a time.
template <class F>
Reference lanewise(F each) {
  return [each](WarpLanes& warp) {
    for (u32 l = 0; l < 32; ++l) {
      if ((warp.mask >> l & 1) != 0) each(warp.lanes[l]);
    }
  };
}
/// For results that are a function of A, B, C and H.
template <class F>
Reference value_of(F each) {
  return lanewise([each](Lane& lane) { lane.out[0] = each(lane.in); });
}

/// The letter of a register for a type.
char letter_of(std::string_view type);
u32 bits_of(std::string_view type);
inline bool is_signed(std::string_view type) { return type[0] == 's'; }
inline bool is_real_type(std::string_view type) {
  return type[0] == 'f' || type[0] == 't' || type.substr(0, 2) == "bf";
}

/// D, A and so many operands more of one type, written "OP D, A, B".
Proof plain_proof(const FormCase& form, std::size_t operands, char result, char operand);

using Prover = std::optional<Proof> (*)(const FormCase&);
// One per group of opcodes; nullopt: not theirs.
std::optional<Proof> prove_integer(const FormCase& form);
std::optional<Proof> prove_carry(const FormCase& form);
std::optional<Proof> prove_logic(const FormCase& form);
std::optional<Proof> prove_real(const FormCase& form);
std::optional<Proof> prove_half(const FormCase& form);
std::optional<Proof> prove_compare(const FormCase& form);
std::optional<Proof> prove_convert(const FormCase& form);
std::optional<Proof> prove_memory(const FormCase& form);
std::optional<Proof> prove_atomic(const FormCase& form);
std::optional<Proof> prove_async(const FormCase& form);
std::optional<Proof> prove_matrix(const FormCase& form);
std::optional<Proof> prove_warp(const FormCase& form);
std::optional<Proof> prove_control(const FormCase& form);
std::optional<Proof> prove_video(const FormCase& form);
std::optional<Proof> prove_image(const FormCase& form);

std::optional<Proof> proof_of(const FormCase& form);

/// Every form of an opcode: all combinations of modifiers that matter to results, and each that
/// does not once.
std::vector<FormCase> forms_of(std::string_view op);
/// Every opcode with a form.
std::vector<std::string> form_opcodes();

/// Runs the forms on an instruction set and compares. Failures are gtest's.
void check_forms(const std::vector<FormCase>& forms, const char* isa);

}  // namespace softgpu::ptx::test

// Opcodes that compute: integer, real and half arithmetic, bits, moves, comparisons and
// conversions.
#include <optional>

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/opcodes.h"
#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/exec/convert_form.h"

namespace softgpu::ptx {
namespace {

Round round_of(const Statement& s) {
  for (const std::string_view mod : s.mods) {
    if (mod == "rz" || mod == "rzi") return Round::kZero;
    if (mod == "rm" || mod == "rmi") return Round::kDown;
    if (mod == "rp" || mod == "rpi") return Round::kUp;
    if (mod == "rna") return Round::kAway;
  }
  return Round::kNearest;
}

Form form_of(Op op, const Statement& s) {
  Form form;
  form.op = op;
  form.type = Decoder::last_type(s);
  form.round = round_of(s);
  form.flush = Decoder::has(s, "ftz");
  form.saturate = Decoder::has(s, "sat");
  form.flag = Decoder::has(s, "NaN");
  if (Decoder::has(s, "xorsign")) form.mode = kModeXorSign;
  if (Decoder::has(s, "approx") && op == Op::kDiv) form.mode = kModeApproximate;
  return form;
}

Family family_of(Type type) {
  if (type == Type::kF32) return Family::kFloat;
  if (type == Type::kF64) return Family::kDouble;
  return type_is_half(type) ? Family::kHalf : Family::kInteger;
}

/// d, then `sources` operands of the instruction's type.
void emit_simple(Decoder& d, const Statement& s, Family family, const Form& form,
                 std::size_t sources) {
  Inst inst;
  inst.run = d.handler(family, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  if (sources > 1) inst.b = d.source(d.operand(s, 2), form.type);
  if (sources > 2) inst.c = d.source(d.operand(s, 3), form.type);
  if (family == Family::kHalf) {
    if (sources < 2) inst.b = inst.a;
    if (sources < 3) inst.c = inst.b;
    inst.flags = static_cast<u8>(
        (form.saturate ? kHalfSaturate : 0) | (Decoder::has(s, "relu") ? kHalfRelu : 0) |
        (form.flush ? kHalfFlush : 0) | (form.mode == kModeXorSign ? kHalfXorSign : 0));
  }
  d.emit(inst, s);
}

/// The type as signed or unsigned integer: bit types count as unsigned.
Type integer_type(Type type) {
  switch (type) {
    case Type::kB16:
      return Type::kU16;
    case Type::kB32:
      return Type::kU32;
    case Type::kB64:
      return Type::kU64;
    default:
      return type;
  }
}

void emit_carry(Decoder& d, const Statement& s, Op op, std::size_t sources) {
  Form form = form_of(op, s);
  form.carry_in = s.op.back() == 'c';
  form.carry_out = Decoder::has(s, "cc");
  emit_simple(d, s, Family::kInteger, form, sources);
}

void add_sub(Decoder& d, const Statement& s) {
  const bool add = s.op.substr(0, 3) == "add";
  if (s.op.size() == 4 || Decoder::has(s, "cc")) {
    return emit_carry(d, s, add ? Op::kAddCarry : Op::kSubCarry, 2);
  }
  if (add && packed_integer(d, s)) return;
  Form form = form_of(add ? Op::kAdd : Op::kSub, s);
  form.type = integer_type(form.type);
  emit_simple(d, s, family_of(form.type), form, 2);
}

Type widened_type(Type type) {
  switch (type) {
    case Type::kS16:
      return Type::kS32;
    case Type::kU16:
      return Type::kU32;
    case Type::kS32:
      return Type::kS64;
    default:
      return Type::kU64;
  }
}

void mul(Decoder& d, const Statement& s) {
  Form form = form_of(Op::kMul, s);
  if (!type_is_real(form.type)) {
    if (Decoder::has(s, "wide")) form.op = Op::kMulWide;
    if (Decoder::has(s, "hi")) form.op = Op::kMulHi;
  }
  emit_simple(d, s, family_of(form.type), form, 2);
}

void mad(Decoder& d, const Statement& s) {
  Form form = form_of(Op::kMad, s);
  if (type_is_real(form.type)) {
    form.op = Op::kFma;
    return emit_simple(d, s, family_of(form.type), form, 3);
  }
  const bool high = Decoder::has(s, "hi");
  if (s.op == "madc" || Decoder::has(s, "cc")) {
    return emit_carry(d, s, high ? Op::kMadCarryHi : Op::kMadCarryLo, 3);
  }
  if (high) form.op = Op::kMadHi;
  if (!Decoder::has(s, "wide")) return emit_simple(d, s, Family::kInteger, form, 3);
  form.op = Op::kMadWide;
  Inst inst;
  inst.run = d.handler(Family::kInteger, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = d.source(d.operand(s, 2), form.type);
  inst.c = d.source(d.operand(s, 3), widened_type(form.type));
  d.emit(inst, s);
}

/// What is told apart by operation and type alone.
template <Op Kind, std::size_t Sources>
void plain(Decoder& d, const Statement& s) {
  Form form = form_of(Kind, s);
  if (!type_is_real(form.type)) form.type = integer_type(form.type);
  emit_simple(d, s, family_of(form.type), form, Sources);
}

template <Op Kind>
void smaller(Decoder& d, const Statement& s) {
  if (!packed_integer(d, s)) plain<Kind, 2>(d, s);
}

template <Op Kind>
void special_function(Decoder& d, const Statement& s) {
  const Form form = form_of(Kind, s);
  emit_simple(d, s, family_of(form.type), form, 1);
}

void dot(Decoder& d, const Statement& s) {
  Form form = form_of(s.op == "dp4a" ? Op::kDp4a : Op::kDp2a, s);
  std::vector<Type> types;
  for (const std::string_view mod : s.mods) {
    if (const Type type = type_of(mod); type != Type::kNone) types.push_back(type);
  }
  if (types.size() != 2) d.fail("expected two types");
  form.mode =
      static_cast<u8>((type_is_signed(types[0]) ? 1 : 0) | (type_is_signed(types[1]) ? 2 : 0));
  Inst inst;
  inst.run = d.handler(Family::kInteger, form);
  inst.flags = Decoder::has(s, "hi") ? 1 : 0;
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), Type::kU32);
  inst.b = d.source(d.operand(s, 2), Type::kU32);
  inst.c = d.source(d.operand(s, 3), Type::kU32);
  d.emit(inst, s);
}

void testp(Decoder& d, const Statement& s) {
  static constexpr std::string_view kTests[] = {"finite",     "infinite", "number",
                                                "notanumber", "normal",   "subnormal"};
  Inst inst;
  inst.mode = 0xff;
  for (u8 k = 0; k < 6; ++k) {
    if (Decoder::has(s, kTests[k])) inst.mode = k;
  }
  if (inst.mode == 0xff) d.fail("unknown test");
  const Form form = form_of(Op::kTestp, s);
  inst.run = d.handler(Family::kFloat, form);
  inst.d = d.predicate_source(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  d.emit(inst, s);
}

// Bits.

void logic(Decoder& d, const Statement& s) {
  Form form = form_of(s.op == "and" ? Op::kAnd : s.op == "or" ? Op::kOr : Op::kXor, s);
  if (form.type != Type::kPred) return emit_simple(d, s, Family::kBits, form, 2);
  Inst inst;
  inst.run = d.handler(Family::kBits, form);
  inst.d = d.predicate_source(d.operand(s, 0));
  inst.a = d.predicate_source(d.operand(s, 1));
  inst.b = d.predicate_source(d.operand(s, 2));
  inst.mode = static_cast<u8>((s.operands[1].negated ? 1 : 0) | (s.operands[2].negated ? 2 : 0));
  d.emit(inst, s);
}

void move_predicate(Decoder& d, const Statement& s, bool negate) {
  Form form;
  form.op = Op::kMovePredicate;
  Inst inst;
  inst.run = d.handler(Family::kBits, form);
  inst.d = d.predicate_source(d.operand(s, 0));
  inst.a = d.predicate_source(d.operand(s, 1));
  inst.mode = negate != s.operands[1].negated ? 1 : 0;
  d.emit(inst, s);
}

void bit_not(Decoder& d, const Statement& s) {
  const Form form = form_of(s.op == "not" ? Op::kNot : Op::kCnot, s);
  if (form.type == Type::kPred) return move_predicate(d, s, true);
  emit_simple(d, s, Family::kBits, form, 1);
}

void shift(Decoder& d, const Statement& s) {
  const Form form = form_of(s.op == "shl" ? Op::kShl : Op::kShr, s);
  Inst inst;
  inst.run = d.handler(Family::kBits, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = d.source(d.operand(s, 2), Type::kU32);
  d.emit(inst, s);
}

void funnel_shift(Decoder& d, const Statement& s) {
  Form form = form_of(Op::kShf, s);
  form.mode = Decoder::has(s, "l") ? 1 : 0;
  form.flag = Decoder::has(s, "wrap");
  emit_simple(d, s, Family::kBits, form, 3);
}

void prmt(Decoder& d, const Statement& s) {
  static constexpr std::string_view kModes[] = {"", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  Form form = form_of(Op::kPrmt, s);
  Inst inst;
  inst.run = d.handler(Family::kBits, form);
  for (u8 k = 1; k < 7; ++k) {
    if (Decoder::has(s, kModes[k])) inst.mode = k;
  }
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), Type::kU32);
  inst.b = d.source(d.operand(s, 2), Type::kU32);
  inst.c = d.source(d.operand(s, 3), Type::kU32);
  d.emit(inst, s);
}

void bit_field(Decoder& d, const Statement& s) {
  const bool insert = s.op == "bfi";
  const Form form = form_of(insert ? Op::kBfi : Op::kBfe, s);
  Inst inst;
  inst.run = d.handler(Family::kBits, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = d.source(d.operand(s, 2), insert ? form.type : Type::kU32);
  inst.c = d.source(d.operand(s, 3), Type::kU32);
  if (insert) inst.e = d.source(d.operand(s, 4), Type::kU32);
  d.emit(inst, s);
}

void bmsk(Decoder& d, const Statement& s) {
  Form form = form_of(Op::kBmsk, s);
  form.flag = Decoder::has(s, "wrap");
  emit_simple(d, s, Family::kBits, form, 2);
}

template <Op Kind>
void count_bits(Decoder& d, const Statement& s) {
  Form form = form_of(Kind, s);
  form.flag = Decoder::has(s, "shiftamt");
  emit_simple(d, s, Family::kBits, form, 1);
}

void lop3(Decoder& d, const Statement& s) {
  if (s.mods.size() != 1) return lop3_predicate(d, s);
  const Form form = form_of(Op::kLop3, s);
  Inst inst;
  inst.run = d.handler(Family::kBits, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), Type::kU32);
  inst.b = d.source(d.operand(s, 2), Type::kU32);
  inst.c = d.source(d.operand(s, 3), Type::kU32);
  inst.mode = static_cast<u8>(d.operand(s, 4).bits);
  d.emit(inst, s);
}

// Moves.

/// {a,b} or {a,b,c,d} to or from one register: 2x32 or 4x16 in 64 bits, 2x16 in 32.
void move_vector(Decoder& d, const Statement& s, Type type) {
  const bool unpack = d.operand(s, 0).kind == Operand::Kind::kVector;
  const std::vector<Operand>& parts = s.operands[unpack ? 0 : 1].parts;
  const bool wide = type_bytes(type) == 8;
  Form form;
  if (parts.size() == 2) {
    form.op = unpack ? (wide ? Op::kUnpack64 : Op::kUnpack32) : (wide ? Op::kPack64 : Op::kPack32);
  } else if (parts.size() == 4 && wide) {
    form.op = unpack ? Op::kUnpack64x4 : Op::kPack64x4;
  } else {
    d.fail("this packing is not supported");
  }
  Inst inst;
  inst.run = d.handler(Family::kBits, form);
  if (unpack) {
    inst.a = d.source(d.operand(s, 1), type);
    inst.d = d.destination(parts[0]);
    if (parts.size() == 2) {
      inst.e = d.destination(parts[1]);
    } else {
      inst.b = d.destination(parts[1]);
      inst.c = d.destination(parts[2]);
      inst.e = d.destination(parts[3]);
    }
  } else {
    inst.d = d.destination(d.operand(s, 0));
    inst.a = d.source(parts[0], Type::kU32);
    inst.b = d.source(parts[1], Type::kU32);
    if (parts.size() == 4) {
      inst.c = d.source(parts[2], Type::kU32);
      inst.e = d.source(parts[3], Type::kU32);
    }
  }
  d.emit(inst, s);
}

/// Addresses that differ per lane or per launch.
bool move_address(Decoder& d, const Statement& s) {
  const Operand& from = d.operand(s, 1);
  if (from.kind != Operand::Kind::kSymbol) return false;
  const Place place = d.place_of(from);
  if (place.space != Space::kLocal && place.space != Space::kParam) return false;
  Form form;
  form.op = place.space == Space::kLocal ? Op::kLocalAddress : Op::kParamAddress;
  Inst inst;
  inst.run = d.handler(Family::kWarp, form);
  inst.imm = static_cast<s64>(place.value);
  inst.mode = place.kernel_param ? 0 : 1;
  inst.d = d.destination(d.operand(s, 0));
  d.emit(inst, s);
  return true;
}

/// Special registers that change while a kernel runs.
bool move_clock(Decoder& d, const Statement& s) {
  static const auto& kClocks =
      *new const std::unordered_map<std::string_view, std::pair<ClockKind, u8>>{
          {"%clock", {ClockKind::kClock, 4}},
          {"%clock64", {ClockKind::kClock, 8}},
          {"%clock_hi", {ClockKind::kClockHigh, 4}},
          {"%globaltimer", {ClockKind::kTimer, 8}},
          {"%globaltimer_lo", {ClockKind::kTimer, 4}},
          {"%globaltimer_hi", {ClockKind::kTimerHigh, 4}}};
  const auto found = kClocks.find(d.operand(s, 1).name);
  if (d.operand(s, 1).kind != Operand::Kind::kSpecial || found == kClocks.end()) return false;
  Inst inst;
  inst.run = run_clock;
  inst.mode = static_cast<u8>(found->second.first);
  inst.bytes = found->second.second;
  inst.d = d.destination(d.operand(s, 0));
  if (d.box_of(s.operands[0], Type::kU32) != inst.bytes) d.fail("register has the wrong width");
  d.emit(inst, s);
  return true;
}

void mov(Decoder& d, const Statement& s) {
  const Form form = form_of(Op::kMove, s);
  if (d.operand(s, 0).kind == Operand::Kind::kVector ||
      d.operand(s, 1).kind == Operand::Kind::kVector) {
    return move_vector(d, s, form.type);
  }
  if (form.type == Type::kPred) return move_predicate(d, s, false);
  if (form.type == Type::kB128) d.fail("128-bit registers are not supported");
  if (move_clock(d, s)) return;
  if (move_address(d, s)) return;
  emit_simple(d, s, Family::kBits, form, 1);
}

}  // namespace

// Comparisons.

std::optional<Compare> compare_of(std::string_view name) {
  static const auto& kNames = *new const std::unordered_map<std::string_view, Compare>{
      {"eq", Compare::kEq},   {"ne", Compare::kNe},   {"lt", Compare::kLt},
      {"le", Compare::kLe},   {"gt", Compare::kGt},   {"ge", Compare::kGe},
      {"lo", Compare::kLt},   {"ls", Compare::kLe},   {"hi", Compare::kGt},
      {"hs", Compare::kGe},   {"equ", Compare::kEqu}, {"neu", Compare::kNeu},
      {"ltu", Compare::kLtu}, {"leu", Compare::kLeu}, {"gtu", Compare::kGtu},
      {"geu", Compare::kGeu}, {"num", Compare::kNum}, {"nan", Compare::kNan}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) return std::nullopt;
  return found->second;
}

namespace {

u8 half_compare_mode(const Form& form) {
  return static_cast<u8>(static_cast<u8>(form.compare) | (form.flush ? kHalfCompareFlush : 0));
}

Form comparison_form(Decoder& d, const Statement& s, Op op) {
  Form form = form_of(op, s);
  for (const std::string_view mod : s.mods) {
    const auto compare = compare_of(mod);
    if (!compare) continue;
    form.compare = *compare;
    return form;
  }
  d.fail("unknown comparison");
}

/// Sets flags and row c for ".and p" and its like.
void combine(Decoder& d, const Statement& s, Inst& inst) {
  const u8 kind = Decoder::has(s, "and")   ? 1
                  : Decoder::has(s, "or")  ? 2
                  : Decoder::has(s, "xor") ? 3
                                           : 0;
  if (kind == 0) return;
  const Operand& other = d.operand(s, 3);
  inst.c = d.predicate_source(other);
  inst.flags = static_cast<u8>(inst.flags | kind | (other.negated ? 4 : 0));
}

void setp(Decoder& d, const Statement& s) {
  const Form form = comparison_form(d, s, Op::kSetp);
  Inst inst;
  inst.run = d.handler(Family::kCompare, form);
  inst.mode = half_compare_mode(form);
  const Operand& to = d.operand(s, 0);
  inst.d = to.kind == Operand::Kind::kSink ? kSinkRow : d.predicate_source(to);
  if (to.second >= 0) {
    inst.f = d.register_row(to.second);
    inst.flags |= 8;
  }
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = d.source(d.operand(s, 2), form.type);
  combine(d, s, inst);
  d.emit(inst, s);
}

/// What a true comparison gives: 1.0 or all ones; of a pair of halves, in both.
s64 set_result(Type to, bool pair) {
  switch (to) {
    case Type::kF32:
      return 0x3f800000;
    case Type::kF16:
      return 0x3c00;
    case Type::kBf16:
      return 0x3f80;
    case Type::kF16x2:
      return 0x3c003c00;
    case Type::kBf16x2:
      return 0x3f803f80;
    default:
      return type_bytes(to) == 2 && !pair ? 0xffff : 0xffffffff;
  }
}

void set(Decoder& d, const Statement& s) {
  Form form = comparison_form(d, s, Op::kSet);
  Type to = Type::kNone;
  for (const std::string_view mod : s.mods) {
    if (const Type type = type_of(mod); type != Type::kNone && to == Type::kNone) to = type;
  }
  Inst inst;
  inst.run = d.handler(Family::kCompare, form);
  inst.mode = half_compare_mode(form);
  inst.imm = set_result(to, type_bytes(form.type) == 4 && type_is_half(form.type));
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = d.source(d.operand(s, 2), form.type);
  combine(d, s, inst);
  d.emit(inst, s);
}

void selp(Decoder& d, const Statement& s) {
  Form form = form_of(Op::kSelp, s);
  form.to_box = static_cast<u8>(type_box(form.type));
  Inst inst;
  inst.run = d.handler(Family::kCompare, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = d.source(d.operand(s, 2), form.type);
  inst.c = d.predicate_source(d.operand(s, 3));
  inst.flags = s.operands[3].negated ? 4 : 0;
  d.emit(inst, s);
}

void slct(Decoder& d, const Statement& s) {
  Form form = form_of(Op::kSlct, s);
  const Type value = s.mods.size() < 2 ? Type::kNone : type_of(s.mods[s.mods.size() - 2]);
  if (value == Type::kNone) d.fail("expected two types");
  form.to_box = static_cast<u8>(type_box(value));
  Inst inst;
  inst.run = d.handler(Family::kCompare, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), value);
  inst.b = d.source(d.operand(s, 2), value);
  inst.c = d.source(d.operand(s, 3), form.type);
  d.emit(inst, s);
}

// Conversions.

ConvertForm convert_form(Decoder& d, const Statement& s) {
  ConvertForm form;
  form.round = round_of(s);
  std::vector<Type> types;
  for (const std::string_view mod : s.mods) {
    if (const Type type = type_of(mod); type != Type::kNone) {
      types.push_back(type);
    } else if (mod == "sat") {
      form.saturate = true;
    } else if (mod == "satfinite") {
      form.finite = true;
    } else if (mod == "ftz") {
      form.flush = true;
    } else if (mod == "relu") {
      form.relu = true;
    } else if (mod == "rni" || mod == "rzi" || mod == "rmi" || mod == "rpi") {
      form.integral = true;
    } else if (mod != "rn" && mod != "rz" && mod != "rm" && mod != "rp" && mod != "rna") {
      d.fail("." + std::string(mod) + " is not supported");
    }
  }
  if (types.size() != 2) d.fail("expected two types");
  form.to = types[0];
  form.from = types[1];
  return form;
}

void cvt_pair(Decoder& d, const Statement& s, ConvertForm convert) {
  if (convert.from != Type::kF32) d.fail("only from .f32");
  convert.to = convert.to == Type::kF16x2 ? Type::kF16 : Type::kBf16;
  Form form;
  form.op = Op::kConvertPair;
  Inst inst;
  inst.run = d.handler(Family::kConvert, form);
  inst.imm = convert.pack();
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), Type::kF32);
  inst.b = d.source(d.operand(s, 2), Type::kF32);
  d.emit(inst, s);
}

void cvt(Decoder& d, const Statement& s) {
  if (Decoder::has(s, "pack")) return cvt_pack(d, s);
  ConvertForm convert = convert_form(d, s);
  if (convert.to == Type::kF16x2 || convert.to == Type::kBf16x2) return cvt_pair(d, s, convert);
  convert.to_box = d.box_of(d.operand(s, 0), convert.to);
  convert.from_box = d.box_of(d.operand(s, 1), convert.from);
  Form form;
  form.op = Op::kConvert;
  form.type = convert.to;
  form.from = convert.from;
  form.round = convert.round;
  form.integral = convert.integral;
  form.saturate = convert.saturate;
  form.flush = convert.flush;
  form.flag = convert.relu || convert.finite;
  form.to_box = convert.to_box;
  form.from_box = convert.from_box;
  Inst inst;
  inst.run = d.handler(Family::kConvert, form);
  inst.imm = convert.pack();
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source_boxed(d.operand(s, 1), convert.from, convert.from_box);
  d.emit(inst, s);
}

}  // namespace

const OpcodeTable& arithmetic_opcodes() {
  static const auto& kTable = *new const OpcodeTable{
      {"add", add_sub},
      {"addc", add_sub},
      {"sub", add_sub},
      {"subc", add_sub},
      {"mul", mul},
      {"mad", mad},
      {"madc", mad},
      {"fma", mad},
      {"div", plain<Op::kDiv, 2>},
      {"rem", plain<Op::kRem, 2>},
      {"abs", plain<Op::kAbs, 1>},
      {"neg", plain<Op::kNeg, 1>},
      {"min", smaller<Op::kMin>},
      {"max", smaller<Op::kMax>},
      {"sad", plain<Op::kSad, 3>},
      {"copysign", plain<Op::kCopysign, 2>},
      {"dp4a", dot},
      {"dp2a", dot},
      {"testp", testp},
      {"sqrt", special_function<Op::kSqrt>},
      {"rsqrt", special_function<Op::kRsqrt>},
      {"rcp", special_function<Op::kRcp>},
      {"ex2", special_function<Op::kEx2>},
      {"lg2", special_function<Op::kLg2>},
      {"sin", special_function<Op::kSin>},
      {"cos", special_function<Op::kCos>},
      {"tanh", special_function<Op::kTanh>},
      {"and", logic},
      {"or", logic},
      {"xor", logic},
      {"not", bit_not},
      {"cnot", bit_not},
      {"shl", shift},
      {"shr", shift},
      {"shf", funnel_shift},
      {"prmt", prmt},
      {"bfe", bit_field},
      {"bfi", bit_field},
      {"bmsk", bmsk},
      {"popc", count_bits<Op::kPopc>},
      {"clz", count_bits<Op::kClz>},
      {"brev", count_bits<Op::kBrev>},
      {"bfind", count_bits<Op::kBfind>},
      {"lop3", lop3},
      {"mov", mov},
      {"setp", setp},
      {"set", set},
      {"selp", selp},
      {"slct", slct},
      {"cvt", cvt},
  };
  return kTable;
}

}  // namespace softgpu::ptx

// Opcodes that compilers hardly emit and that one scalar handler serves (exec/rare.h): 24-bit
// multiplication, bit searches, saturating packs, video instructions.
#include "softgpu/ptx/exec/rare.h"

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/opcodes.h"

namespace softgpu::ptx {
namespace {

u8 flag_if(bool condition, u8 flag) { return condition ? flag : u8{0}; }

Inst rare_inst(RareOp op, u8 flags) {
  Inst inst;
  inst.run = run_rare;
  inst.mode = static_cast<u8>(op);
  inst.flags = flags;
  return inst;
}

/// d and up to three 32-bit sources; rows that are not there are those of the last one.
void emit_rare(Decoder& d, const Statement& s, Inst inst, std::size_t sources) {
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), Type::kU32);
  inst.b = sources > 1 ? d.source(d.operand(s, 2), Type::kU32) : inst.a;
  inst.c = sources > 2 ? d.source(d.operand(s, 3), Type::kU32) : inst.b;
  d.emit(inst, s);
}

bool is_signed_form(const Statement& s) { return type_is_signed(Decoder::last_type(s)); }

void multiply24(Decoder& d, const Statement& s) {
  const bool mad = s.op == "mad24";
  const u8 flags = static_cast<u8>(flag_if(Decoder::has(s, "hi"), kRareHigh) |
                                   flag_if(Decoder::has(s, "sat"), kRareSaturate) |
                                   flag_if(is_signed_form(s), kRareSignedA));
  emit_rare(d, s, rare_inst(mad ? RareOp::kMad24 : RareOp::kMul24, flags), mad ? 3 : 2);
}

void szext(Decoder& d, const Statement& s) {
  const u8 flags = static_cast<u8>(flag_if(Decoder::has(s, "wrap"), kRareWrap) |
                                   flag_if(is_signed_form(s), kRareSignedA));
  emit_rare(d, s, rare_inst(RareOp::kSignExtend, flags), 2);
}

void fns(Decoder& d, const Statement& s) { emit_rare(d, s, rare_inst(RareOp::kFindNthSet, 0), 3); }

RareOp video_op(std::string_view name) {
  static const auto& kNames = *new const std::unordered_map<std::string_view, RareOp>{
      {"vadd", RareOp::kVideoAdd},      {"vsub", RareOp::kVideoSub},
      {"vavrg", RareOp::kVideoAverage}, {"vabsdiff", RareOp::kVideoDistance},
      {"vmin", RareOp::kVideoMin},      {"vmax", RareOp::kVideoMax},
      {"vset", RareOp::kVideoCompare}};
  return kNames.at(name);
}

void video(Decoder& d, const Statement& s) {
  const char lanes = s.op.back();
  const bool scalar = lanes != '2' && lanes != '4';
  const RareOp op = video_op(scalar ? s.op : s.op.substr(0, s.op.size() - 1));
  const std::vector<Type> types = Decoder::types(s);
  const bool compares = op == RareOp::kVideoCompare;
  const std::size_t first = compares ? 0 : 1;
  const u8 flags = static_cast<u8>(flag_if(!compares && type_is_signed(types[0]), kRareSignedD) |
                                   flag_if(type_is_signed(types[first]), kRareSignedA) |
                                   flag_if(type_is_signed(types[first + 1]), kRareSignedB) |
                                   flag_if(Decoder::has(s, "sat"), kRareSaturate) |
                                   flag_if(Decoder::has(s, "add"), kRareAccumulate));
  Inst inst = rare_inst(op, flags);
  inst.imm = scalar ? 32 : lanes == '4' ? 8 : 16;
  if (compares) {
    for (const std::string_view mod : s.mods) {
      if (const auto compare = compare_of(mod)) inst.imm |= static_cast<s64>(*compare) << 8;
    }
  }
  emit_rare(d, s, inst, scalar && !Decoder::has(s, "add") ? 2 : 3);
}

}  // namespace

void cvt_pack(Decoder& d, const Statement& s) {
  const Type to = Decoder::types(s)[0];
  const bool bytes = type_bytes(to) == 1;
  emit_rare(d, s,
            rare_inst(bytes ? RareOp::kPackBytes : RareOp::kPackHalves,
                      flag_if(type_is_signed(to), kRareSignedD)),
            bytes ? 3 : 2);
}

bool packed_integer(Decoder& d, const Statement& s) {
  const bool sign = Decoder::has(s, "s16x2"), relu = Decoder::has(s, "relu");
  const bool pair = sign || Decoder::has(s, "u16x2");
  const bool half = type_is_half(Decoder::last_type(s));
  if (!pair && (!relu || half)) return false;
  const RareOp op = s.op == "add"   ? RareOp::kVideoAdd
                    : s.op == "min" ? RareOp::kVideoMin
                                    : RareOp::kVideoMax;
  // .relu is saturation from below: what is not negative fits an unsigned result.
  const u8 flags = static_cast<u8>(flag_if(sign || !pair, kRareSignedA | kRareSignedB) |
                                   flag_if(relu, kRareSaturate));
  Inst inst = rare_inst(op, flags);
  inst.imm = pair ? 16 : 32;
  emit_rare(d, s, inst, 2);
  return true;
}

void lop3_predicate(Decoder& d, const Statement& s) {
  Inst inst = rare_inst(RareOp::kLop3Predicate, flag_if(Decoder::has(s, "or"), kRareOr));
  const Operand& to = d.operand(s, 0);
  if (to.second < 0) d.fail("expected a predicate after '|'");
  inst.d = d.destination(to);
  inst.f = d.register_row(to.second);
  inst.a = d.source(d.operand(s, 1), Type::kU32);
  inst.b = d.source(d.operand(s, 2), Type::kU32);
  inst.c = d.source(d.operand(s, 3), Type::kU32);
  inst.imm = static_cast<s64>(d.operand(s, 4).bits);
  inst.e = d.predicate_source(d.operand(s, 5));
  d.emit(inst, s);
}

const OpcodeTable& rare_opcodes() {
  static const auto& kTable = *new const OpcodeTable{
      {"mul24", multiply24}, {"mad24", multiply24}, {"szext", szext},     {"fns", fns},
      {"vadd2", video},      {"vadd4", video},      {"vsub2", video},     {"vsub4", video},
      {"vavrg2", video},     {"vavrg4", video},     {"vabsdiff2", video}, {"vabsdiff4", video},
      {"vmin2", video},      {"vmin4", video},      {"vmax2", video},     {"vmax4", video},
      {"vset2", video},      {"vset4", video},      {"vadd", video},      {"vsub", video},
      {"vabsdiff", video},   {"vmin", video},       {"vmax", video},
  };
  return kTable;
}

}  // namespace softgpu::ptx

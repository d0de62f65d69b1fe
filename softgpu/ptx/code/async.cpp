// Opcodes of asynchronous copies: cp.async and mbarrier.
#include "softgpu/ptx/exec/async.h"

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/opcodes.h"
#include "softgpu/ptx/exec/control.h"

namespace softgpu::ptx {
namespace {

/// A number that the instruction needs in its text, not in a register.
u64 literal(Decoder& d, const Statement& s, std::size_t index) {
  const Operand& o = d.operand(s, index);
  if (o.kind != Operand::Kind::kImmediate) d.fail("operand must be a constant");
  return o.bits;
}

void copy(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = run_copy;
  const SharedAddress to = shared_address(d, d.operand(s, 0), false);
  inst.a = to.row;
  inst.f = static_cast<s32>(to.offset);
  inst.flags = to.flags;
  const Operand& from = d.operand(s, 1);
  if (from.kind != Operand::Kind::kAddress) d.fail("expected an address");
  if (from.reg >= 0) {
    inst.b = d.source(register_of(from), Type::kU64);
    inst.imm = from.offset;
  } else {
    inst.b = d.constant_row(
        from.name.empty() ? static_cast<u64>(from.offset) : d.place_of(from).value, 8);
  }
  const u64 bytes = literal(d, s, 2);
  const bool whole_line = Decoder::has(s, "cg");
  if (whole_line ? bytes != 16 : bytes != 4 && bytes != 8 && bytes != 16) d.fail("no such size");
  inst.bytes = static_cast<u8>(bytes);
  const std::size_t policies = Decoder::has(s, "L2::cache_hint") ? 1 : 0;
  if (s.operands.size() > 3 + policies) {
    const Operand& size = d.operand(s, 3);
    const bool is_predicate =
        size.kind == Operand::Kind::kRegister && d.register_type(size.reg) == Type::kPred;
    inst.c = is_predicate ? d.predicate_source(size) : d.source(size, Type::kU32);
    inst.flags |= is_predicate ? kCopyIgnore : kCopySize;
    if (size.negated) inst.flags |= kCopyIgnoreNegated;
  }
  d.emit(inst, s);
}

void phase_join(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = run_phase;
  inst.mode = static_cast<u8>(PhaseOp::kJoin);
  const SharedAddress at = shared_address(d, d.operand(s, 0), space_of(s) != Space::kShared);
  inst.a = at.row;
  inst.imm = at.offset;
  inst.flags = at.flags;
  if (Decoder::has(s, "noinc")) inst.flags |= kPhaseNoIncrement;
  d.emit(inst, s);
}

void cp(Decoder& d, const Statement& s) {
  if (Decoder::has(s, "mbarrier")) return phase_join(d, s);
  if (Decoder::has(s, "ca") || Decoder::has(s, "cg")) return copy(d, s);
  // Copies complete as they are issued: there is nothing to group and nothing to wait for.
  if (Decoder::has(s, "wait_group")) literal(d, s, 0);
  Inst inst;
  inst.run = run_fence;
  d.emit(inst, s);
}

PhaseOp phase_op(const Statement& s) {
  if (Decoder::has(s, "init")) return PhaseOp::kInit;
  if (Decoder::has(s, "inval")) return PhaseOp::kInvalidate;
  if (Decoder::has(s, "arrive")) return PhaseOp::kArrive;
  if (Decoder::has(s, "arrive_drop")) return PhaseOp::kDrop;
  if (Decoder::has(s, "pending_count")) return PhaseOp::kPending;
  return Decoder::has(s, "parity") ? PhaseOp::kTestParity : PhaseOp::kTest;
}

void mbarrier(Decoder& d, const Statement& s) {
  const PhaseOp op = phase_op(s);
  Inst inst;
  inst.run = run_phase;
  inst.mode = static_cast<u8>(op);
  if (op == PhaseOp::kPending) {
    inst.d = d.destination(d.operand(s, 0));
    inst.a = d.source(d.operand(s, 1), Type::kU64);
    return d.emit(inst, s);
  }
  const bool has_result = op != PhaseOp::kInit && op != PhaseOp::kInvalidate;
  const std::size_t first = has_result ? 1 : 0;
  const SharedAddress at = shared_address(d, d.operand(s, first), space_of(s) != Space::kShared);
  inst.a = at.row;
  inst.imm = at.offset;
  inst.flags = at.flags;
  if (op == PhaseOp::kTest || op == PhaseOp::kTestParity) {
    inst.d = d.predicate_source(d.operand(s, 0));
    inst.b = d.source(d.operand(s, 2), op == PhaseOp::kTest ? Type::kU64 : Type::kU32);
  } else {
    if (has_result) inst.d = d.destination(d.operand(s, 0));
    const bool counted = s.operands.size() > first + 1;
    if (op != PhaseOp::kInvalidate) {
      inst.b = counted ? d.source(d.operand(s, first + 1), Type::kU32) : d.constant_row(1, 4);
    }
  }
  d.emit(inst, s);
}

}  // namespace

Operand register_of(const Operand& address) {
  Operand made;
  made.kind = Operand::Kind::kRegister;
  made.reg = address.reg;
  made.name = address.name;
  return made;
}

SharedAddress shared_address(Decoder& d, const Operand& o, bool generic) {
  if (o.kind != Operand::Kind::kAddress) d.fail("expected an address");
  SharedAddress made;
  made.offset = o.offset;
  if (o.reg >= 0) {
    made.row = d.register_row(o.reg);
    const bool wide = type_bytes(d.register_type(o.reg)) == 8;
    if (generic && !wide) d.fail("a 32-bit address is only possible in shared memory");
    made.flags = static_cast<u8>((wide ? kCopyWide : 0) | (generic ? kPhaseGeneric : 0));
    return made;
  }
  u64 value = static_cast<u64>(o.offset);
  if (!o.name.empty()) {
    const Place place = d.place_of(o);
    if (place.space != Space::kShared) d.fail("expected an address in shared memory");
    value = place.value;
  }
  made.row = d.constant_row(value, 8);
  made.offset = 0;
  made.flags = kCopyWide;
  return made;
}

const OpcodeTable& async_opcodes() {
  static const auto& kTable = *new const OpcodeTable{{"cp", cp}, {"mbarrier", mbarrier}};
  return kTable;
}

}  // namespace softgpu::ptx

// Opcodes that touch memory: loads, stores, atomics, address conversions.
#include <bit>

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/opcodes.h"
#include "softgpu/ptx/exec/control.h"

namespace softgpu::ptx {

Space space_of(const Statement& s) {
  for (const std::string_view mod : s.mods) {
    if (mod == "global") return Space::kGlobal;
    if (mod == "shared" || mod == "shared::cta") return Space::kShared;
    if (mod == "local") return Space::kLocal;
    if (mod == "const") return Space::kConst;
    if (mod == "param" || mod == "param::entry" || mod == "param::func") return Space::kParam;
  }
  return Space::kGeneric;
}

/// Row a, imm and the mode of an address operand.
AddressMode address_of(Decoder& d, const Operand& o, Space space, Inst& inst) {
  if (o.kind != Operand::Kind::kAddress) d.fail("expected an address");
  inst.imm = o.offset;
  if (o.reg >= 0) {
    if (const Decoder::Indexed* indexed = d.indexed(o.reg)) {
      inst.a = d.register_row(indexed->index);
      inst.f = d.register_row(indexed->base);
      inst.bytes = indexed->scale;
      inst.flags = indexed->is_signed ? kIndexSigned : 0;
      if (indexed->plus >= 0) {
        inst.e = d.register_row(indexed->plus);
        inst.flags |= kIndexPlus;
      }
      return AddressMode::kIndexed;
    }
    inst.a = d.register_row(o.reg);
    const bool wide = type_bytes(d.register_type(o.reg)) == 8;
    if (space == Space::kShared) return wide ? AddressMode::kShared64 : AddressMode::kShared32;
    if (!wide) d.fail("a 32-bit address is only possible in shared memory");
    return space == Space::kLocal ? AddressMode::kLocal : AddressMode::kPointer;
  }
  if (o.name.empty())
    return space == Space::kShared ? AddressMode::kSharedFixed : AddressMode::kFixed;
  const Place place = d.place_of(o);
  inst.imm = static_cast<s64>(place.value);
  if (place.space == Space::kShared) return AddressMode::kSharedFixed;
  inst.flags = place.space == Space::kLocal ? 1 : 0;
  return place.space == Space::kParam || place.space == Space::kLocal ? AddressMode::kLaneParam
                                                                      : AddressMode::kFixed;
}

namespace {

u8 vector_of(Decoder& d, const Statement& s) {
  if (Decoder::has(s, "v8")) d.fail("vectors of eight are not supported");
  return Decoder::has(s, "v2") ? 2 : Decoder::has(s, "v4") ? 4 : 1;
}

/// Kernel parameters are uniform: a vector of them is so many broadcasts.
void load_kernel_param(Decoder& d, const Statement& s, const Place& place, Type type) {
  const Operand& to = d.operand(s, 0);
  const std::vector<Operand> parts =
      to.kind == Operand::Kind::kVector ? to.parts : std::vector<Operand>{to};
  Form form;
  form.op = Op::kParam;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].kind == Operand::Kind::kSink) continue;
    form.to_box = d.box_of(parts[k], type);
    Inst inst;
    inst.run = d.handler(Family::kWarp, form);
    inst.imm = static_cast<s64>(place.value + k * type_bytes(type));
    inst.bytes = static_cast<u8>(type_bytes(type));
    inst.mode = type_is_signed(type) ? 1 : 0;
    inst.d = d.destination(parts[k]);
    d.emit(inst, s);
  }
}

/// Rows of the value operand (one register or a vector) into d, b, c, e; the box they share.
u8 value_rows(Decoder& d, const Operand& value, Type type, bool load, Inst& inst) {
  const std::vector<Operand> parts =
      value.kind == Operand::Kind::kVector ? value.parts : std::vector<Operand>{value};
  u8 box = static_cast<u8>(type_box(type));
  for (const Operand& part : parts) {
    if (part.kind == Operand::Kind::kRegister) box = d.box_of(part, type);
  }
  s32* rows[4] = {&inst.d, &inst.b, &inst.c, &inst.e};
  if (parts.size() > 4) d.fail("vector is too long");
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].kind == Operand::Kind::kRegister && d.box_of(parts[k], type) != box) {
      d.fail("vector of registers of different widths");
    }
    *rows[k] = load ? d.destination(parts[k]) : d.source_boxed(parts[k], type, box);
  }
  return box;
}

void load_store(Decoder& d, const Statement& s) {
  const bool load = s.op != "st";
  Form form;
  form.op = load ? Op::kLoad : Op::kStore;
  form.type = Decoder::last_type(s);
  form.vector = vector_of(d, s);
  if (form.type == Type::kB128) d.fail("128-bit elements are not supported");
  const Operand& value = d.operand(s, load ? 0 : 1);
  const Operand& address = d.operand(s, load ? 1 : 0);
  const Space space = space_of(s);
  if (space == Space::kParam && address.variable >= 0) {
    const Place place = d.place_of(address);
    if (place.kernel_param) return load_kernel_param(d, s, place, form.type);
  }
  if (value.kind == Operand::Kind::kVector && value.parts.size() != form.vector)
    d.fail("vector length differs");
  Inst inst;
  form.to_box = value_rows(d, value, form.type, load, inst);
  form.address = address_of(d, address, space, inst);
  inst.run = d.handler(load ? Family::kLoad : Family::kStore, form);
  inst.mode = std::bit_cast<u8>(
      Element{.log_bytes = static_cast<u8>(std::countr_zero(type_bytes(form.type)) & 3),
              .is_signed = type_is_signed(form.type),
              .log_count = static_cast<u8>(std::countr_zero(form.vector) & 3),
              .address = static_cast<u8>(static_cast<u8>(form.address) & 7)});
  d.emit(inst, s);
}

int atomic_op(const Statement& s) {
  static const auto& kNames = *new const std::unordered_map<std::string_view, AtomicOp>{
      {"add", AtomicOp::kAdd},       {"min", AtomicOp::kMin}, {"max", AtomicOp::kMax},
      {"and", AtomicOp::kAnd},       {"or", AtomicOp::kOr},   {"xor", AtomicOp::kXor},
      {"exch", AtomicOp::kExchange}, {"cas", AtomicOp::kCas}, {"inc", AtomicOp::kInc},
      {"dec", AtomicOp::kDec}};
  for (const std::string_view mod : s.mods) {
    const auto found = kNames.find(mod);
    if (found != kNames.end()) return static_cast<int>(found->second);
  }
  return -1;
}

void atomic(Decoder& d, const Statement& s) {
  const bool result = s.op == "atom";
  const int op = atomic_op(s);
  if (op < 0) d.fail("unknown atomic operation");
  if (vector_of(d, s) != 1) d.fail("vector atomics are not supported");
  Form form;
  form.type = Decoder::last_type(s);
  form.mode = static_cast<u8>(op);
  const std::size_t first = result ? 1 : 0;
  Inst inst;
  inst.d = result ? d.destination(d.operand(s, 0)) : kSinkRow;
  form.address = address_of(d, d.operand(s, first), space_of(s), inst);
  if (form.address == AddressMode::kLocal || form.address == AddressMode::kLaneParam)
    d.fail("atomics need global or shared memory");
  inst.b = d.source(d.operand(s, first + 1), form.type);
  inst.c = static_cast<AtomicOp>(op) == AtomicOp::kCas
               ? d.source(d.operand(s, first + 2), form.type)
               : inst.b;
  inst.run = d.handler(Family::kAtomic, form);
  inst.mode = static_cast<u8>(form.address);
  d.emit(inst, s);
}

void cvta(Decoder& d, const Statement& s) {
  const Type type = Decoder::last_type(s);
  if (type_bytes(type) != 8) d.fail("only 64-bit addresses");
  const Operand& from = d.operand(s, 1);
  Form form;
  Inst inst;
  inst.d = d.destination(d.operand(s, 0));
  if (space_of(s) == Space::kShared) {
    form.op = Decoder::has(s, "to") ? Op::kGenericToShared : Op::kSharedToGeneric;
    inst.run = d.handler(Family::kWarp, form);
    inst.a = d.source(from, type);
    return d.emit(inst, s);
  }
  if (from.kind == Operand::Kind::kSymbol) {
    const Place place = d.place_of(from);
    if (place.space == Space::kLocal || place.space == Space::kParam) {
      form.op = place.space == Space::kLocal ? Op::kLocalAddress : Op::kParamAddress;
      inst.run = d.handler(Family::kWarp, form);
      inst.imm = static_cast<s64>(place.value);
      inst.mode = place.kernel_param ? 0 : 1;
      return d.emit(inst, s);
    }
  }
  form.op = Op::kMove;
  form.type = type;
  inst.run = d.handler(Family::kBits, form);
  inst.a = d.source(from, type);
  d.emit(inst, s);
}

void isspacep(Decoder& d, const Statement& s) {
  Form form;
  form.op = Op::kIsSpace;
  Inst inst;
  inst.run = d.handler(Family::kWarp, form);
  inst.mode = static_cast<u8>(space_of(s));
  inst.d = d.predicate_source(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), Type::kU64);
  d.emit(inst, s);
}

/// Hints about caches.
void hint(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = run_nothing;
  d.emit(inst, s);
}

}  // namespace

const OpcodeTable& memory_opcodes() {
  static const auto& kTable = *new const OpcodeTable{
      {"ld", load_store},  {"ldu", load_store}, {"st", load_store},      {"atom", atomic},
      {"red", atomic},     {"cvta", cvta},      {"isspacep", isspacep},  {"prefetch", hint},
      {"prefetchu", hint}, {"discard", hint},   {"applypriority", hint},
  };
  return kTable;
}

}  // namespace softgpu::ptx

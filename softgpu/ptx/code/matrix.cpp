// Opcodes of matrices: mma, ldmatrix and wmma.
#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/opcodes.h"
#include "softgpu/ptx/exec/async.h"

namespace softgpu::ptx {
namespace {

MatrixSite& site_made(Decoder& d, Inst& inst) {
  d.program().matrices.push_back(std::make_unique<MatrixSite>());
  MatrixSite& site = *d.program().matrices.back();
  inst.imm = reinterpret_cast<s64>(&site);
  return site;
}

/// The 32-bit registers of a vector operand; there must be `count` of them.
int fragment(Decoder& d, const Operand& o, bool written, s32* rows, std::size_t count) {
  const std::vector<Operand> parts =
      o.kind == Operand::Kind::kVector ? o.parts : std::vector<Operand>{o};
  if (parts.size() != count) d.fail("wrong number of registers");
  for (std::size_t k = 0; k < parts.size(); ++k) {
    rows[k] = written ? d.destination(parts[k]) : d.source(parts[k], Type::kU32);
  }
  return static_cast<int>(parts.size());
}

std::size_t registers_of(Type accumulator) { return accumulator == Type::kF32 ? 4 : 2; }

void mma(Decoder& d, const Statement& s) {
  std::vector<Type> types;
  for (const std::string_view mod : s.mods) {
    if (const Type type = type_of(mod); type != Type::kNone) types.push_back(type);
  }
  Form form;
  form.op = Op::kMma;
  form.type = types.at(1);
  const bool deep =
      Decoder::has(s, "m16n8k16") || (form.type == Type::kTf32 && Decoder::has(s, "m16n8k8"));
  Inst inst;
  inst.run = d.handler(Family::kMatrix, form);
  MatrixSite& site = site_made(d, inst);
  site.d_count = fragment(d, d.operand(s, 0), true, site.d, registers_of(types.front()));
  site.a_count = fragment(d, d.operand(s, 1), false, site.a, deep ? 4 : 2);
  site.b_count = fragment(d, d.operand(s, 2), false, site.b, deep ? 2 : 1);
  site.c_count = fragment(d, d.operand(s, 3), false, site.c, registers_of(types.back()));
  d.emit(inst, s);
}

void ldmatrix(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = run_matrix_load;
  inst.mode = Decoder::has(s, "trans") ? 1 : 0;
  MatrixSite& site = site_made(d, inst);
  const std::size_t count = Decoder::has(s, "x4") ? 4 : Decoder::has(s, "x2") ? 2 : 1;
  site.d_count = fragment(d, d.operand(s, 0), true, site.d, count);
  const SharedAddress at = shared_address(d, d.operand(s, 1), space_of(s) != Space::kShared);
  inst.a = at.row;
  inst.f = static_cast<s32>(at.offset);
  inst.flags = at.flags;
  d.emit(inst, s);
}

struct WmmaShape {
  int m, n;
  u8 index;
};
WmmaShape wmma_shape(const Statement& s) {
  if (Decoder::has(s, "m8n32k16")) return {8, 32, 1};
  return Decoder::has(s, "m32n8k16") ? WmmaShape{32, 8, 2} : WmmaShape{16, 16, 0};
}

constexpr int kWmmaDepth = 16;

/// Registers of a fragment of a or b: f16 has always eight (PTX ISA, section 9.7.14.4), bf16 as
/// many as its elements need.
std::size_t wmma_input_registers(Type type, int side) {
  return type == Type::kF16 ? 8 : static_cast<std::size_t>(side * kWmmaDepth / 64);
}
std::size_t wmma_sum_registers(Type type) { return type == Type::kF32 ? 8 : 4; }

/// load and store: imm is the site, whose c[0], c[1] and c[2] are rows and columns of the fragment
/// and bytes of an element; a the row of addresses, b that of strides, f the offset.
void wmma_memory(Decoder& d, const Statement& s) {
  const bool store = Decoder::has(s, "store");
  const WmmaShape shape = wmma_shape(s);
  const Type type = Decoder::last_type(s);
  const bool is_a = Decoder::has(s, "a"), is_b = Decoder::has(s, "b");
  Inst inst;
  inst.run = store ? run_fragment_store : run_fragment_load;
  MatrixSite& site = site_made(d, inst);
  const Operand& fragment_operand = d.operand(s, store ? 1 : 0);
  const std::size_t count = is_a || is_b ? wmma_input_registers(type, is_a ? shape.m : shape.n)
                                         : wmma_sum_registers(type);
  site.d_count = fragment(d, fragment_operand, !store, site.d, count);
  site.c[0] = is_b ? kWmmaDepth : shape.m;
  site.c[1] = is_a ? kWmmaDepth : shape.n;
  site.c[2] = static_cast<s32>(type_bytes(type));
  const Operand& address = d.operand(s, store ? 0 : 1);
  if (address.kind != Operand::Kind::kAddress) d.fail("expected an address");
  if (space_of(s) == Space::kShared) {
    const SharedAddress at = shared_address(d, address, false);
    inst.a = at.row;
    inst.f = static_cast<s32>(at.offset);
    inst.flags = static_cast<u8>(at.flags | kFragmentShared);
  } else {
    if (address.reg < 0) d.fail("expected an address in a register");
    inst.a = d.source(register_of(address), Type::kU64);
    inst.f = static_cast<s32>(address.offset);
    inst.flags = kCopyWide;
  }
  const bool by_columns = Decoder::has(s, "col");
  inst.mode = by_columns ? 1 : 0;
  inst.b = s.operands.size() > 2
               ? d.source(d.operand(s, 2), Type::kU32)
               : d.constant_row(static_cast<u64>(by_columns ? site.c[0] : site.c[1]), 4);
  d.emit(inst, s);
}

void wmma_multiply(Decoder& d, const Statement& s) {
  std::vector<Type> types;
  for (const std::string_view mod : s.mods) {
    if (const Type type = type_of(mod); type != Type::kNone) types.push_back(type);
  }
  const WmmaShape shape = wmma_shape(s);
  Form form;
  form.op = Op::kWmma;
  form.type = types.size() == 4 ? types[1] : Type::kF16;
  Inst inst;
  inst.run = d.handler(Family::kMatrix, form);
  inst.mode = shape.index;
  MatrixSite& site = site_made(d, inst);
  site.d_count = fragment(d, d.operand(s, 0), true, site.d, wmma_sum_registers(types.front()));
  site.a_count =
      fragment(d, d.operand(s, 1), false, site.a, wmma_input_registers(form.type, shape.m));
  site.b_count =
      fragment(d, d.operand(s, 2), false, site.b, wmma_input_registers(form.type, shape.n));
  site.c_count = fragment(d, d.operand(s, 3), false, site.c, wmma_sum_registers(types.back()));
  d.emit(inst, s);
}

void wmma(Decoder& d, const Statement& s) {
  if (Decoder::has(s, "mma")) return wmma_multiply(d, s);
  wmma_memory(d, s);
}

}  // namespace

const OpcodeTable& matrix_opcodes() {
  static const auto& kTable =
      *new const OpcodeTable{{"mma", mma}, {"ldmatrix", ldmatrix}, {"wmma", wmma}};
  return kTable;
}

}  // namespace softgpu::ptx

// Opcodes of matrices: mma, ldmatrix and wmma.
#include <algorithm>

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

/// Registers of a vector operand, each for values of `type`; there must be `count` of them.
int fragment(Decoder& d, const Operand& o, bool written, s32* rows, Type type, int count) {
  const std::vector<Operand> parts =
      o.kind == Operand::Kind::kVector ? o.parts : std::vector<Operand>{o};
  if (parts.size() != static_cast<std::size_t>(count)) d.fail("wrong number of registers");
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (d.box_of(parts[k], type) != type_box(type)) d.fail("register has the wrong width");
    rows[k] = written ? d.destination(parts[k]) : d.source(parts[k], type);
  }
  return count;
}

/// "m16n8k32".
void shape_read(const Statement& s, MatrixSite& site) {
  for (const std::string_view mod : s.mods) {
    int sides[3] = {}, side = -1;
    for (const char c : mod) {
      if (side < 2 && c == "mnk"[side + 1]) {
        ++side;
      } else if (side >= 0 && c >= '0' && c <= '9') {
        sides[side] = 10 * sides[side] + (c - '0');
      } else {
        side = -2;
        break;
      }
    }
    if (side != 2) continue;
    site.m = sides[0];
    site.n = sides[1];
    site.k = sides[2];
  }
}

/// A lane's registers for its part of a matrix. Elements of less than four bytes share a register.
int registers_of(int rows, int columns, Type type) {
  const int bytes = static_cast<int>(type_bytes(type));
  return rows * columns * bytes / (32 * std::max(bytes, 4));
}

/// What a register of a fragment of these elements is read as.
Type register_type(Type element) { return type_bytes(element) == 8 ? element : Type::kU32; }

/// What mma and wmma.mma have in common; the types are those of d, a, b and c.
void multiply(Decoder& d, const Statement& s, Op op, const std::vector<Type>& types,
              int (*input_registers)(int rows, int columns, Type type)) {
  Form form;
  form.op = op;
  form.type = types.at(1);
  Inst inst;
  inst.run = d.handler(Family::kMatrix, form);
  inst.mode = static_cast<u8>((type_is_signed(types.at(1)) ? kMatrixSignedA : 0) |
                              (type_is_signed(types.at(2)) ? kMatrixSignedB : 0) |
                              (Decoder::has(s, "satfinite") ? kMatrixClamped : 0));
  MatrixSite& site = site_made(d, inst);
  shape_read(s, site);
  const auto part = [&](std::size_t operand, s32* rows, Type type, int count) {
    return fragment(d, d.operand(s, operand), operand == 0, rows, register_type(type), count);
  };
  site.d_count = part(0, site.d, types[0], registers_of(site.m, site.n, types[0]));
  site.a_count = part(1, site.a, types[1], input_registers(site.m, site.k, types[1]));
  site.b_count = part(2, site.b, types[2], input_registers(site.n, site.k, types[2]));
  site.c_count = part(3, site.c, types.back(), registers_of(site.m, site.n, types.back()));
  d.emit(inst, s);
}

void mma(Decoder& d, const Statement& s) {
  multiply(d, s, Op::kMma, Decoder::types(s), registers_of);
}

void ldmatrix(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = run_matrix_load;
  inst.mode = Decoder::has(s, "trans") ? 1 : 0;
  MatrixSite& site = site_made(d, inst);
  const int count = Decoder::has(s, "x4") ? 4 : Decoder::has(s, "x2") ? 2 : 1;
  site.d_count = fragment(d, d.operand(s, 0), true, site.d, Type::kU32, count);
  const SharedAddress at = shared_address(d, d.operand(s, 1), space_of(s) != Space::kShared);
  inst.a = at.row;
  inst.f = static_cast<s32>(at.offset);
  inst.flags = at.flags;
  d.emit(inst, s);
}

/// Registers of a fragment of a or b: f16 has always eight (PTX ISA, section 9.7.14.4), other types
/// have as many as their elements need.
int wmma_input_registers(int rows, int columns, Type type) {
  return type == Type::kF16 ? 8 : registers_of(rows, columns, type);
}

/// load and store: imm is the site, whose c[0], c[1] and c[2] are rows and columns of the fragment
/// and bytes of an element; a the row of addresses, b that of strides, f the offset.
void wmma_memory(Decoder& d, const Statement& s) {
  const bool store = Decoder::has(s, "store");
  const Type type = Decoder::last_type(s);
  const bool is_a = Decoder::has(s, "a"), is_b = Decoder::has(s, "b");
  Inst inst;
  inst.run = store ? run_fragment_store : run_fragment_load;
  MatrixSite& site = site_made(d, inst);
  shape_read(s, site);
  site.c[0] = is_b ? site.k : site.m;
  site.c[1] = is_a ? site.k : site.n;
  site.c[2] = static_cast<s32>(type_bytes(type));
  const int count = is_a || is_b ? wmma_input_registers(site.c[0], site.c[1], type)
                                 : registers_of(site.c[0], site.c[1], type);
  site.d_count =
      fragment(d, d.operand(s, store ? 1 : 0), !store, site.d, register_type(type), count);
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
  std::vector<Type> types = Decoder::types(s);
  // Of f16 only d and c are named.
  if (types.size() == 2) types = {types.front(), Type::kF16, Type::kF16, types.back()};
  multiply(d, s, Op::kWmma, types, wmma_input_registers);
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

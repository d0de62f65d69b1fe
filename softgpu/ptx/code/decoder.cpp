// The decoder's frame: register use, copy propagation, row allocation, labels. See decoder.h.
#include "softgpu/ptx/code/decoder.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "softgpu/ptx/code/forms.h"
#include "softgpu/ptx/exec/control.h"

namespace softgpu::ptx {
namespace {

constexpr s32 kNoRow = INT32_MIN;

/// Special registers that change from block to block of one launch.
bool changes_per_block(Special what) {
  switch (what) {
    case Special::kCtaidX:
    case Special::kCtaidY:
    case Special::kCtaidZ:
    case Special::kSmId:
    case Special::kEnvReg1:
    case Special::kEnvReg2:
      return true;
    default:
      return false;
  }
}

}  // namespace

namespace {

u8 access_of(const Statement& s) {
  const bool loads = s.op == "ld" || s.op == "ldu" || s.op == "ldmatrix" || s.op == "suld" ||
                     (s.op == "wmma" && Decoder::has(s, "load"));
  const bool stores = s.op == "st" || s.op == "atom" || s.op == "red" || s.op == "sust" ||
                      (s.op == "wmma" && Decoder::has(s, "store")) ||
                      (s.op == "cp" && (Decoder::has(s, "ca") || Decoder::has(s, "cg")));
  if ((!loads && !stores) || Decoder::has(s, "nc")) return kAccessNone;
  const Space space = space_of(s);
  const bool shared_with_others =
      space == Space::kGlobal || space == Space::kShared || space == Space::kGeneric;
  if (!shared_with_others) return kAccessNone;
  return loads ? kAccessReads : kAccessWrites;
}

}  // namespace

bool defines_nothing(const Statement& s) {
  static constexpr std::string_view kOps[] = {
      "st",    "red",      "bra", "brx",  "call", "bar",       "barrier",   "membar",
      "fence", "prefetch", "ret", "exit", "trap", "nanosleep", "prefetchu", "sust"};
  for (const std::string_view op : kOps) {
    // bar.red gives a result, the other barriers do not.
    if (s.op == op) return !((op == "bar" || op == "barrier") && Decoder::has(s, "red"));
  }
  return false;
}

Decoder::Decoder(const Module& module, Program& program, const Layout& layout,
                 const FunctionText& function, Code& code, const HandlerSet& handlers)
    : module_(module),
      program_(program),
      layout_(layout),
      function_(function),
      places_(layout.places.at(&function)),
      code_(code),
      handlers_(handlers) {
  uses_.resize(function.registers.size());
  rows_.assign(function.registers.size(), kNoRow);
  is_alias_.assign(function.registers.size(), false);
  folded_.assign(function.statements.size(), false);
  counted_.assign(function.statements.size(), false);
}

void Decoder::fail(const std::string& what) const {
  std::string text = std::string(function_.name);
  if (current_ != nullptr) {
    text += " line " + std::to_string(current_->line) + ": " + std::string(current_->text);
  }
  throw DecodeError(text + ": " + what);
}

bool Decoder::has(const Statement& s, std::string_view mod) {
  return std::find(s.mods.begin(), s.mods.end(), mod) != s.mods.end();
}

std::vector<Type> Decoder::types(const Statement& s) {
  std::vector<Type> types;
  for (const std::string_view mod : s.mods) {
    if (const Type type = type_of(mod); type != Type::kNone) types.push_back(type);
  }
  return types;
}

Type Decoder::last_type(const Statement& s) {
  for (std::size_t k = s.mods.size(); k-- > 0;) {
    if (const Type type = type_of(s.mods[k]); type != Type::kNone) return type;
  }
  return Type::kNone;
}

const Operand& Decoder::operand(const Statement& s, std::size_t index) const {
  if (index >= s.operands.size()) fail("operand " + std::to_string(index + 1) + " is missing");
  return s.operands[index];
}

u8 Decoder::box_of(const Operand& o, Type type) const {
  if (o.kind == Operand::Kind::kRegister) return static_cast<u8>(type_box(register_type(o.reg)));
  return static_cast<u8>(type_box(type));
}

s32 Decoder::allocate(u8 box) {
  const s32 row = next_row_;
  next_row_ += 32 * box;
  return row;
}

s32 Decoder::allocate_constant(u32 bytes) {
  constant_bytes_ += static_cast<s32>((bytes + 63) / 64 * 64);
  return -constant_bytes_;
}

s32 Decoder::constant_row(u64 bits, u8 box) {
  const auto [found, is_new] = constants_.emplace(std::make_pair(bits, box), 0);
  if (is_new) {
    found->second = allocate_constant(32u * box);
    constant_values_.push_back({found->second, {bits, box}});
  }
  return found->second;
}

int Decoder::special_of(std::string_view name) {
  static const auto& kNames = *new const std::unordered_map<std::string_view, Special>{
      {"%tid.x", Special::kTidX},
      {"%tid.y", Special::kTidY},
      {"%tid.z", Special::kTidZ},
      {"%ntid.x", Special::kNtidX},
      {"%ntid.y", Special::kNtidY},
      {"%ntid.z", Special::kNtidZ},
      {"%ctaid.x", Special::kCtaidX},
      {"%ctaid.y", Special::kCtaidY},
      {"%ctaid.z", Special::kCtaidZ},
      {"%nctaid.x", Special::kNctaidX},
      {"%nctaid.y", Special::kNctaidY},
      {"%nctaid.z", Special::kNctaidZ},
      {"%laneid", Special::kLaneId},
      {"%warpid", Special::kWarpId},
      {"%nwarpid", Special::kNwarpId},
      {"%lanemask_eq", Special::kLaneMaskEq},
      {"%lanemask_lt", Special::kLaneMaskLt},
      {"%lanemask_le", Special::kLaneMaskLe},
      {"%lanemask_gt", Special::kLaneMaskGt},
      {"%lanemask_ge", Special::kLaneMaskGe},
      {"%smid", Special::kSmId},
      {"%nsmid", Special::kNsmId},
      {"%dynamic_smem_size", Special::kDynamicShared},
      {"%total_smem_size", Special::kTotalShared},
      {"%envreg1", Special::kEnvReg1},
      {"%envreg2", Special::kEnvReg2},
      {"%gridid", Special::kGridId},
      {"%aggr_smem_size", Special::kTotalShared},
  };
  const auto found = kNames.find(name);
  return found == kNames.end() ? -1 : static_cast<int>(found->second);
}

s32 Decoder::special_row(int special) {
  const auto [found, is_new] = specials_.emplace(special, 0);
  if (is_new) {
    found->second = allocate_constant(128);
    const Special what = static_cast<Special>(special);
    code_.specials.push_back({what, found->second});
    if (changes_per_block(what)) code_.block_specials.push_back(code_.specials.back());
  }
  return found->second;
}

s32 Decoder::param_row(const Place& place, Type type, u8 box) {
  const u32 kind = static_cast<u32>(type) << 8 | box;
  const auto [found, is_new] = params_.emplace(std::make_pair(place.value, kind), 0);
  if (is_new) {
    found->second = allocate_constant(32u * box);
    code_.params.push_back({static_cast<u32>(place.value), found->second,
                            static_cast<u8>(type_bytes(type)), box, type_is_signed(type)});
  }
  return found->second;
}

Place Decoder::place_of(const Operand& o) const {
  Place place;
  if (o.variable >= 0) {
    const VariableText& v = function_.variables[index_of(o.variable)];
    place.space = v.space;
    place.value = places_.offsets[index_of(o.variable)] + static_cast<u64>(o.offset);
    place.kernel_param =
        function_.entry && std::find(function_.parameters.begin(), function_.parameters.end(),
                                     o.variable) != function_.parameters.end();
    return place;
  }
  if (const auto shared = layout_.shared.find(o.name); shared != layout_.shared.end()) {
    place.space = Space::kShared;
    place.value = shared->second + static_cast<u64>(o.offset);
    return place;
  }
  if (const auto global = module_.addresses.find(o.name); global != module_.addresses.end()) {
    place.space = Space::kGlobal;
    place.value = global->second + static_cast<u64>(o.offset);
    return place;
  }
  const auto function = module_.functions.find(o.name);
  if (function == module_.functions.end()) fail("unknown name '" + std::string(o.name) + "'");
  place.space = Space::kGlobal;
  place.function = true;
  place.value = reinterpret_cast<u64>(function->second);
  return place;
}

s32 Decoder::register_row(int reg) const {
  const s32 row = rows_[index_of(reg)];
  assert(row != kNoRow);
  return row;
}

const Decoder::Indexed* Decoder::indexed(int reg) const {
  const auto found = indexed_.find(reg);
  return found == indexed_.end() ? nullptr : &found->second;
}

s32 Decoder::source_boxed(const Operand& o, Type type, u8 box) {
  switch (o.kind) {
    case Operand::Kind::kRegister:
      return register_row(o.reg);
    case Operand::Kind::kImmediate:
      break;
    case Operand::Kind::kSpecial: {
      if (o.name == "%reserved_smem_offset_0" || o.name == "%reserved_smem_offset_1") {
        // The first sixteen bytes belong to slot 0, the rest to slot 1.
        return constant_row(layout_.reserved_offset + (o.name.back() == '1' ? 16u : 0u), box);
      }
      const int special = special_of(o.name);
      if (special < 0) fail("special register " + std::string(o.name) + " is not supported");
      if (box != 4) fail("special register " + std::string(o.name) + " has 32 bits");
      return special_row(special);
    }
    case Operand::Kind::kSymbol: {
      const Place place = place_of(o);
      if (place.space == Space::kLocal || place.kernel_param) fail("address is not constant");
      return constant_row(box == 4 ? static_cast<u32>(place.value) : place.value, box);
    }
    default:
      fail("operand has no value");
  }
  u64 bits = o.bits;
  if (o.real_bytes == 8 && box == 4)
    bits = std::bit_cast<u32>(static_cast<float>(std::bit_cast<double>(bits)));
  if (o.real_bytes == 4 && box == 8)
    bits = std::bit_cast<u64>(static_cast<double>(std::bit_cast<float>(static_cast<u32>(bits))));
  if (o.real_bytes == 0 && type == Type::kF32)
    bits = std::bit_cast<u32>(static_cast<float>(static_cast<s64>(bits)));
  if (o.real_bytes == 0 && type == Type::kF64)
    bits = std::bit_cast<u64>(static_cast<double>(static_cast<s64>(bits)));
  return constant_row(box == 4 ? static_cast<u32>(bits) : bits, box);
}

s32 Decoder::source(const Operand& o, Type type) {
  const u8 box = static_cast<u8>(type_box(type));
  if (o.kind == Operand::Kind::kRegister && box_of(o, type) != box) {
    fail("register " + std::string(o.name) + " has the wrong width");
  }
  return source_boxed(o, type, box);
}

s32 Decoder::predicate_source(const Operand& o) {
  if (o.kind == Operand::Kind::kImmediate) {
    return constant_row(o.bits != 0 ? 0xffffffffu : 0, 4);
  }
  if (o.kind != Operand::Kind::kRegister || register_type(o.reg) != Type::kPred)
    fail("expected a predicate");
  return register_row(o.reg);
}

s32 Decoder::destination(const Operand& o) {
  if (o.kind == Operand::Kind::kSink) return kSinkRow;
  if (o.kind != Operand::Kind::kRegister) fail("expected a register to write");
  if (is_alias_[index_of(o.reg)]) fail("register is written twice");
  return register_row(o.reg);
}

Handler Decoder::handler(Family family, const Form& form) const {
  const Handler found = handlers_.find(family, form);
  if (found == nullptr) fail("not supported");
  return found;
}

/// What was folded into this instruction, or one soon behind it, counts with it: flow may be
/// interrupted between any two instructions, and each knows how many ran before it.
void Decoder::number(Inst& inst) {
  inst.serial = serial_;
  serial_ += 1 + unnumbered_;
  unnumbered_ = 0;
}

void Decoder::carry(const Statement& s) {
  Inst inst;
  inst.run = run_nothing;
  inst.line = s.line;
  --unnumbered_;
  number(inst);
  code_.insts.push_back(inst);
}

void Decoder::emit(Inst inst, const Statement& s) {
  inst.access = access_of(s) & 0xf;
  if (s.guard >= 0) {
    inst.inner = inst.run;
    inst.run = run_guarded;
    inst.guard = register_row(s.guard);
    inst.guard_negated = s.guard_negated ? 1 : 0;
  }
  number(inst);
  inst.line = s.line;
  code_.insts.push_back(inst);
}

void Decoder::emit_unguarded(Inst inst, const Statement& s, bool keep_guard) {
  if (keep_guard && s.guard >= 0) {
    inst.guard = register_row(s.guard);
    inst.guard_negated = s.guard_negated ? 1 : 0;
  }
  number(inst);
  inst.line = s.line;
  code_.insts.push_back(inst);
}

void Decoder::branch_to(std::string_view label, const Statement& s) {
  fixups_.push_back({code_.insts.size() - 1, label, s.scope});
}

JumpTable* Decoder::jump_table(const Operand& o, const Statement&) {
  for (const Statement& s : function_.statements) {
    if (s.kind != Statement::Kind::kTargets || s.text != o.name) continue;
    program_.tables.push_back(std::make_unique<JumpTable>());
    table_fixups_.push_back({program_.tables.back().get(), &s});
    return program_.tables.back().get();
  }
  fail("unknown branch target list '" + std::string(o.name) + "'");
}

void Decoder::mention(int reg, bool defines, bool conditional, int at, int block) {
  if (reg < 0) return;
  Use& use = uses_[index_of(reg)];
  if (use.first < 0) {
    use.first = at;
    use.block = block;
    use.defined_first = defines && !conditional;
  } else if (use.block != block) {
    use.many_blocks = true;
  }
  use.last = at;
  if (defines) ++use.definitions;
}

void Decoder::mention_operand(const Operand& o, bool defines, bool conditional, int at, int block) {
  for (const Operand& part : o.parts) mention_operand(part, defines, conditional, at, block);
  const bool writes = defines && o.kind != Operand::Kind::kAddress;
  mention(o.reg, writes, conditional, at, block);
  mention(o.second, writes, conditional, at, block);
}

void Decoder::collect_uses() {
  int block = 0;
  for (std::size_t n = 0; n < function_.statements.size(); ++n) {
    const Statement& s = function_.statements[n];
    const int at = static_cast<int>(n);
    if (s.kind == Statement::Kind::kLabel) ++block;
    if (s.kind != Statement::Kind::kInstruction) continue;
    const bool conditional = s.guard >= 0;
    mention(s.guard, false, false, at, block);
    const bool none = defines_nothing(s);
    // Sources first: "add r, r, 1" reads before it writes.
    for (std::size_t k = s.operands.size(); k-- > 0;) {
      mention_operand(s.operands[k], k == 0 && !none, conditional, at, block);
    }
    if (s.op == "bra" || s.op == "brx") ++block;
  }
}

bool Decoder::propagate_move(const Operand& d, const Operand& from, Type type) {
  const u8 box = static_cast<u8>(type_box(type));
  if (type == Type::kPred || box_of(d, type) != box) return false;
  switch (from.kind) {
    case Operand::Kind::kImmediate:
      break;
    case Operand::Kind::kSpecial:
      if (special_of(from.name) < 0 || box != 4) return false;
      break;
    case Operand::Kind::kSymbol: {
      const Place place = place_of(from);
      if (place.space == Space::kLocal || place.space == Space::kParam) return false;
      break;
    }
    case Operand::Kind::kRegister:
      if (!is_alias_[index_of(from.reg)] || box_of(from, type) != box) return false;
      break;
    default:
      return false;
  }
  rows_[index_of(d.reg)] = source_boxed(from, type, box);
  return true;
}

/// A register that is written once, with something known before the kernel starts, is that thing's
/// row.
bool Decoder::propagate(const Statement& s) {
  if (s.kind != Statement::Kind::kInstruction || s.guard >= 0 || s.operands.size() != 2)
    return false;
  const Operand &d = s.operands[0], &from = s.operands[1];
  if (d.kind != Operand::Kind::kRegister || d.second >= 0) return false;
  if (uses_[index_of(d.reg)].definitions != 1) return false;
  const Type type = last_type(s);
  if (s.op == "mov") return propagate_move(d, from, type);
  if (s.op == "cvta" && has(s, "global") && from.kind == Operand::Kind::kRegister) {
    return propagate_move(d, from, type);
  }
  if (s.op != "ld" || !function_.entry || from.kind != Operand::Kind::kAddress || from.variable < 0)
    return false;
  if (has(s, "v2") || has(s, "v4") || type == Type::kB128) return false;
  const Place place = place_of(from);
  if (!place.kernel_param) return false;
  rows_[index_of(d.reg)] = param_row(place, type, box_of(d, type));
  return true;
}

void Decoder::propagate_copies() {
  for (std::size_t n = 0; n < function_.statements.size(); ++n) {
    const Statement& s = function_.statements[n];
    current_ = &s;
    if (!propagate(s)) continue;
    folded_[n] = true;
    is_alias_[index_of(s.operands[0].reg)] = true;
  }
  current_ = nullptr;
}

/// Temporaries of one block share rows; everything else has its own. Few rows keep the register
/// file in the first cache.
void Decoder::allocate_rows() {
  std::vector<std::vector<int>> starts(function_.statements.size()),
      ends(function_.statements.size());
  for (std::size_t r = 0; r < uses_.size(); ++r) {
    if (uses_[r].first < 0 || is_alias_[r] || function_.registers[r].type != Type::kPred) continue;
    rows_[r] = next_row_;
    next_row_ += 4;
  }
  next_row_ = (next_row_ + 63) / 64 * 64;
  for (std::size_t r = 0; r < uses_.size(); ++r) {
    const Use& use = uses_[r];
    if (use.first < 0 || is_alias_[r] || rows_[r] != kNoRow) continue;
    if (use.many_blocks || !use.defined_first) {
      rows_[r] = allocate(static_cast<u8>(type_box(function_.registers[r].type)));
    } else {
      starts[index_of(use.first)].push_back(static_cast<int>(r));
      ends[index_of(use.last)].push_back(static_cast<int>(r));
    }
  }
  std::vector<s32> free[2];
  for (std::size_t n = 0; n < starts.size(); ++n) {
    for (const int r : starts[n]) {
      const u8 box = static_cast<u8>(type_box(register_type(r)));
      std::vector<s32>& pool = free[box == 8];
      if (pool.empty()) {
        rows_[index_of(r)] = allocate(box);
      } else {
        rows_[index_of(r)] = pool.back();
        pool.pop_back();
      }
    }
    for (const int r : ends[n]) free[type_box(register_type(r)) == 8].push_back(rows_[index_of(r)]);
  }
}

void Decoder::decode(const Statement& s) {
  for (const OpcodeTable* table :
       {&arithmetic_opcodes(), &memory_opcodes(), &flow_opcodes(), &matrix_opcodes(),
        &rare_opcodes(), &async_opcodes(), &image_opcodes()}) {
    const auto found = table->find(s.op);
    if (found == table->end()) continue;
    const bool has_coordinates = std::any_of(
        s.operands.begin(), s.operands.end(),
        [](const Operand& o) { return o.kind == Operand::Kind::kAddress && !o.parts.empty(); });
    if ((has_coordinates && table != &image_opcodes()) || !form_listed(s.op, s.mods))
      fail("this form of the instruction is not supported");
    return found->second(*this, s);
  }
  fail("unknown instruction");
}

u32 Decoder::label_pc(std::string_view label, int scope) const {
  for (int k = scope; k >= 0; k = function_.scope_parents[index_of(k)]) {
    const auto found = labels_.find({label, k});
    if (found != labels_.end()) return found->second;
  }
  throw DecodeError(std::string(function_.name) + ": unknown label '" + std::string(label) + "'");
}

void Decoder::resolve_labels() {
  for (const Fixup& fixup : fixups_)
    code_.insts[fixup.inst].imm = label_pc(fixup.label, fixup.scope);
  for (const TableFixup& fixup : table_fixups_) {
    for (const std::string_view name : fixup.targets->names) {
      fixup.table->targets.push_back(label_pc(name, fixup.targets->scope));
    }
  }
}

void Decoder::run() {
  collect_uses();
  propagate_copies();
  fold_addresses();
  allocate_rows();
  for (std::size_t n = 0; n < function_.statements.size(); ++n) {
    const Statement& s = function_.statements[n];
    current_ = &s;
    if (s.kind == Statement::Kind::kLabel) {
      // What jumps to the label has nothing to do with what was folded in front of it.
      if (unnumbered_ > 0) carry(s);
      labels_[{s.text, s.scope}] = static_cast<u32>(code_.insts.size());
      Inst label;
      label.run = run_label;
      label.serial = serial_;
      label.line = s.line;
      code_.insts.push_back(label);
    } else if (counted_[n]) {
      ++unnumbered_;
    } else if (s.kind == Statement::Kind::kInstruction && !folded_[n]) {
      decode(s);
    }
  }
  current_ = nullptr;
  // Falling off the end returns. The second one is what "the next instruction" of the first is.
  for (int k = 0; k < 2; ++k) {
    Inst end;
    end.run = run_return;
    end.serial = serial_;
    code_.insts.push_back(end);
  }
  resolve_labels();
  code_.rows_bytes = static_cast<u32>((next_row_ + 63) / 64 * 64);
  code_.image.assign(index_of(constant_bytes_), 0);
  for (const auto& [row, value] : constant_values_) {
    for (std::size_t l = 0; l < 32; ++l) {
      std::memcpy(code_.image.data() + constant_bytes_ + row + l * value.second, &value.first,
                  value.second);
    }
  }
}

}  // namespace softgpu::ptx

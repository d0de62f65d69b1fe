// Opcodes of control flow and of the warp: branches, calls, barriers, shuffles, votes, clocks.
#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/exec/control.h"

namespace softgpu::ptx {
namespace {

void bra(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = s.guard >= 0 ? run_branch_if : run_branch;
  d.emit_unguarded(inst, s, true);
  d.branch_to(d.operand(s, 0).name, s);
}

void brx(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = run_branch_table;
  inst.a = d.source(d.operand(s, 0), Type::kU32);
  inst.imm = reinterpret_cast<s64>(d.jump_table(d.operand(s, 1), s));
  d.emit(inst, s);
}

void ret(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = s.op == "ret" ? run_return : run_exit;
  inst.flags = s.guard >= 0 ? 1 : 0;
  d.emit_unguarded(inst, s, true);
}

template <Handler Run>
void bare(Decoder& d, const Statement& s) {
  Inst inst;
  inst.run = Run;
  d.emit(inst, s);
}

Builtin builtin_of(std::string_view name) {
  if (name == "vprintf") return Builtin::kVprintf;
  if (name == "malloc") return Builtin::kMalloc;
  if (name == "free") return Builtin::kFree;
  return name == "__assertfail" ? Builtin::kAssertFail : Builtin::kNone;
}

std::vector<CallArgument> call_arguments(const Decoder& d, const std::vector<int>& variables) {
  std::vector<CallArgument> list;
  for (const int k : variables) {
    const std::size_t at = static_cast<std::size_t>(k);
    list.push_back({static_cast<u32>(d.places().offsets[at]),
                    static_cast<u32>(d.function().variables[at].bytes)});
  }
  return list;
}

void call(Decoder& d, const Statement& s) {
  const Operand& callee = d.operand(s, 0);
  auto site = std::make_unique<CallSite>();
  site->callee = callee.name;
  site->arguments = call_arguments(d, s.arguments);
  site->returns = call_arguments(d, s.returns);
  if (callee.kind == Operand::Kind::kRegister) {
    site->target_row = d.source(callee, Type::kU64);
  } else {
    const auto function = d.module().functions.find(callee.name);
    const bool has_body = function != d.module().functions.end() && function->second->has_body;
    if (has_body) {
      site->target = d.program().codes.at(function->second).get();
    } else if (site->builtin = builtin_of(callee.name); site->builtin == Builtin::kNone) {
      d.fail("function '" + std::string(callee.name) + "' is not defined in this module");
    }
  }
  Inst inst;
  inst.run = run_call;
  inst.imm = reinterpret_cast<s64>(site.get());
  d.program().calls.push_back(std::move(site));
  d.emit(inst, s);
}

u8 reduction_of(Decoder& d, const Statement& s) {
  if (!Decoder::has(s, "red")) return 0;
  if (Decoder::has(s, "and")) return static_cast<u8>(Reduction::kAnd);
  if (Decoder::has(s, "or")) return static_cast<u8>(Reduction::kOr);
  if (Decoder::has(s, "popc")) return static_cast<u8>(Reduction::kPopc);
  d.fail("unknown reduction");
}

void barrier(Decoder& d, const Statement& s) {
  Inst inst;
  if (Decoder::has(s, "cluster")) d.fail("clusters are not supported");
  if (Decoder::has(s, "warp")) {
    inst.run = run_warp_barrier;
    inst.a = d.source(d.operand(s, 0), Type::kU32);
    return d.emit(inst, s);
  }
  inst.run = run_barrier;
  inst.mode = reduction_of(d, s);
  if (Decoder::has(s, "arrive")) inst.flags |= kBarrierArrive;
  std::size_t next = 0;
  if (inst.mode != 0) {
    const Operand& to = d.operand(s, next++);
    inst.d =
        inst.mode == static_cast<u8>(Reduction::kPopc) ? d.destination(to) : d.predicate_source(to);
  }
  // With a reduction the predicate is last; the thread count before it is optional.
  std::size_t rest = s.operands.size() - next;
  if (inst.mode != 0) {
    const Operand& p = d.operand(s, s.operands.size() - 1);
    inst.c = d.predicate_source(p);
    if (p.negated) inst.flags |= kBarrierNegate;
    --rest;
  }
  if (rest > 0) {
    const Operand& id = d.operand(s, next++);
    if (id.kind == Operand::Kind::kImmediate) {
      inst.imm = static_cast<s64>(id.bits);
    } else {
      inst.a = d.source(id, Type::kU32);
      inst.flags |= kBarrierIdRow;
    }
  }
  if (rest > 1) {
    inst.b = d.source(d.operand(s, next), Type::kU32);
    inst.flags |= kBarrierCount;
  }
  d.emit(inst, s);
}

u8 mode_of(Decoder& d, const Statement& s, std::initializer_list<std::string_view> names) {
  u8 mode = 0;
  for (const std::string_view name : names) {
    if (Decoder::has(s, name)) return mode;
    ++mode;
  }
  d.fail("unknown mode");
}

/// Row of the member mask; forms without .sync have none and mean every active lane.
s32 members_row(Decoder& d, const Statement& s, std::size_t index, Inst& inst) {
  if (!Decoder::has(s, "sync")) return d.constant_row(kAllLanes, 4);
  inst.flags |= kGather;
  return d.source(d.operand(s, index), Type::kU32);
}

void shfl(Decoder& d, const Statement& s) {
  Form form;
  form.op = Op::kShuffle;
  form.mode = mode_of(d, s, {"up", "down", "bfly", "idx"});
  const Operand& to = d.operand(s, 0);
  Inst inst;
  inst.run = d.handler(Family::kWarp, form);
  inst.d = d.destination(to);
  if (to.second >= 0) {
    inst.f = d.register_row(to.second);
    inst.flags = 1;
  }
  inst.a = d.source(d.operand(s, 1), Type::kU32);
  inst.b = d.source(d.operand(s, 2), Type::kU32);
  inst.c = d.source(d.operand(s, 3), Type::kU32);
  inst.e = members_row(d, s, 4, inst);
  d.emit(inst, s);
}

void vote(Decoder& d, const Statement& s) {
  Form form;
  form.op = Op::kVote;
  form.mode = mode_of(d, s, {"all", "any", "uni", "ballot"});
  Inst inst;
  inst.run = d.handler(Family::kWarp, form);
  inst.d = form.mode == 3 ? d.destination(d.operand(s, 0)) : d.predicate_source(d.operand(s, 0));
  inst.a = d.predicate_source(d.operand(s, 1));
  inst.flags = s.operands[1].negated ? 4 : 0;
  inst.b = members_row(d, s, 2, inst);
  d.emit(inst, s);
}

void match(Decoder& d, const Statement& s) {
  Form form;
  form.op = Decoder::has(s, "all") ? Op::kMatchAll : Op::kMatchAny;
  form.type = Decoder::last_type(s);
  const Operand& to = d.operand(s, 0);
  Inst inst;
  inst.run = d.handler(Family::kWarp, form);
  inst.d = d.destination(to);
  if (to.second >= 0) {
    inst.f = d.register_row(to.second);
    inst.flags = 1;
  }
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = members_row(d, s, 2, inst);
  d.emit(inst, s);
}

void redux(Decoder& d, const Statement& s) {
  Form form;
  form.op = Op::kRedux;
  form.type = Decoder::last_type(s);
  if (type_bytes(form.type) != 4 || type_is_real(form.type)) d.fail("only 32-bit integers");
  form.mode = mode_of(d, s, {"add", "min", "max", "and", "or", "xor"});
  Inst inst;
  inst.run = d.handler(Family::kWarp, form);
  inst.d = d.destination(d.operand(s, 0));
  inst.a = d.source(d.operand(s, 1), form.type);
  inst.b = members_row(d, s, 2, inst);
  d.emit(inst, s);
}

void activemask(Decoder& d, const Statement& s) {
  Form form;
  form.op = Op::kActiveMask;
  Inst inst;
  inst.run = d.handler(Family::kWarp, form);
  inst.d = d.destination(d.operand(s, 0));
  d.emit(inst, s);
}

}  // namespace

const OpcodeTable& flow_opcodes() {
  static const auto& kTable = *new const OpcodeTable{
      {"bra", bra},
      {"brx", brx},
      {"ret", ret},
      {"exit", ret},
      {"call", call},
      {"trap", bare<run_trap>},
      {"brkpt", bare<run_trap>},
      {"bar", barrier},
      {"barrier", barrier},
      {"membar", bare<run_fence>},
      {"fence", bare<run_fence>},
      {"nanosleep", bare<run_nanosleep>},
      {"pmevent", bare<run_nothing>},
      {"griddepcontrol", bare<run_nothing>},
      {"shfl", shfl},
      {"vote", vote},
      {"match", match},
      {"redux", redux},
      {"activemask", activemask},
  };
  return kTable;
}

}  // namespace softgpu::ptx

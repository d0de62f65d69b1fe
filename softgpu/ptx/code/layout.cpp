// Reachability and memory layout of one kernel; see layout.h.
#include "softgpu/ptx/code/layout.h"

#include <algorithm>
#include <unordered_set>

namespace softgpu::ptx {
namespace {

/// The system's part of shared memory on sm_80 and later.
constexpr std::string_view kReserved = "%reserved_smem_offset";
constexpr u32 kReservedBytes = 2048;

template <class F>
void each_symbol(const Operand& o, F visit) {
  const bool named = o.kind == Operand::Kind::kSymbol || o.kind == Operand::Kind::kAddress;
  if (named && o.reg < 0 && o.variable < 0 && !o.name.empty()) visit(o.name);
  for (const Operand& part : o.parts) each_symbol(part, visit);
}

class Reach {
 public:
  Reach(const Module& module, Layout& layout) : module_(module), layout_(layout) {}

  void run(const FunctionText& entry) {
    add(&entry);
    for (std::size_t k = 0; k < layout_.functions.size(); ++k) scan(*layout_.functions[k]);
    if (!layout_.has_indirect_calls) return;
    // Whatever has its address in a table may be called.
    for (const GlobalText& global : module_.unit.globals) {
      for (const AddressFixup& fixup : global.fixups) add_named(fixup.symbol);
    }
    for (const FunctionText& function : module_.unit.functions) taken(function);
    for (std::size_t k = 0; k < layout_.functions.size(); ++k) scan(*layout_.functions[k]);
  }
  const std::unordered_set<std::string_view>& shared() const { return shared_; }

 private:
  void add(const FunctionText* function) {
    if (function->has_body && seen_.insert(function).second) layout_.functions.push_back(function);
  }
  void add_named(std::string_view name) {
    const auto found = module_.functions.find(name);
    if (found != module_.functions.end() && !found->second->entry) add(found->second);
  }
  void taken(const FunctionText& function) {
    for (const Statement& s : function.statements) {
      if (s.op == "call") continue;
      for (const Operand& o : s.operands)
        each_symbol(o, [&](std::string_view name) { add_named(name); });
    }
  }
  void scan(const FunctionText& function) {
    for (const Statement& s : function.statements) {
      if (s.op == "call" && s.operands[0].kind == Operand::Kind::kRegister) {
        layout_.has_indirect_calls = true;
      }
      for (const Operand& o : s.operands) {
        layout_.reserves_shared |= o.name.substr(0, kReserved.size()) == kReserved;
        each_symbol(o, [&](std::string_view name) {
          add_named(name);
          const auto global = module_.globals.find(name);
          if (global == module_.globals.end()) return;
          if (module_.unit.globals[global->second].variable.space == Space::kShared)
            shared_.insert(name);
        });
      }
    }
  }

  const Module& module_;
  Layout& layout_;
  std::unordered_set<const FunctionText*> seen_;
  std::unordered_set<std::string_view> shared_;
};

/// Call-parameter areas follow the scopes: siblings are never alive together and share their bytes.
void place_parameters(const FunctionText& f, FunctionLayout& places) {
  std::vector<u64> end(f.scope_parents.size(), 0);
  std::vector<bool> seen(f.scope_parents.size(), false);
  const auto start = [&](auto&& self, int scope) -> u64& {
    const std::size_t k = static_cast<std::size_t>(scope);
    if (!seen[k]) {
      seen[k] = true;
      if (f.scope_parents[k] >= 0) end[k] = self(self, f.scope_parents[k]);
    }
    return end[k];
  };
  u64 bytes = 0;
  const std::size_t skip = f.entry ? f.parameters.size() : 0;
  for (std::size_t k = skip; k < f.variables.size(); ++k) {
    const VariableText& v = f.variables[k];
    if (v.space != Space::kParam) continue;
    u64& at = start(start, v.scope);
    at = align_up(at, std::max(v.align, 8u));
    places.offsets[k] = at;
    at += v.bytes;
    bytes = std::max(bytes, at);
  }
  places.param_bytes = static_cast<u32>(align_up(bytes, 16));
}

void place_kernel_params(const FunctionText& f, FunctionLayout& places) {
  u64 at = 0;
  for (const int k : f.parameters) {
    const VariableText& v = f.variables[static_cast<std::size_t>(k)];
    at = align_up(at, v.align);
    places.offsets[static_cast<std::size_t>(k)] = at;
    places.kernel_params.push_back({static_cast<u32>(at), static_cast<u32>(v.bytes)});
    at += v.bytes;
  }
  places.kernel_param_bytes = static_cast<u32>(at);
}

/// Static variables in order, then every dynamic array at the same place behind them.
void place_shared(const Module& module, const Reach& reach, Layout& layout) {
  u64 at = 0;
  u64 dynamic_align = 16;
  std::vector<std::pair<u64*, const VariableText*>> dynamic;
  const auto place = [&](const VariableText& v, u64& offset) {
    if (v.bytes == 0) {
      dynamic_align = std::max<u64>(dynamic_align, v.align);
      dynamic.emplace_back(&offset, &v);
      return;
    }
    at = align_up(at, v.align);
    offset = at;
    at += v.bytes;
  };
  for (const GlobalText& global : module.unit.globals) {
    if (global.variable.space != Space::kShared || !reach.shared().contains(global.variable.name))
      continue;
    place(global.variable, layout.shared[global.variable.name]);
  }
  for (const FunctionText* f : layout.functions) {
    FunctionLayout& places = layout.places[f];
    for (std::size_t k = 0; k < f->variables.size(); ++k) {
      if (f->variables[k].space == Space::kShared) place(f->variables[k], places.offsets[k]);
    }
  }
  if (layout.reserves_shared) {
    at = align_up(at, 128);
    layout.reserved_offset = static_cast<u32>(at);
    at += kReservedBytes;
  }
  layout.shared_bytes = static_cast<u32>(at);
  for (const auto& [offset, variable] : dynamic) *offset = align_up(at, dynamic_align);
  if (!dynamic.empty()) layout.shared_bytes = static_cast<u32>(align_up(at, dynamic_align));
}

}  // namespace

Layout layout_make(const Module& module, const FunctionText& entry) {
  Layout layout;
  Reach reach(module, layout);
  reach.run(entry);
  for (const FunctionText* f : layout.functions) {
    FunctionLayout& places = layout.places[f];
    places.offsets.resize(f->variables.size());
    u64 local = 0, align = 8;
    for (std::size_t k = 0; k < f->variables.size(); ++k) {
      const VariableText& v = f->variables[k];
      if (v.space != Space::kLocal) continue;
      local = align_up(local, v.align);
      align = std::max<u64>(align, v.align);
      places.offsets[k] = local;
      local += v.bytes;
    }
    places.local_bytes = static_cast<u32>(align_up(local, std::max<u64>(align, 16)));
    if (f->entry) place_kernel_params(*f, places);
    place_parameters(*f, places);
  }
  place_shared(module, reach, layout);
  return layout;
}

}  // namespace softgpu::ptx

// Loading: text to Unit, variables to memory, entries to Programs. The public face of parser and
// decoder.
#include <algorithm>
#include <cstring>

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/registers.h"
#include "softgpu/ptx/exec/async.h"
#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/machine.h"
#include "softgpu/ptx/text/lexer.h"
#include "softgpu/ptx/text/parser.h"

namespace softgpu::ptx {
namespace {

/// Alignment that device allocations have on hardware.
constexpr std::size_t kVariableAlign = 256;

struct OutOfMemory {};
struct Unresolved : TextError {
  using TextError::TextError;
};

void variables_allocate(Module& module) {
  for (const GlobalText& global : module.unit.globals) {
    const VariableText& v = global.variable;
    if (v.space == Space::kShared || (v.external && global.initial.empty())) continue;
    const std::size_t bytes = std::max<std::size_t>({v.bytes, global.initial.size(), 1});
    void* block = module.memory->allocate(bytes, std::max<std::size_t>(kVariableAlign, v.align));
    if (block == nullptr) throw OutOfMemory();
    module.blocks.push_back(block);
    if (!global.initial.empty()) std::memcpy(block, global.initial.data(), global.initial.size());
    const u64 address = reinterpret_cast<u64>(block);
    module.addresses[v.name] = address;
    module.variables.push_back(
        {std::string(v.name), address, bytes, v.space == Space::kConst, v.managed});
  }
}

u64 symbol_address(const Module& module, const AddressFixup& fixup) {
  const auto variable = module.addresses.find(fixup.symbol);
  if (variable != module.addresses.end()) return variable->second;
  const auto function = module.functions.find(fixup.symbol);
  if (function != module.functions.end()) return reinterpret_cast<u64>(function->second);
  const std::string what = "initialiser names the unknown '" + std::string(fixup.symbol) + "'";
  if (module.globals.contains(fixup.symbol)) throw Unresolved(fixup.line, what);
  throw TextError(fixup.line, what);
}

void addresses_fill(Module& module) {
  for (const GlobalText& global : module.unit.globals) {
    const auto home = module.addresses.find(global.variable.name);
    if (home == module.addresses.end()) continue;
    for (const AddressFixup& fixup : global.fixups) {
      const u64 value =
          (symbol_address(module, fixup) + static_cast<u64>(fixup.addend)) >> fixup.shift;
      std::memcpy(reinterpret_cast<u8*>(home->second) + fixup.offset, &value, fixup.bytes);
    }
  }
}

Signature signature_of(const FunctionText& function, const FunctionLayout& places) {
  Signature signature;
  for (const int k : function.parameters) {
    signature.parameters.push_back(static_cast<u32>(places.offsets[static_cast<std::size_t>(k)]));
  }
  for (const int k : function.returns) {
    signature.returns.push_back(static_cast<u32>(places.offsets[static_cast<std::size_t>(k)]));
  }
  return signature;
}

KernelInfo info_of(const Module& module, const FunctionText& entry, const Layout& layout) {
  const FunctionLayout& places = layout.places.at(&entry);
  KernelInfo info;
  info.name = entry.name;
  info.params = places.kernel_params;
  info.param_bytes = places.kernel_param_bytes;
  info.shared_bytes = layout.shared_bytes;
  info.registers = registers_estimate(entry, layout.functions);
  for (const FunctionText* f : layout.functions) {
    info.local_bytes = std::max(info.local_bytes, layout.places.at(f).local_bytes);
  }
  for (const Variable& v : module.variables) {
    if (v.constant) info.const_bytes += static_cast<u32>(v.size);
  }
  info.threads_max = entry.threads_max != 0 ? entry.threads_max : 1024;
  info.ptx_version = module.unit.version;
  info.target = module.unit.target;
  return info;
}

void function_decode(const Module& module, Program& program, const Layout& layout,
                     const FunctionText& function, const HandlerSet& handlers) {
  Code& code = *program.codes.at(&function);
  const FunctionLayout& places = layout.places.at(&function);
  code.name = function.name;
  code.local_bytes = places.local_bytes;
  code.param_bytes = places.param_bytes;
  code.register_count = static_cast<u32>(function.registers.size());
  try {
    Decoder(module, program, layout, function, code, handlers).run();
  } catch (const DecodeError& error) {
    code.error = error.what();
  }
}

/// Whether the code has a loop or a barrier. A kernel with neither is over within one turn of each
/// of its warps.
bool keeps_in_step(const Code& code) {
  for (std::size_t pc = 0; pc < code.insts.size(); ++pc) {
    const Inst& inst = code.insts[pc];
    const bool branches = inst.run == run_branch || inst.run == run_branch_if;
    if (branches && static_cast<std::size_t>(inst.imm) <= pc) return true;
    const Handler handler = inst.run == run_guarded ? inst.inner : inst.run;
    if (handler == run_barrier || handler == run_phase || handler == run_branch_table) return true;
  }
  return false;
}

/// The error of the entry, or of the first function that cannot run among those that it calls by
/// name, directly or not. Functions that are called through pointers are left to the call.
std::string first_trouble(const Module& module, const Program& program, const FunctionText& entry) {
  std::vector<const FunctionText*> reached{&entry};
  for (std::size_t k = 0; k < reached.size(); ++k) {
    const std::string& error = program.codes.at(reached[k])->error;
    if (!error.empty()) return error;
    for (const Statement& s : reached[k]->statements) {
      if (s.op != "call" || s.operands.empty()) continue;
      const auto found = module.functions.find(s.operands[0].name);
      if (found == module.functions.end() || !program.codes.contains(found->second)) continue;
      if (std::find(reached.begin(), reached.end(), found->second) == reached.end())
        reached.push_back(found->second);
    }
  }
  return {};
}

std::unique_ptr<Kernel> kernel_make(const Module& module, const FunctionText& entry,
                                    const HandlerSet& handlers) {
  auto kernel = std::make_unique<Kernel>();
  Program& program = kernel->program;
  const Layout layout = layout_make(module, entry);
  program.leave_handlers = handlers.leave;
  program.has_indirect_calls = layout.has_indirect_calls;
  for (const FunctionText* f : layout.functions) {
    auto code = std::make_unique<Code>();
    program.signatures[code.get()] = signature_of(*f, layout.places.at(f));
    if (!f->entry) program.by_address[reinterpret_cast<u64>(f)] = code.get();
    program.codes[f] = std::move(code);
  }
  for (const FunctionText* f : layout.functions)
    function_decode(module, program, layout, *f, handlers);
  for (const auto& [text, code] : program.codes) program.in_step |= keeps_in_step(*code);
  program.entry = program.codes.at(&entry).get();
  program.info = info_of(module, entry, layout);
  for (const Variable& v : module.variables) {
    if (v.constant) program.constants.emplace_back(v.address, v.size);
  }
  program.error = first_trouble(module, program, entry);
  return kernel;
}

void kernels_make(Module& module, LoadResult& result) {
  const HandlerSet& handlers = handlers_choose();
  std::size_t good = 0;
  for (const FunctionText& function : module.unit.functions) {
    if (!function.entry || !function.has_body) continue;
    module.kernels.push_back(kernel_make(module, function, handlers));
    const std::string& error = module.kernels.back()->program.error;
    if (error.empty()) {
      ++good;
    } else if (result.log.empty()) {
      result.log = error;
    }
  }
  // One kernel that nobody may ever launch must not keep the others of its file from running.
  if (good == 0 && !module.kernels.empty()) result.status = LoadStatus::kUnsupported;
}

}  // namespace

LoadResult module_load(std::string_view ptx, Memory& memory) {
  LoadResult result;
  result.module = {new Module, [](Module* module) { delete module; }};
  Module& module = *result.module;
  module.memory = &memory;
  module.text = ptx.substr(0, ptx.find('\0'));
  try {
    module.unit = unit_parse(module.text);
    for (const FunctionText& function : module.unit.functions)
      module.functions[function.name] = &function;
    for (std::size_t k = 0; k < module.unit.globals.size(); ++k) {
      module.globals[module.unit.globals[k].variable.name] = k;
    }
    variables_allocate(module);
    addresses_fill(module);
    kernels_make(module, result);
  } catch (const Unresolved& error) {
    result.status = LoadStatus::kUnresolved;
    result.log = error.what();
  } catch (const TextError& error) {
    result.status = LoadStatus::kInvalidPtx;
    result.log = error.what();
  } catch (const OutOfMemory&) {
    result.status = LoadStatus::kNoMemory;
    result.log = "no device memory for the module's variables";
  }
  if (result.status != LoadStatus::kOk) result.module.reset();
  return result;
}

const Kernel* module_kernel(const Module& module, std::string_view name) {
  for (const auto& kernel : module.kernels) {
    if (kernel->program.info.name == name) return kernel.get();
  }
  return nullptr;
}

std::vector<const Kernel*> module_kernels(const Module& module) {
  std::vector<const Kernel*> list;
  for (const auto& kernel : module.kernels) list.push_back(kernel.get());
  return list;
}

const std::vector<Variable>& module_variables(const Module& module) { return module.variables; }

const KernelInfo& kernel_info(const Kernel& kernel) { return kernel.program.info; }

const std::string& kernel_trouble(const Kernel& kernel) { return kernel.program.error; }

}  // namespace softgpu::ptx

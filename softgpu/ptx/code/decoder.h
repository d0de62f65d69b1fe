// Statements of one function to instructions. The Decoder owns rows and constants; the opcode
// tables (arithmetic, memory, flow) know the operations and ask it for rows and handlers.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "softgpu/ptx/code/code.h"
#include "softgpu/ptx/code/layout.h"
#include "softgpu/ptx/exec/handlers.h"

namespace softgpu::ptx {

/// An instruction (or operand) that is not understood. Becomes Code::error.
struct DecodeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What an address or symbol operand names.
struct Place {
  Space space = Space::kGeneric;
  u64 value = 0;  // address, or offset in shared, local or parameter memory
  bool kernel_param = false;
  bool function = false;
};

class Decoder {
 public:
  Decoder(const Module& module, Program& program, const Layout& layout,
          const FunctionText& function, Code& code, const HandlerSet& handlers);
  void run();

  // For the opcode tables.
  [[noreturn]] void fail(const std::string& what) const;
  static bool has(const Statement& s, std::string_view mod);
  /// The types among the modifiers, in order.
  static std::vector<Type> types(const Statement& s);
  static Type last_type(const Statement& s);
  const Operand& operand(const Statement& s, std::size_t index) const;
  Type register_type(int reg) const { return function_.registers[index_of(reg)].type; }
  /// Bytes per lane of a register operand's row, or of `type` for anything else.
  u8 box_of(const Operand& o, Type type) const;

  s32 source(const Operand& o, Type type);
  s32 source_boxed(const Operand& o, Type type, u8 box);
  s32 predicate_source(const Operand& o);
  s32 destination(const Operand& o);
  s32 register_row(int reg) const;
  /// A register that stands for `base + (index + plus) * scale` and is an address, nothing else.
  struct Indexed {
    int base = 0;   // 64-bit register, the same in all lanes
    int index = 0;  // 32-bit register
    int plus = -1;  // 64-bit register, the same in all lanes; -1: none
    u8 scale = 1;
    bool is_signed = false;
  };
  const Indexed* indexed(int reg) const;
  s32 constant_row(u64 bits, u8 box);
  Place place_of(const Operand& o) const;
  Handler handler(Family family, const Form& form) const;
  void emit(Inst inst, const Statement& s);
  /// For branches and returns, which look at the guard themselves.
  void emit_unguarded(Inst inst, const Statement& s, bool keep_guard);
  void branch_to(std::string_view label, const Statement& s);
  JumpTable* jump_table(const Operand& o, const Statement& s);

  const Module& module() const { return module_; }
  Program& program() { return program_; }
  const FunctionText& function() const { return function_; }
  const Layout& layout() const { return layout_; }
  const FunctionLayout& places() const { return places_; }
  Code& code() { return code_; }
  static int special_of(std::string_view name);

 private:
  struct Use {
    int first = -1, last = -1, block = -1;
    int definitions = 0;
    bool many_blocks = false;
    bool defined_first = false;  // the first mention is an unconditional definition
  };
  struct Fixup {
    std::size_t inst;
    std::string_view label;
    int scope;
  };
  struct TableFixup {
    JumpTable* table;
    const Statement* targets;
  };

  static std::size_t index_of(int k) { return static_cast<std::size_t>(k); }
  void collect_uses();
  void mention(int reg, bool defines, bool conditional, int at, int block);
  void mention_operand(const Operand& o, bool defines, bool conditional, int at, int block);
  void propagate_copies();
  bool propagate(const Statement& s);
  bool propagate_move(const Operand& d, const Operand& from, Type type);
  class AddressFolder;
  void fold_addresses();
  void allocate_rows();
  s32 allocate(u8 box);
  s32 allocate_constant(u32 bytes);
  s32 special_row(int special);
  s32 param_row(const Place& place, Type type, u8 box);
  void decode(const Statement& s);
  void number(Inst& inst);
  void carry(const Statement& s);
  void resolve_labels();
  u32 label_pc(std::string_view label, int scope) const;

  const Module& module_;
  Program& program_;
  const Layout& layout_;
  const FunctionText& function_;
  const FunctionLayout& places_;
  Code& code_;
  const HandlerSet& handlers_;
  const Statement* current_ = nullptr;
  std::vector<Use> uses_;
  std::vector<s32> rows_;       // of registers; kNoRow: none yet
  std::vector<bool> is_alias_;  // the row is a constant, special or parameter row
  std::vector<bool> folded_;    // statements that are superfluous
  std::vector<bool> counted_;   // those of them that the kernel pays for all the same
  std::unordered_map<int, Indexed> indexed_;
  std::map<std::pair<u64, u8>, s32> constants_;
  std::map<int, s32> specials_;
  std::map<std::pair<u64, u32>, s32> params_;
  s32 next_row_ = kFirstRow;
  s32 constant_bytes_ = 0;
  std::vector<std::pair<s32, std::pair<u64, u8>>> constant_values_;
  u32 serial_ = 0;
  u32 unnumbered_ = 0;  // counted statements since the last instruction
  std::map<std::pair<std::string_view, int>, u32> labels_;
  std::vector<Fixup> fixups_;
  std::vector<TableFixup> table_fixups_;
};

/// Instructions whose first operand is not written.
bool defines_nothing(const Statement& s);

/// The state space that the modifiers name.
Space space_of(const Statement& s);

using OpcodeDecoder = void (*)(Decoder&, const Statement&);
using OpcodeTable = std::unordered_map<std::string_view, OpcodeDecoder>;
const OpcodeTable& arithmetic_opcodes();
const OpcodeTable& memory_opcodes();
const OpcodeTable& flow_opcodes();
const OpcodeTable& matrix_opcodes();
const OpcodeTable& rare_opcodes();
const OpcodeTable& async_opcodes();
const OpcodeTable& image_opcodes();

}  // namespace softgpu::ptx

// A PTX translation unit as written: functions with their registers, variables and statements,
// nothing resolved to memory or code yet. Names are views into the text the unit was parsed from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "softgpu/ptx/text/types.h"

namespace softgpu::ptx {

struct Operand {
  enum class Kind : u8 {
    kNone,
    kRegister,
    kImmediate,
    kSymbol,
    kAddress,
    kVector,
    kSpecial,
    kSink
  };
  Kind kind = Kind::kNone;
  bool negated = false;  // !%p
  u8 real_bytes = 0;     // immediate: 4 or 8 when written as a floating-point literal
  int reg = -1;          // register, or base register of an address
  int second = -1;       // the q of p|q
  int variable =
      -1;  // function-scope variable named by a symbol or an address; -1: look in the module
  u64 bits = 0;
  s64 offset = 0;
  std::string_view name;
  std::vector<Operand> parts;
};

struct Statement {
  enum class Kind : u8 { kInstruction, kLabel, kTargets };
  Kind kind = Kind::kInstruction;
  bool guard_negated = false;
  int guard = -1;
  int line = 0;
  int scope = 0;
  std::string_view text;                // whole opcode ("ld.global.u32"), or the label's name
  std::string_view op;                  // "ld"
  std::vector<std::string_view> mods;   // "global", "u32"
  std::vector<Operand> operands;        // of a call: the callee
  std::vector<std::string_view> names;  // of .branchtargets
  std::vector<int> arguments, returns;  // of a call: function-scope .param variables
};

struct VariableText {
  std::string_view name;
  Space space = Space::kGeneric;
  bool external = false;
  bool managed = false;
  u32 align = 1;
  u32 element = 4;  // bytes of one element of the initialiser
  u64 bytes = 0;
  int scope = 0;
  int line = 0;
};

struct RegisterText {
  std::string_view prefix;
  int number = -1;  // -1: the prefix is the whole name
  Type type = Type::kNone;
};

struct FunctionText {
  std::string_view name;
  bool entry = false;
  bool has_body = false;
  int line = 0;
  u32 threads_max = 0;    // 0 = not said
  u32 registers_max = 0;  // the same
  std::vector<RegisterText> registers;
  std::vector<VariableText> variables;  // parameters and return values first
  std::vector<int> parameters, returns;
  std::vector<int> scope_parents;  // of each scope; scope 0 is the function's own
  std::vector<Statement> statements;
};

/// Where in a variable's initial bytes the address of another symbol goes.
struct AddressFixup {
  u64 offset = 0;
  u32 bytes = 8;  // 1: one byte of the address, chosen by shift
  u32 shift = 0;
  s64 addend = 0;
  std::string_view symbol;
  int line = 0;
};

struct GlobalText {
  VariableText variable;
  std::vector<u8> initial;  // shorter than the variable: the rest is zero
  std::vector<AddressFixup> fixups;
};

struct Unit {
  u32 version = 0;  // 90 = 9.0
  u32 target = 0;   // sm number
  std::vector<GlobalText> globals;
  std::vector<FunctionText> functions;
};

}  // namespace softgpu::ptx

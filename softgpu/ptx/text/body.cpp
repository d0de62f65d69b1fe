// Function bodies. Scopes nest: inline assembly and every call open one, and may declare registers
// and parameters whose names exist outside already, so names are resolved to indices here, while
// the scopes are known.
#include "softgpu/ptx/text/body.h"

#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "softgpu/ptx/text/declare.h"

namespace softgpu::ptx {
namespace {

/// A kernel with more registers than this is damaged text, not code.
constexpr s64 kRegistersMax = 1 << 20;

/// Registers or variables that were declared together: `%r<100>`, or one of exactly this name.
struct Range {
  int first = 0;
  int count = -1;  // -1: one of exactly this name
  int width = 1;   // elements of a vector register, one behind the other
};
/// One of them; `first` is -1 where there is none.
struct Named {
  int first = -1;
  int width = 1;
};
using Names = std::unordered_map<std::string_view, Range>;

struct Scope {
  Names registers;
  Names variables;
};

/// "%r12" -> {"%r", 12}; number -1 without digits or with a leading zero (then it is part of the
/// name).
std::pair<std::string_view, int> split_number(std::string_view name) {
  std::size_t at = name.size();
  while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9') --at;
  const std::string_view digits = name.substr(at);
  if (digits.empty() || digits.size() > 7 || (digits.size() > 1 && digits[0] == '0')) {
    return {name, -1};
  }
  int number = 0;
  for (const char c : digits) number = number * 10 + (c - '0');
  return {name.substr(0, at), number};
}

/// What the name stands for in this scope.
Named find_name(const Names& known, std::string_view name) {
  const auto whole = known.find(name);
  if (whole != known.end() && whole->second.count < 0)
    return {whole->second.first, whole->second.width};
  const auto [prefix, number] = split_number(name);
  if (number < 0) return {};
  const auto found = known.find(prefix);
  if (found == known.end() || number >= found->second.count) return {};
  return {found->second.first + number * found->second.width, found->second.width};
}

/// Which element ".y" or ".g" is; -1 = none.
int element_of(char letter) {
  constexpr std::string_view kPlaces = "xyzw", kColours = "rgba";
  const std::size_t place = kPlaces.find(letter), colour = kColours.find(letter);
  if (place != std::string_view::npos) return static_cast<int>(place);
  return colour == std::string_view::npos ? -1 : static_cast<int>(colour);
}

class BodyParser {
 public:
  BodyParser(Cursor& at, FunctionText& function) : at_(at), function_(function) {}

  void run() {
    at_.expect("{");
    function_.has_body = true;
    scopes_.emplace_back();
    ids_.push_back(0);
    for (std::size_t k = 0; k < function_.variables.size(); ++k) {
      scopes_[0].variables[function_.variables[k].name] = {static_cast<int>(k), -1};
    }
    while (!scopes_.empty()) item();
  }

 private:
  void item() {
    if (at_.accept("}")) {
      scopes_.pop_back();
      ids_.pop_back();
    } else if (at_.accept("{")) {
      function_.scope_parents.push_back(ids_.back());
      ids_.push_back(static_cast<int>(function_.scope_parents.size()) - 1);
      scopes_.emplace_back();
    } else if (at_.accept(";")) {
      return;
    } else if (at_.accept(".reg")) {
      registers();
    } else if (at_.accept(".local")) {
      variables(Space::kLocal);
    } else if (at_.accept(".shared")) {
      variables(Space::kShared);
    } else if (at_.accept(".param")) {
      variables(Space::kParam);
    } else if (at_.is(".loc") || at_.is(".file")) {
      at_.skip_line();
    } else if (at_.accept(".pragma")) {
      at_.skip_past(";");
    } else if (at_.is_kind(Token::Kind::kName) && at_.peek(1).text == ":" &&
               at_.peek(1).kind == Token::Kind::kPunctuation) {
      label();
    } else {
      instruction();
    }
  }

  void registers() {
    std::string_view word = at_.name();
    const int width = word == ".v2" ? 2 : word == ".v4" ? 4 : 1;
    if (width > 1) word = at_.name();
    const Type type = type_of(word.substr(1));
    if (type == Type::kNone) at_.fail("unknown register type '" + std::string(word) + "'");
    do {
      const std::string_view name = at_.name();
      Range range = range_after(function_.registers.size());
      range.width = width;
      const int count = std::abs(range.count) * width;
      for (int k = 0; k < count; ++k)
        function_.registers.push_back({name, range.count < 0 && width == 1 ? -1 : k, type});
      scopes_.back().registers[name] = range;
    } while (at_.accept(","));
    at_.expect(";");
  }

  /// What follows a name that is declared: `<100>` or nothing.
  Range range_after(std::size_t first) {
    Range range{static_cast<int>(first), -1};
    if (!at_.accept("<")) return range;
    const s64 count = at_.integer();
    if (count < 0 || count > kRegistersMax) at_.fail("count out of range");
    range.count = static_cast<int>(count);
    at_.expect(">");
    return range;
  }

  void variables(Space space) {
    do {
      VariableText variable = variable_declare(at_, space);
      variable.scope = ids_.back();
      const Range range = range_after(function_.variables.size());
      scopes_.back().variables[variable.name] = range;
      for (int k = 0; k < std::abs(range.count); ++k) function_.variables.push_back(variable);
    } while (at_.accept(","));
    at_.expect(";");
  }

  int find_variable(std::string_view name) const { return find(&Scope::variables, name).first; }

  /// A register of one element, or the element of a vector that "%v.x" names; -1 = none.
  int find_register(std::string_view name) const {
    const Named whole = find(&Scope::registers, name);
    if (whole.first >= 0) return whole.width == 1 ? whole.first : -1;
    if (name.size() < 3 || name[name.size() - 2] != '.') return -1;
    const Named vector = find(&Scope::registers, name.substr(0, name.size() - 2));
    const int element = element_of(name.back());
    return vector.first >= 0 && element >= 0 && element < vector.width ? vector.first + element
                                                                       : -1;
  }

  Named find(Names Scope::*names, std::string_view name) const {
    Named found;
    for (std::size_t k = scopes_.size(); k-- > 0 && found.first < 0;)
      found = find_name(scopes_[k].*names, name);
    return found;
  }

  Statement& statement(Statement::Kind kind) {
    Statement& made = function_.statements.emplace_back();
    made.kind = kind;
    made.line = at_.line();
    made.scope = ids_.back();
    return made;
  }

  void label() {
    const std::string_view name = at_.name();
    at_.expect(":");
    if (at_.is(".callprototype")) return at_.skip_past(";");
    if (at_.is(".calltargets")) return at_.skip_past(";");
    if (at_.accept(".branchtargets")) {
      Statement& made = statement(Statement::Kind::kTargets);
      made.text = name;
      do made.names.push_back(at_.name());
      while (at_.accept(","));
      return at_.expect(";");
    }
    statement(Statement::Kind::kLabel).text = name;
  }

  void instruction() {
    Statement& made = statement(Statement::Kind::kInstruction);
    if (at_.accept("@")) {
      made.guard_negated = at_.accept("!");
      const std::string_view guard = at_.name();
      made.guard = find_register(guard);
      if (made.guard < 0) {
        throw TextError(made.line, "unknown predicate '" + std::string(guard) + "'");
      }
    }
    made.text = at_.name();
    std::size_t begin = 0;
    while (begin <= made.text.size()) {
      const std::size_t end = std::min(made.text.find('.', begin), made.text.size());
      const std::string_view part = made.text.substr(begin, end - begin);
      if (begin == 0) {
        made.op = part;
      } else {
        made.mods.push_back(part);
      }
      begin = end + 1;
    }
    if (made.op == "call") return call(made);
    if (!at_.accept(";")) {
      do made.operands.push_back(operand());
      while (at_.accept(","));
      at_.expect(";");
    }
    if (made.op == "mov" && !made.mods.empty() && (made.mods[0] == "v2" || made.mods[0] == "v4"))
      move_by_elements();
  }

  /// A move of a vector is as many moves of elements.
  void move_by_elements() {
    Statement whole = std::move(function_.statements.back());
    function_.statements.pop_back();
    const std::size_t width = whole.mods[0] == "v2" ? 2 : 4;
    whole.mods.erase(whole.mods.begin());
    std::vector<Operand> sides = std::move(whole.operands);
    if (sides.size() != 2 || sides[0].parts.size() != width || sides[1].parts.size() != width)
      throw TextError(whole.line, "a move of vectors has two of them");
    for (std::size_t k = 0; k < width; ++k) {
      for (std::size_t before = 0; before < k; ++before) {
        if (sides[1].parts[k].reg >= 0 && sides[1].parts[k].reg == sides[0].parts[before].reg)
          throw TextError(whole.line, "a move that exchanges elements is not supported");
      }
      whole.operands = {sides[0].parts[k], sides[1].parts[k]};
      function_.statements.push_back(whole);
    }
  }

  int call_parameter() {
    const std::string_view name = at_.name();
    const int variable = find_variable(name);
    if (variable < 0 ||
        function_.variables[static_cast<std::size_t>(variable)].space != Space::kParam) {
      at_.fail("'" + std::string(name) + "' is no .param variable; a call takes only those");
    }
    return variable;
  }

  std::vector<int> call_list() {
    std::vector<int> list;
    at_.expect("(");
    while (!at_.accept(")")) {
      list.push_back(call_parameter());
      if (!at_.is(")")) at_.expect(",");
    }
    return list;
  }

  void call(Statement& made) {
    if (at_.is("(")) {
      made.returns = call_list();
      at_.expect(",");
    }
    made.operands.push_back(operand());
    if (at_.accept(",")) {
      if (at_.is("(")) {
        made.arguments = call_list();
      } else {
        at_.name();
      }
      if (at_.accept(",")) at_.name();
    }
    at_.expect(";");
  }

  Operand immediate(bool negative) {
    const Token& token = at_.take();
    Operand made;
    made.kind = Operand::Kind::kImmediate;
    made.real_bytes = token.real_bytes;
    made.bits = token.bits;
    if (negative && token.real_bytes != 0) made.bits ^= u64{1} << (token.real_bytes * 8 - 1);
    if (negative && token.real_bytes == 0) made.bits = 0 - token.bits;
    return made;
  }

  Operand address() {
    Operand made;
    made.kind = Operand::Kind::kAddress;
    if (at_.is_kind(Token::Kind::kNumber)) {
      made.offset = at_.integer();
    } else {
      made.name = at_.name();
      made.reg = find_register(made.name);
      if (made.reg < 0) made.variable = find_variable(made.name);
    }
    if (at_.accept("+")) {
      made.offset = at_.integer();
    } else if (at_.is("-")) {
      made.offset = at_.integer();
    }
    while (at_.accept(",")) made.parts.push_back(operand());  // coordinates: [texture, {x, y}]
    at_.expect("]");
    return made;
  }

  Operand operand() {
    Operand made;
    if (at_.accept("{")) {
      made.kind = Operand::Kind::kVector;
      while (!at_.accept("}")) {
        made.parts.push_back(operand());
        if (!at_.is("}")) at_.expect(",");
      }
      second_predicate(made);
      return made;
    }
    if (at_.accept("[")) return address();
    if (at_.accept("!")) {
      made = operand();
      made.negated = true;
      return made;
    }
    if (at_.accept("-")) {
      if (!at_.is_kind(Token::Kind::kNumber)) at_.fail("expected a number after '-'");
      return immediate(true);
    }
    if (at_.is_kind(Token::Kind::kNumber)) return immediate(false);
    return named_operand();
  }

  Operand named_operand() {
    Operand made;
    made.name = at_.name();
    if (made.name == "_") {
      made.kind = Operand::Kind::kSink;
    } else if (made.name == "WARP_SZ") {
      made.kind = Operand::Kind::kImmediate;
      made.bits = 32;
    } else if (const Named vector = find(&Scope::registers, made.name); vector.width > 1) {
      made.kind = Operand::Kind::kVector;
      for (int k = 0; k < vector.width; ++k) {
        Operand& part = made.parts.emplace_back();
        part.kind = Operand::Kind::kRegister;
        part.name = made.name;
        part.reg = vector.first + k;
      }
    } else if (made.reg = find_register(made.name); made.reg >= 0) {
      made.kind = Operand::Kind::kRegister;
    } else if (made.name.front() == '%') {
      made.kind = Operand::Kind::kSpecial;
    } else {
      made.kind = Operand::Kind::kSymbol;
      made.variable = find_variable(made.name);
      if (at_.accept("+")) made.offset = at_.integer();
    }
    second_predicate(made);
    return made;
  }

  /// The q of p|q, or of {a, b, c, d}|q.
  void second_predicate(Operand& made) {
    if (!at_.accept("|")) return;
    const std::string_view second = at_.name();
    if (second == "_") return;
    made.second = find_register(second);
    if (made.second < 0) at_.fail("unknown predicate '" + std::string(second) + "'");
  }

  Cursor& at_;
  FunctionText& function_;
  std::vector<Scope> scopes_;
  std::vector<int> ids_;
};

}  // namespace

void body_parse(Cursor& at, FunctionText& function) { BodyParser(at, function).run(); }

}  // namespace softgpu::ptx

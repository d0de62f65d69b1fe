// Module scope of a PTX translation unit: directives, variables with initialisers, and function
// headings. Function bodies are parsed in body.cpp.
#include "softgpu/ptx/text/parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "softgpu/ptx/text/body.h"
#include "softgpu/ptx/text/cursor.h"
#include "softgpu/ptx/text/declare.h"

namespace softgpu::ptx {
namespace {

/// No variable is larger than what a 48-bit address space holds; a larger count is a damaged text.
constexpr u64 kVariableBytesMax = u64{1} << 40;

u64 literal_bits(const Token& token, bool negative, u32 bytes) {
  if (token.real_bytes == 0) return negative ? 0 - token.bits : token.bits;
  u64 bits = token.bits;
  if (token.real_bytes == 8 && bytes == 4) {
    bits = std::bit_cast<u32>(static_cast<float>(std::bit_cast<double>(bits)));
  }
  if (negative) bits ^= u64{1} << (bytes * 8 - 1);
  return bits;
}

class UnitParser {
 public:
  explicit UnitParser(std::string_view text) : at_(tokens_of(text)) {}

  Unit run() {
    while (!at_.ended()) item();
    if (unit_.version == 0) throw TextError(1, "no .version directive: this is not PTX");
    return std::move(unit_);
  }

 private:
  void item() {
    if (at_.accept(".version")) return version();
    if (at_.accept(".target")) return target();
    if (at_.accept(".address_size")) return address_size();
    if (at_.is(".file") || at_.is(".loc")) return at_.skip_line();
    if (at_.accept(".section")) return section();
    if (at_.accept(".pragma") || at_.accept(".alias")) return at_.skip_past(";");
    if (at_.accept(";")) return;
    bool external = false;
    while (at_.is(".visible") || at_.is(".extern") || at_.is(".weak") || at_.is(".common")) {
      external |= at_.take().text == ".extern";
    }
    if (at_.is(".entry") || at_.is(".func")) return function();
    if (at_.accept(".global")) return variables(Space::kGlobal, external);
    if (at_.accept(".const")) return variables(Space::kConst, external);
    if (at_.accept(".shared")) return variables(Space::kShared, external);
    at_.fail("expected a directive, a variable or a function");
  }

  void version() {
    // "9.0" is lexed as a decimal literal.
    const Token& token = at_.take();
    if (token.kind != Token::Kind::kNumber) at_.fail("expected a version number");
    const double value =
        token.real_bytes == 8 ? std::bit_cast<double>(token.bits) : static_cast<double>(token.bits);
    unit_.version = static_cast<u32>(value * 10 + 0.5);
  }

  void target() {
    do {
      const std::string_view name = at_.name();
      if (name.substr(0, 3) != "sm_") continue;
      for (const char c : name.substr(3)) {
        if (c < '0' || c > '9') break;
        unit_.target = unit_.target * 10 + static_cast<u32>(c - '0');
      }
    } while (at_.accept(","));
  }

  void address_size() {
    if (at_.integer() != 64) throw TextError(at_.line(), "only 64-bit PTX can run here");
  }

  void section() {
    while (!at_.is("{")) {
      if (at_.ended()) at_.fail("expected '{'");
      at_.take();
    }
    int depth = 0;
    do {
      if (at_.ended()) at_.fail("expected '}'");
      if (at_.is("{")) ++depth;
      if (at_.is("}")) --depth;
      at_.take();
    } while (depth > 0);
  }

  void variables(Space space, bool external) {
    do {
      GlobalText global;
      global.variable = variable_declare(at_, space);
      global.variable.external |= external;
      if (global.variable.bytes > kVariableBytesMax) at_.fail("variable is too large");
      if (at_.accept("=")) initialiser(global);
      add(std::move(global));
    } while (at_.accept(","));
    at_.expect(";");
  }

  /// A variable may be declared .extern before it is defined; the definition wins.
  void add(GlobalText global) {
    for (GlobalText& other : unit_.globals) {
      if (other.variable.name != global.variable.name) continue;
      if (other.variable.external) other = std::move(global);
      return;
    }
    unit_.globals.push_back(std::move(global));
  }

  void initialiser(GlobalText& global) {
    if (at_.accept("{")) {
      while (!at_.accept("}")) {
        initialiser(global);
        if (!at_.is("}")) at_.expect(",");
      }
      return;
    }
    const u32 bytes = global.variable.element;
    const std::size_t offset = global.initial.size();
    global.initial.resize(offset + bytes);
    if (global.variable.bytes != 0 && global.initial.size() > global.variable.bytes) {
      at_.fail("initialiser is longer than its variable");
    }
    if (global.variable.bytes == 0) global.variable.external = false;
    if (at_.is_kind(Token::Kind::kName)) return address(global, offset, 0);
    const bool negative = at_.accept("-");
    if (!at_.is_kind(Token::Kind::kNumber)) at_.fail("expected an initial value");
    const Token token = at_.take();
    if (at_.is("(")) return masked_address(global, offset, token.bits);
    const u64 bits = literal_bits(token, negative, bytes);
    std::memcpy(global.initial.data() + offset, &bits, std::min<std::size_t>(bytes, 8));
  }

  /// "0xFF00(symbol)": one byte of an address.
  void masked_address(GlobalText& global, std::size_t offset, u64 mask) {
    at_.expect("(");
    if (mask == 0) at_.fail("a zero mask selects no byte of an address");
    address(global, offset, static_cast<u32>(std::countr_zero(mask)));
    at_.expect(")");
  }

  void address(GlobalText& global, std::size_t offset, u32 shift) {
    AddressFixup fixup;
    fixup.line = at_.line();
    fixup.offset = offset;
    fixup.bytes = std::min<u32>(global.variable.element, 8);
    fixup.shift = shift;
    fixup.symbol = at_.name();
    if (fixup.symbol == "generic") {
      at_.expect("(");
      fixup.symbol = at_.name();
      at_.expect(")");
    }
    if (at_.accept("+")) fixup.addend = at_.integer();
    if (at_.is("-")) fixup.addend = at_.integer();
    global.fixups.push_back(fixup);
  }

  void function() {
    FunctionText function;
    function.line = at_.line();
    function.entry = at_.take().text == ".entry";
    function.scope_parents.push_back(-1);
    if (at_.is("(")) function.returns = parameters(function);
    function.name = at_.name();
    function.parameters = parameters(function);
    performance_directives(function);
    if (!at_.accept(";")) body_parse(at_, function);
    const auto [found, is_new] = by_name_.emplace(function.name, unit_.functions.size());
    if (is_new) {
      unit_.functions.push_back(std::move(function));
    } else if (function.has_body) {
      unit_.functions[found->second] = std::move(function);
    }
  }

  std::vector<int> parameters(FunctionText& function) {
    std::vector<int> list;
    if (!at_.accept("(")) return list;
    while (!at_.accept(")")) {
      if (at_.is(".reg")) at_.fail("parameters in registers are not supported");
      at_.expect(".param");
      list.push_back(static_cast<int>(function.variables.size()));
      function.variables.push_back(variable_declare(at_, Space::kParam));
      if (!at_.is(")")) at_.expect(",");
    }
    return list;
  }

  void performance_directives(FunctionText& function) {
    while (at_.is_kind(Token::Kind::kName) && at_.peek().text.front() == '.') {
      const std::string_view directive = at_.name();
      if (directive == ".maxntid" || directive == ".reqntid") {
        u64 threads = static_cast<u64>(at_.integer());
        while (at_.accept(",")) threads *= static_cast<u64>(at_.integer());
        function.threads_max = static_cast<u32>(std::min<u64>(threads, 1024));
      } else if (directive == ".pragma") {
        at_.skip_past(";");
      } else if (directive == ".noreturn" || directive == ".explicitcluster" ||
                 directive == ".blocksareclusters" || directive == ".unique") {
        continue;
      } else if (directive == ".maxnreg") {
        const u32 most = static_cast<u32>(at_.integer());
        function.registers_max =
            function.registers_max == 0 ? most : std::min(function.registers_max, most);
      } else if (directive == ".minnctapersm" || directive == ".maxclusterrank" ||
                 directive == ".reqnctapercluster") {
        do at_.integer();
        while (at_.accept(","));
      } else {
        throw TextError(at_.line(), "unknown directive '" + std::string(directive) + "'");
      }
    }
  }

  Cursor at_;
  Unit unit_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace

Unit unit_parse(std::string_view text) { return UnitParser(text).run(); }

}  // namespace softgpu::ptx

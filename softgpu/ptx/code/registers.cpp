// The estimate of a kernel's registers: half of the virtual ones, which is about what a register
// allocator leaves of compilers' usual code, or as many as hold a value at once where those are
// fewer. Fetches from textures are such a place: four results each, of which mostly one is read.
#include "softgpu/ptx/code/registers.h"

#include <algorithm>

#include "softgpu/ptx/code/decoder.h"

namespace softgpu::ptx {
namespace {

constexpr u64 kFewest = 16, kMost = 255;

u64 words_of(const RegisterText& reg) {
  if (reg.type == Type::kPred) return 0;
  return type_bytes(reg.type) == 8 ? 2 : 1;
}

/// From the statement that first names a register to the last that reads it; -1: none.
struct Lifetime {
  int first = -1, last = -1;
};

class Lifetimes {
 public:
  explicit Lifetimes(const FunctionText& function) : function_(function) {
    ranges_.resize(function.registers.size());
    for (std::size_t n = 0; n < function.statements.size(); ++n) {
      const Statement& s = function.statements[n];
      const int at = static_cast<int>(n);
      if (s.kind == Statement::Kind::kLabel) labels_[s.text] = at;
      read(s.guard, at);
      for (std::size_t k = 0; k < s.operands.size(); ++k)
        mention(s.operands[k], at, k == 0 && !defines_nothing(s));
    }
    for (std::size_t n = 0; n < function.statements.size(); ++n) {
      const Statement& s = function.statements[n];
      if (s.op == "bra" && !s.operands.empty()) loop(s.operands[0].name, static_cast<int>(n));
    }
  }

  u64 most() const {
    std::vector<s64> changes(function_.statements.size() + 1);
    for (std::size_t r = 0; r < ranges_.size(); ++r) {
      if (ranges_[r].last < 0) continue;
      const s64 words = static_cast<s64>(words_of(function_.registers[r]));
      changes[static_cast<std::size_t>(ranges_[r].first)] += words;
      changes[static_cast<std::size_t>(ranges_[r].last)] -= words;
    }
    s64 now = 0, most = 0;
    for (const s64 change : changes) most = std::max(most, now += change);
    return static_cast<u64>(most);
  }

 private:
  Lifetime& of(int reg) { return ranges_[static_cast<std::size_t>(reg)]; }
  void name(int reg, int at) {
    if (reg >= 0 && of(reg).first < 0) of(reg).first = at;
  }
  void read(int reg, int at) {
    name(reg, at);
    if (reg >= 0) of(reg).last = at;
  }
  void mention(const Operand& o, int at, bool writes) {
    for (const Operand& part : o.parts) mention(part, at, writes);
    const bool reads = !writes || o.kind == Operand::Kind::kAddress;
    for (const int reg : {o.reg, o.second}) reads ? read(reg, at) : name(reg, at);
  }
  /// What was there before a loop and is read in it has to last through all of it.
  void loop(std::string_view label, int end) {
    const auto found = labels_.find(label);
    if (found == labels_.end() || found->second > end) return;
    for (Lifetime& range : ranges_) {
      if (range.first < found->second && range.last > found->second)
        range.last = std::max(range.last, end);
    }
  }

  const FunctionText& function_;
  std::vector<Lifetime> ranges_;
  std::unordered_map<std::string_view, int> labels_;
};

}  // namespace

u32 registers_estimate(const FunctionText& function) {
  u64 words = 0;
  for (const RegisterText& reg : function.registers) words += words_of(reg);
  u64 estimate = words / 2;
  // For what any SM has room for no better figure is needed.
  if (estimate > 2 * kFewest) estimate = std::min(estimate, Lifetimes(function).most());
  return static_cast<u32>(std::clamp(estimate, kFewest, kMost));
}

}  // namespace softgpu::ptx

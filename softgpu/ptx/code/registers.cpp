// See registers.h. Virtual registers are taken to live from their first mention to the last one in
// the order of the text, and through every loop that they enter; what the most of them take at one
// place is the answer. An allocator that knows the flow of control needs no more.
#include "softgpu/ptx/code/registers.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace softgpu::ptx {
namespace {

constexpr u32 kFewest = 16, kMost = 255;
constexpr u32 kOfBlock = 65536;  // all registers that a block can have
constexpr u32 kUnit = 8;         // by which they are given to a thread
constexpr u32 kOwn = 4;          // besides the values: stack pointer and what addresses take

struct Life {
  int first = -1, last = -1;
  int writes = 0;
  bool constant = false;  // a parameter of a kernel: read where it lies
};

class Lives {
 public:
  explicit Lives(const FunctionText& function)
      : function_(function), lives_(function.registers.size()) {
    for (std::size_t i = 0; i < function.statements.size(); ++i) read(static_cast<int>(i));
    // Inner loops end first, so what they lengthen is seen by those around them.
    std::sort(loops_.begin(), loops_.end(),
              [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const auto& [begin, end] : loops_)
      for (Life& life : lives_)
        if (life.first < begin && life.last >= begin && life.last < end) life.last = end;
  }

  u32 peak() const {
    std::vector<int> change(function_.statements.size() + 1);
    for (std::size_t i = 0; i < lives_.size(); ++i) {
      const Life& life = lives_[i];
      if (life.first < 0 || (life.constant && life.writes == 1)) continue;
      const int words = words_of(function_.registers[i].type);
      change[static_cast<std::size_t>(life.first)] += words;
      // The statement that reads it last may write its own result in the same place.
      change[static_cast<std::size_t>(std::max(life.first + 1, life.last))] -= words;
    }
    int now = 0, most = 0;
    for (const int words : change) most = std::max(most, now += words);
    return static_cast<u32>(most);
  }

 private:
  static int words_of(Type type) {
    return type == Type::kPred ? 0 : static_cast<int>((type_bytes(type) + 3) / 4);
  }

  void read(int at) {
    const Statement& s = function_.statements[static_cast<std::size_t>(at)];
    if (s.kind == Statement::Kind::kLabel) labels_[s.text] = at;
    if (s.kind != Statement::Kind::kInstruction) return;
    mention(s.guard, at);
    for (const Operand& operand : s.operands) mention(operand, at);
    if (!s.operands.empty()) write(s);
    if (s.op != "bra" || s.operands.empty()) return;
    const auto label = labels_.find(s.operands[0].name);
    if (label != labels_.end()) loops_.emplace_back(label->second, at);
  }

  void write(const Statement& s) {
    const Operand& to = s.operands[0];
    const bool parameter =
        function_.entry && s.op == "ld" && !s.mods.empty() && s.mods[0].substr(0, 5) == "param";
    const auto one = [&](const Operand& operand) {
      if (operand.kind != Operand::Kind::kRegister || operand.reg < 0) return;
      Life& life = lives_[static_cast<std::size_t>(operand.reg)];
      ++life.writes;
      life.constant = parameter;
    };
    one(to);
    for (const Operand& part : to.parts) one(part);
  }

  void mention(const Operand& operand, int at) {
    mention(operand.reg, at);
    mention(operand.second, at);
    for (const Operand& part : operand.parts) mention(part, at);
  }

  void mention(int reg, int at) {
    if (reg < 0 || static_cast<std::size_t>(reg) >= lives_.size()) return;
    Life& life = lives_[static_cast<std::size_t>(reg)];
    if (life.first < 0) life.first = at;
    life.last = at;
  }

  const FunctionText& function_;
  std::vector<Life> lives_;
  std::unordered_map<std::string_view, int> labels_;
  std::vector<std::pair<int, int>> loops_;  // from their label to the branch back
};

}  // namespace

u32 registers_estimate(const FunctionText& kernel,
                       const std::vector<const FunctionText*>& functions) {
  u32 most = kMost;
  if (kernel.threads_max != 0) {
    const u32 threads = (kernel.threads_max + 31) / 32 * 32;
    most = std::min(most, kOfBlock / threads / kUnit * kUnit);
  }
  if (kernel.registers_max != 0) most = std::min(most, kernel.registers_max);
  u32 peak = Lives(kernel).peak();
  for (const FunctionText* function : functions) peak = std::max(peak, Lives(*function).peak());
  return std::clamp(peak + kOwn, kFewest, std::max(most, kFewest));
}

}  // namespace softgpu::ptx

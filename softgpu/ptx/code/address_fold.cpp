// Array elements: `p[i]` is a widening multiplication (or a conversion and a shift), an addition
// and a load. Where the sum is used as an address alone, load and store make it themselves from the
// 32-bit index: that is three rows of 64-bit values less to write and read. The statements that go
// away are still counted: what a kernel costs does not depend on how it is executed here.
//
//   base + (extended(index) + plus) * scale
//
// base and plus are the same in all lanes: parameters, block indices, and what is computed from
// those alone. Statements in front of a function's first label run once, so what they compute from
// registers that are written there alone holds for all that follows; elsewhere computation and
// access have to be in one block of statements.
#include <algorithm>
#include <array>
#include <climits>

#include "softgpu/ptx/code/decoder.h"

namespace softgpu::ptx {
namespace {

constexpr u64 kScaleMax = 255;  // Inst::bytes

/// Loads, stores and atomics that take any pointer.
bool takes_pointer(const Statement& s) {
  const bool known = s.op == "ld" || s.op == "st" || s.op == "atom" || s.op == "red";
  const Space space = space_of(s);
  return known && (space == Space::kGlobal || space == Space::kGeneric || space == Space::kConst);
}

bool is_plain(const Statement& s, std::string_view op,
              std::initializer_list<std::string_view> mods) {
  return s.kind == Statement::Kind::kInstruction && s.guard < 0 && s.op == op &&
         std::equal(s.mods.begin(), s.mods.end(), mods.begin(), mods.end());
}

/// The result depends on nothing but the sources.
bool is_pure(const Statement& s) {
  static constexpr std::array<std::string_view, 14> kOps{"mov", "cvta", "cvt", "add", "sub",
                                                         "mul", "mad",  "shl", "shr", "and",
                                                         "or",  "xor",  "min", "max"};
  return s.kind == Statement::Kind::kInstruction && s.guard < 0 && !Decoder::has(s, "cc") &&
         std::find(kOps.begin(), kOps.end(), s.op) != kOps.end();
}

/// Special registers that all threads of a block agree on.
bool is_of_block(std::string_view special) {
  static constexpr std::array<std::string_view, 9> kNames{"%ntid.x",   "%ntid.y",   "%ntid.z",
                                                          "%ctaid.x",  "%ctaid.y",  "%ctaid.z",
                                                          "%nctaid.x", "%nctaid.y", "%nctaid.z"};
  return std::find(kNames.begin(), kNames.end(), special) != kNames.end();
}

}  // namespace

class Decoder::AddressFolder {
 public:
  explicit AddressFolder(Decoder& decoder)
      : d_(decoder), statements_(decoder.function_.statements) {
    mentions_.resize(decoder.function_.registers.size());
    uniform_.assign(decoder.function_.registers.size(), false);
    blocks_.resize(statements_.size());
  }

  void run() {
    find_mentions();
    find_uniform();
    for (std::size_t n = 0; n < statements_.size(); ++n) {
      const Statement& s = statements_[n];
      if (is_plain(s, "add", {"s64"}) || is_plain(s, "add", {"u64"})) fold(static_cast<int>(n));
    }
  }

 private:
  /// Where a register is read and written.
  struct Mentions {
    std::vector<int> address_reads;  // as the address of a load, store or atomic
    int other_reads = 0;
    std::vector<int> writes;
  };

  /// (extended(index) + plus) * scale, and how it was computed.
  struct Product {
    int index = -1, plus = -1;
    u64 scale = 0;
    bool is_signed = false;
    int first = -1;          // the statement that reads the index
    std::vector<int> chain;  // registers on the way from the product to the index
  };

  Mentions& of(int reg) { return mentions_[index_of(reg)]; }
  const Statement& at(int n) const { return statements_[index_of(n)]; }
  int block(int n) const { return blocks_[index_of(n)]; }

  void find_mentions() {
    int block = 0;
    for (std::size_t n = 0; n < statements_.size(); ++n) {
      const Statement& s = statements_[n];
      if (s.kind == Statement::Kind::kLabel) {
        ++block;
        first_label_ = std::min(first_label_, static_cast<int>(n));
      }
      blocks_[n] = block;
      if (s.kind != Statement::Kind::kInstruction || d_.folded_[n]) continue;
      for (std::size_t k = 0; k < s.operands.size(); ++k) {
        mention(s, s.operands[k], static_cast<int>(n), k == 0 && !defines_nothing(s));
      }
      if (s.op == "bra" || s.op == "brx") ++block;
    }
  }

  /// Narrow elements in 64-bit registers are rare, and have no handlers of their own for it.
  bool widens(const Statement& s) {
    const Type type = last_type(s);
    if ((s.op != "ld" && s.op != "st") || type_bytes(type) == 8) return false;
    const Operand& value = s.operands[s.op == "ld" ? 0 : 1];
    const Operand& first = value.parts.empty() ? value : value.parts.front();
    return first.kind == Operand::Kind::kRegister && d_.box_of(first, type) == 8;
  }

  void mention(const Statement& s, const Operand& o, int n, bool writes) {
    for (const Operand& part : o.parts) mention(s, part, n, writes);
    const bool is_address = o.kind == Operand::Kind::kAddress;
    for (const int reg : {o.reg, o.second}) {
      if (reg < 0) continue;
      if (is_address && takes_pointer(s) && !widens(s)) {
        of(reg).address_reads.push_back(n);
      } else if (writes && !is_address) {
        of(reg).writes.push_back(n);
      } else {
        ++of(reg).other_reads;
      }
    }
  }

  /// Runs at most once in a call of the function.
  bool is_fixed(int n) const { return n < first_label_; }
  bool once(int reg) { return d_.uses_[index_of(reg)].definitions == 1; }

  /// Marks registers that are written once, with the same value in all lanes. In the order of the
  /// text: what is computed from a later statement (in a loop) is not found, and need not be.
  void find_uniform() {
    for (const Statement& s : statements_) {
      const bool parameter =
          s.op == "ld" && d_.folded_[static_cast<std::size_t>(&s - statements_.data())];
      if ((!is_pure(s) && !parameter) || s.operands.empty()) continue;
      const Operand& d = s.operands[0];
      if (d.kind != Operand::Kind::kRegister || d.second >= 0 || !once(d.reg)) continue;
      const auto is_uniform = [&](const Operand& o) {
        if (o.kind == Operand::Kind::kRegister) return bool{uniform_[index_of(o.reg)]};
        if (o.kind == Operand::Kind::kSpecial) return is_of_block(o.name);
        return o.kind == Operand::Kind::kImmediate;
      };
      uniform_[index_of(d.reg)] =
          parameter || std::all_of(s.operands.begin() + 1, s.operands.end(), is_uniform);
    }
  }
  bool is_uniform(const Operand& o) {
    return o.kind == Operand::Kind::kRegister && uniform_[index_of(o.reg)] &&
           d_.box_of(o, Type::kB64) == 8;
  }

  /// The one statement that writes this register, if what it wrote is there at `n` and is no
  /// constant.
  const Statement* writer(const Operand& o, int n) {
    if (o.kind != Operand::Kind::kRegister || o.second >= 0 || d_.is_alias_[index_of(o.reg)])
      return nullptr;
    const std::vector<int>& writes = of(o.reg).writes;
    const bool known = once(o.reg) && writes.size() == 1;
    const bool holds =
        known && writes[0] < n && (block(writes[0]) == block(n) || is_fixed(writes[0]));
    return holds ? &at(writes[0]) : nullptr;
  }
  int written(const Operand& o) { return of(o.reg).writes[0]; }

  bool product_of(const Operand& product, int n, Product& out) {
    const Statement* s = writer(product, n);
    if (s == nullptr) return false;
    out.chain.push_back(product.reg);
    const bool is_signed = is_plain(*s, "mul", {"wide", "s32"});
    if (is_signed || is_plain(*s, "mul", {"wide", "u32"})) {
      const Operand *index = &s->operands[1], *scale = &s->operands[2];
      if (index->kind == Operand::Kind::kImmediate) std::swap(index, scale);
      out.scale = scale->kind == Operand::Kind::kImmediate ? scale->bits : 0;
      return index_set(*index, is_signed, written(product), out);
    }
    if (!is_plain(*s, "shl", {"b64"}) || s->operands[2].kind != Operand::Kind::kImmediate ||
        s->operands[2].bits > 7)
      return false;
    out.scale = u64{1} << s->operands[2].bits;
    return wide_index_of(s->operands[1], written(product), out);
  }

  /// A conversion, or one to which something uniform is added.
  bool wide_index_of(const Operand& wide, int n, Product& out) {
    const Statement* s = writer(wide, n);
    if (s == nullptr) return false;
    out.chain.push_back(wide.reg);
    const bool extends = is_plain(*s, "cvt", {"s64", "s32"});
    if (extends || is_plain(*s, "cvt", {"u64", "u32"}))
      return index_set(s->operands[1], extends, written(wide), out);
    if (out.plus >= 0 || (!is_plain(*s, "add", {"s64"}) && !is_plain(*s, "add", {"u64"})))
      return false;
    const bool first = is_uniform(s->operands[1]);
    if (!first && !is_uniform(s->operands[2])) return false;
    out.plus = s->operands[first ? 1 : 2].reg;
    return wide_index_of(s->operands[first ? 2 : 1], written(wide), out);
  }

  bool index_set(const Operand& index, bool is_signed, int read_at, Product& out) {
    out.index = index.reg;
    out.is_signed = is_signed;
    out.first = read_at;
    return index.kind == Operand::Kind::kRegister && d_.box_of(index, Type::kB32) == 4 &&
           out.scale >= 1 && out.scale <= kScaleMax;
  }

  /// True if the index has the value at all these reads that it had when the product was made.
  bool index_lasts(const Product& product, const std::vector<int>& reads) {
    if (d_.is_alias_[index_of(product.index)]) return true;
    const std::vector<int>& writes = of(product.index).writes;
    if (is_fixed(product.first) && once(product.index) && !writes.empty() &&
        writes[0] < product.first)
      return true;
    const auto is_near = [&](int n) { return block(n) == block(product.first); };
    return std::all_of(reads.begin(), reads.end(), is_near) &&
           std::none_of(writes.begin(), writes.end(),
                        [&](int n) { return n > product.first && n <= reads.back(); });
  }

  /// A register that is read at these places instead of another one.
  void extend(int reg, const std::vector<int>& reads) {
    if (reg < 0) return;
    Use& use = d_.uses_[index_of(reg)];
    use.last = std::max(use.last, reads.back());
    for (const int n : reads) use.many_blocks |= block(n) != use.block;
  }

  void fold(int n) {
    const Statement& s = at(n);
    const Operand& sum = s.operands[0];
    if (sum.kind != Operand::Kind::kRegister || d_.uses_[index_of(sum.reg)].definitions != 1 ||
        of(sum.reg).other_reads != 0 || of(sum.reg).address_reads.empty())
      return;
    const std::vector<int>& reads = of(sum.reg).address_reads;
    const auto is_near = [&](int at) { return at > n && (block(at) == block(n) || is_fixed(n)); };
    if (!std::all_of(reads.begin(), reads.end(), is_near)) return;
    for (const int k : {1, 2}) {
      const Operand &base = s.operands[index_of(k)], &product = s.operands[index_of(3 - k)];
      Product found;
      if (!is_uniform(base) || !product_of(product, n, found) || !index_lasts(found, reads) ||
          (found.plus >= 0 && any_of_four(reads)))
        continue;
      d_.indexed_.emplace(sum.reg, Indexed{base.reg, found.index, found.plus,
                                           static_cast<u8>(found.scale), found.is_signed});
      for (const int reg : {base.reg, found.index, found.plus}) extend(reg, reads);
      drop(n, sum.reg);
      read_dropped(found.chain);
      return;
    }
  }

  /// The statement that wrote `reg` is superfluous, and so is the register.
  void drop(int n, int reg) {
    d_.folded_[index_of(n)] = true;
    d_.counted_[index_of(n)] = true;
    d_.uses_[index_of(reg)].first = -1;
  }

  /// The first of the chain is read once less; when nobody else reads it, so is the next.
  void read_dropped(const std::vector<int>& chain) {
    for (const int reg : chain) {
      Mentions& mentions = of(reg);
      if (--mentions.other_reads > 0 || !mentions.address_reads.empty()) return;
      drop(mentions.writes[0], reg);
    }
  }

  /// Their instructions have no row left for `plus`.
  bool any_of_four(const std::vector<int>& accesses) const {
    return std::any_of(accesses.begin(), accesses.end(),
                       [&](int n) { return Decoder::has(at(n), "v4"); });
  }

  Decoder& d_;
  const std::vector<Statement>& statements_;
  std::vector<Mentions> mentions_;
  std::vector<bool> uniform_;  // registers with one value for all lanes
  std::vector<int> blocks_;
  int first_label_ = INT_MAX;
};

void Decoder::fold_addresses() { AddressFolder(*this).run(); }

}  // namespace softgpu::ptx

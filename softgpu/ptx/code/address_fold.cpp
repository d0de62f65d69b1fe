// Array elements: `p[i]` is a widening multiplication (or a conversion and a shift), an addition
// and a load. Where the sum is used as an address alone, load and store make it themselves from the
// 32-bit index: that is three rows of 64-bit values less to write and read. The statements that go
// away are still counted: what a kernel costs does not depend on how it is executed here.
#include <algorithm>

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

}  // namespace

class Decoder::AddressFolder {
 public:
  explicit AddressFolder(Decoder& decoder)
      : d_(decoder), statements_(decoder.function_.statements) {
    mentions_.resize(decoder.function_.registers.size());
    blocks_.resize(statements_.size());
  }

  void run() {
    find_mentions();
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

  /// An index times a scale, and the statements that computed it.
  struct Product {
    int index = -1;
    u64 scale = 0;
    bool is_signed = false;
    int first = -1;    // the statement that reads the index
    int between = -1;  // register that a conversion wrote
  };

  Mentions& of(int reg) { return mentions_[index_of(reg)]; }
  const Statement& at(int n) const { return statements_[index_of(n)]; }
  int block(int n) const { return blocks_[index_of(n)]; }

  void find_mentions() {
    int block = 0;
    for (std::size_t n = 0; n < statements_.size(); ++n) {
      const Statement& s = statements_[n];
      if (s.kind == Statement::Kind::kLabel) ++block;
      blocks_[n] = block;
      if (s.kind != Statement::Kind::kInstruction || d_.folded_[n]) continue;
      for (std::size_t k = 0; k < s.operands.size(); ++k) {
        mention(s, s.operands[k], static_cast<int>(n), k == 0 && !defines_nothing(s));
      }
      if (s.op == "bra" || s.op == "brx") ++block;
    }
  }

  void mention(const Statement& s, const Operand& o, int n, bool writes) {
    for (const Operand& part : o.parts) mention(s, part, n, writes);
    const bool is_address = o.kind == Operand::Kind::kAddress;
    for (const int reg : {o.reg, o.second}) {
      if (reg < 0) continue;
      if (is_address && takes_pointer(s)) {
        of(reg).address_reads.push_back(n);
      } else if (writes && !is_address) {
        of(reg).writes.push_back(n);
      } else {
        ++of(reg).other_reads;
      }
    }
  }

  /// The one statement that writes this register, if it does so before `n` in the same block and
  /// its result is no constant.
  const Statement* writer(const Operand& o, int n) {
    if (o.kind != Operand::Kind::kRegister || o.second >= 0 || d_.is_alias_[index_of(o.reg)])
      return nullptr;
    const std::vector<int>& writes = of(o.reg).writes;
    const bool once = d_.uses_[index_of(o.reg)].definitions == 1 && writes.size() == 1;
    return once && writes[0] < n && block(writes[0]) == block(n) ? &at(writes[0]) : nullptr;
  }

  /// Reads `product` as an index times a scale.
  bool product_of(const Operand& product, int n, Product& out) {
    const Statement* s = writer(product, n);
    if (s == nullptr) return false;
    const bool is_signed = is_plain(*s, "mul", {"wide", "s32"});
    if (is_signed || is_plain(*s, "mul", {"wide", "u32"})) {
      const Operand *index = &s->operands[1], *scale = &s->operands[2];
      if (index->kind == Operand::Kind::kImmediate) std::swap(index, scale);
      out.scale = scale->kind == Operand::Kind::kImmediate ? scale->bits : 0;
      return index_set(*index, is_signed, of(product.reg).writes[0], out);
    }
    if (!is_plain(*s, "shl", {"b64"}) || s->operands[2].kind != Operand::Kind::kImmediate ||
        s->operands[2].bits > 7)
      return false;
    out.scale = u64{1} << s->operands[2].bits;
    const Operand& wide = s->operands[1];
    const Statement* conversion = writer(wide, of(product.reg).writes[0]);
    if (conversion == nullptr) return false;
    const bool extends = is_plain(*conversion, "cvt", {"s64", "s32"});
    if (!extends && !is_plain(*conversion, "cvt", {"u64", "u32"})) return false;
    out.between = wide.reg;
    return index_set(conversion->operands[1], extends, of(wide.reg).writes[0], out);
  }

  bool index_set(const Operand& index, bool is_signed, int read_at, Product& out) {
    out.index = index.reg;
    out.is_signed = is_signed;
    out.first = read_at;
    return index.kind == Operand::Kind::kRegister && d_.box_of(index, Type::kB32) == 4 &&
           out.scale >= 1 && out.scale <= kScaleMax;
  }

  /// True if the index still has the value at `last` that it had when the product was made.
  bool index_lasts(const Product& product, int last) {
    const std::vector<int>& writes = of(product.index).writes;
    return std::none_of(writes.begin(), writes.end(),
                        [&](int n) { return n > product.first && n <= last; });
  }

  void fold(int n) {
    const Statement& s = at(n);
    const Operand& sum = s.operands[0];
    if (sum.kind != Operand::Kind::kRegister || d_.uses_[index_of(sum.reg)].definitions != 1 ||
        of(sum.reg).other_reads != 0 || of(sum.reg).address_reads.empty())
      return;
    const std::vector<int>& reads = of(sum.reg).address_reads;
    const auto is_near = [&](int at) { return at > n && block(at) == block(n); };
    if (!std::all_of(reads.begin(), reads.end(), is_near)) return;
    for (const int k : {1, 2}) {
      const Operand &base = s.operands[index_of(k)], &product = s.operands[index_of(3 - k)];
      Product found;
      if (base.kind != Operand::Kind::kRegister || !d_.is_alias_[index_of(base.reg)] ||
          !product_of(product, n, found) || !index_lasts(found, reads.back()))
        continue;
      d_.indexed_.emplace(sum.reg, Indexed{d_.register_row(base.reg), found.index,
                                           static_cast<u8>(found.scale), found.is_signed});
      Use& index = d_.uses_[index_of(found.index)];
      index.last = std::max(index.last, reads.back());
      drop(n, sum.reg);
      read_dropped(product.reg);
      return;
    }
  }

  /// The statement that wrote `reg` is superfluous, and so is the register.
  void drop(int n, int reg) {
    d_.folded_[index_of(n)] = true;
    d_.counted_[index_of(n)] = true;
    d_.uses_[index_of(reg)].first = -1;
  }

  /// Nobody may read this register any more; then what it was made of is read once less, too.
  void read_dropped(int reg) {
    Mentions& mentions = of(reg);
    if (--mentions.other_reads > 0 || !mentions.address_reads.empty()) return;
    const Statement& s = at(mentions.writes[0]);
    drop(mentions.writes[0], reg);
    if (s.op == "shl") read_dropped(s.operands[1].reg);
  }

  Decoder& d_;
  const std::vector<Statement>& statements_;
  std::vector<Mentions> mentions_;
  std::vector<int> blocks_;
};

void Decoder::fold_addresses() { AddressFolder(*this).run(); }

}  // namespace softgpu::ptx

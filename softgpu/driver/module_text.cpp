// See module_text.h.
#include "softgpu/driver/module_text.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace softgpu::driver {
namespace {

bool name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}
bool name_part(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$';
}

/// Words of a text: directives (".entry"), identifiers, single punctuation. Comments and strings
/// are passed over; numbers come out as words that nothing looks for.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text.substr(0, text.find('\0'))) { next(); }

  bool ended() const { return word_.empty(); }
  bool is(std::string_view word) const { return word_ == word; }
  bool directive() const { return word_.size() > 1 && word_[0] == '.'; }
  bool identifier() const { return !word_.empty() && name_start(word_[0]); }
  std::string_view word() const { return word_; }
  std::size_t start() const { return static_cast<std::size_t>(word_.data() - text_.data()); }
  std::size_t end() const { return at_; }
  std::string_view between(std::size_t from, std::size_t to) const {
    return text_.substr(from, to - from);
  }

  void next() {
    skip_blank();
    const std::size_t from = at_;
    if (at_ >= text_.size()) {
      word_ = {};
      return;
    }
    const char c = text_[at_++];
    if (c == '"') {
      while (at_ < text_.size() && text_[at_] != '"') ++at_;
      if (at_ < text_.size()) ++at_;
    } else if (c == '.' || name_start(c) || std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (at_ < text_.size() && name_part(text_[at_])) ++at_;
    }
    word_ = text_.substr(from, at_ - from);
  }
  /// The rest of this line does not belong to any item.
  void next_line() {
    at_ = std::min(text_.find('\n', start()), text_.size());
    next();
  }
  /// The number that follows as text, e.g. "9.0" or "sm_80": up to a blank or a comma.
  std::string_view raw() const {
    const std::size_t from = start();
    std::size_t to = from;
    while (to < text_.size() && std::isspace(static_cast<unsigned char>(text_[to])) == 0 &&
           text_[to] != ',')
      ++to;
    return text_.substr(from, to - from);
  }

 private:
  void skip_blank() {
    for (;;) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
      if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_, 2) == "/*") {
        const std::size_t close = text_.find("*/", at_ + 2);
        at_ = close == text_.npos ? text_.size() : close + 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  std::string_view word_;
  std::size_t at_ = 0;
};

int digits_of(std::string_view text) {
  int value = 0;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) break;
    value = value * 10 + (c - '0');
  }
  return value;
}

class Outliner {
 public:
  explicit Outliner(std::string_view text) : words_(text) {}

  TextOutline run() {
    while (!words_.ended()) item();
    return std::move(outline_);
  }

 private:
  void item() {
    if (words_.is(".version")) return version();
    if (words_.is(".target")) return target();
    if (words_.is(".address_size") || words_.is(".file") || words_.is(".loc"))
      return words_.next_line();
    TextItem item;
    const std::size_t from = words_.start();
    heading(item);
    body(item);
    item.text = words_.between(from, end_);
    std::sort(item.mentions.begin(), item.mentions.end());
    item.mentions.erase(std::unique(item.mentions.begin(), item.mentions.end()),
                        item.mentions.end());
    outline_.items.push_back(std::move(item));
  }

  void version() {
    words_.next();
    const std::string_view text = words_.raw();
    const std::size_t dot = text.find('.');
    outline_.version = digits_of(text) * 10;
    if (dot != text.npos) outline_.version += digits_of(text.substr(dot + 1));
    words_.next_line();
  }

  void target() {
    words_.next();
    const std::string_view text = words_.raw();
    if (text.substr(0, 3) == "sm_") outline_.target = digits_of(text.substr(3));
    words_.next_line();
  }

  /// Directives up to the name: what it is, how it is linked.
  void heading(TextItem& item) {
    int depth = 0;
    for (; !words_.ended(); words_.next()) {
      if (words_.is("(")) ++depth;
      if (words_.is(")")) --depth;
      if (depth > 0 || words_.is(")")) continue;  // the return value of a function
      if (words_.is(".visible")) item.linkage = TextItem::Linkage::kVisible;
      if (words_.is(".extern")) item.linkage = TextItem::Linkage::kExtern;
      if (words_.is(".weak")) item.linkage = TextItem::Linkage::kWeak;
      if (words_.is(".common")) item.linkage = TextItem::Linkage::kCommon;
      if (words_.is(".entry")) item.kind = TextItem::Kind::kEntry;
      if (words_.is(".func")) item.kind = TextItem::Kind::kFunction;
      if (words_.is(".shared")) item.shared = true;
      if (words_.is(".global") || words_.is(".const") || words_.is(".shared"))
        item.kind = TextItem::Kind::kVariable;
      if (words_.is(";") || words_.is("{") || words_.is("}")) return;
      if (!words_.identifier()) continue;
      item.name = words_.word();
      words_.next();
      return;
    }
  }

  /// The rest, up to the ';' or the '}' that ends it.
  void body(TextItem& item) {
    const bool code = item.kind == TextItem::Kind::kEntry || item.kind == TextItem::Kind::kFunction;
    const bool section = item.kind == TextItem::Kind::kOther;
    int depth = 0;
    bool braces = false;
    for (; !words_.ended(); words_.next()) {
      end_ = words_.end();
      if (words_.is("{")) {
        ++depth;
        braces = true;
      }
      if (words_.is("}")) --depth;
      const bool ends = words_.is("}") && depth <= 0 && (code || section);
      if (ends || (words_.is(";") && depth <= 0)) {
        words_.next();
        break;
      }
      if (words_.identifier() && words_.word()[0] != '%') item.mentions.push_back(words_.word());
    }
    item.defined =
        code ? braces
             : item.kind == TextItem::Kind::kVariable && item.linkage != TextItem::Linkage::kExtern;
  }

  Words words_;
  TextOutline outline_;
  std::size_t end_ = 0;
};

bool mentions(const TextItem& item, std::string_view name) {
  return std::binary_search(item.mentions.begin(), item.mentions.end(), name);
}

/// The items that an entry can reach; a variable with addresses of functions counts as a user.
class Reach {
 public:
  explicit Reach(const TextOutline& outline) {
    for (const TextItem& item : outline.items)
      if (!item.name.empty() && (by_name_.count(item.name) == 0 || item.defined))
        by_name_[item.name] = &item;
  }

  TextNeeds of(const TextItem& entry) {
    TextNeeds needs;
    std::set<const TextItem*> seen;
    std::vector<const TextItem*> open{&entry};
    while (!open.empty()) {
      const TextItem* item = open.back();
      open.pop_back();
      if (!seen.insert(item).second) continue;
      needs.heap |= mentions(*item, "malloc");
      needs.fifo |= mentions(*item, "vprintf");
      // Calls through pointers name the prototype; a function that reaches itself is recursive.
      needs.stack_unknown |= item->text.find(".callprototype") != std::string_view::npos ||
                             item->text.find(".calltargets") != std::string_view::npos;
      for (const std::string_view name : item->mentions) {
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) continue;
        open.push_back(found->second);
        if (found->second->kind == TextItem::Kind::kFunction)
          needs.stack_unknown |= reaches(*found->second, *found->second);
      }
    }
    return needs;
  }

 private:
  bool reaches(const TextItem& from, const TextItem& to) {
    const auto [known, is_new] = recursive_.emplace(&from, false);
    if (!is_new) return known->second;
    std::set<const TextItem*> seen;
    std::vector<const TextItem*> open{&from};
    while (!open.empty()) {
      const TextItem* item = open.back();
      open.pop_back();
      if (!seen.insert(item).second) continue;
      if (mentions(*item, to.name)) return recursive_[&from] = true;
      for (const std::string_view name : item->mentions) {
        const auto found = by_name_.find(name);
        if (found != by_name_.end() && found->second->kind == TextItem::Kind::kFunction)
          open.push_back(found->second);
      }
    }
    return false;
  }

  std::map<std::string_view, const TextItem*> by_name_;
  std::map<const TextItem*, bool> recursive_;
};

}  // namespace

TextOutline text_outline(std::string_view ptx) { return Outliner(ptx).run(); }

std::map<std::string, TextNeeds, std::less<>> text_needs(const TextOutline& outline) {
  std::map<std::string, TextNeeds, std::less<>> needs;
  Reach reach(outline);
  for (const TextItem& item : outline.items)
    if (item.kind == TextItem::Kind::kEntry) needs.emplace(item.name, reach.of(item));
  return needs;
}

bool text_provided(std::string_view name) {
  constexpr std::string_view kProvided[] = {"malloc", "free", "vprintf", "__assertfail",
                                            "__nanosleep"};
  return std::find(std::begin(kProvided), std::end(kProvided), name) != std::end(kProvided);
}

std::string_view text_unresolved(const TextOutline& outline) {
  std::set<std::string_view> defined;
  for (const TextItem& item : outline.items)
    if (item.defined) defined.insert(item.name);
  for (const TextItem& item : outline.items) {
    const bool open = !item.defined && !item.shared && item.kind != TextItem::Kind::kOther &&
                      defined.count(item.name) == 0 && !text_provided(item.name);
    const auto uses = [&](const TextItem& other) { return mentions(other, item.name); };
    if (open && std::any_of(outline.items.begin(), outline.items.end(), uses)) return item.name;
  }
  return {};
}

}  // namespace softgpu::driver

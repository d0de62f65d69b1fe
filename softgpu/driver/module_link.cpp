// See module_link.h.
#include "softgpu/driver/module_link.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

namespace softgpu::driver {
namespace {

using Linkage = TextItem::Linkage;

bool word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

/// `text` with whole words replaced.
std::string renamed(std::string_view text, const std::map<std::string_view, std::string>& names) {
  if (names.empty()) return std::string(text);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && word_char(text[end])) ++end;
    if (end == at) {
      out += text[at++];
      continue;
    }
    const std::string_view word = text.substr(at, end - at);
    const auto found = names.find(word);
    out += found == names.end() ? word : std::string_view(found->second);
    at = end;
  }
  return out;
}

/// A kernel whose registers are limited where it is defined.
std::string limited(std::string text, std::uint32_t registers) {
  const std::size_t body = text.find('{');
  if (body != text.npos) text.insert(body, ".maxnreg " + std::to_string(registers) + "\n");
  return text;
}

/// A function without its body.
std::string declaration(const std::string& text) {
  const std::size_t body = text.find('{');
  return (body == text.npos ? text : text.substr(0, body)) + (body == text.npos ? "" : ";");
}

bool named(const TextItem& item) {
  return item.kind != TextItem::Kind::kOther && !item.name.empty();
}

class Joiner {
 public:
  Joiner(const std::vector<std::string_view>& texts, const std::vector<std::string>& names,
         std::uint32_t registers_max)
      : names_(names), registers_max_(registers_max) {
    for (const std::string_view text : texts) outlines_.push_back(text_outline(text));
  }

  std::string run(std::string& trouble) {
    choose();
    trouble = trouble_.empty() ? undefined() : trouble_;
    if (!trouble.empty()) return {};
    int version = 0, target = 0;
    for (const TextOutline& outline : outlines_) {
      version = std::max(version, outline.version);
      target = std::max(target, outline.target);
    }
    std::string declarations, definitions;
    for (std::size_t i = 0; i < outlines_.size(); ++i) emit(i, declarations, definitions);
    return ".version " + std::to_string(version / 10) + "." + std::to_string(version % 10) +
           "\n.target sm_" + std::to_string(target) + "\n.address_size 64\n" + declarations +
           definitions;
  }

 private:
  /// Which definition of every shared name is the one: a strong one wins over weak and common ones,
  /// of which the first is taken; two strong ones are an error.
  void choose() {
    for (std::size_t i = 0; i < outlines_.size(); ++i) {
      for (const TextItem& item : outlines_[i].items) {
        if (!named(item)) continue;
        if (item.linkage == Linkage::kStatic && item.kind != TextItem::Kind::kEntry) continue;
        shared_.insert(item.name);
        if (!item.defined) continue;
        const TextItem*& chosen = chosen_[item.name];
        const bool strong = is_strong(item);
        if (chosen != nullptr && strong && is_strong(*chosen))
          trouble_ =
              "Multiple definition of '" + std::string(item.name) + "' in '" + names_[i] + "'";
        if (chosen == nullptr || (strong && !is_strong(*chosen))) chosen = &item;
      }
    }
  }

  static bool is_strong(const TextItem& item) {
    return item.linkage != Linkage::kWeak && item.linkage != Linkage::kCommon;
  }

  std::string undefined() const {
    for (std::size_t i = 0; i < outlines_.size(); ++i)
      for (const TextItem& item : outlines_[i].items) {
        if (!named(item) || item.defined || item.shared || item.linkage != Linkage::kExtern)
          continue;
        if (chosen_.count(item.name) != 0 || text_provided(item.name)) continue;
        for (const TextItem& user : outlines_[i].items)
          if (std::binary_search(user.mentions.begin(), user.mentions.end(), item.name))
            return "Undefined reference to '" + std::string(item.name) + "' in '" + names_[i] + "'";
      }
    return {};
  }

  /// Names that only one text knows must stay its own.
  std::map<std::string_view, std::string> own_names(std::size_t input) {
    std::map<std::string_view, std::string> names;
    for (const TextItem& item : outlines_[input].items) {
      const bool own =
          named(item) && item.linkage == Linkage::kStatic && item.kind != TextItem::Kind::kEntry;
      if (!own) continue;
      if (own_.emplace(item.name, input).first->second == input && shared_.count(item.name) == 0)
        continue;
      names[item.name] = std::string(item.name) + "$" + std::to_string(input);
    }
    return names;
  }

  void emit(std::size_t input, std::string& declarations, std::string& definitions) {
    const auto own = own_names(input);
    for (const TextItem& item : outlines_[input].items) {
      // Debug sections number their files by text; nobody reads them here.
      if (item.kind == TextItem::Kind::kOther) continue;
      const bool is_own = item.linkage == Linkage::kStatic && item.kind != TextItem::Kind::kEntry;
      const auto chosen = chosen_.find(item.name);
      const bool has_definition = chosen != chosen_.end();
      std::string text = renamed(item.text, own) + "\n";
      if (item.kind == TextItem::Kind::kEntry && registers_max_ != kRegistersUnlimited)
        text = limited(std::move(text), registers_max_);
      const bool is_function = item.kind == TextItem::Kind::kFunction;
      if (is_function && (is_own || declared_.insert(item.name).second))
        declarations += declaration(text) + "\n";
      if (item.defined && (is_own || (has_definition && chosen->second == &item)))
        definitions += text;
      if (!item.defined && !is_function && !has_definition) declarations += text;
    }
  }

  const std::vector<std::string>& names_;
  const std::uint32_t registers_max_;
  std::vector<TextOutline> outlines_;
  std::map<std::string_view, const TextItem*> chosen_;
  std::set<std::string_view> shared_;
  std::set<std::string_view> declared_;
  std::map<std::string_view, std::size_t> own_;  // the first text with a static of this name
  std::string trouble_;
};

}  // namespace

std::string texts_join(const std::vector<std::string_view>& texts,
                       const std::vector<std::string>& names, std::uint32_t registers_max,
                       std::string& trouble) {
  return Joiner(texts, names, registers_max).run(trouble);
}

CUresult Linker::refuse(CUresult result, const std::string& trouble) {
  if (!log_.empty()) log_ += "\n";
  log_ += trouble;
  request_.report(log_);
  return result;
}

CUresult Linker::fail(CUresult result, const std::string& trouble) {
  Process::get().complain("texts not linked: " + trouble + "; the call returns " +
                          error_name(result));
  return refuse(result, trouble);
}

CUresult Linker::add(CUjitInputType type, const void* data, std::size_t bytes, const char* name) {
  request_.resume();
  Input input{name == nullptr || *name == '\0' ? "<unnamed>" : name, {}};
  switch (type) {
    case CU_JIT_INPUT_PTX:
      input.text.assign(static_cast<const char*>(data), bytes);
      input.text.resize(std::min(input.text.size(), input.text.find('\0')));
      break;
    case CU_JIT_INPUT_FATBINARY: {
      LoadOptions options = options_;
      const CUresult result = image_choose(data, options, input.text);
      if (result != CUDA_SUCCESS) return refuse(result, options.log);
      break;
    }
    case CU_JIT_INPUT_CUBIN:
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY:
      return fail(CUDA_ERROR_NOT_SUPPORTED,
                  "input '" + input.name + "': this device links PTX only, no machine code");
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  LoadOptions options = options_;
  const CUresult result = text_examine(input.text, options);
  if (result != CUDA_SUCCESS) return refuse(result, options.log);
  inputs_.push_back(std::move(input));
  request_.report(log_);
  return CUDA_SUCCESS;
}

CUresult Linker::complete(void** image, std::size_t* bytes) {
  request_.resume();
  std::vector<std::string_view> texts;
  std::vector<std::string> names;
  for (const Input& input : inputs_) {
    texts.push_back(input.text);
    names.push_back(input.name);
  }
  std::string trouble;
  linked_ = texts_join(texts, names, options_.registers_max, trouble);
  if (!trouble.empty()) return fail(CUDA_ERROR_UNKNOWN, "error   : " + trouble);
  request_.report(log_);
  *image = linked_.data();
  if (bytes != nullptr) *bytes = linked_.size() + 1;
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver

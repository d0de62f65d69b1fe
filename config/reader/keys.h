// The table of keys: for every key of sluice.toml its place in Config, its type, its limits and its
// one line of help. The reader checks with it, the documentation and the writer are made from it,
// so the three cannot differ. Knows nothing of TOML syntax.
#pragma once

#include <span>

#include "config/reader/config.h"

namespace sluice::config {

/// A value as it stood in the file, and where.
struct Value {
  enum class Kind { kString, kInteger, kFloat, kBoolean, kArray, kTable, kDate };
  Kind kind = Kind::kString;
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  std::string text;  // the string, or any other scalar as it would be written
  std::int64_t integer = 0;
  double real = 0;
  std::vector<Value> items;
};

/// What a key is written into: always a Config, and in [class.*] and [profile.*] the entry at hand.
struct Target {
  Config* config = nullptr;
  ClassSettings* tenant_class = nullptr;
  ProfileSettings* profile = nullptr;
};

/// A check of one string: nothing if it is good, else what it should have been.
using TextCheck = const char* (*)(std::string_view);

struct TextField {
  std::string& (*at)(const Target&);
  TextCheck check;
};
struct WordField {
  std::string& (*at)(const Target&);
  std::span<const std::string_view> words;
};
struct ListField {
  std::vector<std::string>& (*at)(const Target&);
  TextCheck check;                          // for every item, unless
  std::span<const std::string_view> words;  // only these are known
};
struct IntegerField {
  std::uint32_t& (*at)(const Target&);
  std::uint32_t min;
  std::uint32_t max;
};
struct RatioField {
  double& (*at)(const Target&);
  double min;
  double max;
};
struct SizeField {
  std::uint64_t& (*at)(const Target&);
  std::uint64_t min;  // of what is not zero
  std::uint64_t max;
  const char* zero;  // what "0B" means
};
struct DurationField {
  std::int64_t& (*at)(const Target&);
  std::int64_t min;
  std::int64_t max;
};
struct SwitchField {
  std::optional<bool>& (*at)(const Target&);
  const char* unset;  // what it means to leave it out
};
using Field = std::variant<TextField, WordField, ListField, IntegerField, RatioField, SizeField,
                           DurationField, SwitchField>;

struct Key {
  const char* name;
  Field field;
  const char* help;
  bool at_start = false;          // a reload does not change it
  const char* read_by = nullptr;  // other than the table's
};
struct Table {
  const char* name;  // "class.*" and "profile.*" stand for every entry
  const char* help;
  std::span<const Key> keys;
  const char* read_by = nullptr;  // the program that reads the table when it starts; not sluiced
};

std::span<const Table> tables();
/// The programs beside sluiced that have to be restarted for the key to count; nullptr: none.
inline const char* key_read_by(const Table& table, const Key& key) {
  return key.read_by != nullptr ? key.read_by : table.read_by;
}
std::span<const std::string_view> class_names();

/// Checks `value` and stores it; what is wrong goes to `errors` with the value's own place (their
/// `file` stays empty).
void key_apply(const Key& key, const Value& value, const Target& target,
               std::vector<Error>& errors);
/// The present value as TOML; empty when it is not set.
std::string key_show(const Key& key, const Target& target);
/// What may be written, for the documentation: "duration", "1ms to 10s".
std::string key_type(const Key& key);
std::string key_range(const Key& key);

/// The known word nearest to a mistyped one, if any is near enough to be meant.
std::optional<std::string_view> word_nearest(std::string_view word,
                                             std::span<const std::string_view> known);
/// Returns that word, or "" if none is near enough.
std::string word_nearest(std::string_view word, const std::vector<std::string>& known);
/// Returns " (did you mean WORD?)" for that word, or "". Of `--option=value` the name counts.
std::string nearest_question(std::string_view word, const std::vector<std::string>& known);
/// Text from a file, made fit to be shown: control characters replaced, long text cut.
std::string text_shown(std::string_view text, std::size_t bytes_max = 60);
/// "'a', 'b' or 'c'".
std::string words_join(std::span<const std::string_view> words, std::string_view last);

}  // namespace sluice::config

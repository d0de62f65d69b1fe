// From TOML text to a checked Config. The only file that knows toml++ (whose Debian build throws:
// every exception is caught here) and the only one that opens files.
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "config/reader/entries.h"
#include "config/reader/keys.h"
#include "config/reader/shape.h"

namespace sluice::config {
namespace {

constexpr std::int64_t kVersion = 1;

using Errors = std::vector<Error>;
using Position = toml::source_position;

void error_add(Errors& errors, Position at, std::string what) {
  errors.push_back(Error{{}, at.line, at.column, std::move(what)});
}

Value value_read(const toml::node& node) {
  Value value;
  value.line = node.source().begin.line;
  value.column = node.source().begin.column;
  if (const auto* text = node.as_string()) {
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = Value::Kind::kInteger;
    value.integer = integer->get();
    value.text = std::to_string(integer->get());
  } else if (const auto* real = node.as_floating_point()) {
    value.kind = Value::Kind::kFloat;
    value.real = real->get();
    value.text = std::to_string(real->get());
  } else if (node.is_boolean()) {
    value.kind = Value::Kind::kBoolean;
    value.integer = node.value_or(false) ? 1 : 0;
  } else if (const auto* array = node.as_array()) {
    value.kind = Value::Kind::kArray;
    for (const toml::node& item : *array) {
      // What stands inside a list is a string or a mistake; nothing needs to be seen deeper than
      // that.
      if (item.is_array() || item.is_table()) {
        Value inner;
        inner.kind = item.is_array() ? Value::Kind::kArray : Value::Kind::kTable;
        inner.line = item.source().begin.line;
        inner.column = item.source().begin.column;
        value.items.push_back(std::move(inner));
      } else {
        value.items.push_back(value_read(item));
      }
    }
  } else {
    value.kind = node.is_table() ? Value::Kind::kTable : Value::Kind::kDate;
  }
  return value;
}

/// What to say about a key that `table` does not have.
std::string unknown_text(std::string_view name, const Table& table) {
  std::string what = "unknown key '" + text_shown(name) + "'";
  std::vector<std::string_view> known;
  for (const Key& key : table.keys) known.emplace_back(key.name);
  if (const auto near = word_nearest(name, known)) {
    return what.append("; did you mean '").append(*near).append("'?");
  }
  for (const Table& other : tables()) {
    for (const Key& key : other.keys) {
      if (key.name == name) return what + "; it belongs into [" + other.name + "]";
    }
  }
  what += "; [" + std::string(table.name) + "] knows ";
  for (std::size_t i = 0; i < known.size(); ++i) what.append(i == 0 ? "" : ", ").append(known[i]);
  return what;
}

/// Where a table's values are noted: the file's name of it, and the list; null = nowhere.
struct Notes {
  std::string table;
  std::vector<Origin>* origins = nullptr;

  void add(std::string_view key, const Value& value) const {
    if (origins == nullptr) return;
    Origin origin{table, std::string(key), {value.text, value.line, value.column}, {}};
    for (const Value& item : value.items)
      origin.items.push_back({item.text, item.line, item.column});
    origins->push_back(std::move(origin));
  }
};

void table_read(const toml::table& from, const Table& table, const Target& target,
                const Notes& notes, Errors& errors) {
  for (auto&& [name, node] : from) {
    const Key* found = nullptr;
    for (const Key& key : table.keys) {
      if (key.name == name.str()) found = &key;
    }
    if (found == nullptr) {
      error_add(errors, name.source().begin, unknown_text(name.str(), table));
    } else {
      const Value value = value_read(node);
      notes.add(found->name, value);
      key_apply(*found, value, target, errors);
    }
  }
}

void class_read(const toml::key& name, const toml::table& from, const Table& table, Config& config,
                const Notes& notes, Errors& errors) {
  const auto known = class_names();
  if (std::find(known.begin(), known.end(), name.str()) == known.end()) {
    std::string what = "unknown class '" + text_shown(name.str()) + "'; ";
    if (const auto near = word_nearest(name.str(), known)) {
      what.append("did you mean '").append(*near).append("'?");
    } else {
      what += "a class is one of " + words_join(known, "or");
    }
    return error_add(errors, name.source().begin, std::move(what));
  }
  if (name.str() == "exclusive") {
    for (auto&& [key, node] : from) {
      error_add(
          errors, key.source().begin,
          "'" + text_shown(key.str()) + "' means nothing here: class exclusive owns whole GPUs");
    }
    return;
  }
  ClassSettings& settings = config.classes[std::string(name.str())];
  table_read(from, table, Target{&config, &settings, nullptr}, notes, errors);
  if (settings.idle_end_ns != 0 && settings.idle_end_ns < settings.idle_ns)
    error_add(errors, from.source().begin,
              "class '" + std::string(name.str()) + "': idle_end (" +
                  duration_format(settings.idle_end_ns) + ") is less than idle (" +
                  duration_format(settings.idle_ns) +
                  "), so a job would be ended before it was told; make it longer");
}

const char* profile_name_check(std::string_view name) {
  // 31 bytes: the name travels in fixed fields of 32 with a NUL.
  bool good = !name.empty() && name.size() <= 31;
  for (const char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_');
  }
  return good ? nullptr : "at most 31 small letters, digits, '-' and '_'";
}

void profile_read(const toml::key& name, const toml::table& from, const Table& table,
                  Config& config, const Notes& notes, Errors& errors) {
  const Position at = name.source().begin;
  if (const char* wanted = profile_name_check(name.str())) {
    error_add(errors, at,
              "profile name '" + text_shown(name.str()) + "' must be " + std::string(wanted));
  }
  ProfileSettings profile;
  profile.name = name.str();
  table_read(from, table, Target{&config, nullptr, &profile}, notes, errors);
  const auto named = [&](const char* list) {
    const toml::array* accounts = from[list].as_array();
    return from.contains(list) && (accounts == nullptr || !accounts->empty());
  };
  const bool names_somebody = named("users") || named("groups") || named("cgroups");
  if (profile.name == "default" && names_somebody) {
    error_add(errors, at,
              "profile 'default' applies to everybody whom no other profile names; it cannot have "
              "users, groups or cgroups of its own");
  }
  if (profile.name != "default" && !names_somebody) {
    error_add(errors, at,
              "profile '" + text_shown(profile.name) +
                  "' applies to nobody; give it users, groups or cgroups, or call it 'default'");
  }
  config.profiles.push_back(std::move(profile));
}

/// The first profile that fits is taken, and "default" fits everybody: whatever follows it would
/// never be.
void default_check(const toml::table& profiles, const Config& config, Errors& errors) {
  for (std::size_t i = 0; i + 1 < config.profiles.size(); ++i) {
    if (config.profiles[i].name != "default") continue;
    error_add(errors, profiles.find("default")->first.source().begin,
              "profile 'default' fits everybody, so profile '" +
                  text_shown(config.profiles[i + 1].name) +
                  "' below it would never be used; put it last");
  }
}

/// An account in two profiles has no answer to "which limits are mine?".
void accounts_check(const toml::table& profiles, const char* list, const char* one,
                    Errors& errors) {
  struct Seen {
    std::string account;
    std::string profile;
    Position at;
  };
  std::vector<Seen> all;
  for (auto&& [name, node] : profiles) {
    const toml::table* table = node.as_table();
    const toml::array* accounts = table == nullptr ? nullptr : (*table)[list].as_array();
    if (accounts == nullptr) continue;
    for (const toml::node& account : *accounts) {
      if (const auto* text = account.as_string()) {
        all.push_back({text->get(), std::string(name.str()), account.source().begin});
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Seen& a, const Seen& b) {
    return a.account != b.account ? a.account < b.account : a.at.line < b.at.line;
  });
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Seen& before = all[i - 1];
    if (all[i].account != before.account || all[i].profile == before.profile) continue;
    error_add(errors, all[i].at,
              std::string(one) + " '" + text_shown(all[i].account) + "' is already in profile '" +
                  text_shown(before.profile) + "' (line " + std::to_string(before.at.line) +
                  "); name it in one profile only");
  }
}

/// [class.*] and [profile.*]: a table of tables.
template <class Read>
void entries_read(const toml::table& group, const char* group_name, Errors& errors, Read read) {
  struct Entry {
    const toml::key* name;
    const toml::table* table;
  };
  std::vector<Entry> entries;
  for (auto&& [name, node] : group) {
    if (const toml::table* table = node.as_table()) {
      entries.push_back({&name, table});
    } else {
      error_add(errors, name.source().begin,
                "'" + text_shown(name.str()) + "' must stand in a table such as [" + group_name +
                    (std::string_view(group_name) == "class" ? ".batch]" : ".student]"));
    }
  }
  // toml++ keeps tables sorted by name; what people see is the order of the file.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const Position& x = a.name->source().begin;
    const Position& y = b.name->source().begin;
    return x.line != y.line ? x.line < y.line : x.column < y.column;
  });
  for (const Entry& entry : entries) read(*entry.name, *entry.table);
}

const Table* table_find(std::string_view name) {
  for (const Table& table : tables()) {
    if (name == table.name) return &table;
  }
  return nullptr;
}

std::string unknown_table_text(std::string_view name) {
  constexpr std::array<std::string_view, 8> kKnown{"broker",  "scheduler", "memory", "class",
                                                   "profile", "exporter",  "bypass", "version"};
  std::string what = "unknown table or key '" + text_shown(name) + "'";
  if (const auto near = word_nearest(name, kKnown)) {
    return what.append("; did you mean '").append(*near).append("'?");
  }
  for (const Table& table : tables()) {
    for (const Key& key : table.keys) {
      if (key.name == name) return what + "; it belongs into [" + table.name + "]";
    }
  }
  return what +
         "; known are [broker], [scheduler], [memory], [class.*], [profile.*], [exporter] and "
         "[bypass]";
}

void root_read(const toml::table& root, Config& config, std::vector<Origin>* origins,
               Errors& errors) {
  for (auto&& [key, node] : root) {
    const std::string_view name = key.str();
    if (name == "version") {
      if (node.value_exact<std::int64_t>() != kVersion) {
        error_add(errors, node.source().begin, "version must be 1, the only one there is");
      }
      continue;
    }
    const bool grouped = name == "class" || name == "profile";
    const Table* table = table_find(grouped ? std::string(name) + ".*" : std::string(name));
    const toml::table* from = node.as_table();
    if (table == nullptr) {
      error_add(errors, key.source().begin, unknown_table_text(name));
    } else if (from == nullptr) {
      error_add(errors, key.source().begin,
                "'" + std::string(name) + "' must be a table: a line [" + table->name +
                    "] and its keys below");
    } else if (name == "class") {
      entries_read(*from, "class", errors, [&](const toml::key& entry, const toml::table& keys) {
        class_read(entry, keys, *table, config, {"class." + std::string(entry.str()), origins},
                   errors);
      });
    } else if (name == "profile") {
      entries_read(*from, "profile", errors, [&](const toml::key& entry, const toml::table& keys) {
        profile_read(entry, keys, *table, config, {"profile." + std::string(entry.str()), origins},
                     errors);
      });
      default_check(*from, config, errors);
      accounts_check(*from, "users", "user", errors);
      accounts_check(*from, "groups", "group", errors);
      accounts_check(*from, "cgroups", "cgroup", errors);
    } else {
      table_read(*from, *table, Target{&config, nullptr, nullptr}, {std::string(name), origins},
                 errors);
    }
  }
}

/// In our words where the parser's tell a user nothing.
std::string parse_fault_text(std::string_view description) {
  if (description.find("redefine") != description.npos)
    return "this key or table stands in the file twice; remove one";
  return "not valid TOML: " + text_shown(description, 200);
}

/// Hands the parsed text to `read`, or says why it is none.
template <class Read>
void toml_read(std::string_view text, Errors& errors, Read read) {
  try {
    const toml::table root = toml::parse(text);
    read(root);
  } catch (const toml::parse_error& error) {
    const Position at = error.source().begin;
    auto unquoted = unquoted_find(text, at.line);
    if (unquoted) {
      errors.push_back(std::move(*unquoted));
    } else {
      error_add(errors, at, parse_fault_text(error.description()));
    }
  }
}

Errors finish(Errors errors, const std::string& path, std::string_view text) {
  std::stable_sort(errors.begin(), errors.end(), [](const Error& a, const Error& b) {
    return a.line != b.line ? a.line < b.line : a.column < b.column;
  });
  for (Error& error : errors) {
    error.file = path;
    if (error.line != 0) error.source = line_of(text, error.line);
  }
  return errors;
}

std::string user_text(uid_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> buffer{};
  getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr ? found->pw_name : std::to_string(uid);
}

/// Why the file could be changed by a user who must not decide for others; nothing = it could not.
std::optional<std::string> trust_problem(const std::string& path, const struct stat& status) {
  const bool own = status.st_uid == 0 || status.st_uid == geteuid();
  const std::string whom = geteuid() == 0 ? "root" : user_text(geteuid());
  if (!own)
    return "belongs to user " + user_text(status.st_uid) + ", not to " + whom +
           ", so that user could change who gets which GPU; chown " + whom + " " + path;
  // The group of a user's own files is often that user's alone.
  const bool own_group = geteuid() != 0 && status.st_gid == getegid();
  if ((status.st_mode & ((own_group ? 0U : S_IWGRP) | S_IWOTH)) == 0) return std::nullopt;
  std::array<char, 16> mode{};
  snprintf(mode.data(), mode.size(), "%04o", static_cast<unsigned>(status.st_mode & 07777));
  return std::string("others than its owner can write to it (mode ") + mode.data() +
         "), so they could change who gets which GPU; chmod go-w " + path;
}

std::optional<std::string> file_read(const std::string& path, bool trusted, std::string* text) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return std::string("cannot be opened: ") + strerror(errno);
  std::optional<std::string> problem;
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    problem = std::string("cannot be read: ") + strerror(errno);
  } else if (!S_ISREG(status.st_mode)) {
    problem = "not a regular file";
  } else if (trusted) {
    problem = trust_problem(path, status);
  }
  std::array<char, 16384> buffer{};
  while (!problem &&
         text->size() <= kFileBytesMax) {  // one byte more is enough for shape_check to refuse it
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) problem = std::string("cannot be read: ") + strerror(errno);
    if (count <= 0) break;
    text->append(buffer.data(), static_cast<std::size_t>(count));
  }
  close(fd);
  return problem;
}

}  // namespace

std::string Error::text() const {
  std::string out = file;
  if (line != 0) out += ":" + std::to_string(line) + ":" + std::to_string(column);
  return out + ": " + what;
}

std::string Error::shown() const {
  std::string out = text() + "\n";
  if (source.empty() || column == 0) return out;
  // A column is a character; a tab stays one, so that the caret stands where the terminal puts it.
  std::string pad;
  std::uint32_t at = 1;
  for (const char c : source) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;
    if (at++ >= column) break;
    pad += c == '\t' ? '\t' : ' ';
  }
  if (at < column) pad.append(column - at, ' ');
  std::string seen = source;
  for (char& c : seen)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) c = '?';
  return out + "  " + seen + "\n  " + pad + "^\n";
}

Result<Config> config_parse(std::string_view text, const std::string& path,
                            std::vector<Origin>* origins) {
  if (auto error = shape_check(text)) return {finish({*error}, path, text)};
  Config config = config_default();
  config.path = path;
  Errors errors;
  toml_read(text, errors,
            [&](const toml::table& root) { root_read(root, config, origins, errors); });
  if (!errors.empty()) return {finish(std::move(errors), path, text)};
  return {std::move(config)};
}

Result<std::vector<Entry>> entries_parse(std::string_view text, const std::string& path) {
  if (auto error = shape_check(text)) return {finish({*error}, path, text)};
  std::vector<Entry> entries;
  Errors errors;
  toml_read(text, errors, [&](const toml::table& root) {
    for (auto&& [key, node] : root) {
      const Position at = key.source().begin;
      entries.push_back({std::string(key.str()), at.line, at.column, value_read(node)});
    }
  });
  if (!errors.empty()) return {finish(std::move(errors), path, text)};
  // toml++ keeps a table sorted by name; what people see is the order of the file.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.line != b.line ? a.line < b.line : a.column < b.column;
  });
  return {std::move(entries)};
}

namespace {

Result<Config> config_read_as(const std::string& path, bool trusted, std::vector<Origin>* origins) {
  std::string text;
  if (const auto problem = file_read(path, trusted, &text)) {
    return {std::vector<Error>{Error{path, 0, 0, *problem}}};
  }
  return config_parse(text, path, origins);
}

}  // namespace

Result<Config> config_read(const std::string& path, std::vector<Origin>* origins) {
  return config_read_as(path, false, origins);
}

Result<Config> config_read_trusted(const std::string& path, std::vector<Origin>* origins) {
  return config_read_as(path, true, origins);
}

bool config_is_system(const std::string& path) {
  struct stat one {
  }, other{};
  return stat(path.c_str(), &one) == 0 && stat(kSystemConfig, &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

std::string client_socket(const Config& config) {
  return config.path.empty() || config_is_system(config.path) ? Config{}.socket : config.socket;
}

Result<std::vector<Entry>> entries_read(const std::string& path) {
  std::string text;
  if (const auto problem = file_read(path, false, &text)) {
    return {std::vector<Error>{Error{path, 0, 0, *problem}}};
  }
  return entries_parse(text, path);
}

}  // namespace sluice::config

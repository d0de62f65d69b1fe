// A configuration without a file: the defaults, and the way back from
// Config to text.
#include "config/reader/keys.h"

namespace sluice::config {
namespace {

/// Where a key's value comes from, as a comment; empty = it is not to be said.
std::string origin_text(const std::vector<Origin>* origins, const std::string& name,
                        const Table& table, const Key& key) {
  if (origins == nullptr) return "";
  std::string text = "default";
  for (const Origin& origin : *origins)
    if (origin.table == name && origin.key == key.name)
      text = "line " + std::to_string(origin.value.line);
  const char* const reader = key_read_by(table, key);
  if (reader != nullptr) text += std::string("; after a change restart ") + reader;
  return "  # " + text + (key.at_start ? "; read at start only" : "");
}

void table_write(std::string& out, const std::string& name, const Table& table,
                 const Target& target, const std::vector<Origin>* origins) {
  out += "\n[" + name + "]\n";
  for (const Key& key : table.keys) {
    const std::string value = key_show(key, target);
    const bool nobody =
        value == "[]" && target.profile != nullptr && std::string_view(key.name) != "classes";
    if (nobody || value.empty()) continue;
    out += std::string(key.name) + " = " + value + origin_text(origins, name, table, key) + "\n";
  }
}

}  // namespace

Config config_default() {
  Config config;
  for (const std::string_view name : class_names()) config.classes[std::string(name)] = {};
  // What a server has queued are answers that somebody waits for; it goes first as it is.
  config.classes["inference"].window_ns = 0;
  return config;
}

namespace {

std::string format(const Config& config, const std::vector<Origin>* origins) {
  Config copy = config;  // the table hands out references that may be written
  std::string out = "version = 1\n";
  for (const Table& table : tables()) {
    const std::string_view name = table.name;
    if (name == "class.*") {
      for (auto& [class_name, settings] : copy.classes) {
        if (class_name != "exclusive") {
          table_write(out, "class." + class_name, table, Target{&copy, &settings, nullptr},
                      origins);
        }
      }
    } else if (name == "profile.*") {
      for (ProfileSettings& profile : copy.profiles) {
        table_write(out, "profile." + profile.name, table, Target{&copy, nullptr, &profile},
                    origins);
      }
    } else {
      table_write(out, table.name, table, Target{&copy, nullptr, nullptr}, origins);
    }
  }
  return out;
}

void keys_compare(const std::string& name, const Table& table, const Target& before,
                  const Target& after, bool at_start, std::vector<std::string>& out) {
  for (const Key& key : table.keys) {
    if (key.at_start != at_start) continue;
    const std::string was = key_show(key, before);
    const std::string is = key_show(key, after);
    if (was == is) continue;
    const char* const reader = key_read_by(table, key);
    out.push_back("[" + name + "] " + key.name + ": " + (was.empty() ? "not set" : was) + " -> " +
                  (is.empty() ? "not set" : is) +
                  (reader == nullptr ? "" : std::string("; then systemctl restart ") + reader));
  }
}

ProfileSettings* profile_find(Config& config, const std::string& name) {
  for (ProfileSettings& profile : config.profiles)
    if (profile.name == name) return &profile;
  return nullptr;
}

void profiles_compare(Config& before, Config& after, const Table& table, bool at_start,
                      std::vector<std::string>& out) {
  for (ProfileSettings& was : before.profiles) {
    const std::string name = "profile." + was.name;
    if (ProfileSettings* is = profile_find(after, was.name))
      keys_compare(name, table, {&before, nullptr, &was}, {&after, nullptr, is}, at_start, out);
    else if (!at_start)
      out.push_back("[" + name + "] is gone; its jobs stay as they are");
  }
  if (at_start) return;
  for (const ProfileSettings& is : after.profiles)
    if (profile_find(before, is.name) == nullptr) out.push_back("[profile." + is.name + "] is new");
}

}  // namespace

std::vector<std::string> config_changes(const Config& before, const Config& after, bool at_start) {
  Config was = before;
  Config is = after;
  std::vector<std::string> out;
  for (const Table& table : tables()) {
    const std::string_view name = table.name;
    if (name == "class.*") {
      for (auto& [class_name, settings] : was.classes)
        keys_compare("class." + class_name, table, {&was, &settings, nullptr},
                     {&is, &is.classes[class_name], nullptr}, at_start, out);
    } else if (name == "profile.*") {
      profiles_compare(was, is, table, at_start, out);
    } else {
      keys_compare(table.name, table, {&was, nullptr, nullptr}, {&is, nullptr, nullptr}, at_start,
                   out);
    }
  }
  return out;
}

std::string config_format(const Config& config) { return format(config, nullptr); }

std::string config_format_origins(const Config& config, const std::vector<Origin>& origins) {
  return format(config, &origins);
}

static std::string reader_text(const Table& table, const Key& key) {
  std::string reader = key_read_by(table, key) == nullptr ? "" : key_read_by(table, key);
  if (reader.empty()) return "";
  if (const auto blank = reader.find(' '); blank != reader.npos) reader.replace(blank, 1, " and ");
  return " After a change restart " + reader + ".";
}

std::string config_describe() {
  Config config = config_default();
  ClassSettings tenant_class;
  ProfileSettings profile;
  const Target target{&config, &tenant_class, &profile};
  std::string out =
      "# Configuration\n\n"
      "`sluice.toml` is TOML. Every key may be left out; the default is what a machine that nobody "
      "configured runs "
      "with. Sizes and durations are strings with their unit (`\"8GiB\"`, `\"10ms\"`, "
      "`\"1h30m\"`). A file with any "
      "mistake is refused whole, and every mistake is reported, those of the file itself with line "
      "and column (a user that has no account, without). The file may "
      "begin with "
      "`version = 1`. A *tenant* is one admitted job, with all its processes.\n";
  for (const Table& table : tables()) {
    out.append("\n## [").append(table.name).append("]\n\n").append(table.help).append("\n\n");
    out += "| key | type | allowed | default | meaning |\n|---|---|---|---|---|\n";
    for (const Key& key : table.keys) {
      const std::string value = key_show(key, target);
      out += "| `" + std::string(key.name) + "` | " + key_type(key) + " | " + key_range(key) +
             " | " + (value.empty() ? "not set" : "`" + value + "`") + " | " + key.help +
             (key.at_start ? " Read at start only." : "") + reader_text(table, key) + " |\n";
    }
  }
  return out;
}

}  // namespace sluice::config

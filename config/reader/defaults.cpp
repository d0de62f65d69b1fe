// A configuration without a file: the defaults, and the way back from
// Config to text.
#include "config/reader/keys.h"

namespace sluice::config {
namespace {

void table_write(std::string& out, const std::string& name, const Table& table,
                 const Target& target) {
  out += "\n[" + name + "]\n";
  for (const Key& key : table.keys) {
    const std::string value = key_show(key, target);
    const bool nobody =
        value == "[]" && target.profile != nullptr && std::string_view(key.name) != "classes";
    if (!nobody && !value.empty()) out += std::string(key.name) + " = " + value + "\n";
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

std::string config_format(const Config& config) {
  Config copy = config;  // the table hands out references that may be written
  std::string out = "version = 1\n";
  for (const Table& table : tables()) {
    const std::string_view name = table.name;
    if (name == "class.*") {
      for (auto& [class_name, settings] : copy.classes) {
        if (class_name != "exclusive") {
          table_write(out, "class." + class_name, table, Target{&copy, &settings, nullptr});
        }
      }
    } else if (name == "profile.*") {
      for (ProfileSettings& profile : copy.profiles) {
        table_write(out, "profile." + profile.name, table, Target{&copy, nullptr, &profile});
      }
    } else {
      table_write(out, table.name, table, Target{&copy, nullptr, nullptr});
    }
  }
  return out;
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
             (key.at_start ? " Read at start only." : "") + " |\n";
    }
  }
  return out;
}

}  // namespace sluice::config

// Reading of the settings; see settings.h. The order is: built-in defaults, profile file,
// environment.
#include "softgpu/device/settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/text.h"

namespace softgpu::device {
namespace {

struct Key {
  const char* name;  // without SOFTGPU_
  double least, most;
  std::function<void(Settings&, double)> store;
};

const std::array<Key, 12>& keys() {
  static const auto* table = new std::array<Key, 12>{{
      {"COUNT", 1, kDevicesMax,
       [](Settings& s, double v) { s.count = static_cast<std::uint32_t>(v); }},
      {"MEMORY", 1 << 20, 1e15,
       [](Settings& s, double v) { s.memory_bytes = static_cast<std::uint64_t>(v); }},
      {"SMS", 1, 1024, [](Settings& s, double v) { s.sm_count = static_cast<std::uint32_t>(v); }},
      {"RATE", 1e3, 1e15, [](Settings& s, double v) { s.rate = v; }},
      {"COPY_RATE", 1e3, 1e15, [](Settings& s, double v) { s.copy_rate = v; }},
      {"CONTEXT", 0, 1e12,
       [](Settings& s, double v) { s.context_bytes = static_cast<std::uint64_t>(v); }},
      {"PAGE", 0, 1 << 30,
       [](Settings& s, double v) { s.page_bytes = static_cast<std::uint64_t>(v); }},
      {"SLICE_US", 10, 1e7,
       [](Settings& s, double v) { s.slice_ns = static_cast<std::uint64_t>(v * 1e3); }},
      {"SWITCH_US", 0, 1e6, [](Settings& s, double v) { s.switch_ns = v * 1e3; }},
      {"LAUNCH_US", 0, 1e6, [](Settings& s, double v) { s.launch_ns = v * 1e3; }},
      {"PACING", 0, 1, [](Settings& s, double v) { s.pacing = v != 0; }},
      {"STRICT", 0, 1, [](Settings& s, double v) { s.strict = v != 0; }},
  }};
  return *table;
}

bool store(Settings& settings, const std::string& name, const std::string& text,
           const std::string& source, std::string& error) {
  for (const Key& key : keys()) {
    if (name != key.name) continue;
    double value = 0;
    if (!quantity_parse(text, value) || value < key.least || value > key.most) {
      char bounds[64];
      std::snprintf(bounds, sizeof bounds, "%.15g to %.15g", key.least, key.most);
      error = source + ": \"" + text + "\" is no value for " + name + " (a number from " + bounds +
              ", such as 2, 512MiB or 40e6)";
      return false;
    }
    key.store(settings, value);
    return true;
  }
  error = source + ": unknown setting " + name;
  return false;
}

/// "40e6" for all devices, or one value for each, "80e6,40e6": GPUs of different speed.
bool rates_store(Settings& settings, const std::string& text, const std::string& source,
                 std::string& error) {
  std::size_t device = 0;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    if (device == kDevicesMax) {
      error = source + ": more rates than devices can be (" + std::to_string(kDevicesMax) + ")";
      return false;
    }
    if (!store(settings, "RATE", std::string(trimmed(text.substr(from, comma - from))), source,
               error))
      return false;
    settings.rates[device++] = settings.rate;
    from = comma + 1;
  }
  if (device == 1) settings.rates = {};
  settings.rate = device == 1 ? settings.rate : 0;
  return true;
}

/// A page that is no power of two, or smaller than the host's, is none.
bool page_store(Settings& settings, const SettingText& text, std::string& error) {
  if (!store(settings, text.key, text.value, text.source, error)) return false;
  const std::uint64_t page = settings.page_bytes;
  if (page == 0 || (page >= 4096 && (page & (page - 1)) == 0)) return true;
  error = text.source + ": \"" + text.value +
          "\" is no page: 0 (memory to the byte) or a power of two from 4096, such as 2MiB";
  return false;
}

/// Reads a regular file. From a FIFO only one process gets the settings, and that one after a wait.
bool file_read(const char* path, std::string& content, std::string& error) {
  const int file = above_standard(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::string part(4096, '\0');
  ssize_t length = file < 0 || !regular_file(file, error) ? -1 : 1;
  while (length > 0 && (length = read(file, part.data(), part.size())) > 0)
    content.append(part, 0, static_cast<std::size_t>(length));
  if (length < 0 && error.empty()) error = std::strerror(errno);
  if (file >= 0) close(file);
  return length == 0;
}

}  // namespace

std::string key_normal(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr std::string_view prefix = "SOFTGPU_";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

bool setting_store(Settings& settings, const SettingText& text, std::string& error) {
  if (text.key == "RATE") return rates_store(settings, text.value, text.source, error);
  if (text.key == "PAGE") return page_store(settings, text, error);
  if (text.key != "TIMED") return store(settings, text.key, text.value, text.source, error);
  const bool good = timed_parse(text.value, settings.timed, error);
  if (!good) error = text.source + ": " + error;
  return good;
}

bool profile_read(const char* path, std::vector<SettingText>& texts, std::string& error) {
  std::string content;
  if (!file_read(path, content, error)) {
    error = std::string("cannot read the profile ") + path + ": " + error;
    return false;
  }
  std::istringstream file(content);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string text(trimmed(std::string_view(line).substr(0, line.find('#'))));
    if (text.empty()) continue;
    const auto equals = text.find('=');
    const std::string where = std::string(path) + ":" + std::to_string(number);
    if (equals == std::string::npos) {
      error = where + ": expected `key = value`";
      return false;
    }
    texts.push_back({key_normal(std::string(trimmed(text.substr(0, equals)))),
                     std::string(trimmed(text.substr(equals + 1))), where});
  }
  return true;
}

std::string settings_directory() {
  const char* directory = std::getenv("SOFTGPU_DIR");
  if (directory != nullptr && *directory != '\0') return directory;
  return settings_directory_own();
}

std::string settings_directory_own() { return "/dev/shm/softgpu-" + std::to_string(getuid()); }

bool quantity_parse(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(value) || value < 0) return false;
  const std::string_view unit = trimmed(end);
  static constexpr std::array<std::pair<std::string_view, double>, 11> kUnits{{{"", 1},
                                                                               {"B", 1},
                                                                               {"K", 1024},
                                                                               {"KiB", 1024},
                                                                               {"M", 1 << 20},
                                                                               {"MiB", 1 << 20},
                                                                               {"G", 1 << 30},
                                                                               {"GiB", 1 << 30},
                                                                               {"KB", 1e3},
                                                                               {"MB", 1e6},
                                                                               {"GB", 1e9}}};
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    value *= factor;
    return true;
  }
  return false;
}

namespace {

/// What the profile and then the environment say; of two for one setting the later holds.
bool texts_read(std::vector<SettingText>& texts, std::string& error) {
  const char* profile = std::getenv("SOFTGPU_PROFILE");
  if (profile != nullptr && *profile != '\0' && !profile_read(profile, texts, error)) return false;
  std::vector<std::string> names{"TIMED"};
  for (const Key& key : keys()) names.emplace_back(key.name);
  for (const std::string& name : names) {
    const std::string variable = "SOFTGPU_" + name;
    const char* text = std::getenv(variable.c_str());
    if (text == nullptr || *text == '\0') continue;
    if (name == "TIMED")  // rules add up, so those of the profile go
      std::erase_if(texts, [](const SettingText& other) { return other.key == "TIMED"; });
    texts.push_back({name, std::string(trimmed(text)), variable});
  }
  return true;
}

/// A name that nothing reads is a mistyped one, most often.
void unknown_say() {
  std::set<std::string, std::less<>> known{"TIMED", "DIR", "PROFILE", "BOUNDS",
                                           "LOG",   "ISA", "THREADS", "TRACE"};
  for (const Key& key : keys()) known.insert(key.name);
  constexpr std::string_view kPrefix = "SOFTGPU_";
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view variable(*at, std::strcspn(*at, "="));
    if (!variable.starts_with(kPrefix) || known.contains(variable.substr(kPrefix.size()))) continue;
    line_write(STDERR_FILENO, "softgpu: the variable " + std::string(variable) +
                                  " means nothing to the software GPU; its README lists those "
                                  "that do\n");
  }
}

}  // namespace

bool settings_strict(bool& strict, std::string& error) {
  Settings settings;
  std::vector<SettingText> texts;
  if (!texts_read(texts, error)) return false;
  for (const SettingText& text : texts)
    if (text.key == "STRICT" && !setting_store(settings, text, error)) return false;
  strict = settings.strict;
  return true;
}

bool settings_read(Settings& settings, std::string& error) {
  unknown_say();
  std::vector<SettingText> texts;
  if (!texts_read(texts, error)) return false;
  for (const SettingText& text : texts)
    if (!setting_store(settings, text, error)) return false;
  // Together all devices ask about 40 % of what this host interprets (100 million warp instructions
  // a second and core) and copies, so that programs meet on the GPU and not on the host's cores.
  const double cores = std::max(1.0, static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)));
  if (settings.rate <= 0) settings.rate = 40e6 * cores / settings.count;
  if (settings.copy_rate <= 0) settings.copy_rate = 1e9 / settings.count;
  return true;
}

}  // namespace softgpu::device

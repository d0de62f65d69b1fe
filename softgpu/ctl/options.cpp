// See options.h.
#include "softgpu/ctl/options.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "softgpu/device/directory.h"

namespace softgpu::ctl {
namespace {

constexpr const char* kWithValue[] = {"--dir",   "--gpu",    "--pid",    "--after",
                                      "--times", "--factor", "--profile"};

}  // namespace

bool options_read(int argc, char** argv, Options& options, std::string& error) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool valued =
        std::find(std::begin(kWithValue), std::end(kWithValue), word) != std::end(kWithValue);
    if (valued && i + 1 == argc) {
      error = word + " needs a value";
      return false;
    }
    if (word == "--json") {
      options.json = true;
    } else if (word == "--help" || word == "-h") {
      options.help = true;
    } else if (word == "--dir") {
      options.directory = argv[++i];
    } else if (valued) {
      options.values[word.substr(2)] = argv[++i];
    } else if (word.starts_with("-")) {
      error = "unknown option " + word;
      return false;
    } else if (options.command.empty()) {
      options.command = word;
    } else {
      options.words.push_back(word);
    }
  }
  return true;
}

bool options_accept(const Options& options, const Accepted& accepted, std::string& error) {
  const auto knows = [&](const std::string& name) {
    const bool known =
        std::find(accepted.values.begin(), accepted.values.end(), name) != accepted.values.end();
    if (!known) error = "`" + options.command + "` takes no --" + name;
    return known;
  };
  if (options.words.size() > accepted.words) {
    error = "`" + options.command + "` takes no \"" + options.words[accepted.words] + "\"";
    return false;
  }
  for (const auto& [name, value] : options.values)
    if (!knows(name)) return false;
  return !options.json || knows("json");
}

bool option_number(const Options& options, const char* name, std::uint64_t least,
                   std::uint64_t& number, std::string& error) {
  const auto given = options.values.find(name);
  if (given == options.values.end()) return true;
  const std::string& text = given->second;
  const bool digits =
      !text.empty() && text.size() < 19 &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (digits) number = std::strtoull(text.c_str(), nullptr, 10);
  if (digits && number >= least) return true;
  error = "--" + std::string(name) + " \"" + text + "\" is no whole number of at least " +
          std::to_string(least);
  return false;
}

bool devices_find(const Options& options, std::vector<device::Device>& devices,
                  std::string& error) {
  constexpr std::uint64_t kAll = ~0ULL;
  std::uint64_t index = kAll;
  if (!option_number(options, "gpu", 0, index, error)) return false;
  const auto segments = device::directory_look(options.directory, error);
  if (!error.empty()) return false;
  for (device::Segment* segment : segments)
    if (index == kAll || segment->index == index) devices.emplace_back(segment);
  if (!devices.empty()) return true;
  error =
      segments.empty()
          ? "no software GPU in " + options.directory + "; the first program that uses one makes it"
          : "there is no GPU " + std::to_string(index) + " in " + options.directory +
                ", only 0 to " + std::to_string(segments.size() - 1);
  return false;
}

int fail(const std::string& error, int status) {
  std::fprintf(stderr, "softgpu-ctl: %s\n", error.c_str());
  return status;
}

}  // namespace softgpu::ctl

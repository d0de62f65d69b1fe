// The files that are shipped: the example configuration is good and tells the truth about defaults,
// the reference is up to date.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "config/reader/config.h"

namespace sluice::config {
namespace {

const std::string kRoot = SLUICE_SOURCE_DIR;

std::string file_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  EXPECT_FALSE(out.str().empty()) << path;
  return out.str();
}

TEST(Example, Parses) {
  const auto result = config_read(kRoot + "/config/sluice.toml");
  ASSERT_TRUE(result.ok()) << result.errors().front().text();
  const Config& config = *result;
  ASSERT_EQ(config.profiles.size(), 3U);
  EXPECT_EQ(config.profiles[0].name, "staff");
  EXPECT_EQ(config.profiles[1].name, "student");
  EXPECT_EQ(config.profiles[2].name, "default");
  // A student who asks for nothing gets something, and is allowed to have it.
  const ProfileSettings& student = config.profiles[1];
  for (const std::string& name : student.classes) {
    const ClassSettings& settings = config.classes.at(name);
    EXPECT_GT(settings.memory_max_bytes, 0U) << name;
    EXPECT_LE(settings.memory_max_bytes, student.memory_max_bytes) << name;
    EXPECT_LE(settings.sm_percent, student.sm_percent_max) << name;
  }
  const ProfileSettings& guest = config.profiles[2];
  EXPECT_EQ(guest.classes, std::vector<std::string>{"debug"});
  EXPECT_LE(config.classes.at("debug").memory_max_bytes, guest.memory_max_bytes);
  EXPECT_LE(config.classes.at("debug").sm_percent, guest.sm_percent_max);
}

TEST(Example, GuaranteesTimeToBatchAndInferenceAndGivesDebugJobsWeights) {
  const auto result = config_read(kRoot + "/config/sluice.toml");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ((*result).classes.at("debug").sm, "weight");
  for (const char* name : {"batch", "inference"}) {
    EXPECT_EQ((*result).classes.at(name).sm, "guaranteed") << name;
    EXPECT_LE((*result).classes.at(name).sm_percent, 50U) << "more than one fits on a GPU";
  }
}

// Every line marked "# default" changes nothing, and every other line does.
TEST(Example, SaysWhichValuesAreDefaults) {
  std::istringstream in(file_text(kRoot + "/config/sluice.toml"));
  std::string table;
  int marked = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("[")) {
      const bool named = line.starts_with("[profile.") && line != "[profile.default]";
      table = line + "\n" + (named ? "users = [\"anna\"]\n" : "");
    }
    if (table.empty() || line.starts_with("#") || line.find(" = ") == line.npos) continue;
    const bool is_marked = line.ends_with("# default");
    marked += is_marked ? 1 : 0;
    const auto without = config_parse(table, "");
    const auto with = config_parse(table + line + "\n", "");
    ASSERT_TRUE(without.ok() && with.ok()) << table << line;
    EXPECT_EQ(*with == *without, is_marked) << table << line;
  }
  EXPECT_GT(marked, 10);
}

TEST(Reference, IsUpToDate) {
  EXPECT_EQ(config_describe(), file_text(kRoot + "/docs/config.md"))
      << "run: build/dev/tools/sluice_config_describe > docs/config.md";
}

}  // namespace
}  // namespace sluice::config

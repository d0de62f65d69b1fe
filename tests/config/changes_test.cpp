// Where values come from, what differs between two configurations, and how a mistake is shown.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/reader/config.h"

namespace sluice::config {
namespace {

TEST(Origins, WhereValuesComeFrom) {
  std::vector<Origin> origins;
  const auto result = config_parse(
      "[scheduler]\nquantum = \"20ms\"\n[profile.a]\nusers = [\"x\", \"y\"]\n", "f", &origins);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(origins.size(), 2U);
  const std::string text = config_format_origins(*result, origins);
  EXPECT_NE(text.find("\nquantum = \"20ms\"  # line 2\n"), text.npos) << text;
  EXPECT_NE(text.find("\nusers = [\"x\", \"y\"]  # line 4\n"), text.npos) << text;
  EXPECT_NE(text.find("\nlog_level = \"info\"  # default\n"), text.npos) << text;
  EXPECT_NE(text.find("\npolicy = \"report\"  # default; after a change restart sluice-watch\n"),
            text.npos)
      << text;
  const auto again = config_parse(text, "f");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *result) << "comments change nothing";
}

TEST(Changes, NameWhatDiffers) {
  const auto read = [](const char* text) { return *config_parse(text, "f"); };
  const Config before =
      read("[class.debug]\nsm_percent = 10\n[profile.a]\nusers = [\"x\"]\nswap = true\n");
  const Config after = read(
      "[broker]\nstate = \"/s\"\n[class.debug]\nsm_percent = 20\n[profile.a]\nusers = [\"x\"]\n");
  EXPECT_EQ(config_changes(before, after, false),
            (std::vector<std::string>{"[class.debug] sm_percent: 10 -> 20",
                                      "[profile.a] swap: true -> not set"}));
  EXPECT_EQ(config_changes(before, after, true),
            std::vector<std::string>{"[broker] state: \"\" -> \"/s\""});
  EXPECT_TRUE(config_changes(after, after, false).empty());
}

// A reload of the broker does not reach the programs that read these tables for themselves.
TEST(Changes, NameTheProgramsThatHaveToBeRestarted) {
  const auto read = [](const char* text) { return *config_parse(text, "f"); };
  const Config after =
      read("[exporter]\ntenants_max = 7\n[bypass]\npolicy = \"count\"\nfigures = \"/f\"\n");
  EXPECT_EQ(config_changes(config_default(), after, false),
            (std::vector<std::string>{
                "[exporter] tenants_max: 200 -> 7; then systemctl restart sluice-exporter",
                "[bypass] policy: \"report\" -> \"count\"; then systemctl restart sluice-watch",
                "[bypass] figures: \"/run/sluice-watch/figures\" -> \"/f\"; then systemctl restart "
                "sluice-watch sluice-exporter"}));
}

TEST(Shown, ACaretUnderTheColumn) {
  const auto result =
      config_parse("# \xc3\xa4\n[broker]\nlog_level = \"\xc3\xa4\" # x\n \tx = 1\n", "f");
  ASSERT_EQ(result.errors().size(), 2U);
  EXPECT_NE(result.errors()[0].shown().find("  log_level = \"\xc3\xa4\" # x\n              ^\n"),
            std::string::npos)
      << result.errors()[0].shown();
  EXPECT_NE(result.errors()[1].shown().find("   \tx = 1\n   \t^\n"), std::string::npos)
      << result.errors()[1].shown();
  EXPECT_EQ((Error{"f", 0, 0, "w"}.shown()), "f: w\n");
}

}  // namespace
}  // namespace sluice::config

// Suggestions for mistyped words.
#include "broker/cli/suggest.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

TEST(EditDistance, Known) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("status", "stauts"), 2u);
}

TEST(Suggest, NearButNotFar) {
  const std::vector<std::string> known = {"run", "status", "doctor", "lab", "help"};
  EXPECT_EQ(suggest("stat", known), "status");
  EXPECT_EQ(suggest("docter", known), "doctor");
  EXPECT_EQ(suggest("rum", known), "run");
  EXPECT_EQ(suggest("exporter", known), "");
  EXPECT_EQ(suggest("", known), "");
}

}  // namespace
}  // namespace sluice::cli

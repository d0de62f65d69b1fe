// Widths are the terminal's, whatever the user's locale.
#include "broker/cli/text_width.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

TEST(TextWidth, IsTheTerminals) {
  EXPECT_EQ(text_width(""), 0u);
  EXPECT_EQ(text_width("train"), 5u);
  EXPECT_EQ(text_width("größe"), 5u);
  EXPECT_EQ(text_width("日本語"), 6u);
  EXPECT_EQ(text_width("e\xCC\x81t\xC3\xA9"), 3u) << "a combining accent";
  EXPECT_EQ(text_width("\xFF\xE6\x97"), 3u) << "no UTF-8";
  EXPECT_EQ(text_width("\x01"), 0u) << "the broker replaces it";
}

TEST(TextWidth, CutsWholeCharacters) {
  EXPECT_EQ(text_cut("train", 3), "tra");
  EXPECT_EQ(text_cut("train", 9), "train");
  EXPECT_EQ(text_cut("日本語", 5), "日本");
  EXPECT_EQ(text_cut("e\xCC\x81t", 1), "e\xCC\x81");
  EXPECT_EQ(text_cut("日", 1), "");
}

}  // namespace
}  // namespace sluice::cli

// Sentences for people.
#include "interpose/say.h"

#include <gtest/gtest.h>

namespace sluice::interpose {
namespace {

TEST(SayTest, BytesInTheUnitPeopleUse) {
  EXPECT_STREQ(Line().bytes(0).c_str(), "0 B");
  EXPECT_STREQ(Line().bytes(1023).c_str(), "1023 B");
  EXPECT_STREQ(Line().bytes(1536).c_str(), "1.5 KiB");
  EXPECT_STREQ(Line().bytes(3ull << 30).c_str(), "3.0 GiB");
  EXPECT_STREQ(Line().bytes_in(7301444403ull, bytes_unit(8ull << 30)).c_str(), "6.8");
}

TEST(SayTest, ALineThatIsTooLongIsCut) {
  Line line;
  for (int i = 0; i < 1000; ++i) line.text("xy");
  EXPECT_LT(strlen(line.c_str()), 480u);
}

TEST(SayTest, AtMostOnceASecond) {
  RateLimit limit;
  uint64_t skipped = 7;
  EXPECT_TRUE(limit.allow(5, &skipped));
  EXPECT_EQ(skipped, 0u);
  EXPECT_FALSE(limit.allow(6, &skipped));
  EXPECT_FALSE(limit.allow(1'000'000'004, &skipped));
  EXPECT_TRUE(limit.allow(1'000'000'005, &skipped));
  EXPECT_EQ(skipped, 2u);
  EXPECT_TRUE(limit.allow(2'000'000'005, &skipped));
  EXPECT_EQ(skipped, 0u);
}

}  // namespace
}  // namespace sluice::interpose

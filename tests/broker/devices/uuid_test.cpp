// UUID texts.
#include "broker/devices/uuid.h"

#include <gtest/gtest.h>

namespace sluice::devices {
namespace {

TEST(Uuid, RoundTrip) {
  const std::string text = "GPU-0123abcd-4567-89ef-fedc-ba9876543210";
  const auto uuid = uuid_parse(text);
  ASSERT_TRUE(uuid);
  EXPECT_EQ(uuid->bytes[0], 0x01);
  EXPECT_EQ(uuid->bytes[3], 0xcd);
  EXPECT_EQ(uuid->bytes[15], 0x10);
  EXPECT_EQ(uuid_format(*uuid), text);
  EXPECT_TRUE(uuid_parse("GPU-0123ABCD-4567-89EF-FEDC-BA9876543210") == uuid);
}

TEST(Uuid, RefusesEverythingElse) {
  for (const char* text :
       {"", "GPU-", "0", "MIG-0123abcd-4567-89ef-fedc-ba9876543210",
        "GPU-0123abcd-4567-89ef-fedc-ba987654321", "GPU-0123abcd-4567-89ef-fedc-ba98765432100",
        "GPU-0123abcd04567-89ef-fedc-ba9876543210", "GPU-0123abcg-4567-89ef-fedc-ba9876543210"}) {
    EXPECT_FALSE(uuid_parse(text)) << text;
  }
}

}  // namespace
}  // namespace sluice::devices

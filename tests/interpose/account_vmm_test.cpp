// Handles of memory that a driver gives anew before the call that freed them has come back.
#include <gtest/gtest.h>

#include "interpose/account.h"

namespace sluice::interpose {
namespace {

constexpr CUmemGenericAllocationHandle kHandle = 0x5000;
constexpr CUdeviceptr kFirst = 0x10000, kSecond = 0x20000;

uint64_t charged() {
  uint64_t bytes[kDevicesMax] = {};
  vmm_sum(bytes);
  return bytes[0];
}

class AccountVmmTest : public ::testing::Test {
 protected:
  ~AccountVmmTest() override { vmm_reset_after_fork(); }
  static bool release() {
    const bool known = vmm_release_begin(kHandle);
    if (known) vmm_release_end(kHandle, true);
    return known;
  }
};

TEST_F(AccountVmmTest, AHandleThatComesAgainBeforeAnUnmappingReturnsIsAnotherMemory) {
  ASSERT_TRUE(vmm_created(kHandle, 0, 3));
  ASSERT_TRUE(vmm_mapped(kHandle, kFirst, 3));
  EXPECT_TRUE(release());
  EXPECT_EQ(charged(), 3u);
  // The driver has unmapped it, and it is gone; another thread is quicker than the unmapping one.
  ASSERT_TRUE(vmm_created(kHandle, 0, 5));
  ASSERT_TRUE(vmm_mapped(kHandle, kSecond, 5));
  EXPECT_EQ(charged(), 8u);
  EXPECT_TRUE(vmm_unmapped(kFirst, 3));
  EXPECT_EQ(charged(), 5u);
  EXPECT_TRUE(release());
  EXPECT_EQ(charged(), 5u);
  EXPECT_TRUE(vmm_unmapped(kSecond, 5));
  EXPECT_EQ(charged(), 0u);
}

TEST_F(AccountVmmTest, SoManyTimes) {
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(vmm_created(kHandle, 0, 1));
    ASSERT_TRUE(vmm_mapped(kHandle, kFirst + i * 16, 1));
    EXPECT_TRUE(release());
  }
  EXPECT_EQ(charged(), 100u);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(vmm_unmapped(kFirst + i * 16, 1));
  EXPECT_EQ(charged(), 0u);
}

// Others may have the object, and this process's handle is the next memory's.
TEST_F(AccountVmmTest, TheHandleOfAnExportedObjectThatComesAgainIsAMemorys) {
  ASSERT_TRUE(vmm_created(kHandle, 0, 0));
  vmm_exported(kHandle);
  EXPECT_TRUE(release());
  ASSERT_TRUE(vmm_created(kHandle, 0, 5));
  EXPECT_EQ(charged(), 5u);
  EXPECT_TRUE(release());
  EXPECT_EQ(charged(), 0u);
}

}  // namespace
}  // namespace sluice::interpose

// Pages that take the place of others: all of them or none.
#include "interpose/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace sluice::interpose;

int page_file(size_t bytes, unsigned char first) {
  const int fd = memfd_create("page", MFD_CLOEXEC);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(pwrite(fd, &first, 1, 0), 1);
  return fd;
}

int lease_file(unsigned char first) { return page_file(kLeaseBytes, first); }
int claims_file(unsigned char first) { return page_file(kClaimsBytes, first); }
unsigned char lease_first() { return *reinterpret_cast<const unsigned char*>(pages_lease()); }
unsigned char claims_first() { return *reinterpret_cast<unsigned char*>(pages_claims()); }

TEST(PagesTest, WhatCannotBeMappedLeavesThePagesBefore) {
  ASSERT_TRUE(pages_reserve());
  ASSERT_TRUE(pages_install(lease_file(1), claims_file(2)));
  EXPECT_EQ(lease_first(), 1);
  EXPECT_EQ(claims_first(), 2);
  // The program may close any descriptor.
  EXPECT_FALSE(pages_install(-1, claims_file(4)));
  EXPECT_EQ(lease_first(), 1);
  EXPECT_EQ(claims_first(), 2);
  EXPECT_FALSE(pages_install(lease_file(5), -1));
  EXPECT_EQ(lease_first(), 1);
  EXPECT_EQ(claims_first(), 2);
  ASSERT_TRUE(pages_install(lease_file(7), claims_file(8)));
  EXPECT_EQ(lease_first(), 7);
  EXPECT_EQ(claims_first(), 8);
}

}  // namespace

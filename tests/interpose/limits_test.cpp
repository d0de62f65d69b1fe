// What limits and policies may be written like.
#include "interpose/limits.h"

#include <gtest/gtest.h>
#include <string.h>

#include <string>

#include "broker/protocol/tenant_limits.h"

namespace sluice::interpose {
namespace {

using protocol::percent_read;
using protocol::policy_parse;
using protocol::size_read;

constexpr uint64_t kGiB = 1 << 30;

uint64_t size_of(const char* text) {
  uint64_t out = 0;
  return size_read(text, &out) ? out : 0;
}

uint32_t percent_of(const char* text) {
  uint32_t out = 0;
  return percent_read(text, &out) ? out : 0;
}

TEST(Limits, Sizes) {
  EXPECT_EQ(size_of("2GiB"), 2 * kGiB);
  EXPECT_EQ(size_of("1.5 GiB"), 3 * kGiB / 2);
  EXPECT_EQ(size_of("512MiB"), kGiB / 2);
  EXPECT_EQ(size_of("4096B"), 4096u);
  EXPECT_EQ(size_of("2G"), 2 * kGiB);
  EXPECT_EQ(size_of("2GB"), 2'000'000'000u);
  EXPECT_EQ(size_of("1.5M"), 3u << 19);
  EXPECT_EQ(size_of("64K"), 65536u);
  EXPECT_EQ(size_of("3kB"), 3000u);
  EXPECT_EQ(size_of("1TB"), 1'000'000'000'000u);
  EXPECT_EQ(size_of("1P"), uint64_t{1} << 50);
  EXPECT_EQ(size_of("16777215TiB"), uint64_t{16777215} << 40);
  EXPECT_EQ(size_of("18446744073709551615B"), UINT64_MAX);
  for (const char* wrong : {"",
                            "0",
                            "0GiB",
                            "-1",
                            "+1",
                            " 1",
                            "1 ",
                            "GiB",
                            "1.GiB",
                            ".5GiB",
                            "0.5",
                            "1gib",
                            "4096",
                            "1Gi",
                            "1g",
                            "1k",
                            "1 ",
                            "1BB",
                            "1E",
                            "1GiBs",
                            "16777216TiB",
                            "18446744073709551616B",
                            "0x10",
                            "1e9",
                            "1.1234567891GiB"}) {
    EXPECT_EQ(size_of(wrong), 0u) << wrong;
  }
}

TEST(Limits, Percentages) {
  EXPECT_EQ(percent_of("1%"), 1u);
  EXPECT_EQ(percent_of("50"), 50u);
  EXPECT_EQ(percent_of("100%"), 100u);
  for (const char* wrong : {"", "%", "0", "0%", "101", "50%%", "50 %", "0.5", "-1", "4294967297",
                            "18446744073709551666"}) {
    EXPECT_EQ(percent_of(wrong), 0u) << wrong;
  }
}

TEST(Limits, NarrowTogether) {
  const Limits none;
  const Limits a{2 * kGiB, 50}, b{kGiB, 80};
  EXPECT_FALSE(none.any());
  EXPECT_EQ(limits_narrow(a, b).memory_bytes, kGiB);
  EXPECT_EQ(limits_narrow(a, b).sm_percent, 50u);
  EXPECT_EQ(limits_narrow(none, a).memory_bytes, 2 * kGiB);
  EXPECT_EQ(limits_narrow(a, none).memory_bytes, 2 * kGiB);
  EXPECT_FALSE(limits_narrow(none, none).any());
}

struct Read {
  bool good;
  Policy policy;
  std::string fault;
};

Read read(const char* text) {
  std::string copy = text;
  Read out;
  protocol::PolicyMistake mistake{};
  out.good = policy_parse(copy.data(), &out.policy, &mistake);
  if (out.good) return out;
  out.fault = mistake.line == 0 ? "" : "line " + std::to_string(mistake.line) + ": ";
  out.fault += mistake.wrong;
  return out;
}

TEST(TenantLimits, AreReadAsTheyWereWritten) {
  protocol::TenantLimits limits{};
  limits.tenant = 0xfedcba9876543210;
  limits.key = 7;
  limits.memory_max_bytes = UINT64_MAX;
  limits.context_bytes = UINT64_MAX;
  limits.sm_percent = 100;
  limits.exclusive = true;
  limits.founder = INT32_MAX;
  for (limits.gpu_count = 1; limits.gpu_count <= protocol::kTenantGpusMax; ++limits.gpu_count) {
    memset(limits.gpus[limits.gpu_count - 1].bytes, static_cast<int>(0xa0 + limits.gpu_count), 16);
    char text[protocol::kTenantLimitsTextBytes];
    protocol::tenant_limits_format(limits, text);
    protocol::TenantLimits read;
    ASSERT_TRUE(protocol::tenant_limits_parse(text, &read)) << text;
    EXPECT_EQ(memcmp(&read, &limits, sizeof limits), 0) << text;
  }
}

TEST(TenantLimits, OtherTextsSayNothing) {
  const std::string gpu(32, 'a');
  const std::string good = "0000000000000007-0123456789abcdef memory=1 sm=25 context=0 gpus=" + gpu;
  protocol::TenantLimits read;
  ASSERT_TRUE(protocol::tenant_limits_parse(good.c_str(), &read));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(protocol::tenant_limits_parse(good.substr(0, length).c_str(), &read)) << length;
  }
  for (const char* more :
       {",", " ", "a", ",a", " exclusive ", " inclusive", " founder=", " founder=0", " founder=-1",
        " founder=2147483648", " founder=1 exclusive"}) {
    EXPECT_FALSE(protocol::tenant_limits_parse((good + more).c_str(), &read)) << more;
  }
  std::string many = good;
  for (uint32_t i = 0; i < protocol::kTenantGpusMax; ++i) many += "," + gpu;
  EXPECT_FALSE(protocol::tenant_limits_parse(many.c_str(), &read));
  for (const char* sm : {"sm=0", "sm=101", "sm=-1", "sm=", "sm= 5", "sm=99999999999999999999"}) {
    std::string other = good;
    EXPECT_FALSE(protocol::tenant_limits_parse(other.replace(41 + 2, 5, sm).c_str(), &read)) << sm;
  }
}

TEST(PolicyFile, AllOfIt) {
  const Read file = read(
      "# a comment\n\n  missing_broker =static\nrequire_broker= yes \r\nhold_max = 5m\n"
      "memory = 1.5 GiB\nsm = 25%");
  EXPECT_TRUE(file.good) << file.fault;
  EXPECT_EQ(file.policy.missing, MissingBroker::kStatic);
  EXPECT_TRUE(file.policy.broker_required);
  EXPECT_EQ(file.policy.hold_ns, 300'000'000'000u);
  EXPECT_EQ(file.policy.limits.memory_bytes, 3 * kGiB / 2);
  EXPECT_EQ(file.policy.limits.sm_percent, 25u);
}

TEST(PolicyFile, TenantsKeepTheirLimitsByDefault) {
  const Read file = read("");
  EXPECT_TRUE(file.good);
  EXPECT_EQ(file.policy.missing, MissingBroker::kKeep);
  EXPECT_FALSE(file.policy.broker_required);
  EXPECT_EQ(file.policy.hold_ns, 60'000'000'000u);
}

TEST(PolicyFile, MistakesAreNamedByLine) {
  EXPECT_EQ(read("missing_broker = close").fault,
            "line 1: missing_broker is keep, open, hold or static");
  EXPECT_EQ(read("\nrequire_broker = maybe").fault, "line 2: require_broker is yes or no");
  EXPECT_EQ(read("hold_max = 60").fault, "line 1: hold_max is a time such as 60s, 5m or 0s");
  EXPECT_EQ(read("hold_max = 99999999999999h").fault,
            "line 1: hold_max is a time such as 60s, 5m or 0s");
  EXPECT_EQ(read("memory = 0").fault, "line 1: memory is a size with its unit, such as 2GiB");
  EXPECT_EQ(read("memory = 2048").fault, "line 1: memory is a size with its unit, such as 2GiB");
  EXPECT_EQ(read("sm = 0%").fault, "line 1: sm is a share such as 50%");
  EXPECT_EQ(read("# x\nopen").fault, "line 2: a line is KEY = VALUE");
  EXPECT_EQ(read("gpu = 1").fault,
            "line 1: the keys are missing_broker, require_broker, hold_max, memory and sm");
  EXPECT_EQ(read("missing_broker = static").fault, "missing_broker = static needs memory or sm");
}

}  // namespace
}  // namespace sluice::interpose

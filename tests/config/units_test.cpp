// Sizes and durations: what people write, what they get, and every limit.
#include <gtest/gtest.h>

#include <time.h>

#include <limits>

#include "config/reader/config.h"

namespace sluice::config {
namespace {

constexpr std::uint64_t kKiB = 1ULL << 10;
constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr std::uint64_t kGiB = 1ULL << 30;
constexpr std::uint64_t kBytesMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::int64_t kNanosMax = std::numeric_limits<std::int64_t>::max();

TEST(Sizes, Good) {
  const std::pair<const char*, std::uint64_t> rows[] = {
      {"0", 0},
      {"0B", 0},
      {"0GiB", 0},
      {"1048576B", kMiB},
      {"1B", 1},
      {"8GiB", 8 * kGiB},
      {"8G", 8 * kGiB},
      {"256M", 256 * kMiB},
      {"64K", 64 * kKiB},
      {"1.5T", 1536 * kGiB},
      {"1P", 1ULL << 50},
      {"512 MiB", 512 * kMiB},
      {"64KiB", 64 * kKiB},
      {"1.5GiB", kGiB + kGiB / 2},
      {"0.125 KiB", 128},
      {"2GB", 2'000'000'000},
      {"2kB", 2000},
      {"2KB", 2000},
      {"3MB", 3'000'000},
      {"1TB", 1'000'000'000'000},
      {"1TiB", 1ULL << 40},
      {"1PiB", 1ULL << 50},
      {"0.3GiB", 322'122'547},                      // 322122547.2 rounded down
      {"16383.999999999PiB", kBytesMax - 1125899},  // 2^50 / 10^9 below 2^64, rounded down
      {"18446744073709551615B", kBytesMax},
      {"0000000000000000000000008GiB", 8 * kGiB},
  };
  for (const auto& [text, bytes] : rows) EXPECT_EQ(size_parse(text), bytes) << text;
}

TEST(Sizes, Refused) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1",
                           "+1",
                           "-1GiB",
                           "8 ",
                           " 8",
                           "8GiB ",
                           "8gib",
                           "8g",
                           "8Gi",
                           "8GiBs",
                           "8.GiB",
                           ".5GiB",
                           "1048576",
                           "18446744073709551615",
                           "1.5",
                           "1.0",
                           "1e3",
                           "0x10",
                           "8\tGiB",
                           "8GiB8",
                           "8 GiB 8",
                           "18446744073709551616",
                           "16384PiB",
                           "18446744073709551616B",
                           "99999999999999999999999999999999GiB",
                           "18446744073709551615KiB",
                           "0.0000001KiB",
                           "0.5B",
                           "1_000",
                           "1,5GiB",
                           "nan",
                           "inf",
                           "1.0000000000000000001GiB",
                           "\xd9\xa8GiB"}) {
    EXPECT_FALSE(size_parse(text).has_value()) << text;
  }
  EXPECT_FALSE(size_parse(std::string_view("8GiB\0", 5)).has_value());
}

TEST(Durations, Good) {
  const std::pair<const char*, std::int64_t> rows[] = {
      {"0s", 0},
      {"0ns", 0},
      {"250ns", 250},
      {"500us", 500'000},
      {"10ms", 10'000'000},
      {"10 ms", 10'000'000},
      {"2s", 2'000'000'000},
      {"1.5s", 1'500'000'000},
      {"1h30m", 5'400'000'000'000},
      {"1h 30m", 5'400'000'000'000},
      {"1d", 86'400'000'000'000},
      {"1d2h3m4s5ms6us7ns", 93'784'005'006'007},
      {"9223372036854775807ns", kNanosMax},
      {"106751d23h47m16s854ms775us807ns", kNanosMax},
  };
  for (const auto& [text, ns] : rows) EXPECT_EQ(duration_parse(text), ns) << text;
}

TEST(Durations, Refused) {
  for (const char* text : {"",
                           " ",
                           "0",
                           "10",
                           "-1s",
                           "+1s",
                           "s",
                           "10 s ",
                           " 10s",
                           "10S",
                           "10min",
                           "10sec",
                           "1m1h",
                           "1s1s",
                           "1h1h",
                           "1.5h30m",
                           "1h30",
                           "1ms1s",
                           "1..5s",
                           "1.s",
                           ".5s",
                           "1e3s",
                           "0.1ns",
                           "9223372036854775808ns",
                           "106752d",
                           "2562048h",
                           "18446744073709551616ns",
                           "106751d23h47m16s854ms775us808ns"}) {
    EXPECT_FALSE(duration_parse(text).has_value()) << text;
  }
}

TEST(Sizes, Shown) {
  const std::pair<std::uint64_t, const char*> rows[] = {
      {0, "0 B"},
      {1023, "1023 B"},
      {kKiB, "1 KiB"},
      {8589934592, "8 GiB"},
      {1610612736, "1.5 GiB"},
      {kGiB + kGiB / 20, "1.05 GiB"},
      {kMiB - 1, "1 MiB"},
      {1234567, "1.18 MiB"},
      {kBytesMax, "16 EiB"},
      {1ULL << 50, "1 PiB"},
  };
  for (const auto& [bytes, text] : rows) EXPECT_EQ(size_format(bytes), text);
}

TEST(Durations, Shown) {
  const std::pair<std::int64_t, const char*> rows[] = {
      {0, "0 ns"},
      {999, "999 ns"},
      {500'000, "500 us"},
      {10'000'000, "10 ms"},
      {1'500'000'000, "1.5 s"},
      {59'000'000'000, "59 s"},
      {60'000'000'000, "1m"},
      {150'000'000'000, "2m30s"},
      {5'400'000'000'000, "1h30m"},
      {86'400'000'000'000, "1d"},
      {90'061'000'000'000, "1d1h"},
      {-10'000'000, "-10 ms"},
      {std::numeric_limits<std::int64_t>::min(), "-106751d23h"},
      {kNanosMax, "106751d23h"},
  };
  for (const auto& [ns, text] : rows) EXPECT_EQ(duration_format(ns), text);
}

TEST(Times, HaveTheirDayWhereItIsAnotherThanNow) {
  tm when{};
  when.tm_year = 126;
  when.tm_mon = 10;
  when.tm_mday = 28;
  when.tm_hour = 18;
  when.tm_isdst = -1;
  const std::int64_t six = mktime(&when);
  EXPECT_EQ(time_format(six, six - 3600), "18:00");
  EXPECT_EQ(time_format(six, six - 19 * 3600), "2026-11-28 18:00")
      << "less than a day, but tomorrow";
  EXPECT_EQ(time_format(six, six - 1000 * 3600), "2026-11-28 18:00");
  EXPECT_EQ(time_format(0, six), "");
}

TEST(Sizes, ShownReadBack) {
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, kKiB, 3 * kMiB / 2, 8 * kGiB, 80 * kGiB, std::uint64_t{1} << 40}) {
    EXPECT_EQ(size_parse(size_format(bytes)), bytes);
  }
}

}  // namespace
}  // namespace sluice::config

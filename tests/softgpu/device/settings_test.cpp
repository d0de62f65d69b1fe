// Settings: quantities, profile, environment, and that the first process fixes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/temporary.h"

namespace {

using namespace softgpu::device;
using softgpu_test::TemporaryDevices;

TEST(Settings, QuantitiesHaveUnits) {
  double value = 0;
  EXPECT_TRUE(quantity_parse("4GiB", value) && value == 4.0 * (1 << 30));
  EXPECT_TRUE(quantity_parse("40e6", value) && value == 40e6);
  EXPECT_TRUE(quantity_parse("512 MiB", value) && value == 512.0 * (1 << 20));
  EXPECT_FALSE(quantity_parse("4XB", value));
  EXPECT_FALSE(quantity_parse("", value));
  EXPECT_FALSE(quantity_parse("-1", value));
}

TEST(Settings, EnvironmentWinsOverProfile) {
  const TemporaryDevices devices;
  const std::string profile = devices.path() + "/profile";
  std::ofstream(profile) << "# two devices\nmemory = 64MiB\nsms = 4\n";
  setenv("SOFTGPU_PROFILE", profile.c_str(), 1);
  setenv("SOFTGPU_SMS", "8", 1);
  Settings settings;
  std::string error;
  EXPECT_TRUE(settings_read(settings, error)) << error;
  EXPECT_EQ(settings.memory_bytes, 64U << 20);
  EXPECT_EQ(settings.sm_count, 8U);
  std::ofstream(profile) << "colour = red\n";
  EXPECT_FALSE(settings_read(settings, error));
  EXPECT_NE(error.find(":1: unknown setting COLOUR"), std::string::npos) << error;
  unsetenv("SOFTGPU_PROFILE");
  unsetenv("SOFTGPU_SMS");
}

TEST(Settings, AVariableThatNothingReadsIsSaid) {
  const TemporaryDevices devices({{"SOFTGPU_MEMROY", "2GiB"}, {"SOFTGPU_SMS", "8"}});
  Settings settings;
  std::string error;
  testing::internal::CaptureStderr();
  EXPECT_TRUE(settings_read(settings, error)) << error;
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "softgpu: the variable SOFTGPU_MEMROY means nothing to the software GPU; its README "
            "lists those that do\n");
}

TEST(Settings, GpusMayDifferInSpeed) {
  const TemporaryDevices devices({{"SOFTGPU_COUNT", "3"}, {"SOFTGPU_RATE", "80e6, 40e6"}});
  std::string error;
  const auto segments = directory_open(devices.path(), error);
  ASSERT_EQ(segments.size(), 3U) << error;
  EXPECT_EQ(segments[0]->rate, 80e6);
  EXPECT_EQ(segments[1]->rate, 40e6);
  EXPECT_GT(segments[2]->rate, 0) << "the default where none is named";
  Settings settings;
  setenv("SOFTGPU_RATE", "80e6,fast", 1);
  EXPECT_FALSE(settings_read(settings, error));
  EXPECT_NE(error.find("fast"), std::string::npos) << error;
}

TEST(Settings, APageIsAPowerOfTwo) {
  const TemporaryDevices devices;
  for (const char* text : {"0", "4096", "2MiB", "1GiB"}) {
    Settings settings;
    std::string error;
    setenv("SOFTGPU_PAGE", text, 1);
    EXPECT_TRUE(settings_read(settings, error)) << text << error;
  }
  for (const char* text : {"1", "2048", "3MiB", "2MB", "2GiB", "-1", "page"}) {
    Settings settings;
    std::string error;
    setenv("SOFTGPU_PAGE", text, 1);
    EXPECT_FALSE(settings_read(settings, error)) << text;
    EXPECT_NE(error.find(text), std::string::npos) << error;
  }
  unsetenv("SOFTGPU_PAGE");
}

TEST(Settings, TimedKernels) {
  std::vector<TimedRule> rules;
  std::string error;
  ASSERT_TRUE(timed_parse("gemm*=2.5ms, _Z4softPf=30us/skip,,a=b*=1s", rules, error)) << error;
  ASSERT_EQ(rules.size(), 3U);
  EXPECT_STREQ(rules[0].pattern, "gemm*");
  EXPECT_EQ(rules[0].ns, 2.5e6);
  EXPECT_EQ(rules[0].skip, 0U);
  EXPECT_EQ(rules[1].ns, 30e3);
  EXPECT_EQ(rules[1].skip, 1U);
  EXPECT_STREQ(rules[2].pattern, "a=b*");
  for (const char* wrong : {"gemm", "gemm=", "gemm=2", "=2ms", "gemm=2ms/jump", "gemm=-1ms"})
    EXPECT_FALSE(timed_parse(wrong, rules, error)) << wrong;
}

TEST(Settings, DurationsHaveUnits) {
  double ns = 0;
  EXPECT_TRUE(duration_parse("250ns", ns) && ns == 250);
  EXPECT_TRUE(duration_parse("3 us", ns) && ns == 3e3);
  EXPECT_TRUE(duration_parse("1e-3s", ns) && ns == 1e6);
  EXPECT_FALSE(duration_parse("3", ns));
  EXPECT_FALSE(duration_parse("3 min", ns));
}

TEST(Settings, NonsenseIsRefused) {
  setenv("SOFTGPU_COUNT", "99", 1);
  Settings settings;
  std::string error;
  EXPECT_FALSE(settings_read(settings, error));
  EXPECT_NE(error.find("SOFTGPU_COUNT"), std::string::npos);
  unsetenv("SOFTGPU_COUNT");
}

TEST(Directory, TheFirstProcessFixesTheSettings) {
  const TemporaryDevices devices({{"SOFTGPU_COUNT", "3"}, {"SOFTGPU_MEMORY", "64MiB"}});
  std::string error;
  const auto first = directory_open(devices.path(), error);
  ASSERT_EQ(first.size(), 3U) << error;
  setenv("SOFTGPU_COUNT", "1", 1);
  setenv("SOFTGPU_MEMORY", "1GiB", 1);
  const auto second = directory_open(devices.path(), error);
  ASSERT_EQ(second.size(), 3U);
  EXPECT_EQ(second[2]->memory_bytes, 64U << 20);
  EXPECT_EQ(uuid_text(first[1]->uuid), uuid_text(second[1]->uuid));
  EXPECT_NE(uuid_text(first[0]->uuid), uuid_text(first[1]->uuid));
  unsetenv("SOFTGPU_COUNT");
  unsetenv("SOFTGPU_MEMORY");
}

/// What is said of a directory whose first segment `damage` has changed.
std::string said_of(const std::function<void(const std::string&)>& damage) {
  const TemporaryDevices devices;
  std::string error;
  const std::string path = devices.path() + "/gpu0";
  EXPECT_EQ(directory_open(devices.path(), error).size(), 1U) << error;
  damage(path);
  EXPECT_TRUE(directory_open(devices.path(), error).empty());
  EXPECT_NE(error.find(path), std::string::npos) << error;
  return error;
}

TEST(Directory, WhatIsNotASegmentIsRefused) {
  using ::testing::HasSubstr;
  EXPECT_THAT(said_of([](const auto& path) { std::ofstream(path) << "not a segment"; }),
              HasSubstr("damaged"));
  EXPECT_THAT(said_of([](const auto& path) { std::ofstream{path}; }), HasSubstr("damaged"));
  EXPECT_THAT(said_of([](const auto& path) { std::filesystem::resize_file(path, 4096); }),
              HasSubstr("has 4096 bytes instead of"));
  EXPECT_THAT(said_of([](const auto& path) {
                std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                file.seekp(8);
                file.put(99);
              }),
              HasSubstr("another version"));
  EXPECT_THAT(said_of([](const auto& path) {
                std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                file.seekp(4096);
                file << std::string(40 * 4096, '\x5a');
              }),
              HasSubstr("something else has written to it"));
  EXPECT_THAT(said_of([](const auto& path) {
                std::filesystem::remove(path);
                EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
              }),
              HasSubstr("it is a FIFO"));
  EXPECT_THAT(said_of([](const auto& path) {
                std::filesystem::remove(path);
                std::filesystem::create_symlink("/dev/zero", path);
              }),
              HasSubstr("it is a device"));
}

TEST(Settings, AProfileThatIsNoFileMakesNothingWait) {
  const TemporaryDevices devices;
  const std::string path = devices.path() + "/profile";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const std::string& profile : {path, std::string("/dev/zero"), devices.path()}) {
    Settings settings;
    std::string error;
    setenv("SOFTGPU_PROFILE", profile.c_str(), 1);
    EXPECT_FALSE(settings_read(settings, error));
    EXPECT_NE(error.find(profile), std::string::npos) << error;
    EXPECT_NE(error.find("not a file"), std::string::npos) << error;
  }
  unsetenv("SOFTGPU_PROFILE");
}

/// Another user can make a directory of that name first.
TEST(Directory, AnotherUsersIsNotTheDefault) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make directories of two users";
  constexpr uid_t kVictim = 3'000'000'011, kOther = 3'000'000'012;
  const auto opened_by_victim = [](uid_t owner) {
    const std::string path = "/dev/shm/softgpu-" + std::to_string(kVictim);
    EXPECT_EQ(mkdir(path.c_str(), 0777), 0);
    EXPECT_EQ(chown(path.c_str(), owner, owner), 0);
    EXPECT_EQ(chmod(path.c_str(), 0777), 0);
    const pid_t child = fork();
    if (child == 0) {
      std::string error;
      if (setgid(kVictim) != 0 || setuid(kVictim) != 0) _exit(3);
      const bool open = !directory_open(settings_directory_own(), error).empty();
      _exit(open ? 1 : error.find("is another user's") != std::string::npos ? 2 : 4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::filesystem::remove_all(path);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(opened_by_victim(kOther), 2);
  EXPECT_EQ(opened_by_victim(kVictim), 1);
}

}  // namespace

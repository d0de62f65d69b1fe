// A software GPU that falls off the bus while it is watched.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <filesystem>

#include "broker/devices/loss_watch.h"
#include "broker/devices/nvml.h"

namespace sluice::devices {
namespace {

TEST(LossOnSoftGpu, IsSeenByTheWatch) {
  constexpr int kTurnsMax = 30'000;
  char directory[] = "/tmp/softgpu-lost-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  setenv("SOFTGPU_DIR", directory, 1);
  setenv("SOFTGPU_COUNT", "2", 1);
  std::vector<GpuInfo> gpus;
  DeviceError error;
  const auto nvml = Nvml::open(kNvmlLibrary, &error);
  ASSERT_NE(nvml, nullptr) << error.text;
  ASSERT_TRUE(nvml->gpus(&gpus, &error)) << error.text;
  ASSERT_EQ(gpus.size(), 2U);
  LossWatch watch(SLUICE_PROBE, environ, {gpus[0].uuid, gpus[1].uuid}, 1);
  EXPECT_TRUE(watch.look(0).lost.empty());
  ASSERT_EQ(
      std::system((std::string(SOFTGPU_CTL " inject lost --gpu 1 --dir ") + directory).c_str()), 0);
  LossWatch::News news;
  for (int i = 0; i < kTurnsMax && news.lost.empty() && news.fault.empty(); ++i) {
    news = watch.look(0);
    poll(nullptr, 0, 1);
  }
  ASSERT_EQ(news.lost.size(), 1U) << news.fault;
  EXPECT_TRUE(news.lost[0] == gpus[1].uuid);
  EXPECT_TRUE(nvml->lost(gpus[1].uuid) && !nvml->lost(gpus[0].uuid));
  std::filesystem::remove_all(directory);
}

TEST(StartOfSoftGpu, AWrongSettingIsNamed) {
  char directory[] = "/tmp/softgpu-start-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  setenv("SOFTGPU_DIR", directory, 1);
  setenv("SOFTGPU_COUNT", "many", 1);
  DeviceError error;
  EXPECT_EQ(Nvml::open(kNvmlLibrary, &error), nullptr);
  EXPECT_EQ(error.text.rfind("softgpu: no device: ", 0), 0U) << error.text;
  EXPECT_NE(error.text.find("\"many\" is no value for COUNT"), std::string::npos) << error.text;
  EXPECT_EQ(error.text.find("modprobe"), std::string::npos) << error.text;
  setenv("SOFTGPU_COUNT", "1", 1);
  EXPECT_NE(Nvml::open(kNvmlLibrary, &error), nullptr) << error.text;
  unsetenv("SOFTGPU_COUNT");
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace sluice::devices

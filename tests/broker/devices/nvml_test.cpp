// The inventory against a double of NVML: lists, and every way of having none.
#include "broker/devices/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

using testing::HasSubstr;

class NvmlTest : public testing::Test {
 protected:
  NvmlTest() {
    for (const char* name :
         {"FAKE_GPUS", "FAKE_MEMORY", "FAKE_FAULT", "FAKE_LOST", "FAKE_PROCESSES", "FAKE_OWN"})
      unsetenv(name);
  }
  std::unique_ptr<Nvml> open() {
    return Nvml::open(SLUICE_FAKE_HARDWARE "/libnvidia-ml.so.1", &error_);
  }
  DeviceError error_;
  std::vector<GpuInfo> gpus_;
};

TEST_F(NvmlTest, ListsGpus) {
  setenv("FAKE_MEMORY", "1000000", 1);
  const auto nvml = open();
  ASSERT_NE(nvml, nullptr) << error_.text;
  ASSERT_TRUE(nvml->gpus(&gpus_, &error_)) << error_.text;
  ASSERT_EQ(gpus_.size(), 2u);
  EXPECT_EQ(uuid_format(gpus_[1].uuid), "GPU-00000000-0000-4000-8000-000000000001");
  EXPECT_EQ(gpus_[0].total_bytes, 1000000u);
  EXPECT_EQ(gpus_[0].used_bytes, 1024u);
  EXPECT_TRUE(gpus_[0].software);
  EXPECT_FALSE(gpus_[1].software);
  EXPECT_EQ(nvml->used_bytes(gpus_[1].uuid), 1024u);
}

TEST_F(NvmlTest, ProcessListLargerThanTheFirstGuess) {
  setenv("FAKE_PROCESSES", "200", 1);
  const auto nvml = open();
  ASSERT_TRUE(nvml->gpus(&gpus_, &error_));
  std::vector<ProcessMemory> processes;
  ASSERT_TRUE(nvml->processes(gpus_[0].uuid, &processes));
  ASSERT_EQ(processes.size(), 200u);
  EXPECT_EQ(processes[199].pid, 1199u);
  EXPECT_EQ(processes[199].used_bytes, 200u);
}

TEST_F(NvmlTest, UnknownGpuHasNoFigures) {
  const auto nvml = open();
  const auto stranger = *uuid_parse("GPU-ffffffff-0000-4000-8000-000000000001");
  std::vector<ProcessMemory> processes;
  EXPECT_FALSE(nvml->processes(stranger, &processes));
  EXPECT_EQ(nvml->used_bytes(stranger), std::nullopt);
}

TEST_F(NvmlTest, NoLibrary) {
  EXPECT_EQ(Nvml::open("libsluice-no-such-library.so", &error_), nullptr);
  EXPECT_THAT(error_.text, HasSubstr("libsluice-no-such-library.so"));
  EXPECT_THAT(error_.text, HasSubstr("--soft N"));
}

TEST_F(NvmlTest, SomeOtherLibrary) {
  EXPECT_EQ(Nvml::open("libc.so.6", &error_), nullptr);
  EXPECT_THAT(error_.text, HasSubstr("lacks entry points"));
}

TEST_F(NvmlTest, DriverNotLoaded) {
  setenv("FAKE_FAULT", "init", 1);
  EXPECT_EQ(open(), nullptr);
  EXPECT_THAT(error_.text, HasSubstr("Driver Not Loaded"));
  EXPECT_THAT(error_.text, HasSubstr("modprobe nvidia"));
}

TEST_F(NvmlTest, TheSoftwareGpuGivesItsReasonItself) {
  setenv("FAKE_FAULT", "software", 1);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(error_.text,
            "softgpu: no device: SOFTGPU_COUNT: \"99\" is no value; correct what it names, or run "
            "softgpu-ctl reset");
}

TEST_F(NvmlTest, NoDevice) {
  setenv("FAKE_FAULT", "empty", 1);
  EXPECT_FALSE(open()->gpus(&gpus_, &error_));
  EXPECT_THAT(error_.text, HasSubstr("there is no GPU"));
}

TEST_F(NvmlTest, ALostGpuIsLeftOutAndToldOf) {
  setenv("FAKE_LOST", "0", 1);
  const auto nvml = open();
  ASSERT_TRUE(nvml->gpus(&gpus_, &error_));
  ASSERT_EQ(gpus_.size(), 1u);
  EXPECT_EQ(uuid_format(gpus_[0].uuid), "GPU-00000000-0000-4000-8000-000000000001");
  EXPECT_THAT(error_.text, HasSubstr("1 of 2 GPUs cannot be used: GPU is lost"));
  EXPECT_THAT(error_.text, HasSubstr("softgpu-ctl clear")) << "the double has softgpu_fault";
  EXPECT_FALSE(nvml->lost(gpus_[0].uuid));
}

TEST_F(NvmlTest, AGpuIsLostWhileItIsServed) {
  const auto nvml = open();
  ASSERT_TRUE(nvml->gpus(&gpus_, &error_));
  EXPECT_EQ(error_.text, "");
  EXPECT_FALSE(nvml->lost(gpus_[1].uuid));
  setenv("FAKE_LOST", "1", 1);
  EXPECT_TRUE(nvml->lost(gpus_[1].uuid));
  EXPECT_FALSE(nvml->lost(gpus_[0].uuid));
  EXPECT_EQ(nvml->used_bytes(gpus_[1].uuid), std::nullopt);
}

TEST_F(NvmlTest, AllGpusLost) {
  setenv("FAKE_LOST", "all", 1);
  EXPECT_FALSE(open()->gpus(&gpus_, &error_));
  EXPECT_THAT(error_.text, HasSubstr("2 of 2 GPUs"));
}

TEST_F(NvmlTest, ForeignUuid) {
  setenv("FAKE_FAULT", "uuid", 1);
  EXPECT_FALSE(open()->gpus(&gpus_, &error_));
  EXPECT_THAT(error_.text, HasSubstr("MIG-somewhere"));
}

}  // namespace
}  // namespace sluice::devices

// The probe's line format, its environment, and the program itself on the doubles, hanging and
// crashing included.
#include "broker/devices/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr char kLibraries[] = "LD_LIBRARY_PATH=" SLUICE_FAKE_HARDWARE;
constexpr std::int64_t kPatience_ms = 30'000;

ProbeResult probe(std::vector<const char*> environment, std::int64_t deadline_ms = kPatience_ms) {
  environment.push_back(kLibraries);
  environment.push_back(nullptr);
  return probe_run(SLUICE_PROBE, environment.data(), deadline_ms);
}

TEST(ProbeLine, RoundTrip) {
  ProbedGpu gpu{*uuid_parse("GPU-00000000-0000-4000-8000-000000000001"), 4096, 77, "process", 8};
  ProbedGpu back;
  ASSERT_TRUE(probe_line_parse(probe_line(gpu), &back));
  EXPECT_TRUE(back.uuid == gpu.uuid);
  EXPECT_EQ(back.total_bytes, 4096u);
  EXPECT_EQ(back.context_bytes, 77u);
  EXPECT_EQ(back.method, "process");
  EXPECT_EQ(back.unlisted_bytes, 8u);
}

TEST(ProbeLine, RefusesEverythingElse) {
  const std::string good =
      "GPU-00000000-0000-4000-8000-000000000001 total_bytes=1 context_bytes=2 unlisted_bytes=3 "
      "method=process";
  ProbedGpu gpu;
  ASSERT_TRUE(probe_line_parse(good, &gpu));
  for (const std::string& line :
       {std::string(), good + " more", good.substr(0, 60), "X" + good, std::string("total_bytes=1"),
        std::string("GPU-00000000-0000-4000-8000-000000000001 total_bytes=-1 context_bytes=2 "
                    "unlisted_bytes=3 method=process"),
        std::string("GPU-00000000-0000-4000-8000-000000000001 total_bytes=1 context_bytes=2x "
                    "unlisted_bytes=3 method=process")}) {
    EXPECT_FALSE(probe_line_parse(line, &gpu)) << line;
  }
}

TEST(ProbeEnvironment, DropsWhatWouldHideGpus) {
  const char* environment[] = {"CUDA_VISIBLE_DEVICES=1",
                               "LD_PRELOAD=x.so",
                               "SLUICE_TENANT=t",
                               "SLUICE_TENANT_LIMITS=l",
                               "HOME=/root",
                               "CUDA_VISIBLE_DEVICES_NOT=1",
                               nullptr};
  const auto out = probe_environment(environment);
  EXPECT_THAT(out, Contains("HOME=/root"));
  EXPECT_THAT(out, Contains("CUDA_VISIBLE_DEVICES_NOT=1"));
  EXPECT_THAT(out, Contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  EXPECT_THAT(out, Not(Contains("CUDA_VISIBLE_DEVICES=1")));
  EXPECT_THAT(out, Not(Contains("LD_PRELOAD=x.so")));
  EXPECT_THAT(out, Not(Contains("SLUICE_TENANT=t")));
  EXPECT_THAT(out, Not(Contains("SLUICE_TENANT_LIMITS=l")));
}

TEST(Probe, OwnProcessByNvml) {
  const ProbeResult result = probe({"FAKE_OWN=1", "FAKE_CONTEXT=12345678", "FAKE_PROCESSES=3"});
  EXPECT_EQ(result.fault, "");
  ASSERT_EQ(result.gpus.size(), 2u);
  EXPECT_EQ(result.gpus[1].context_bytes, 12345678u);
  EXPECT_EQ(result.gpus[1].total_bytes, 4ull << 30);
  EXPECT_EQ(result.gpus[1].method, "process");
}

TEST(Probe, DriverWhereNvmlKnowsUsNot) {
  const ProbeResult result = probe({"FAKE_CONTEXT=1000"});
  ASSERT_EQ(result.gpus.size(), 2u) << result.fault;
  EXPECT_EQ(result.gpus[0].context_bytes, 1000u);
  EXPECT_EQ(result.gpus[0].method, "driver");
}

TEST(Probe, VisibleDevicesOfTheBrokerDoNotMatter) {
  EXPECT_EQ(probe({"CUDA_VISIBLE_DEVICES="}).gpus.size(), 2u);
}

TEST(Probe, HungDriver) {
  const ProbeResult result = probe({"FAKE_FAULT=hang"}, 500);
  EXPECT_TRUE(result.gpus.empty());
  EXPECT_THAT(result.fault, HasSubstr("did not answer within 500 ms"));
}

TEST(Probe, CrashingDriver) {
  EXPECT_THAT(probe({"FAKE_FAULT=crash"}).fault, HasSubstr("signal 6"));
}

TEST(Probe, FailingDriver) {
  EXPECT_THAT(probe({"FAKE_FAULT=driver"}).fault, HasSubstr("status 1"));
}

TEST(Probe, MissingProgram) {
  const char* environment[] = {nullptr};
  EXPECT_THAT(probe_run("/nonexistent/probe", environment, kPatience_ms).fault,
              HasSubstr("status 127"));
}

}  // namespace
}  // namespace sluice::devices

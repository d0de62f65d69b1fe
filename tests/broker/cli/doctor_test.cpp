// How findings look.
#include "broker/cli/doctor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace sluice::cli {
namespace {

TEST(Findings, WordForWord) {
  EXPECT_EQ(
      findings_format({{Verdict::kGood, "broker", "/s, 2 GPUs", ""},
                       {Verdict::kMissing, "CUDA toolkit", "nvcc is not in PATH", "install it"},
                       {Verdict::kBroken, "driver library", "cannot open", "install the driver"}}),
      "ok     broker           /s, 2 GPUs\n"
      "absent CUDA toolkit     nvcc is not in PATH\n"
      "       fix: install it\n"
      "FAIL   driver library   cannot open\n"
      "       fix: install the driver\n");
}

TEST(Findings, NotesAreNoFailure) {
  const std::vector<Finding> findings = {{Verdict::kGood, "program", "/p can be shared", ""},
                                         {Verdict::kMissing, "BPF", "none", ""},
                                         {Verdict::kNote, "program", "is a script", ""}};
  EXPECT_EQ(findings_format(findings),
            "ok     program          /p can be shared\n"
            "absent BPF              none\n"
            "note   program          is a script\n");
  EXPECT_EQ(findings_json(findings).find("\"good\": true"), 4u) << findings_json(findings);
}

TEST(Findings, ALostGpuOfTheBrokerIsBroken) {
  Snapshot snapshot;
  snapshot.gpus.resize(2);
  const Finding good{Verdict::kGood, "broker", "/s, 2 GPUs", ""};
  EXPECT_EQ(broker_gpus_check(snapshot, good).verdict, Verdict::kGood);
  snapshot.gpus[1].lost = 1;
  const Finding found = broker_gpus_check(snapshot, good);
  EXPECT_EQ(found.verdict, Verdict::kBroken);
  EXPECT_EQ(found.detail, "/s, 2 GPUs; lost: GPU 1 (GPU-00000000-0000-0000-0000-000000000000)");
  EXPECT_NE(found.fix.find("nvidia-smi -r"), std::string::npos);
  for (auto& gpu : snapshot.gpus) gpu.software = 1;
  const Finding soft = broker_gpus_check(snapshot, {Verdict::kGood, "broker", "s", ""});
  EXPECT_EQ(soft.fix, "bring it back with softgpu-ctl clear, then start the broker again");
}

// Only root can give a file to root.
class ShimPolicy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "the file has to be root's";
  }
  void TearDown() override { unlink(path_.c_str()); }
  Finding of(const std::string& text, mode_t mode = 0644) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
    return shim_policy_check(path_.c_str());
  }
  std::string path_ = ::testing::TempDir() + "shim_policy_" + std::to_string(getpid());
};

TEST_F(ShimPolicy, GoodOrAbsentIsGood) {
  EXPECT_EQ(shim_policy_check(path_.c_str()).verdict, Verdict::kGood);
  EXPECT_EQ(of("missing_broker = static\nmemory = 2GB\n").verdict, Verdict::kGood);
  EXPECT_EQ(of("missing_broker = hold\nrequire_broker = yes\n").detail,
            path_ + ": missing_broker = hold, require_broker = yes");
}

TEST_F(ShimPolicy, AMistakeIsNamed) {
  const Finding found = of("require_broker = yes\nmemory = 2048\n");
  EXPECT_EQ(found.verdict, Verdict::kBroken);
  EXPECT_EQ(found.detail, path_ + ": line 2: memory is a size with its unit, such as 2GiB");
  EXPECT_EQ(of(std::string(5000, '#')).detail,
            path_ + ": it is longer than 4095 bytes, or no text");
}

TEST_F(ShimPolicy, OneThatOthersCanWriteIsIgnored) {
  const Finding found = of("missing_broker = hold\n", 0666);
  EXPECT_EQ(found.verdict, Verdict::kBroken);
  EXPECT_EQ(found.detail, path_ + " is ignored: others than root may write to it");
  EXPECT_EQ(found.fix, "chown root, chmod 644");
  of("missing_broker = hold\n");
  ASSERT_EQ(chown(path_.c_str(), 1, 0), 0);
  EXPECT_EQ(shim_policy_check(path_.c_str()).detail,
            path_ + " is ignored: it does not belong to root");
}

TEST(Findings, AsJson) {
  EXPECT_EQ(findings_json({{Verdict::kBroken, "program", "a \"static\" one", "link it"}}),
            "{\n  \"good\": false,\n  \"findings\": [\n    {\n      \"verdict\": \"fail\",\n"
            "      \"what\": \"program\",\n      \"detail\": \"a \\\"static\\\" one\",\n"
            "      \"fix\": \"link it\"\n    }\n  ]\n}\n");
}

}  // namespace
}  // namespace sluice::cli

// How findings look.
#include "broker/cli/doctor.h"

#include <gtest/gtest.h>

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

TEST(Findings, AsJson) {
  EXPECT_EQ(findings_json({{Verdict::kBroken, "program", "a \"static\" one", "link it"}}),
            "{\n  \"good\": false,\n  \"findings\": [\n    {\n      \"verdict\": \"fail\",\n"
            "      \"what\": \"program\",\n      \"detail\": \"a \\\"static\\\" one\",\n"
            "      \"fix\": \"link it\"\n    }\n  ]\n}\n");
}

}  // namespace
}  // namespace sluice::cli

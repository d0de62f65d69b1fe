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

}  // namespace
}  // namespace sluice::cli

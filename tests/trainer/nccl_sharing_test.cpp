// Several ranks on one GPU through NCCL: a host of its own for each, unless the user says
// otherwise.
#include "trainer/comm/nccl_sharing.h"

#include <algorithm>

#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

using namespace sluice::train;

TEST(NcclSharing, WhatTheUserHasSetStays) {
  const auto variables = nccl_sharing_variables("job", 3, "lo");
  for (const NcclVariable& one : variables) unsetenv(one.name);
  setenv("NCCL_NET", "mine", 1);
  nccl_sharing_set(variables);
  EXPECT_STREQ(getenv("NCCL_HOSTID"), "job-3");
  EXPECT_STREQ(getenv("NCCL_NET"), "mine");
  EXPECT_STREQ(getenv("NCCL_SOCKET_IFNAME"), "lo");
  EXPECT_STREQ(getenv("NCCL_P2P_DISABLE"), "1");
  EXPECT_STREQ(getenv("NCCL_SHM_DISABLE"), "1");
  for (const NcclVariable& one : variables) unsetenv(one.name);
}

class NcclSharingTest : public TrainProgramTest {
 protected:
  void SetUp() override {
    TrainProgramTest::SetUp();
    const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const std::string library = (here / "nccl_standin").string();
    if (!std::filesystem::exists(library)) GTEST_SKIP() << "built without nccl.h";
    const char* path = std::getenv("LD_LIBRARY_PATH");
    environment_ = {"LD_LIBRARY_PATH=" + library + ":" + (path == nullptr ? "" : path),
                    "SOFTGPU_COUNT=1", "SOFTGPU_DIR=" + scratch_.file("softgpu")};
  }
  struct Ended {
    int code;
    std::string out, err;
  };
  /// Two ranks on one GPU.
  Ended run(const std::vector<std::string>& variables, const std::string& engine,
            const std::string& name) {
    std::vector<std::string> all = environment_;
    all.insert(all.end(), variables.begin(), variables.end());
    Child child(
        {"sluice-train", "--nproc", "2", "--data", "synthetic", "--hidden", "24", "--batch", "16",
         "--steps", "4", "--eval-samples", "0", "--comm", engine, "--save", weights(name)},
        scratch_, all);
    const int code = child.wait(kPatience);
    return {code, child.out(), child.err()};
  }
  static bool has(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  }

 private:
  std::vector<std::string> environment_;
};

TEST_F(NcclSharingTest, RanksOnOneGpuTrainAsThroughGlooAndItIsSaid) {
  const Ended nccl = run({}, "nccl", "nccl");
  ASSERT_EQ(nccl.code, 0) << nccl.err;
  EXPECT_TRUE(has(nccl.out, "2 ranks on 1 GPU")) << nccl.out;
  EXPECT_TRUE(has(nccl.out, "a host of its own (NCCL_HOSTID)")) << nccl.out;
  const Ended gloo = run({}, "gloo", "gloo");
  ASSERT_EQ(gloo.code, 0) << gloo.err;
  EXPECT_FALSE(has(gloo.out, "NCCL_HOSTID")) << gloo.out;
  EXPECT_LT(distance("gloo", "nccl"), 1e-6);
}

TEST_F(NcclSharingTest, AHostIdOfTheUsersOwnStaysAndIsRefusedWhereItIsTheSameForBoth) {
  const Ended same = run({"NCCL_HOSTID=mine"}, "nccl", "same");
  EXPECT_EQ(same.code, 1);
  EXPECT_TRUE(has(same.err, "NCCL says invalid usage")) << same.err;
}

TEST_F(NcclSharingTest, SoftwareGpusTakeGlooUnlessTold) {
  const Ended ended = run({"NCCL_HOSTID=mine"}, "auto", "auto");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_FALSE(has(ended.out, "NCCL_HOSTID")) << ended.out;
}

}  // namespace
}  // namespace sluice::tests

// Environments for programs and brokers.
#include "broker/cli/environment.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace sluice::cli {
namespace {

constexpr char kShim[] = "/opt/sluice/lib/libsluice.so";

TEST(Preload, AppendedOnceAndLast) {
  EXPECT_EQ(preload_merge("", kShim), kShim);
  EXPECT_EQ(preload_merge("a.so", kShim), std::string("a.so:") + kShim);
  EXPECT_EQ(preload_merge("a.so b.so", kShim), std::string("a.so:b.so:") + kShim);
  EXPECT_EQ(preload_merge(std::string("a.so:") + kShim, kShim), std::string("a.so:") + kShim);
  EXPECT_EQ(preload_merge("/other/place/libsluice.so:a.so", kShim), std::string("a.so:") + kShim);
  EXPECT_EQ(preload_merge(":: :", kShim), kShim);
  EXPECT_EQ(preload_merge("libsluice.so.bak", kShim), std::string("libsluice.so.bak:") + kShim);
}

TEST(Path, PrependedOnce) {
  EXPECT_EQ(path_prepend("", "/x"), "/x");
  EXPECT_EQ(path_prepend("/a:/b", "/x"), "/x:/a:/b");
  EXPECT_EQ(path_prepend("/a:/x:/b;/c", "/x"), "/x:/a:/b:/c");
}

TEST(Environment, ReadAndWritten) {
  const char* entries[] = {"A=1", "B=x=y", "C=", "nonsense", nullptr};
  const Environment environment = environment_read(entries);
  EXPECT_EQ(environment.at("B"), "x=y");
  EXPECT_EQ(environment_strings(environment), (std::vector<std::string>{"A=1", "B=x=y", "C="}));
}

TEST(Environment, Entered) {
  Environment environment = {
      {"LD_PRELOAD", "a.so"}, {"CUDA_VISIBLE_DEVICES", "1"}, {"SLUICE_SOCKET", "/old"}, {"X", "y"}};
  RunEnvironment run;
  run.shim = kShim;
  run.tenant = "id-key";
  environment["SLUICE_TENANT_LIMITS"] = "of the job around";
  run.gpus.resize(2);
  run.gpus[1].bytes[15] = 1;
  environment_enter(&environment, run);
  EXPECT_EQ(environment["LD_PRELOAD"], std::string("a.so:") + kShim);
  EXPECT_EQ(environment["SLUICE_TENANT"], "id-key");
  EXPECT_EQ(environment["CUDA_VISIBLE_DEVICES"],
            "GPU-00000000-0000-0000-0000-000000000000,GPU-00000000-0000-0000-0000-000000000001");
  EXPECT_EQ(environment.count("SLUICE_SOCKET"), 0u) << "the system's socket needs no naming";
  EXPECT_EQ(environment["X"], "y");
  EXPECT_EQ(environment.count("SLUICE_TENANT_LIMITS"), 0u) << "another job's";
  run.limits = "id-key memory=1";
  run.socket = "/private";
  environment_enter(&environment, run);
  EXPECT_EQ(environment["SLUICE_SOCKET"], "/private");
  EXPECT_EQ(environment["SLUICE_TENANT_LIMITS"], "id-key memory=1");
  EXPECT_EQ(environment["LD_PRELOAD"], std::string("a.so:") + kShim);
}

TEST(Environment, Softened) {
  Environment environment = {{"LD_LIBRARY_PATH", "/cuda"}};
  environment_soften(&environment, "/soft", 3);
  environment_soften(&environment, "/soft", 3);
  EXPECT_EQ(environment["LD_LIBRARY_PATH"], "/soft:/cuda");
  EXPECT_EQ(environment["SOFTGPU_COUNT"], "3");
}

TEST(Environment, SoftwareGpusOfABrokerAreFoundWhereNoOtherDriverIs) {
  const std::string other = ::testing::TempDir() + "other_driver_" + std::to_string(getpid());
  ASSERT_EQ(mkdir(other.c_str(), 0700), 0);
  Environment environment = {{"LD_LIBRARY_PATH", "/cuda:" + other}};
  environment_reach_soft(&environment, "/soft");
  EXPECT_EQ(environment["LD_LIBRARY_PATH"], "/soft:/cuda:" + other);
  EXPECT_EQ(environment.count("SOFTGPU_COUNT"), 0u) << "the broker has made them";
  std::ofstream(other + "/libcuda.so.1") << "a driver";
  environment = {{"LD_LIBRARY_PATH", "/cuda:" + other}};
  environment_reach_soft(&environment, "/soft");
  EXPECT_EQ(environment["LD_LIBRARY_PATH"], "/cuda:" + other);
  unlink((other + "/libcuda.so.1").c_str());
  rmdir(other.c_str());
}

TEST(Environment, AVariableThatNothingReadsIsNamed) {
  EXPECT_EQ(environment_unknown({{"SLUICE_MEMROY", "1G"}, {"SLUICE_SM", "5"}, {"SLUICER", ""}}),
            std::vector<std::string>{"the variable SLUICE_MEMROY means nothing to Sluice; did you "
                                     "mean SLUICE_MEMORY?"});
  EXPECT_EQ(environment_unknown({{"SLUICE_QUUX_AND_MORE", "1"}}).size(), 1U);
  EXPECT_TRUE(environment_unknown({{"SLUICE_X", "1"}, {"SLUICE_TENANT", "t"}}).empty())
      << "said by the sluice run around this one";
}

TEST(Environment, LeftForABroker) {
  Environment environment = {{"LD_PRELOAD", std::string("a.so:") + kShim},
                             {"SLUICE_TENANT", "t"},
                             {"SLUICE_TENANT_LIMITS", "l"},
                             {"SLUICE_SOCKET", "s"},
                             {"CUDA_VISIBLE_DEVICES", "0"}};
  environment_leave(&environment);
  EXPECT_EQ(environment, (Environment{{"LD_PRELOAD", "a.so"}}));
  environment = {{"LD_PRELOAD", kShim}};
  environment_leave(&environment);
  EXPECT_TRUE(environment.empty());
}

}  // namespace
}  // namespace sluice::cli

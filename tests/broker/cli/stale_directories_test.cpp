// Directories that killed private brokers have left, and those that stay.
#include "broker/cli/stale_directories.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "broker/devices/fd.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

class StaleDirectories : public ::testing::Test {
 protected:
  StaleDirectories() {
    char folder[] = "/tmp/sluice-stale-XXXXXX";
    if (mkdtemp(folder) == nullptr) std::abort();
    parent_ = folder;
  }
  ~StaleDirectories() override { fs::remove_all(parent_); }

  /// As a broker leaves it that is killed; its lock is `age_s` old.
  fs::path left(const char* name, std::int64_t age_s = kStaleAfterS + 1) {
    const fs::path path = parent_ / name;
    fs::create_directory(path);
    chmod(path.c_str(), 0700);
    for (const char* file : {"log", "sluiced.sock", "sluiced.sock.lock"})
      std::ofstream(path / file);
    const timespec times[2] = {{time(nullptr) - age_s, 0}, {time(nullptr) - age_s, 0}};
    utimensat(AT_FDCWD, (path / "sluiced.sock.lock").c_str(), times, 0);
    return path;
  }
  fs::path parent_;
};

TEST_F(StaleDirectories, OfBrokersThatAreGoneAreRemoved) {
  const fs::path one = left("sluice-aB3dE6");
  const fs::path two = left("sluice-000000");
  stale_directories_remove(parent_);
  EXPECT_FALSE(fs::exists(one));
  EXPECT_FALSE(fs::exists(two));
}

TEST_F(StaleDirectories, OfABrokerThatLivesOrStartsStay) {
  const fs::path lives = left("sluice-aB3dE6");
  const devices::Fd lock(open((lives / "sluiced.sock.lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  const fs::path starts = left("sluice-aB3dE7", 1);
  const fs::path without = left("sluice-aB3dE8");
  fs::remove(without / "sluiced.sock.lock");
  stale_directories_remove(parent_);
  for (const fs::path& path : {lives, starts, without})
    EXPECT_TRUE(fs::exists(path / "log")) << path;
}

TEST_F(StaleDirectories, NothingElseIsTouched) {
  const fs::path shared = left("sluice-aB3dE6");
  chmod(shared.c_str(), 0755);
  const fs::path other = left("sluice-backup1");
  const fs::path target = left("elsewhere");
  fs::create_directory_symlink(target, parent_ / "sluice-lInk00");
  const fs::path kept = left("sluice-aB3dE7");
  std::ofstream(kept / "thesis.tex");
  stale_directories_remove(parent_);
  for (const fs::path& path : {shared, other, target})
    EXPECT_TRUE(fs::exists(path / "log")) << path;
  EXPECT_TRUE(fs::exists(kept / "thesis.tex"));
  stale_directories_remove("/nowhere");
}

}  // namespace
}  // namespace sluice::cli

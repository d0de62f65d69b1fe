// What the tests of the journal share: records to write, files that fail, a journal in a directory
// of its own.
#pragma once

#include "broker/daemon/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

namespace sluice::daemon {

inline constexpr char kBoot[] = "11111111-2222-3333-4444-555555555555";
inline constexpr std::int64_t kLater_ns = 3'600'000'000'000;

inline JournalTenant tenant(protocol::TenantId id) {
  JournalTenant out;
  out.id = id;
  out.key = id * 0x9e3779b97f4a7c15;
  out.uid = 1000 + static_cast<std::uint32_t>(id);
  out.tenant_class = protocol::TenantClass::kDebug;
  out.sm_mode = protocol::SmMode::kFixed;
  out.is_default = id % 2 == 0;
  out.swap = id % 2 != 0;
  out.stay = {id % 3 == 0, id % 3 == 2, id % 5 == 1, id % 2 != 0, id % 3 == 1, {}, id % 6 == 0};
  out.sm_percent = 25;
  out.sm_kind = protocol::SmKind::kGuaranteed;
  out.memory_max_bytes = id << 20;
  out.memory_min_bytes = id << 19;
  out.window_ns = 5;
  out.asked = {1, 2, 3, true};
  out.asked_ns = 10;
  out.admitted_ns = 20;
  out.founder = {77, 4711};
  out.gpus.resize(2);
  out.gpus[1].bytes[15] = 9;
  out.name = "job-" + std::to_string(id);
  out.profile = "student";
  return out;
}

inline JournalProcess process(std::uint32_t pid) { return {{pid, pid * 10}, pid * 100, "python"}; }

inline protocol::GpuUuid gpu(std::uint8_t n) {
  protocol::GpuUuid uuid{};
  uuid.bytes[0] = n;
  return uuid;
}

inline const JournalWriter journal_writer(kBoot);

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The kernel, of which call number `fail_at` (from 0; -1 = none) fails with `error`. A write that
/// fails puts half of its bytes first: what a full disk leaves.
class FaultyFiles : public JournalFiles {
 public:
  long calls = 0;
  long fail_at = -1;
  long fail_from = -1;  // this one and all after it
  int error = EIO;

  int make_directory(const char* path, mode_t mode) override {
    return fails() ? -error : JournalFiles::make_directory(path, mode);
  }
  int look_at_directory(const char* path, uid_t* owner, mode_t* mode) override {
    return fails() ? -error : JournalFiles::look_at_directory(path, owner, mode);
  }
  int open(const char* path, int flags, mode_t mode) override {
    return fails() ? -error : JournalFiles::open(path, flags, mode);
  }
  int look_at_file(int fd, uid_t* owner, mode_t* mode) override {
    return fails() ? -error : JournalFiles::look_at_file(fd, owner, mode);
  }
  int lock(int fd) override { return fails() ? -error : JournalFiles::lock(fd); }
  ssize_t read(int fd, void* bytes, std::size_t size) override {
    return fails() ? -error : JournalFiles::read(fd, bytes, size);
  }
  ssize_t write(int fd, const void* bytes, std::size_t size) override {
    if (!fails()) return JournalFiles::write(fd, bytes, size);
    if (!half_) {  // this call is short, the next one fails
      half_ = true;
      if (fail_at >= 0) fail_at = calls;
      return JournalFiles::write(fd, bytes, size / 2);
    }
    return -error;
  }
  int sync(int fd) override { return fails() ? -error : JournalFiles::sync(fd); }
  int truncate(int fd, off_t size) override {
    return fails() ? -error : JournalFiles::truncate(fd, size);
  }
  int rename(const char* from, const char* to) override {
    return fails() ? -error : JournalFiles::rename(from, to);
  }
  int remove(const char* file) override { return fails() ? -error : JournalFiles::remove(file); }

 private:
  bool fails() {
    const long call = calls++;
    return call == fail_at || (fail_from >= 0 && call >= fail_from);
  }
  bool half_ = false;
};

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/sluice-journal-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root = name;
    directory = root + "/state";
    ASSERT_EQ(log.file_open(root + "/log"), 0);
  }
  void TearDown() override { std::filesystem::remove_all(root); }

  /// For a journal that has no work beside the loop, or a test that outlives it.
  static std::shared_ptr<JournalFiles> lent(JournalFiles& with) {
    return {std::shared_ptr<void>(), &with};
  }
  std::unique_ptr<Journal> journal(JournalFiles& with, const char* boot = kBoot) {
    auto made = std::make_unique<Journal>(lent(with), log, directory, boot);
    std::string error;
    EXPECT_TRUE(made->open(&error)) << error;
    return made;
  }
  std::unique_ptr<Journal> journal() { return journal(files); }
  std::string path() const { return directory + "/journal"; }
  /// What the next broker finds.
  JournalState on_disk() { return journal_read(slurp(path()), kBoot).state; }
  std::size_t said(const std::string& event) {
    const std::string text = slurp(root + "/log");
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find("event=" + event, at)) != text.npos; ++at) ++count;
    return count;
  }

  std::string root;
  std::string directory;
  Log log;
  JournalFiles files;
};

}  // namespace sluice::daemon

// Waiting for a CPU and for a disk, planted by a crowded CPU and by cgroups of the test's own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "cgroup.h"
#include "exporter/idle/thread_watch.h"
#include "planted.h"
#include "tally.h"

namespace sluice::exporter {
namespace {

constexpr unsigned kSpanMs = 500;

class Runs : public testing::TestWithParam<bool> {
 protected:
  /// Null, and the test skipped, where this observer cannot be had.
  std::unique_ptr<ThreadWatch> watch_start(const Planted& planted) {
    auto watch = watch_made(GetParam(), &reason_);
    if (watch != nullptr) watch->processes_set({planted.pid()});
    return watch;
  }
  Tally finish(ThreadWatch& watch, Planted& planted) {
    planted.go();
    std::vector<OffCpu> all;
    const auto read = [&] {
      std::vector<OffCpu> periods;
      watch.periods_read(periods);
      for (const OffCpu& period : periods) {
        if (period.kind == WaitKind::kNone) {
          queue_shown_ |= period.back_ns == UINT64_MAX && period.thread == planted.pid();
          EXPECT_EQ(period.woken_ns, period.left_ns);
          EXPECT_EQ(period.waker_thread, 0U);
        }
        // What goes on comes again, longer.
        if (period.back_ns != UINT64_MAX) all.push_back(period);
      }
    };
    EXPECT_TRUE(soon([&] {
      read();
      return planted.told().end_ns != 0;
    }));
    nap_ms(3 * kSampleNs / 1'000'000);
    read();
    return tally(all, planted.pid(), planted.told());
  }
  static std::uint64_t span_ns(const Planted& planted) {
    return planted.told().end_ns - planted.told().begin_ns;
  }
  double share_wanted() const { return GetParam() ? 0.9 : 0.7; }

  std::string reason_;
  bool queue_shown_ = false;  // waiting for a CPU was handed out while it went on
};

void spin_ms(unsigned milliseconds) {
  const std::uint64_t end = now_ns() + milliseconds * 1'000'000ULL;
  while (now_ns() < end) {
  }
}

/// This process and what it starts, onto one CPU that it may use.
void one_cpu() {
  cpu_set_t allowed, one;
  sched_getaffinity(0, sizeof allowed, &allowed);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
}

void beside_spinners(int spinners, const std::function<void()>& body) {
  one_cpu();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < spinners; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  body();
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST_P(Runs, AThreadThatRunsDoesNotSleep) {
  Planted planted([](Told&) { spin_ms(kSpanMs); });
  const auto watch = watch_start(planted);
  if (watch == nullptr) GTEST_SKIP() << reason_;
  const Tally sum = finish(*watch, planted);
  EXPECT_LE(sum.total_ns, span_ns(planted) / 10);  // samples: at both ends
}

TEST_P(Runs, ThreadsThatShareACpuWaitForIt) {
  Planted planted([](Told&) { beside_spinners(2, [] { spin_ms(kSpanMs); }); });
  const auto watch = watch_start(planted);
  if (watch == nullptr) GTEST_SKIP() << reason_;
  const Tally sum = finish(*watch, planted);
  EXPECT_GE(sum.queued_ns, span_ns(planted) / 3);  // two thirds, in the long run
  EXPECT_LE(sum.total_ns, span_ns(planted) / 5);
}

// A thread that gives way to all others sleeps a little and then waits long.
TEST_P(Runs, AfterWakingTheWaitForACpuIsNoSleep) {
  Planted planted([](Told&) {
    const sched_param none{};
    beside_spinners(1, [&] {
      sched_setscheduler(0, SCHED_IDLE, &none);
      const std::uint64_t end = now_ns() + kSpanMs * 1'000'000ULL;
      while (now_ns() < end) usleep(200);
      sched_setscheduler(0, SCHED_OTHER, &none);
    });
  });
  const auto watch = watch_start(planted);
  if (watch == nullptr) GTEST_SKIP() << reason_;
  const Tally sum = finish(*watch, planted);
  EXPECT_GE(sum.queued_ns, span_ns(planted) / 3);
  EXPECT_GE(sum.queued_ns, sum.total_ns);
}

TEST_P(Runs, ThrottledByACgroupIsWaitingForACpu) {
  std::string reason;
  const auto group = Cgroup::with_cpu(20, &reason);
  if (group == nullptr) GTEST_SKIP() << reason;
  Planted planted([](Told&) { spin_ms(kSpanMs); });
  ASSERT_TRUE(group->add(planted.pid()));
  const auto watch = watch_start(planted);
  if (watch == nullptr) GTEST_SKIP() << reason_;
  const Tally sum = finish(*watch, planted);
  EXPECT_GE(sum.queued_ns, span_ns(planted) / 2);
  EXPECT_LE(sum.total_ns, span_ns(planted) / 10);
  EXPECT_TRUE(queue_shown_);
}

/// A file whose content is on the disk and not in memory.
class ColdFile {
 public:
  static constexpr std::size_t kBytes = 1 << 20;

  ColdFile() {
    char name[] = "/var/tmp/sluice_cold_XXXXXX";
    fd_ = mkstemp(name);
    path_ = name;
    const std::string content(kBytes, 'c');
    EXPECT_EQ(write(fd_, content.data(), kBytes), static_cast<ssize_t>(kBytes));
    EXPECT_EQ(fsync(fd_), 0);
    EXPECT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
    posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);  // nothing is read ahead
  }
  ~ColdFile() {
    close(fd_);
    unlink(path_.c_str());
  }
  ColdFile(const ColdFile&) = delete;
  ColdFile& operator=(const ColdFile&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }

 private:
  std::string path_;
  int fd_ = -1;
};

class Disk : public Runs {
 protected:
  static constexpr std::size_t kBlock = 4096;
  static constexpr int kReads = 10;

  /// `reads(file, i)` reads the block number i.
  void expect_disk(const std::function<void(const ColdFile&, int)>& reads) {
    const ColdFile file;
    std::string reason;
    const auto group = Cgroup::with_slow_disk(file.path(), kBlock * 20, &reason);
    if (group == nullptr) GTEST_SKIP() << reason;
    Planted planted([&](Told&) {
      for (int i = 0; i < kReads; ++i) reads(file, i);
    });
    ASSERT_TRUE(group->add(planted.pid()));
    const auto watch = watch_start(planted);
    if (watch == nullptr) GTEST_SKIP() << reason_;
    const Tally sum = finish(*watch, planted);
    EXPECT_GE(sum.total_ns, span_ns(planted) / 2);
    EXPECT_GE(sum.share(WaitKind::kDisk), share_wanted());
  }
};

TEST_P(Disk, Reads) {
  expect_disk([](const ColdFile& file, int i) {
    char block[kBlock];
    if (pread(file.fd(), block, kBlock, static_cast<off_t>(kBlock) * i * 16) != kBlock) abort();
  });
}

TEST_P(Disk, DirectReads) {
  expect_disk([](const ColdFile& file, int i) {
    const int fd = open(file.path().c_str(), O_RDONLY | O_DIRECT);
    alignas(kBlock) static char block[kBlock];
    if (pread(fd, block, kBlock, static_cast<off_t>(kBlock) * i * 16) != kBlock) abort();
    close(fd);
  });
}

TEST_P(Disk, PageFaults) {
  expect_disk([](const ColdFile& file, int i) {
    void* mapped = mmap(nullptr, ColdFile::kBytes, PROT_READ, MAP_SHARED, file.fd(), 0);
    if (mapped == MAP_FAILED || madvise(mapped, ColdFile::kBytes, MADV_RANDOM) != 0) abort();
    const volatile char* bytes = static_cast<const char*>(mapped);
    if (bytes[kBlock * static_cast<std::size_t>(i) * 16] != 'c') abort();
    munmap(mapped, ColdFile::kBytes);
  });
}

std::string source_name(const testing::TestParamInfo<bool>& source) {
  return source.param ? "bpf" : "proc";
}

INSTANTIATE_TEST_SUITE_P(Source, Runs, testing::Bool(), source_name);
INSTANTIATE_TEST_SUITE_P(Source, Disk, testing::Bool(), source_name);

}  // namespace
}  // namespace sluice::exporter

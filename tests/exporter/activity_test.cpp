// The claims page as the shim writes it, read as the exporter does.
#include "exporter/idle/activity.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace sluice::exporter {
namespace {

using protocol::ClaimsPage;

class ActivityPageTest : public ::testing::Test {
 protected:
  ActivityPageTest()
      : page_(static_cast<ClaimsPage*>(mmap(nullptr, sizeof(ClaimsPage), PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    slot().pid.store(kProcess);
    slot().own_pid.store(kProcess);
  }
  ~ActivityPageTest() override { munmap(page_, sizeof(ClaimsPage)); }

  protocol::ClaimsSlot& slot() { return page_->slots[3]; }
  protocol::ActivitySlot& activity() { return page_->activity[3]; }
  protocol::ActivityGpu& gpu() { return activity().gpus[1]; }
  void gap_write(std::uint64_t begin, std::uint64_t end, std::uint32_t thread = kProcess) {
    const std::uint64_t number = gpu().gaps.load();
    protocol::Gap& entry = gpu().ring[number % protocol::kGapsMax];
    entry.begin_ns.store(begin);
    entry.end_ns.store(end);
    entry.thread.store(thread);
    entry.serial.store(number + 1);
    gpu().gaps.store(number + 1);
    gpu().settled_ns.store(end);
  }
  void wait_write(std::uint64_t begin, std::uint64_t end, protocol::WaitReason reason,
                  bool whole = true) {
    const std::uint64_t number = activity().waits.add(1) - 1;
    protocol::ThreadWait& entry = activity().ring[number % protocol::kWaitsMax];
    entry.begin_ns.store(begin);
    entry.end_ns.store(end);
    entry.thread.store(kProcess);
    entry.reason.store(static_cast<std::uint32_t>(reason));
    if (whole) entry.serial.store(number + 1);
  }
  ProcessNews news(std::uint64_t now = 1'000'000) {
    auto all = reader_.news(now);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? ProcessNews{} : all[0];
  }
  static std::string text(const std::vector<GpuTold::Gap>& gaps) {
    std::string out;
    for (const auto& gap : gaps)
      out += (gap.unseen ? "lost " : "") + std::to_string(gap.begin_ns) + "-" +
             std::to_string(gap.end_ns) + " ";
    return out;
  }

  static constexpr std::uint32_t kProcess = 4711;
  ClaimsPage* page_;
  ActivityPage reader_{*page_};
};

TEST_F(ActivityPageTest, NewsComesOnceAndOnlyOfWhatHappenedSinceTheFirstLook) {
  gap_write(10, 20);
  EXPECT_EQ(text(news().gpus[1].gaps), "");
  gap_write(30, 40, kProcess + 1);
  gap_write(50, 60);
  gpu().thread.store(kProcess + 1);
  gpu().idle.store(1);
  gpu().short_ns.store(5);
  const GpuTold told = news().gpus[1];
  EXPECT_EQ(text(told.gaps), "30-40 50-60 ");
  EXPECT_EQ(told.gaps[0].thread, kProcess + 1);
  EXPECT_EQ(told.thread, kProcess + 1);
  EXPECT_EQ(told.settled_ns, 60u);
  EXPECT_EQ(told.short_ns, 5u);
  EXPECT_TRUE(told.idle);
  EXPECT_EQ(text(news().gpus[1].gaps), "");
  EXPECT_EQ(news().gpus[0].settled_ns, 0u);
}

TEST_F(ActivityPageTest, GapsThatWereOverwrittenAreOneOfUnknownKind) {
  (void)news();
  gap_write(1, 2);
  EXPECT_EQ(text(news().gpus[1].gaps), "1-2 ");
  for (std::uint64_t k = 1; k <= protocol::kGapsMax + 10; ++k) gap_write(k * 10, k * 10 + 5);
  const auto gaps = news().gpus[1].gaps;
  ASSERT_EQ(gaps.size(), protocol::kGapsMax + 1);
  EXPECT_EQ(text({gaps[0], gaps[1]}), "lost 2-110 110-115 ");
}

TEST_F(ActivityPageTest, AnotherProcessInTheSlotStartsAfresh) {
  (void)news();
  gap_write(10, 20);
  slot().pid.store(kProcess + 5);
  slot().own_pid.store(kProcess + 5);
  const ProcessNews one = news();
  EXPECT_EQ(one.process, kProcess + 5);
  EXPECT_EQ(text(one.gpus[1].gaps), "");
  slot().own_pid.store(0);  // not registered as a whole
  EXPECT_TRUE(reader_.news(5).empty());
}

TEST_F(ActivityPageTest, WaitsInOrderOfTheirBeginnings) {
  (void)news();
  wait_write(50, 70, protocol::WaitReason::kSync);
  wait_write(10, 30, protocol::WaitReason::kGate);
  activity().open[7].thread.store(kProcess + 2);
  activity().open[7].reason.store(static_cast<std::uint32_t>(protocol::WaitReason::kMemory));
  activity().open[7].since_ns.store(60);
  const auto waits = news(100).waits;
  ASSERT_EQ(waits.size(), 3u);
  EXPECT_EQ(waits[0].cause, Cause::kGate);
  EXPECT_EQ(waits[1].cause, Cause::kSync);
  EXPECT_EQ(waits[2].cause, Cause::kMemory);
  EXPECT_EQ(waits[2].thread.thread, kProcess + 2);
  EXPECT_EQ(waits[2].thread.process, kProcess);
  EXPECT_EQ(waits[2].end_ns, 100u);
  EXPECT_EQ(news(100).waits.size(), 1u);  // it goes on
}

TEST_F(ActivityPageTest, AWaitThatIsStillBeingWrittenComesLater) {
  (void)news();
  wait_write(10, 30, protocol::WaitReason::kGate, false);
  wait_write(40, 50, protocol::WaitReason::kSync);
  EXPECT_TRUE(news().waits.empty());
  activity().ring[0].serial.store(1);
  EXPECT_EQ(news().waits.size(), 2u);
  // Its writer died: the others' are not held up for ever.
  wait_write(60, 70, protocol::WaitReason::kGate, false);
  for (std::uint32_t k = 0; k < protocol::kWaitsMax; ++k) {
    wait_write(100 + k, 101 + k, protocol::WaitReason::kSync);
    (void)news();
  }
  wait_write(900, 901, protocol::WaitReason::kSync);
  EXPECT_EQ(news().waits.size(), 1u);
}

TEST_F(ActivityPageTest, NonsenseIsLeftOut) {
  (void)news();
  wait_write(30, 10, protocol::WaitReason::kGate);
  wait_write(10, 30, static_cast<protocol::WaitReason>(9));
  wait_write(10, 2'000'000, protocol::WaitReason::kGate);  // ends in the future
  EXPECT_TRUE(news().waits.empty());
  gpu().gaps.store(UINT64_MAX);
  gpu().settled_ns.store(7);
  EXPECT_TRUE(news().gpus[1].gaps.empty());
  gpu().gaps.store(5);  // backwards
  EXPECT_LE(news().gpus[1].gaps.size(), protocol::kGapsMax);
}

TEST_F(ActivityPageTest, OnlyAPageOfThisVersionIsOpened) {
  const auto page_of = [](std::size_t bytes, std::uint16_t version) {
    const int fd = memfd_create("activity", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    const std::uint32_t magic = protocol::kClaimsPageMagic;
    EXPECT_EQ(pwrite(fd, &magic, sizeof magic, 0), ssize_t{sizeof magic});
    EXPECT_EQ(pwrite(fd, &version, sizeof version, 4), ssize_t{sizeof version});
    return fd;
  };
  EXPECT_NE(ActivityPage::open(page_of(sizeof(ClaimsPage), protocol::kVersion)), nullptr);
  EXPECT_EQ(ActivityPage::open(page_of(sizeof(ClaimsPage), protocol::kVersion - 1)), nullptr);
  EXPECT_EQ(ActivityPage::open(page_of(sizeof(ClaimsPage) - 1, protocol::kVersion)), nullptr);
  EXPECT_EQ(ActivityPage::open(-1), nullptr);
}

/// In a PID namespace of its own a process sees other numbers than the host.
TEST_F(ActivityPageTest, ThreadsOfAnotherNamespaceAreFoundByTheirHostNumbers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a PID namespace";
  int lines[2], end[2];
  ASSERT_EQ(pipe(lines), 0);
  ASSERT_EQ(pipe(end), 0);
  // unshare() is for the children of who calls it: a process between keeps it from this one.
  const pid_t between = fork();
  if (between == 0) {
    close(end[1]);
    if (unshare(CLONE_NEWPID) != 0) _exit(1);
    const pid_t child = fork();
    if (child != 0) {
      const auto host = static_cast<std::uint32_t>(child);
      (void)!write(lines[1], &host, sizeof host);
      waitpid(child, nullptr, 0);
      _exit(0);
    }
    std::thread([&] {
      const auto inner = static_cast<std::uint32_t>(syscall(SYS_gettid));
      (void)!write(lines[1], &inner, sizeof inner);
      char byte;
      (void)!read(end[0], &byte, 1);
      _exit(0);
    }).join();
  }
  close(lines[1]);
  close(end[0]);
  std::uint32_t numbers[2] = {};
  ASSERT_EQ(read(lines[0], &numbers[0], 4), 4);
  ASSERT_EQ(read(lines[0], &numbers[1], 4), 4);
  // Numbers of the namespace are small, whichever came first.
  const auto [inner, host] = std::minmax(numbers[0], numbers[1]);
  slot().pid.store(host);
  slot().own_pid.store(1);
  (void)news();
  gap_write(10, 20, inner);
  gap_write(30, 40, 1);
  const auto gaps = news().gpus[1].gaps;
  const std::string task = "/proc/" + std::to_string(host) + "/task/";
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_EQ(gaps[1].thread, host);
  EXPECT_NE(gaps[0].thread, host);
  EXPECT_NE(gaps[0].thread, inner);
  EXPECT_EQ(access((task + std::to_string(gaps[0].thread)).c_str(), F_OK), 0);
  close(end[1]);
  close(lines[0]);
  EXPECT_EQ(waitpid(between, nullptr, 0), between);
}

/// A writer at full speed: whatever is read is whole, in order, and of its time.
TEST_F(ActivityPageTest, AReaderBesideAWriterSeesWholeGaps) {
  (void)news();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t k = 1; !stop; ++k) {
      const std::uint64_t number = gpu().gaps.load();
      protocol::Gap& entry = gpu().ring[number % protocol::kGapsMax];
      entry.serial.store(0);
      entry.begin_ns.store(k * 10);
      entry.end_ns.store(k * 10 + 5);
      entry.thread.store(static_cast<std::uint32_t>(k));
      entry.serial.store(number + 1);
      gpu().gaps.store(number + 1);
      gpu().settled_ns.store(k * 10 + 5);
    }
  });
  std::uint64_t last = 0, whole = 0;
  for (int look = 0; look < 2000 || whole == 0; ++look) {
    const ProcessNews now = news();
    for (const auto& gap : now.gpus[1].gaps) {
      ASSERT_GE(gap.begin_ns, last);
      last = gap.end_ns;
      if (gap.unseen) continue;
      ++whole;
      ASSERT_EQ(gap.end_ns, gap.begin_ns + 5);
      ASSERT_EQ(gap.thread, static_cast<std::uint32_t>(gap.begin_ns / 10));
    }
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace sluice::exporter

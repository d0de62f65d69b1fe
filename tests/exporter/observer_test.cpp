// Tenants side by side: what the pages of one say is kept in a bounded size, and believed of none
// but its own threads.
#include "exporter/idle/observer.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "exporter/clock.h"

namespace sluice::exporter {
namespace {

using protocol::ClaimsPage;

constexpr std::uint64_t kMillisecond = 1'000'000;

/// Threads that exist, asleep for no reason since the watch began.
class PlantedThreads : public ThreadWatch {
 public:
  explicit PlantedThreads(std::map<std::uint32_t, std::uint32_t> process_of)
      : process_of_(std::move(process_of)) {}
  void processes_set(const std::vector<std::uint32_t>&) override {}
  std::uint64_t periods_read(std::vector<OffCpu>& out) override {
    for (const auto& [thread, process] : process_of_)
      out.push_back({thread, process, since_ns_, UINT64_MAX, UINT64_MAX, WaitKind::kTimer, 0, 0});
    return monotonic_ns();
  }
  std::uint64_t lost() const override { return 0; }
  std::uint32_t root_of(std::uint32_t process) override { return process; }
  char letter_of(HostThread thread) override {
    const auto found = process_of_.find(thread.thread);
    return found != process_of_.end() && found->second == thread.process ? 'S' : '\0';
  }
  bool is_coarse() const override { return false; }

 private:
  const std::map<std::uint32_t, std::uint32_t> process_of_;
  const std::uint64_t since_ns_ = monotonic_ns();
};

class PlantedPages : public ActivitySource {
 public:
  ~PlantedPages() override {
    for (const auto& [tenant, page] : pages_) munmap(page.first, sizeof(ClaimsPage));
    for (const auto& [tenant, page] : pages_) close(page.second);
  }
  int activity_fd(protocol::TenantId tenant) override { return dup(page_of(tenant).second); }
  ClaimsPage& page(protocol::TenantId tenant) { return *page_of(tenant).first; }

 private:
  std::pair<ClaimsPage*, int>& page_of(protocol::TenantId tenant) {
    auto& out = pages_[tenant];
    if (out.first != nullptr) return out;
    out.second = memfd_create("claims", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(out.second, sizeof(ClaimsPage)), 0);
    void* at = mmap(nullptr, sizeof(ClaimsPage), PROT_READ | PROT_WRITE, MAP_SHARED, out.second, 0);
    out.first = static_cast<ClaimsPage*>(at);
    out.first->magic = protocol::kClaimsPageMagic;
    out.first->version = protocol::kVersion;
    return out;
  }
  std::map<protocol::TenantId, std::pair<ClaimsPage*, int>> pages_;
};

constexpr protocol::TenantId kVictim = 1, kLiar = 2;
constexpr std::uint32_t kVictimProcess = 5'000'001, kLiarProcess = 5'000'002;

class ObserverTest : public ::testing::Test {
 protected:
  ObserverTest() {
    for (const auto& [tenant, process] :
         {std::pair{kVictim, kVictimProcess}, {kLiar, kLiarProcess}})
      tenant_add(tenant, process);
    observer_.tenants_set(snapshot_);
  }
  void tenant_add(protocol::TenantId tenant, std::uint32_t process) {
    auto& row = snapshot_.tenants.emplace_back();
    row.tenant = tenant;
    row.tenant_class = protocol::TenantClass::kBatch;
    snapshot_.tenant_gpus.emplace_back().tenant = tenant;
    auto& member = snapshot_.processes.emplace_back();
    member.tenant = tenant;
    member.pid = process;
    pages_->page(tenant).slots[0].pid.store(process);
    pages_->page(tenant).slots[0].own_pid.store(process);
  }
  protocol::ActivitySlot& activity(protocol::TenantId tenant) {
    return pages_->page(tenant).activity[0];
  }
  void wait_write(protocol::TenantId tenant, std::uint32_t thread, std::uint64_t begin_ns,
                  std::uint64_t end_ns) {
    const std::uint64_t number = activity(tenant).waits.load();
    protocol::ThreadWait& entry = activity(tenant).ring[number % protocol::kWaitsMax];
    entry.begin_ns.store(begin_ns);
    entry.end_ns.store(end_ns);
    entry.thread.store(thread);
    entry.reason.store(static_cast<std::uint32_t>(protocol::WaitReason::kMemory));
    entry.serial.store(number + 1);
    activity(tenant).waits.store(number + 1);
  }
  void gap_write(protocol::TenantId tenant, std::uint32_t thread, std::uint64_t begin_ns,
                 std::uint64_t end_ns) {
    protocol::ActivityGpu& gpu = activity(tenant).gpus[0];
    const std::uint64_t number = gpu.gaps.load();
    protocol::Gap& entry = gpu.ring[number % protocol::kGapsMax];
    entry.begin_ns.store(begin_ns);
    entry.end_ns.store(end_ns);
    entry.thread.store(thread);
    entry.serial.store(number + 1);
    gpu.gaps.store(number + 1);
  }
  /// Fills both rings: short entries that follow each other, and end now.
  void rings_fill(const std::function<std::uint32_t()>& thread, bool settles) {
    const std::uint64_t step = 1000, now = monotonic_ns();
    for (std::uint32_t i = 0; i < protocol::kGapsMax; ++i) {
      const std::uint64_t begin = now - (protocol::kGapsMax - i) * step;
      wait_write(kLiar, thread(), begin, begin + step - 100);
      gap_write(kLiar, thread(), begin, begin + step - 100);
    }
    if (settles) activity(kLiar).gpus[0].settled_ns.store(now);
  }
  std::uint64_t idle_ns(protocol::TenantId tenant, Cause cause) const {
    std::uint64_t out = 0;
    for (const auto& [key, figures] : observer_.figures())
      if (key.first == tenant) out += figures.idle_ns[static_cast<std::size_t>(cause)];
    return out;
  }
  static std::size_t bytes_in_use() {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }
  /// How much more memory is in use after many looks at what the liar writes, and after its end.
  std::pair<std::size_t, std::size_t> growth(const std::function<std::uint32_t()>& thread,
                                             bool settles) {
    activity(kLiar).gpus[0].settled_ns.store(1);
    observer_.look();
    const std::size_t before = bytes_in_use();
    for (int look = 0; look < 1000; ++look) {
      rings_fill(thread, settles);
      observer_.look();
    }
    const std::size_t most = bytes_in_use();
    std::erase_if(snapshot_.tenants, [](const auto& row) { return row.tenant == kLiar; });
    observer_.tenants_set(snapshot_);
    observer_.look();
    const std::size_t after = bytes_in_use();
    return {most - std::min(most, before), after - std::min(after, before)};
  }

  Snapshot snapshot_;
  PlantedPages* pages_ = new PlantedPages;
  IdleObserver observer_{std::make_unique<PlantedThreads>(std::map<std::uint32_t, std::uint32_t>{
                             {kVictimProcess, kVictimProcess}, {kLiarProcess, kLiarProcess}}),
                         std::unique_ptr<ActivitySource>(pages_)};
};

TEST_F(ObserverTest, AWaitIsBelievedOnlyOfTheWritersOwnThreads) {
  observer_.look();
  const std::uint64_t begin = monotonic_ns();
  usleep(20'000);
  wait_write(kLiar, kVictimProcess, begin, monotonic_ns());
  wait_write(kLiar, kLiarProcess, begin, monotonic_ns());
  observer_.look();
  EXPECT_EQ(idle_ns(kVictim, Cause::kMemory), 0u);
  EXPECT_GE(idle_ns(kVictim, Cause::kNoWork), 20 * kMillisecond);
  EXPECT_GE(idle_ns(kLiar, Cause::kMemory), 20 * kMillisecond);
}

TEST_F(ObserverTest, ASlotWithAStrangersProcessTellsNothingOfIt) {
  pages_->page(kLiar).slots[0].pid.store(kVictimProcess);
  pages_->page(kLiar).slots[0].own_pid.store(kVictimProcess);
  observer_.look();
  const std::uint64_t begin = monotonic_ns();
  usleep(20'000);
  wait_write(kLiar, kVictimProcess, begin, monotonic_ns());
  observer_.look();
  EXPECT_EQ(idle_ns(kVictim, Cause::kMemory), 0u);
  EXPECT_GE(idle_ns(kVictim, Cause::kNoWork), 20 * kMillisecond);
}

TEST_F(ObserverTest, EverNewThreadNumbersFillNoMemory) {
  std::uint32_t number = 0;
  const auto [most, after] = growth([&] { return ++number; }, true);
  EXPECT_LT(most, std::size_t{4} << 20);
  EXPECT_LT(after, std::size_t{1} << 20);
}

TEST_F(ObserverTest, EverNewThreadNumbersOfAnotherNamespaceFillNoMemory) {
  pages_->page(kLiar).slots[0].own_pid.store(1);
  std::uint32_t number = 10;
  const auto [most, after] = growth([&] { return ++number; }, true);
  EXPECT_LT(most, std::size_t{4} << 20);
  EXPECT_LT(after, std::size_t{1} << 20);
}

TEST_F(ObserverTest, AnAccountThatNeverGoesOnFillsNoMemory) {
  const auto [most, after] = growth([] { return kLiarProcess; }, false);
  EXPECT_LT(most, std::size_t{4} << 20);
  EXPECT_LT(after, std::size_t{1} << 20);
}

}  // namespace
}  // namespace sluice::exporter

// The journal: what is read back, and that no failing system call leaves anything but a whole
// journal of an earlier moment.
#include "tests/broker/daemon/journal_fixture.h"

namespace sluice::daemon {
namespace {

TEST_F(JournalTest, EverythingComesBack) {
  JournalState before;
  {
    auto first = journal();
    first->tenant_put(tenant(3));
    first->process_put(3, process(100));
    first->process_put(3, process(101));
    first->tenant_put(tenant(4));
    first->process_put(4, process(102));
    first->tenant_put(tenant(5));
    first->process_end(3, process(100).name);
    first->tenant_end(4);
    before = first->state();
  }
  auto second = journal();
  EXPECT_EQ(second->state(), before);
  ASSERT_EQ(second->state().tenants.size(), 2u);
  JournalTenant expected = tenant(3);
  expected.processes = {process(101)};
  EXPECT_EQ(second->state().tenants.at(3), expected);
  EXPECT_EQ(second->state().next_tenant, 6u);
  EXPECT_EQ(second->faults(), 0u);
}

TEST_F(JournalTest, ATenantPutAgainIsChangedAndKeepsItsProcesses) {
  auto first = journal();
  first->tenant_put(tenant(3));
  first->process_put(3, process(100));
  JournalTenant changed = tenant(3);
  changed.founder = {};
  changed.released = true;
  changed.swap = false;
  changed.stay = {false, true, true, false, true, {changed.gpus[1], changed.gpus[0]}};
  changed.memory_max_bytes = 1 << 30;
  first->tenant_put(changed);
  changed.processes = {process(100)};
  EXPECT_EQ(on_disk().tenants.at(3), changed);
}

TEST_F(JournalTest, AProcessPutAgainIsOne) {
  auto first = journal();
  first->tenant_put(tenant(3));
  first->process_put(3, process(100));
  JournalProcess again = process(100);
  again.program = 999;
  first->process_put(3, again);
  EXPECT_THAT(on_disk().tenants.at(3).processes, testing::ElementsAre(again));
}

TEST_F(JournalTest, NumbersAreRememberedThoughNobodyLives) {
  {
    auto first = journal();
    first->tenant_put(tenant(41));
    first->tenant_end(41);
  }
  auto second = journal();
  EXPECT_EQ(second->state().next_tenant, 42u);
  EXPECT_EQ(journal_read(slurp(path()), kBoot).records, 0u) << "compacted at the start";
  second.reset();
  EXPECT_EQ(journal()->state().next_tenant, 42u);
}

TEST_F(JournalTest, DirectoryAndFilesAreTheBrokersAlone) {
  umask(0);
  auto first = journal();
  struct stat status {};
  ASSERT_EQ(stat(directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  umask(022);
}

TEST_F(JournalTest, ADirectoryThatOthersCanEnterIsNotUsed) {
  ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
  ASSERT_EQ(chmod(directory.c_str(), 0755), 0);
  auto first = journal();
  first->tenant_put(tenant(1));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(first->faults(), 1u);
  EXPECT_EQ(said("journal_failed"), 1u);
  ASSERT_EQ(chmod(directory.c_str(), 0700), 0);
  first->tend(kLater_ns);
  EXPECT_EQ(on_disk(), first->state()) << "once it is put right, everything is written";
  EXPECT_EQ(said("journal_written_again"), 1u);
}

/// What may be someone else's is not believed, and what may be the jobs' is not thrown away.
TEST_F(JournalTest, AJournalThatCannotBeTrustedOrReadEndsTheStart) {
  journal()->tenant_put(tenant(1));
  const std::string left = slurp(path());
  const auto error_of = [&](JournalFiles& with) {
    Journal now(lent(with), log, directory, kBoot);
    std::string error;
    EXPECT_FALSE(now.open(&error));
    return error;
  };
  ASSERT_EQ(chmod(directory.c_str(), 0755), 0);
  EXPECT_THAT(error_of(files), testing::HasSubstr("must be the broker's alone"));
  ASSERT_EQ(chmod(directory.c_str(), 0700), 0);
  struct Sick : JournalFiles {
    ssize_t read(int, void*, std::size_t) override { return -EIO; }
  } sick;
  const std::string error = error_of(sick);
  EXPECT_THAT(error, testing::HasSubstr("Input/output error"));
  EXPECT_THAT(error, testing::HasSubstr("move " + path() + " away"));
  struct Foreign : JournalFiles {
    int look_at_directory(const char* of, uid_t* owner, mode_t* mode) override {
      const int rc = JournalFiles::look_at_directory(of, owner, mode);
      *owner = 12345;
      return rc;
    }
  } foreign;
  EXPECT_THAT(error_of(foreign), testing::HasSubstr("must be the broker's alone"));
  EXPECT_EQ(slurp(path()), left);
  EXPECT_EQ(journal()->state().tenants.size(), 1u) << "once it is put right";
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(error_of(files), testing::HasSubstr("it is not a regular file")) << "and no wait";
}

TEST_F(JournalTest, AJournalOfAnotherUserIsNotBelieved) {
  journal()->tenant_put(tenant(1));
  struct Foreign : JournalFiles {
    int look_at_file(int fd, uid_t* owner, mode_t* mode) override {
      const int rc = JournalFiles::look_at_file(fd, owner, mode);
      *owner = 12345;
      return rc;
    }
  } foreign;
  Journal now(lent(foreign), log, directory, kBoot);
  std::string error;
  EXPECT_FALSE(now.open(&error));
  EXPECT_THAT(error, testing::HasSubstr("another user owns it"));
}

/// chattr +i: the kernel's EPERM is not the directory's rule.
TEST_F(JournalTest, AnImmutableJournalIsNamedAsSuch) {
  journal()->tenant_put(tenant(1));
  struct Immutable : JournalFiles {
    int open(const char* file, int flags, mode_t mode) override {
      return (flags & O_WRONLY) != 0 ? -EPERM : JournalFiles::open(file, flags, mode);
    }
    int rename(const char*, const char*) override { return -EPERM; }
    int remove(const char*) override { return -EPERM; }
  } immutable;
  const auto now = journal(immutable);
  EXPECT_TRUE(now->state().tenants.contains(1));
  EXPECT_THAT(slurp(root + "/log"), testing::HasSubstr("is it immutable? lsattr shows that"));
  EXPECT_THAT(slurp(root + "/log"), testing::HasSubstr("chattr -i"));
  EXPECT_THAT(slurp(root + "/log"), testing::Not(testing::HasSubstr("mode 0700")));
}

/// A file system that was remounted read-only, or that is full.
TEST_F(JournalTest, AJournalThatCannotBeWrittenIsHonoured) {
  for (const int error : {EROFS, ENOSPC, EDQUOT, EACCES}) {
    SCOPED_TRACE(std::strerror(error));
    std::filesystem::remove_all(directory);
    journal()->tenant_put(tenant(1));
    struct Unwritable : JournalFiles {
      int error = 0;
      bool mended = false;
      int open(const char* file, int flags, mode_t mode) override {
        const bool writes = (flags & (O_WRONLY | O_RDWR)) != 0;
        return writes && !mended ? -error : JournalFiles::open(file, flags, mode);
      }
      int make_directory(const char*, mode_t) override { return -error; }
    } unwritable;
    unwritable.error = error;
    const auto now = journal(unwritable);
    EXPECT_TRUE(now->state().tenants.contains(1)) << "forgotten";
    EXPECT_GT(now->faults(), 0u);
    EXPECT_GE(said("journal_failed"), 1u);
    now->tenant_put(tenant(2));
    unwritable.mended = true;
    now->tend(kLater_ns);
    EXPECT_EQ(on_disk(), now->state());
  }
}

TEST_F(JournalTest, TheLockNeedsNoFile) {
  journal()->tenant_put(tenant(1));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::ElementsAre("journal"));
}

TEST_F(JournalTest, TwoBrokersDoNotShareIt) {
  auto first = journal();
  Journal second(lent(files), log, directory, kBoot);
  std::string error;
  EXPECT_FALSE(second.open(&error));
  EXPECT_THAT(error, testing::HasSubstr("another broker keeps its journal in " + directory));
}

TEST_F(JournalTest, ADirectoryThatAnotherBrokerHasTakenMeanwhileIsSaidOnce) {
  FaultyFiles late;
  late.error = ENOENT;
  late.fail_from = 0;
  auto first = journal(late);
  ASSERT_EQ(said("journal_failed"), 1u);
  const auto second = journal();
  late.fail_from = -1;
  for (int i = 1; i <= 3; ++i) first->tend(i * kLater_ns);
  EXPECT_EQ(said("journal_failed"), 2u);
  EXPECT_THAT(slurp(root + "/log"), testing::HasSubstr("another broker keeps its journal in"));
}

TEST_F(JournalTest, AnotherBootIsSetAside) {
  journal()->tenant_put(tenant(1));
  const std::string old = slurp(path());
  auto second = journal(files, "another-boot");
  EXPECT_TRUE(second->state().tenants.empty());
  EXPECT_EQ(slurp(directory + "/journal.old"), old);
  EXPECT_EQ(said("journal_of_another_boot"), 1u);
}

TEST_F(JournalTest, ClosedGpusAreKnownToTheNextBroker) {
  {
    auto first = journal();
    first->gpu_put(gpu(1), true);
    first->gpu_put(gpu(2), true);
    first->gpu_put(gpu(2), true);
    first->gpu_put(gpu(3), false);
    first->gpu_put(gpu(1), false);
    EXPECT_EQ(on_disk(), first->state()) << "by its records";
  }
  const auto second = journal();
  EXPECT_EQ(second->state().closed_gpus, std::vector{gpu(2)});
  EXPECT_EQ(on_disk(), second->state()) << "by what was written anew";
}

TEST_F(JournalTest, AGpuIsOpenedAgainHoweverManyAreClosed) {
  std::string image = journal_writer.begin(1);
  for (std::uint8_t n = 0; n < 65; ++n) image += journal_writer.gpu(gpu(n), true);
  image += journal_writer.gpu(gpu(200), false);
  image += journal_writer.gpu(gpu(3), false);
  const JournalReading read = journal_read(image, kBoot);
  EXPECT_EQ(read.state.closed_gpus.size(), 63u);
  EXPECT_EQ(read.lost, 1u) << "the 65th alone";
}

TEST_F(JournalTest, AFileThatIsNoJournalIsKeptAside) {
  ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
  spill(path(), "version = 1\n");
  auto first = journal();
  EXPECT_TRUE(first->state().tenants.empty());
  EXPECT_EQ(said("journal_unreadable"), 1u);
  EXPECT_EQ(slurp(directory + "/journal.old"), "version = 1\n");
}

/// A record with a right checksum is still held to what a broker writes.

TEST_F(JournalTest, IsCompactedWhenTheDeadOutweighTheLiving) {
  auto first = journal();
  first->tenant_put(tenant(1));
  std::size_t largest = 0;
  for (std::uint32_t pid = 1; pid <= 5000; ++pid) {
    first->process_put(1, process(pid));
    first->process_end(1, process(pid).name);
    if (pid % 20 == 0) first->tend(pid);  // a heartbeat
    largest = std::max(largest, slurp(path()).size());
  }
  EXPECT_LT(largest, 200'000u);
  EXPECT_LT(journal_read(slurp(path()), kBoot).records, 1100u);
  EXPECT_EQ(on_disk(), first->state());
}

/// Who registers is answered behind his record, so a record is one write and nothing else.
TEST_F(JournalTest, NobodysAnswerWaitsForACompactionOrADisk) {
  struct Counted : JournalFiles {
    int others = 0;
    int syncs = 0;
    int renames = 0;
    int open(const char* file, int flags, mode_t mode) override {
      ++others;
      return JournalFiles::open(file, flags, mode);
    }
    int sync(int fd) override {
      ++syncs;
      return JournalFiles::sync(fd);
    }
    int rename(const char* from, const char* to) override {
      ++renames;
      return JournalFiles::rename(from, to);
    }
  } counted;
  Journal now(lent(counted), log, directory, kBoot);
  std::string error;
  ASSERT_TRUE(now.open(&error)) << error;
  now.tenant_put(tenant(1));
  counted.others = counted.syncs = counted.renames = 0;
  for (std::uint32_t pid = 1; pid <= 3000; ++pid) {
    now.process_put(1, process(pid));
    now.process_end(1, process(pid).name);
  }
  EXPECT_EQ(counted.others + counted.syncs + counted.renames, 0);
  now.tend(kLater_ns);
  EXPECT_EQ(counted.renames, 1) << "at a heartbeat";
  EXPECT_EQ(counted.syncs, 0) << "the next broker reads what the kernel has";
  EXPECT_EQ(journal_read(slurp(path()), kBoot).records, 1u);
}

/// A broker that ends while a disk hangs: the sync returns after the journal's end.
TEST_F(JournalTest, ASyncThatHangsOutlivesTheJournal) {
  struct Watched : JournalFiles {
    bool broken = false;
    std::shared_ptr<int> syncs = std::make_shared<int>(0);
    std::shared_ptr<bool> ended = std::make_shared<bool>(false);
    ~Watched() override { *ended = true; }
    ssize_t write(int fd, const void* bytes, std::size_t size) override {
      return broken ? -EIO : JournalFiles::write(fd, bytes, size);
    }
    int sync(int fd) override {
      EXPECT_FALSE(*ended) << "its files are in use";
      ++*syncs;
      return JournalFiles::sync(fd);
    }
  };
  struct Hanging : SlowWork {
    std::vector<Work> held;
    using SlowWork::run;
    void run(Work work, std::weak_ptr<const void>) override { held.push_back(std::move(work)); }
  } slow;
  auto watched = std::make_shared<Watched>();
  const auto syncs = watched->syncs;
  const auto ended = watched->ended;
  auto now = std::make_unique<Journal>(watched, log, directory, kBoot, &slow);
  std::string error;
  ASSERT_TRUE(now->open(&error)) << error;
  watched->broken = true;
  now->tenant_put(tenant(1));
  watched->broken = false;
  now->tend(kLater_ns);
  ASSERT_EQ(slow.held.size(), 1u);
  now.reset();
  watched.reset();
  *syncs = 0;
  EXPECT_FALSE(slow.held[0]()) << "a sync that succeeds has nothing to say";
  EXPECT_EQ(*syncs, 1);
  slow.held.clear();
  EXPECT_TRUE(*ended) << "nothing is kept for good";
}

/// What a broker does in its life, in steps; after each the state is one of the moments.
const std::function<void(Journal&)> kLife[] = {
    [](Journal& j) { j.tenant_put(tenant(1)); },
    [](Journal& j) { j.process_put(1, process(100)); },
    [](Journal& j) { j.tenant_put(tenant(2)); },
    [](Journal& j) { j.process_put(2, process(101)); },
    [](Journal& j) { j.process_end(1, process(100).name); },
    [](Journal& j) { j.tenant_end(1); },
    [](Journal& j) { j.tend(kLater_ns); },
    [](Journal& j) { j.tenant_put(tenant(3)); },
    [](Journal& j) { j.tend(2 * kLater_ns); },
};

/// Every system call fails once, the first, the second, ... and then once more with all after it.
TEST_F(JournalTest, EveryFailingCallLeavesAWholeJournalOfAnEarlierMoment) {
  for (const bool for_good : {false, true}) {
    bool reached = true;
    for (long n = 0; reached && n < 500; ++n) {
      SCOPED_TRACE("call " + std::to_string(n) + (for_good ? " and all after it" : ""));
      std::filesystem::remove_all(directory);
      {  // what a broker before left
        auto before = journal();
        before->tenant_put(tenant(9));
      }
      const std::string left = slurp(path());
      FaultyFiles faulty;
      (for_good ? faulty.fail_from : faulty.fail_at) = n;
      faulty.error = n % 2 == 0 ? ENOSPC : EIO;
      std::vector<JournalState> moments;
      std::uint64_t faults = 0;
      JournalState last;
      {
        Journal now(lent(faulty), log, directory, kBoot);
        std::string error;
        const bool opened = now.open(&error);
        ASSERT_TRUE(opened || for_good) << error;
        EXPECT_TRUE(!opened || now.state().tenants.contains(9)) << "forgotten";
        if (opened) moments.push_back(now.state());
        for (const auto& step : kLife) {
          if (!opened) break;
          step(now);
          moments.push_back(now.state());
        }
        faults = now.faults();
        last = now.state();
        reached = faulty.calls > n;
      }
      if (reached && n > 0) {  // the first makes a directory that is there
        EXPECT_GT(faults, 0u);
      }
      const JournalReading reading = journal_read(slurp(path()), kBoot);
      const bool untouched = slurp(path()) == left;
      const bool earlier = std::ranges::find(moments, reading.state) != moments.end();
      EXPECT_TRUE(untouched || earlier) << "what is on disk was never true";
      if (!for_good) {
        EXPECT_EQ(reading.state, last) << "one failure is mended by the time of the second look";
        EXPECT_TRUE(reading.fault.empty()) << reading.fault;
      }
      // The next broker reads it.
      EXPECT_EQ(journal()->state(), reading.state);
    }
    EXPECT_FALSE(reached) << "there was always another call";
  }
}

TEST_F(JournalTest, TroubleIsSaidOnceAndCounted) {
  FaultyFiles faulty;
  auto first = journal(faulty);
  faulty.fail_from = faulty.calls;
  faulty.error = ENOSPC;
  for (protocol::TenantId id = 1; id <= 10; ++id) first->tenant_put(tenant(id));
  for (int i = 1; i <= 10; ++i) first->tend(i * kLater_ns);
  EXPECT_EQ(said("journal_failed"), 1u);
  EXPECT_GE(first->faults(), 10u);
  EXPECT_THAT(slurp(root + "/log"), testing::HasSubstr("No space left on device"));
  faulty.fail_from = -1;
  first->tend(100 * kLater_ns);
  EXPECT_EQ(said("journal_written_again"), 1u);
  EXPECT_EQ(on_disk(), first->state());
}

TEST_F(JournalTest, ARetryIsNotMadeAtEveryBeat) {
  FaultyFiles faulty;
  auto first = journal(faulty);
  faulty.fail_from = faulty.calls;
  first->tenant_put(tenant(1));
  first->tend(kLater_ns);
  const long calls = faulty.calls;
  for (int i = 0; i < 10; ++i) first->tend(kLater_ns + i * std::int64_t{250'000'000});
  EXPECT_EQ(faulty.calls, calls);
}

}  // namespace
}  // namespace sluice::daemon

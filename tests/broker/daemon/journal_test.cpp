// The journal: what is read back, what a damaged file costs, and that no failing system call leaves
// anything but a whole journal of an earlier moment.
#include "broker/daemon/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
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
namespace {

constexpr char kBoot[] = "11111111-2222-3333-4444-555555555555";
constexpr std::int64_t kLater_ns = 3'600'000'000'000;

JournalTenant tenant(protocol::TenantId id) {
  JournalTenant out;
  out.id = id;
  out.key = id * 0x9e3779b97f4a7c15;
  out.uid = 1000 + static_cast<std::uint32_t>(id);
  out.tenant_class = protocol::TenantClass::kDebug;
  out.sm_mode = protocol::SmMode::kFixed;
  out.is_default = id % 2 == 0;
  out.swap = id % 2 != 0;
  out.stay = {id % 3 == 0, id % 2 != 0, id % 3 == 1, {}};
  out.sm_percent = 25;
  out.memory_max_bytes = id << 20;
  out.memory_min_bytes = id << 19;
  out.window_ns = 5;
  out.asked = {1, 2, 3};
  out.asked_ns = 10;
  out.admitted_ns = 20;
  out.founder = {77, 4711};
  out.gpus.resize(2);
  out.gpus[1].bytes[15] = 9;
  out.name = "job-" + std::to_string(id);
  out.profile = "student";
  return out;
}

JournalProcess process(std::uint32_t pid) { return {{pid, pid * 10}, pid * 100, "python"}; }

const JournalWriter journal_writer(kBoot);

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void spill(const std::string& path, const std::string& bytes) {
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

  std::unique_ptr<Journal> journal(JournalFiles& with, const char* boot = kBoot) {
    auto made = std::make_unique<Journal>(with, log, directory, boot);
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
  changed.stay = {false, false, true, {changed.gpus[1], changed.gpus[0]}};
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
    Journal now(with, log, directory, kBoot);
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
  Journal second(files, log, directory, kBoot);
  std::string error;
  EXPECT_FALSE(second.open(&error));
  EXPECT_THAT(error, testing::HasSubstr("another broker keeps its journal in " + directory));
}

TEST_F(JournalTest, AnotherBootIsSetAside) {
  journal()->tenant_put(tenant(1));
  const std::string old = slurp(path());
  auto second = journal(files, "another-boot");
  EXPECT_TRUE(second->state().tenants.empty());
  EXPECT_EQ(slurp(directory + "/journal.old"), old);
  EXPECT_EQ(said("journal_of_another_boot"), 1u);
}

TEST_F(JournalTest, EveryCutLeavesEverythingBeforeIt) {
  std::vector<std::pair<std::size_t, JournalState>> moments;
  {
    auto first = journal();
    const auto note = [&] { moments.emplace_back(slurp(path()).size(), first->state()); };
    note();
    first->tenant_put(tenant(1));
    note();
    first->process_put(1, process(100));
    note();
    first->tenant_put(tenant(2));
    note();
    first->process_end(1, process(100).name);
    note();
    first->tenant_end(1);
    note();
  }
  const std::string whole = slurp(path());
  ASSERT_EQ(whole.size(), moments.back().first);
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    const JournalReading reading = journal_read(std::string_view(whole).substr(0, cut), kBoot);
    if (cut < moments.front().first) continue;
    const auto last = std::find_if(moments.rbegin(), moments.rend(),
                                   [cut](const auto& m) { return m.first <= cut; });
    ASSERT_EQ(reading.state, last->second) << "cut at " << cut;
    EXPECT_EQ(reading.good_bytes, last->first);
    EXPECT_EQ(reading.fault.empty(), last->first == cut);
  }
}

/// Some 50 records: tenants with processes, changes, ends, closed GPUs.
std::string life_of_many() {
  std::string image = journal_writer.begin(1) + journal_writer.begin(1);
  for (std::uint32_t id = 1; id <= 8; ++id) {
    image += journal_writer.tenant(tenant(id));
    for (std::uint32_t pid = 100 * id; pid < 100 * id + 4; ++pid)
      image += journal_writer.process(id, process(pid));
  }
  protocol::GpuUuid closed{};
  closed.bytes[3] = 7;
  image += journal_writer.gpu(closed, true);
  image += journal_writer.process_ended(3, process(301).name);
  for (const std::uint32_t id : {3U, 5U}) image += journal_writer.tenant(tenant(id));
  for (const std::uint32_t id : {2U, 6U}) image += journal_writer.tenant_ended(id);
  image += journal_writer.process(7, process(777));
  return image;
}

/// How many tenants two states tell differently, with what else they say as one more.
std::size_t differences(const JournalState& a, const JournalState& b) {
  std::size_t count = a.closed_gpus != b.closed_gpus || a.next_tenant != b.next_tenant;
  for (protocol::TenantId id = 1; id < std::max(a.next_tenant, b.next_tenant); ++id) {
    const auto in_a = a.tenants.find(id);
    const auto in_b = b.tenants.find(id);
    const bool has_a = in_a != a.tenants.end();
    const bool has_b = in_b != b.tenants.end();
    count += has_a != has_b || (has_a && in_a->second != in_b->second);
  }
  return count;
}

TEST_F(JournalTest, AFlippedBitCostsTheRecordThatItHits) {
  const std::string whole = life_of_many();
  const JournalReading good = journal_read(whole, kBoot);
  ASSERT_EQ(good.lost, 0u) << good.fault;
  ASSERT_GE(good.records, 46u);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    const JournalReading reading = journal_read(bad, kBoot);
    ASSERT_EQ(reading.outcome, JournalOutcome::kRead) << "byte " << at;
    // A record of a tenant takes its processes with it, up to a later one of the same tenant.
    ASSERT_GE(reading.lost, 1u) << "byte " << at;
    ASSERT_FALSE(reading.fault.empty());
    ASSERT_LE(differences(good.state, reading.state), 1u) << "byte " << at;
  }
}

TEST_F(JournalTest, EveryCutCostsNothingBeforeIt) {
  const std::string whole = life_of_many();
  JournalState before;
  for (std::size_t cut = 1; cut < whole.size(); ++cut) {
    const JournalReading reading = journal_read(std::string_view(whole).substr(0, cut), kBoot);
    ASSERT_LE(reading.lost, 1u) << "cut at " << cut;
    if (reading.outcome != JournalOutcome::kRead) continue;
    ASSERT_LE(differences(before, reading.state), 2u) << "one record more, at " << cut;
    before = reading.state;
  }
}

TEST_F(JournalTest, RubbishBeforeBetweenAndBehindIsSkipped) {
  const std::string whole = life_of_many();
  const JournalState good = journal_read(whole, kBoot).state;
  std::mt19937 random(1);
  std::string rubbish;
  for (int i = 0; i < 5000; ++i) rubbish += static_cast<char>(random());
  rubbish += whole.substr(0, 40) + whole.substr(24, 100);  // and parts of records
  const std::string other = JournalWriter("another-boot").tenant(tenant(99));
  for (const std::string& bytes : {rubbish + whole, whole + rubbish, whole + whole,
                                   rubbish + whole + rubbish, other + whole + other}) {
    const JournalReading reading = journal_read(bytes, kBoot);
    EXPECT_EQ(reading.outcome, JournalOutcome::kRead);
    EXPECT_EQ(differences(good, reading.state), 0u) << "tenant by tenant";
  }
}

TEST_F(JournalTest, ATextCannotPassForARecord) {
  JournalTenant sly = tenant(1);
  sly.name = journal_writer.tenant_ended(2).substr(0, protocol::kNameBytes - 1);
  // What a client's name is after text_clean: without control characters, of which the mark has
  // some.
  for (char& c : sly.name)
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  std::string bytes =
      journal_writer.begin(1) + journal_writer.tenant(tenant(2)) + journal_writer.tenant(sly);
  bytes[bytes.size() - 200] = static_cast<char>(bytes[bytes.size() - 200] ^ 1);
  EXPECT_TRUE(journal_read(bytes, kBoot).state.tenants.contains(2));
}

TEST_F(JournalTest, AGarbledTailIsLeftOutWithOneLine) {
  {
    auto first = journal();
    first->tenant_put(tenant(1));
  }
  spill(path(), slurp(path()) + "garbage that is no record");
  auto second = journal();
  EXPECT_EQ(second->state().tenants.size(), 1u);
  EXPECT_EQ(said("journal_damaged"), 1u);
  EXPECT_EQ(second->lost(), 1u);
  second->tenant_put(tenant(2));
  EXPECT_EQ(on_disk(), second->state()) << "what is written after it is read";
}

protocol::GpuUuid gpu(std::uint8_t n) {
  protocol::GpuUuid uuid{};
  uuid.bytes[0] = n;
  return uuid;
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

TEST_F(JournalTest, ARecordOfAGpuThatIsCutOffTakesNothingElseWithIt) {
  JournalState state;
  state.tenants[1] = tenant(1);
  state.next_tenant = 2;
  state.closed_gpus = {gpu(1)};
  const std::string whole = journal_writer.image(state);
  for (std::size_t cut = 1; cut < journal_writer.gpu(gpu(2), true).size(); ++cut) {
    const JournalReading reading =
        journal_read(whole + journal_writer.gpu(gpu(2), true).substr(0, cut), kBoot);
    EXPECT_EQ(reading.state, state);
    EXPECT_EQ(reading.good_bytes, whole.size());
    EXPECT_NE(reading.fault, "");
  }
}

void crc_put(std::string* record, std::size_t at, std::size_t summed_from) {
  const auto crc = static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(record->data()) + summed_from,
              record->size() - summed_from));
  std::memcpy(record->data() + at, &crc, sizeof crc);
}

/// A record of today as versions 2 and 3 had it: without its mark and its boot. That of a process
/// had two numbers where its program stands now.
std::string plain(const std::string& record, std::uint32_t begin_version = 0) {
  std::string out = record.substr(4, 12) + record.substr(24);
  constexpr std::size_t kVersionAt = 12 + 4;
  if (begin_version != 0) std::memcpy(out.data() + kVersionAt, &begin_version, 4);
  crc_put(&out, 0, 4);
  return out;
}

TEST_F(JournalTest, OneOfTheVersionsBeforeIsReadAndLaterOnesAreNot) {
  JournalState state;
  state.tenants[1] = tenant(1);
  state.tenants[1].processes = {process(100)};
  state.next_tenant = 2;
  JournalState expected = state;
  expected.tenants[1].processes[0].program = 0;
  const std::string image = journal_writer.image(state);
  for (const std::uint32_t version : {2U, 3U}) {
    const std::string old = plain(journal_writer.begin(2), version) +
                            plain(journal_writer.tenant(tenant(1))) +
                            plain(journal_writer.process(1, process(100)));
    EXPECT_EQ(journal_read(old, kBoot).state, expected) << "version " << version;
    EXPECT_EQ(journal_read(old, "other").outcome, JournalOutcome::kOtherBoot);
    std::filesystem::remove_all(directory);
    ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
    spill(path(), old);
    EXPECT_EQ(journal()->state(), expected);
    EXPECT_EQ(slurp(path()), journal_writer.image(expected)) << "written anew in this version";
  }
  EXPECT_EQ(journal_read(plain(journal_writer.begin(2), 1), kBoot).outcome,
            JournalOutcome::kUnreadable);
  std::string later = journal_writer.begin(2);
  later[24 + 4] = 5;
  crc_put(&later, 4, 8);
  EXPECT_EQ(journal_read(later + image, kBoot).outcome, JournalOutcome::kUnreadable);
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
TEST_F(JournalTest, ImpossibleValuesAreNotBelieved) {
  const std::function<void(JournalTenant&)> mistakes[] = {
      [](JournalTenant& t) { t.id = 0; },
      [](JournalTenant& t) { t.id = UINT64_MAX; },
      [](JournalTenant& t) { t.tenant_class = static_cast<protocol::TenantClass>(4); },
      [](JournalTenant& t) { t.sm_mode = static_cast<protocol::SmMode>(3); },
      [](JournalTenant& t) { t.sm_percent = 0; },
      [](JournalTenant& t) { t.sm_percent = 101; },
      [](JournalTenant& t) { t.asked.sm_percent = 101; },
      [](JournalTenant& t) { t.memory_max_bytes = 0; },
      [](JournalTenant& t) { t.memory_min_bytes = t.memory_max_bytes + 1; },
      [](JournalTenant& t) { t.window_ns = -1; },
      [](JournalTenant& t) { t.admitted_ns = -1; },
      [](JournalTenant& t) { t.asked_ns = -1; },
      [](JournalTenant& t) { t.gpus[1] = t.gpus[0]; },
      [](JournalTenant& t) { t.stay.frozen_on.resize(1); },
  };
  for (const auto& mistake : mistakes) {
    JournalTenant bad = tenant(1);
    mistake(bad);
    const std::string image =
        journal_writer.begin(1) + journal_writer.tenant(bad) + journal_writer.tenant(tenant(2));
    const JournalReading reading = journal_read(image, kBoot);
    EXPECT_EQ(reading.state.tenants.size(), 1u) << "the next one is read";
    EXPECT_EQ(reading.lost, 1u);
    EXPECT_EQ(reading.fault, "a record says what no broker has written");
  }
  for (const std::string& stray :
       {journal_writer.tenant_ended(9), journal_writer.process(9, process(1)),
        journal_writer.process_ended(9, {1, 1})}) {
    EXPECT_FALSE(journal_read(journal_writer.begin(1) + stray, kBoot).fault.empty());
  }
}

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
  Journal now(counted, log, directory, kBoot);
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
        Journal now(faulty, log, directory, kBoot);
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

// What a damaged journal costs: the records that are hit, and none before or behind them.
#include "tests/broker/daemon/journal_fixture.h"

namespace sluice::daemon {
namespace {

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

/// Records of this version behind an older beginning would be lost to the next broker.
TEST_F(JournalTest, NothingIsAppendedToAnEarlierVersion) {
  struct Full : JournalFiles {
    bool full = true;
    int rename(const char* from, const char* to) override {
      return full ? -ENOSPC : JournalFiles::rename(from, to);
    }
  } disk;
  for (const std::uint32_t version : {2U, 3U}) {
    SCOPED_TRACE(version);
    const std::string old =
        plain(journal_writer.begin(2), version) + plain(journal_writer.tenant(tenant(1)));
    std::filesystem::remove_all(directory);
    ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
    spill(path(), old);
    disk.full = true;
    const auto now = journal(disk);
    EXPECT_TRUE(now->state().tenants.contains(1));
    now->tenant_put(tenant(2));
    now->tend(kLater_ns);
    EXPECT_EQ(slurp(path()), old) << "as the broker before left it";
    disk.full = false;
    now->tend(2 * kLater_ns);
    EXPECT_EQ(on_disk(), now->state()) << "written whole";
    EXPECT_TRUE(on_disk().tenants.contains(2));
  }
}

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

}  // namespace
}  // namespace sluice::daemon

// The reader: every mistake with its exact message and place, good files, defaults, and files
// nobody meant.
#include "config/reader/config.h"
#include "config/reader/keys.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>

namespace sluice::config {
namespace {

std::vector<std::string> texts(const Result<Config>& result) {
  std::vector<std::string> out;
  if (!result.ok()) {
    for (const Error& error : result.errors()) out.push_back(error.text());
  }
  return out;
}

struct BadFile {
  const char* name;
  const char* text;
  std::vector<std::string> errors;
};

std::ostream& operator<<(std::ostream& out, const BadFile& file) { return out << file.name; }

class Refused : public testing::TestWithParam<BadFile> {};

TEST_P(Refused, SaysWhereAndWhat) {
  EXPECT_EQ(texts(config_parse(GetParam().text, "s.toml")), GetParam().errors);
}

const BadFile kBadFiles[] = {
    {"NearKey",
     "[scheduler]\nquantun = \"10ms\"\n",
     {"s.toml:2:1: unknown key 'quantun'; did you mean 'quantum'?"}},
    {"SwappedLetters",
     "[memory]\n  oversell = 1.5\n  resevre = \"1GiB\"\n",
     {"s.toml:3:3: unknown key 'resevre'; did you mean 'reserve'?"}},
    {"KeyOfAnotherTable",
     "[broker]\nquantum = \"10ms\"\n",
     {"s.toml:2:1: unknown key 'quantum'; it belongs into [scheduler]"}},
    {"FarKey",
     "[memory]\ncolour = 1\n",
     {"s.toml:2:1: unknown key 'colour'; [memory] knows oversell, reserve, swap, "
      "swap_quantum, swap_host_max"}},
    {"NearTable",
     "[schedular]\nquantum = \"10ms\"\n",
     {"s.toml:1:2: unknown table or key 'schedular'; did you mean 'scheduler'?"}},
    {"CgroupIsNoPath",
     "[profile.a]\ncgroups = [\"/x\", \"course.slice\", \"/\", \"/a/../b\"]\n",
     {"s.toml:2:18: cgroups: \"course.slice\" is not a cgroup's path, such as \"/user.slice\"",
      "s.toml:2:34: cgroups: \"/\" is not a cgroup's path, such as \"/user.slice\"",
      "s.toml:2:39: cgroups: \"/a/../b\" is not a cgroup's path, such as \"/user.slice\""}},
    {"CgroupInTwoProfiles",
     "[profile.a]\ncgroups = [\"/x\"]\n[profile.b]\ncgroups = [\"/x\"]\n",
     {"s.toml:4:12: cgroup '/x' is already in profile 'a' (line 2); name it in one profile only"}},
    {"SumsOutOfRange",
     "[profile.default]\nrunning_max = 4097\nall_memory_max = \"1KiB\"\nuser_memory_max = 3\n",
     {"s.toml:2:15: running_max must be 0 to 4096, not 4097",
      "s.toml:3:18: all_memory_max must be 1MiB to 64TiB, or 0B (no limit), not \"1KiB\"",
      "s.toml:4:19: user_memory_max must be a size with its unit; put quotes around sizes: "
      "user_memory_max = \"8GiB\""}},
    {"FarTable",
     "[printer]\n",
     {"s.toml:1:2: unknown table or key 'printer'; known are [broker], [scheduler], [memory], "
      "[class.*], [profile.*], [exporter] and [bypass]"}},
    {"Bypass",
     "[bypass]\npolicy = \"kill\"\ngrace = \"2h\"\nexempt_paths = [\"bin\"]\n[exporter]\nuser = "
     "\"a b\"\n",
     {"s.toml:2:10: policy must be \"count\", \"report\" or \"stop\", not \"kill\"",
      "s.toml:3:9: grace must be 0s to 1h, not \"2h\"",
      "s.toml:4:17: exempt_paths: \"bin\" is not an absolute path",
      "s.toml:6:8: user must be a user's name, or \"\", not \"a b\""}},
    {"KeyWithoutTable",
     "quantum = \"10ms\"\n",
     {"s.toml:1:1: unknown table or key 'quantum'; it belongs into [scheduler]"}},
    {"TableIsNoTable",
     "memory = 3\n",
     {"s.toml:1:1: 'memory' must be a table: a line [memory] and its keys below"}},
    {"ArrayOfTables",
     "[[memory]]\noversell = 2.0\n",
     {"s.toml:1:3: 'memory' must be a table: a line [memory] and its keys below"}},
    {"Version", "version = 2\n", {"s.toml:1:11: version must be 1, the only one there is"}},
    {"VersionInQuotes",
     "version = \"1\"\n",
     {"s.toml:1:11: version must be 1, the only one there is"}},

    {"UnquotedSize",
     "[memory]\nreserve = 8GiB\n",
     {"s.toml:2:11: put quotes around sizes: reserve = \"8GiB\""}},
    {"UnquotedSizeWithComment",
     "[class.batch]\n  memory_max =   1.5 GiB   # half of it\n",
     {"s.toml:2:18: put quotes around sizes: memory_max = \"1.5 GiB\""}},
    {"UnquotedDuration",
     "[scheduler]\nquantum = 10ms\r\n",
     {"s.toml:2:11: put quotes around durations: quantum = \"10ms\""}},
    {"BareNumberForSize",
     "[memory]\nreserve = 1048576\n",
     {"s.toml:2:11: reserve must be a size with its unit; put quotes around sizes: reserve = "
      "\"8GiB\""}},
    {"BareNumberForDuration",
     "[scheduler]\nquantum = 10\n",
     {"s.toml:2:11: quantum must be a duration with its unit; put quotes around durations: quantum "
      "= \"10ms\""}},
    {"NotASize",
     "[memory]\nreserve = \"8 gigs\"\n",
     {"s.toml:2:11: reserve must be a size such as \"8GiB\", \"512MiB\" or \"2GB\", not \"8 "
      "gigs\""}},
    {"SizeTooSmall",
     "[memory]\nreserve = \"4KiB\"\n",
     {"s.toml:2:11: reserve must be 1MiB to 1TiB, or 0B (nothing is kept back), not \"4KiB\""}},
    {"SizeTooLarge",
     "[class.debug]\nmemory_max = \"1PiB\"\n",
     {"s.toml:2:14: memory_max must be 1MiB to 1TiB, or 0B (a quarter of the smallest GPU), not "
      "\"1PiB\""}},
    {"NotADuration",
     "[scheduler]\nidle_grace = \"soon\"\n",
     {"s.toml:2:14: idle_grace must be a duration such as \"500us\", \"10ms\" or \"1h30m\", not "
      "\"soon\""}},
    {"DurationTooShort",
     "[scheduler]\nquantum = \"999us\"\n",
     {"s.toml:2:11: quantum must be 1ms to 10s, not \"999us\""}},
    {"DurationTooLong",
     "[scheduler]\ndrain_timeout = \"61m\"\n",
     {"s.toml:2:17: drain_timeout must be 10ms to 1h, not \"61m\""}},

    {"PercentTooLarge",
     "[class.debug]\nsm_percent = 101\n",
     {"s.toml:2:14: sm_percent must be 1 to 100, not 101"}},
    {"PercentZero",
     "[class.debug]\nsm_percent = 0\n",
     {"s.toml:2:14: sm_percent must be 1 to 100, not 0"}},
    {"PercentNegative",
     "[class.debug]\nsm_percent = -5\n",
     {"s.toml:2:14: sm_percent must be 1 to 100, not -5"}},
    {"PercentInQuotes",
     "[class.debug]\nsm_percent = \"25\"\n",
     {"s.toml:2:14: sm_percent must be a whole number from 1 to 100, without quotes"}},
    {"PercentFraction",
     "[class.debug]\nsm_percent = 12.5\n",
     {"s.toml:2:14: sm_percent must be a whole number from 1 to 100, without quotes"}},
    {"RatioTooSmall",
     "[memory]\noversell = 0.5\n",
     {"s.toml:2:12: oversell must be 1.0 to 16.0, not 0.500000"}},
    {"RatioNan",
     "[memory]\noversell = nan\n",
     {"s.toml:2:12: oversell must be 1.0 to 16.0, not nan"}},
    {"RatioInf",
     "[memory]\noversell = inf\n",
     {"s.toml:2:12: oversell must be 1.0 to 16.0, not inf"}},
    {"RatioText",
     "[memory]\noversell = \"2x\"\n",
     {"s.toml:2:12: oversell must be a number from 1.0 to 16.0, without quotes"}},
    {"RatioDate",
     "[memory]\noversell = 2026-01-01\n",
     {"s.toml:2:12: oversell must be a number from 1.0 to 16.0, without quotes"}},

    {"WordNear",
     "[class.debug]\nsm_mode = \"fixd\"\n",
     {"s.toml:2:11: sm_mode must be \"fixed\", \"equal\" or \"best-effort\", not \"fixd\"; did you "
      "mean \"fixed\"?"}},
    {"Share",
     "[class.debug]\nsm = \"weigth\"\n",
     {"s.toml:2:6: sm must be \"asked\", \"guaranteed\" or \"weight\", not \"weigth\"; did you "
      "mean \"weight\"?"}},
    {"Placement",
     "[class.debug]\nplacement = \"packed\"\n",
     {"s.toml:2:13: placement must be \"spread\" or \"pack\", not \"packed\"; did you mean "
      "\"pack\"?"}},
    {"Policy",
     "[scheduler]\npolicy = \"faire\"\n",
     {"s.toml:2:10: policy must be \"fair\", \"round-robin\" or \"fifo\", not \"faire\"; did "
      "you mean \"fair\"?"}},
    {"WordFar",
     "[broker]\nlog_level = \"loud\"\n",
     {"s.toml:2:13: log_level must be \"error\", \"warning\", \"info\" or \"debug\", not "
      "\"loud\""}},
    {"WordNotText",
     "[scheduler]\nrunaway = true\n",
     {"s.toml:2:11: runaway must be \"report\" or \"end\", in quotes"}},
    {"SwapIsAWord",
     "[memory]\nswap = true\n",
     {"s.toml:2:8: swap must be \"off\" or \"on\", in quotes"}},
    {"SwapWord",
     "[memory]\nswap = \"yes\"\n",
     {"s.toml:2:8: swap must be \"off\" or \"on\", not \"yes\""}},
    {"SwapQuantumTooShort",
     "[memory]\nswap_quantum = \"9ms\"\n",
     {"s.toml:2:16: swap_quantum must be 10ms to 1h, not \"9ms\""}},
    {"SwapHostMaxTooLarge",
     "[memory]\nswap_host_max = \"65TiB\"\n",
     {"s.toml:2:17: swap_host_max must be 1MiB to 64TiB, or 0B (half of the machine's), not "
      "\"65TiB\""}},
    {"SwapOfProfileIsASwitch",
     "[profile.default]\nswap = \"on\"\n",
     {"s.toml:2:8: swap must be true or false, without quotes"}},
    {"ExclusiveWord",
     "[scheduler]\nexclusive = \"suspnd\"\n",
     {"s.toml:2:13: exclusive must be \"wait\", \"suspend\" or \"move\", not \"suspnd\"; did "
      "you mean \"suspend\"?"}},
    {"RelativePath",
     "[broker]\nsocket = \"sluiced.sock\"\n",
     {"s.toml:2:10: socket must be an absolute path, not \"sluiced.sock\""}},
    {"RelativeState",
     "[broker]\nstate = \"sluice\"\n",
     {"s.toml:2:9: state must be an absolute path, or \"\", not \"sluice\""}},
    {"StringIsNumber",
     "[broker]\nsocket = 7\n",
     {"s.toml:2:10: socket must be a string in quotes"}},
    {"ListenWithoutPort",
     "[exporter]\nlisten = \"127.0.0.1\"\n",
     {"s.toml:2:10: listen must be an address or a name and a port, such as \"127.0.0.1:9843\" or "
      "\"[::1]:9843\", not \"127.0.0.1\""}},

    {"NearClass", "[class.bacth]\n", {"s.toml:1:8: unknown class 'bacth'; did you mean 'batch'?"}},
    {"FarClass",
     "[class.student]\n",
     {"s.toml:1:8: unknown class 'student'; a class is one of \"inference\", \"debug\", \"batch\" "
      "or \"exclusive\""}},
    {"ClassIsNoTable",
     "[class]\nbatch = 1\n",
     {"s.toml:2:1: 'batch' must stand in a table such as [class.batch]"}},
    {"ExclusiveHasNoShare",
     "[class.exclusive]\nsm_percent = 50\n",
     {"s.toml:2:1: 'sm_percent' means nothing here: class exclusive owns whole GPUs"}},

    {"ProfileForNobody",
     "[profile.guests]\nsm_percent_max = 10\n",
     {"s.toml:1:10: profile 'guests' applies to nobody; give it users, groups or cgroups, or call "
      "it "
      "'default'"}},
    {"ProfileWithEmptyLists",
     "[profile.guests]\nusers = []\ngroups = []\n",
     {"s.toml:1:10: profile 'guests' applies to nobody; give it users, groups or cgroups, or call "
      "it "
      "'default'"}},
    {"DefaultNamesSomebody",
     "[profile.default]\nusers = [\"anna\"]\n",
     {"s.toml:1:10: profile 'default' applies to everybody whom no other profile names; it cannot "
      "have users, groups or cgroups of "
      "its own"}},
    {"DefaultIsNotLast",
     "[profile.a]\nusers = [\"x\"]\n[profile.default]\n[profile.b]\nusers = [\"y\"]\n",
     {"s.toml:3:10: profile 'default' fits everybody, so profile 'b' below it would never be used; "
      "put it last"}},
    {"ProfileName",
     "[profile.\"a b\"]\nusers = [\"anna\"]\n",
     {"s.toml:1:10: profile name 'a b' must be at most 31 small letters, digits, '-' and '_'"}},
    {"ProfileIsNoTable",
     "[profile]\nstudent = 1\n",
     {"s.toml:2:1: 'student' must stand in a table such as [profile.student]"}},
    {"UserInTwoProfiles",
     "[profile.staff]\nusers = [\"anna\"]\n\n[profile.student]\nusers = [\"ben\", \"anna\"]\n",
     {"s.toml:5:17: user 'anna' is already in profile 'staff' (line 2); name it in one profile "
      "only"}},
    {"UserInTwoProfilesNamedAgainstTheAlphabet",
     "[profile.z]\nusers = [\"anna\"]\n[profile.a]\nusers = [\"anna\"]\n",
     {"s.toml:4:10: user 'anna' is already in profile 'z' (line 2); name it in one profile only"}},
    {"GroupInTwoProfiles",
     "[profile.a]\ngroups = [\"lab\"]\n[profile.b]\ngroups = [\"lab\"]\n",
     {"s.toml:4:11: group 'lab' is already in profile 'a' (line 2); name it in one profile only"}},
    {"UserTwiceInOne",
     "[profile.a]\nusers = [\"x\", \"x\"]\n",
     {"s.toml:2:15: users has \"x\" twice"}},
    {"UserName",
     "[profile.a]\nusers = [\"x y\"]\n",
     {"s.toml:2:10: users: \"x y\" is not a user or group name"}},
    {"UserNumber",
     "[profile.a]\nusers = [1000]\n",
     {"s.toml:2:10: users must hold only strings in quotes"}},
    {"UserNested",
     "[profile.a]\nusers = [[\"x\"]]\n",
     {"s.toml:2:10: users must hold only strings in quotes"}},
    {"UsersNoList",
     "[profile.a]\nusers = \"x\"\n",
     {"s.toml:2:9: users must be a list of strings, such as [\"a\", \"b\"]"}},
    {"ProfileClass",
     "[profile.a]\nusers = [\"x\"]\nclasses = [\"debug\", \"interference\"]\n",
     {"s.toml:3:21: classes must be \"inference\", \"debug\", \"batch\" or \"exclusive\", not "
      "\"interference\"; did you mean "
      "\"inference\"?"}},

    {"EverythingAtOnceInTheOrderOfTheFile",
     "[scheduler]\nquantun = \"10ms\"\ndrain_timeout = 1\n[broker]\nlog_level = "
     "\"loud\"\n[class.debug]\nsm_percent = 0\n",
     {"s.toml:2:1: unknown key 'quantun'; did you mean 'quantum'?",
      "s.toml:3:17: drain_timeout must be a duration with its unit; put quotes around durations: "
      "drain_timeout = \"10ms\"",
      "s.toml:5:13: log_level must be \"error\", \"warning\", \"info\" or \"debug\", not \"loud\"",
      "s.toml:7:14: sm_percent must be 1 to 100, not 0"}},
    {"TerminalEscapesAreNotPrinted",
     "[broker]\nlog_level = \"a\\u001b[2Jb\\u007f\"\n",
     {"s.toml:2:13: log_level must be \"error\", \"warning\", \"info\" or \"debug\", not "
      "\"a?[2Jb?\""}},
    {"LongTextIsCut",
     "[broker]\nlog_level = "
     "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxyyyyyyyy\"\n",
     {"s.toml:2:13: log_level must be \"error\", \"warning\", \"info\" or \"debug\", not "
      "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\""}},
};

INSTANTIATE_TEST_SUITE_P(Files, Refused, testing::ValuesIn(kBadFiles),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Syntax, PlaceAndReason) {
  const auto result = config_parse("[scheduler]\nquantum \"10ms\"\n", "s.toml");
  ASSERT_FALSE(result.ok());
  ASSERT_EQ(result.errors().size(), 1U);
  const Error& error = result.errors().front();
  EXPECT_EQ(error.file, "s.toml");
  EXPECT_EQ(error.line, 2U);
  EXPECT_EQ(error.column, 9U);
  EXPECT_EQ(error.what.rfind("not valid TOML: ", 0), 0U) << error.what;
}

TEST(Syntax, NumbersGoneWrongAreNotCalledSizes) {
  const auto result = config_parse("[memory]\noversell = 1.2.3\n", "s.toml");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.errors().front().what.rfind("not valid TOML: ", 0), 0U);
}

TEST(Syntax, SameKeyTwice) {
  const auto result = config_parse("[memory]\noversell = 1.0\noversell = 2.0\n", "s.toml");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.errors().front().line, 3U);
  EXPECT_EQ(result.errors().front().what, "this key or table stands in the file twice; remove one");
  const auto table = config_parse("[memory]\n[broker]\n[memory]\n", "s.toml");
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.errors().front().what, "this key or table stands in the file twice; remove one");
}

TEST(Idle, AJobIsNotEndedBeforeItIsTold) {
  const auto result = config_parse("[class.debug]\nidle = \"30m\"\nidle_end = \"10m\"\n", "s.toml");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.errors().front().text(),
            "s.toml:1:1: class 'debug': idle_end (10m) is less than idle (30m), so a job would be "
            "ended before it was told; make it longer");
  EXPECT_TRUE(config_parse("[class.debug]\nidle = \"30m\"\nidle_end = \"0s\"\n", "").ok());
  EXPECT_TRUE(config_parse("[class.debug]\nidle_end = \"10m\"\n", "").ok());
}

TEST(Syntax, InvalidUtf8) {
  EXPECT_FALSE(config_parse("[memory]\nreserve = \"\xff\xfe\"\n", "s.toml").ok());
}

TEST(Limits, FileTooLong) {
  const std::string text(kFileBytesMax + 1, '#');
  EXPECT_EQ(texts(config_parse(text, "s.toml")),
            std::vector<std::string>{"s.toml: longer than 256 KiB; this is no configuration file"});
  const std::string longest(kFileBytesMax, '#');
  EXPECT_TRUE(config_parse(longest, "s.toml").ok());
}

// Deep nesting costs the parser stack; each of these killed a process with a small stack before the
// check existed.
TEST(Limits, Nesting) {
  std::string dots;
  for (int i = 0; i < 100'000; ++i) dots += "a.";
  std::string lists = "k = [";
  for (int i = 0; i < 100; ++i) lists += "\n\"]\", {a.a.a.a.a.a.a.a.a.a = [";
  const std::string multi = "x = \"\"\"\n\"\" ' # \\\" [[[ \n\"\"\"\n";
  const std::string quotes = "k = [\"\"\"a\"\"\"\"\", {" + dots + "a = 1}]\n";
  for (const auto& [text, line] : {std::pair{"[" + dots + "a]\n", 1},
                                   {dots + "a = 1\n", 1},
                                   {"\n" + lists, 8},
                                   {multi + lists, 10},
                                   {quotes, 1}}) {
    const auto result = config_parse(text, "s.toml");
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.errors().front().text(),
              "s.toml:" + std::to_string(line) + ":1: tables or lists nested too deep");
  }
}

TEST(Limits, DotsInStringsAndCommentsAreFree) {
  const std::string dots(200, '.');
  EXPECT_TRUE(config_parse("# " + dots + "\n[broker]\nsocket = \"/" + dots.substr(0, 90) + "\" # " +
                               dots + "\n",
                           "s.toml")
                  .ok());
  EXPECT_FALSE(
      config_parse("[broker]\nsocket = \"/" + dots + "\"\n", "s.toml").ok());  // over 107 bytes
}

TEST(Good, EmptyFileIsTheDefaults) {
  const auto result = config_parse("", "s.toml");
  ASSERT_TRUE(result.ok());
  Config expected = config_default();
  expected.path = "s.toml";
  EXPECT_EQ(*result, expected);
  EXPECT_EQ(expected.classes.size(), 4U);
}

TEST(Good, EveryKey) {
  const auto result = config_parse(R"(version = 1
[broker]
socket = "/tmp/x.sock"
log_level = "debug"
[scheduler]
policy = "round-robin"
quantum = "20ms"
drain_timeout = "1.5s"
idle_grace = "0s"
inference_window = "500us"
runaway = "end"
[memory]
oversell = 2
reserve = "256MiB"
[class.inference]
window = "2ms"
sm_percent = 30
sm_mode = "equal"
memory_max = "2 GiB"
[profile.zoo]
users = ["anna", "dora.k@example.org"]
groups = ["lab-a", "DOMAIN\\lab b"]
)",
                                   "s.toml");
  ASSERT_FALSE(result.ok()) << "a group name holds no blank";
  EXPECT_EQ(result.errors().size(), 1U);
  EXPECT_EQ(result.errors().front().line, 22U);

  const auto good = config_parse(R"(
exporter = { listen = "0.0.0.0:9999", tenants_max = 10, user = "metrics" }
bypass = { policy = "stop", grace = "3s", exempt_users = [], exempt_paths = ["/opt/dcgm"], driver = "/lib/libcuda.so.1", figures = "/run/f" }
[broker]
socket = "/tmp/x.sock"
log_level = "debug"
state = "/var/lib/x"
[scheduler]
policy = "round-robin"
quantum = "20ms"
drain_timeout = "1.5s"
idle_grace = "0s"
inference_window = "500us"
inference_burst = "300ms"
runaway = "report"
runaway_after = "7s"
exclusive = "suspend"
rank_loss = "end"
[memory]
oversell = 2
reserve = "256MiB"
swap = "on"
swap_quantum = "3s"
swap_host_max = "5GiB"
[class.inference]
window = "2ms"
sm_percent = 30
sm = "guaranteed"
placement = "pack"
idle = "30m"
idle_release = "45m"
idle_end = "8h"
sm_mode = "equal"
memory_max = "2 GiB"
[profile.zoo]
users = ["anna", "dora.k@example.org"]
groups = ["lab-a", "DOMAIN\\lab"]
cgroups = ["/course.slice", "/user.slice/user-7.slice"]
classes = ["debug", "batch"]
memory_max = "8GiB"
sm_percent_max = 50
tenants_max = 4
running_max = 2
user_memory_max = "12GiB"
all_running_max = 9
all_memory_max = "40GiB"
swap = true
[profile.ape]
groups = ["b"]
swap = false
[profile.default]
tenants_max = 1
)",
                                 "s.toml");
  ASSERT_TRUE(good.ok()) << testing::PrintToString(texts(good));
  const Config& c = *good;
  EXPECT_EQ(c.socket, "/tmp/x.sock");
  EXPECT_EQ(c.log_level, "debug");
  EXPECT_EQ(c.state, "/var/lib/x");
  EXPECT_EQ(c.policy, "round-robin");
  EXPECT_EQ(c.quantum_ns, 20'000'000);
  EXPECT_EQ(c.drain_timeout_ns, 1'500'000'000);
  EXPECT_EQ(c.idle_grace_ns, 0);
  EXPECT_EQ(c.inference_window_ns, 500'000);
  EXPECT_EQ(c.inference_burst_ns, 300'000'000);
  EXPECT_EQ(c.runaway, "report");
  EXPECT_EQ(c.runaway_after_ns, 7'000'000'000);
  EXPECT_EQ(c.exclusive, "suspend");
  EXPECT_EQ(c.rank_loss, "end");
  EXPECT_EQ(c.oversell, 2.0);
  EXPECT_EQ(c.reserve_bytes, 256ULL << 20);
  EXPECT_EQ(c.swap, "on");
  EXPECT_EQ(c.swap_quantum_ns, 3'000'000'000);
  EXPECT_EQ(c.swap_host_max_bytes, 5ULL << 30);
  const ClassSettings& inference = c.classes.at("inference");
  EXPECT_EQ(inference.window_ns, 2'000'000);
  EXPECT_EQ(inference.sm_percent, 30U);
  EXPECT_EQ(inference.sm_mode, "equal");
  EXPECT_EQ(inference.sm, "guaranteed");
  EXPECT_EQ(inference.placement, "pack");
  EXPECT_EQ(inference.idle_ns, 1'800'000'000'000);
  EXPECT_EQ(inference.idle_release_ns, 2'700'000'000'000);
  EXPECT_EQ(inference.idle_end_ns, 28'800'000'000'000);
  EXPECT_EQ(inference.memory_max_bytes, 2ULL << 30);
  EXPECT_EQ(c.classes.at("batch"), ClassSettings{});
  ASSERT_EQ(c.profiles.size(), 3U);
  EXPECT_EQ(c.profiles[0].name, "zoo");  // the order of the file, not of the alphabet
  EXPECT_EQ(c.profiles[0].users, (std::vector<std::string>{"anna", "dora.k@example.org"}));
  EXPECT_EQ(c.profiles[0].groups, (std::vector<std::string>{"lab-a", "DOMAIN\\lab"}));
  EXPECT_EQ(c.profiles[0].classes, (std::vector<std::string>{"debug", "batch"}));
  EXPECT_EQ(c.profiles[0].memory_max_bytes, 8ULL << 30);
  EXPECT_EQ(c.profiles[0].sm_percent_max, 50U);
  EXPECT_EQ(c.profiles[0].tenants_max, 4U);
  EXPECT_EQ(c.profiles[0].cgroups,
            (std::vector<std::string>{"/course.slice", "/user.slice/user-7.slice"}));
  EXPECT_EQ(c.profiles[0].running_max, 2U);
  EXPECT_EQ(c.profiles[0].user_memory_max_bytes, 12ULL << 30);
  EXPECT_EQ(c.profiles[0].all_running_max, 9U);
  EXPECT_EQ(c.profiles[0].all_memory_max_bytes, 40ULL << 30);
  EXPECT_EQ(c.profiles[1].all_memory_max_bytes, 0U) << "no limit";
  EXPECT_EQ(c.profiles[0].swap, true);
  EXPECT_EQ(c.profiles[1].swap, false);
  EXPECT_EQ(c.profiles[2].swap, std::nullopt);
  EXPECT_EQ(c.profiles[1].name, "ape");
  EXPECT_EQ(c.profiles[2].name, "default");
  EXPECT_EQ(c.exporter_listen, "0.0.0.0:9999");
  EXPECT_EQ(c.exporter_tenants_max, 10U);
  EXPECT_EQ(c.exporter_user, "metrics");
  EXPECT_EQ(c.bypass_policy, "stop");
  EXPECT_EQ(c.bypass_grace_ns, 3'000'000'000);
  EXPECT_TRUE(c.bypass_exempt_users.empty());
  EXPECT_EQ(c.bypass_exempt_paths, std::vector<std::string>{"/opt/dcgm"});
  EXPECT_EQ(c.bypass_driver, "/lib/libcuda.so.1");
  EXPECT_EQ(c.bypass_figures, "/run/f");

  const auto again = config_parse(config_format(c), "s.toml");
  ASSERT_TRUE(again.ok()) << testing::PrintToString(texts(again)) << config_format(c);
  EXPECT_EQ(*again, c);
}

TEST(Good, DefaultsRoundTrip) {
  const auto again = config_parse(config_format(config_default()), "");
  ASSERT_TRUE(again.ok()) << testing::PrintToString(texts(again));
  EXPECT_EQ(*again, config_default());
}

TEST(Listen, Addresses) {
  for (const char* text : {"",
                           ":9843",
                           "localhost",
                           "127.0.0.1",
                           "127.0.0.1:",
                           "127.0.0.1:65536",
                           "127.0.0.1:-1",
                           "::1:9843",
                           "[::1]",
                           "[::1:9843",
                           "[]:9843",
                           "[::1%lo]:9843",
                           "[127.0.0.1]:9843",
                           "127.0.0.1:98 43",
                           "127.0.0.1:000123",
                           "999.0.0.1:1",
                           "127.1:9843",
                           "-x:1",
                           "x-:1",
                           ".:1",
                           "a b:1",
                           "a_b:1",
                           "user@host:1",
                           "a,b:1"}) {
    EXPECT_FALSE(listen_parse(text).has_value()) << text;
  }
  EXPECT_FALSE(listen_parse(std::string(254, 'a') + ":1").has_value());
  for (const char* text :
       {"127.0.0.1:9843", "[::1]:9843", "[::]:1", "localhost:9843", "gpu-7.lab.example:80"}) {
    const auto parsed = listen_parse(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_EQ(listen_format(*parsed), text);
  }
  EXPECT_EQ(listen_parse("[::1]:9843")->host, "::1");
  const auto address = listen_parse("127.0.0.1:9843");
  ASSERT_TRUE(address.has_value());
  EXPECT_EQ(address->host, "127.0.0.1");
  EXPECT_EQ(address->port, 9843);
  EXPECT_EQ(listen_parse("127.0.0.1:0")->port,
            0);  // any free port, for a command line; a file must name one
  EXPECT_FALSE(config_parse("[exporter]\nlisten = \"127.0.0.1:0\"\n", "").ok());
}

class Files : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_), nullptr); }
  void TearDown() override {
    unlink(path("s.toml").c_str());
    rmdir(folder_);
  }
  std::string path(const char* name) const { return std::string(folder_) + "/" + name; }
  char folder_[32] = "/tmp/sluice-config-XXXXXX";
};

TEST_F(Files, Read) {
  std::ofstream(path("s.toml")) << "[scheduler]\nquantum = \"5ms\"\n";
  const auto result = config_read(path("s.toml"));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ((*result).quantum_ns, 5'000'000);
  EXPECT_EQ((*result).path, path("s.toml"));
}

TEST_F(Files, Missing) {
  EXPECT_EQ(
      texts(config_read(path("none"))),
      std::vector<std::string>{path("none") + ": cannot be opened: No such file or directory"});
}

TEST_F(Files, NotAFile) {
  EXPECT_EQ(texts(config_read(folder_)),
            std::vector<std::string>{std::string(folder_) + ": not a regular file"});
  ASSERT_EQ(mkfifo(path("s.toml").c_str(), 0600), 0);  // opening must not wait for a writer
  EXPECT_EQ(texts(config_read(path("s.toml"))),
            std::vector<std::string>{path("s.toml") + ": not a regular file"});
}

TEST_F(Files, TooLong) {
  std::ofstream(path("s.toml")) << std::string(2 * kFileBytesMax, '#');
  EXPECT_EQ(texts(config_read(path("s.toml"))),
            std::vector<std::string>{path("s.toml") +
                                     ": longer than 256 KiB; this is no configuration file"});
}

// Random bytes, and good files with random damage: never a crash, and a refusal always says why.
TEST(Hostile, RandomBytes) {
  std::mt19937 random(20260101);
  const std::string good = config_format(config_default()) + "\n[profile.a]\nusers = [\"anna\"]\n";
  constexpr std::string_view kAlphabet = "[]{}\"'=.,#\\\n\r\t abz019_-+:\x00\x7f\xc3\xa9\xff";
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 2 == 0 ? good : std::string(random() % 300, ' ');
    const std::size_t changes = round % 2 == 0 ? 1 + random() % 8 : text.size();
    for (std::size_t i = 0; i < changes && !text.empty(); ++i) {
      text[round % 2 == 0 ? random() % text.size() : i] = kAlphabet[random() % kAlphabet.size()];
    }
    const auto result = config_parse(text, "s.toml");
    if (result.ok()) continue;
    ++refused;
    ASSERT_FALSE(result.errors().empty());
    for (const Error& error : result.errors()) {
      ASSERT_FALSE(error.what.empty());
      for (const char c : error.text())
        ASSERT_GE(static_cast<unsigned char>(c), 0x20) << error.text();
    }
  }
  EXPECT_GT(refused, 1500);
}

TEST(WordNearest, IsNearButNotFar) {
  const std::vector<std::string> known = {"run", "status", "doctor", "lab", "help"};
  EXPECT_EQ(word_nearest("stat", known), "status");
  EXPECT_EQ(word_nearest("stauts", known), "status");
  EXPECT_EQ(word_nearest("docter", known), "doctor");
  EXPECT_EQ(word_nearest("rum", known), "run");
  EXPECT_EQ(word_nearest("exporter", known), "");
  const std::vector<std::string> options = {"--sm", "--memory", "--memory-min", "--sm-mode"};
  EXPECT_EQ(word_nearest("--mem", options), "--memory") << "a word that was cut short";
  EXPECT_EQ(word_nearest("--memroy", options), "--memory");
  EXPECT_EQ(word_nearest("--me", {"--memory", "--mean", "--sm"}), "--mean") << "or the nearest";
  EXPECT_EQ(word_nearest("--xy", options), "");
  EXPECT_EQ(word_nearest("sm", options), "--sm");
  const std::vector<std::string> variables = {"SLUICE_SM", "SLUICE_SOCKET", "SLUICE_MEMORY"};
  EXPECT_EQ(word_nearest("SLUICE_CLASS", variables), "") << "what all begin with is no likeness";
  EXPECT_EQ(word_nearest("SLUICE_SOCKTE", variables), "SLUICE_SOCKET");
  EXPECT_EQ(word_nearest("", known), "");
}

TEST(WordNearest, OfAnOptionTheNameCounts) {
  const std::vector<std::string> known = {"--listen", "--socket"};
  EXPECT_EQ(nearest_question("--lisen=127.0.0.1:9", known), " (did you mean --listen?)");
  EXPECT_EQ(nearest_question("--frobnicate", known), "");
}

}  // namespace
}  // namespace sluice::config

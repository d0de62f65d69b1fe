// Who gets which profile, and the policy that the core is given.
#include "broker/daemon/profiles.h"

#include <gtest/gtest.h>

#include "broker/daemon/named.h"

namespace sluice::daemon {
namespace {

using protocol::TenantClass;

config::Config lab() {
  config::Config config = config::config_default();
  config::ProfileSettings staff;
  staff.name = "staff";
  staff.users = {"root"};
  staff.groups = {"adm"};
  config::ProfileSettings student;
  student.name = "student";
  student.classes = {"debug", "batch"};
  student.memory_max_bytes = 2ull << 30;
  student.sm_percent_max = 25;
  student.tenants_max = 100;
  config.profiles = {staff, student};
  return config;
}

TEST(Profiles, ByUserByGroupElseEverybodys) {
  const Profiles profiles(lab());
  EXPECT_EQ(profiles.find({0, {0}, {}}).name, "staff");
  EXPECT_EQ(profiles.find({3000, {3000, 4}, {}}).name, "staff") << "adm is group 4 everywhere";
  EXPECT_EQ(profiles.find({3000, {3000}, {}}).name, "student");
  EXPECT_EQ(Profiles(config::config_default()).find({3000, {}, {}}).name, "default");
  EXPECT_TRUE(profiles.by_group());
  config::Config nobodys = lab();
  nobodys.profiles[0].groups.clear();
  EXPECT_FALSE(Profiles(nobodys).by_group())
      << "no account database is asked for what counts nowhere";
}

TEST(Profiles, ClassOfAJobThatNamesNone) {
  config::Config config = lab();
  config.profiles[0].classes = {"exclusive", "inference"};
  const Profiles profiles(config);
  EXPECT_EQ(profiles.list()[0].class_default, TenantClass::kExclusive) << "the first in the list";
  EXPECT_EQ(profiles.list()[1].class_default, TenantClass::kBatch) << "batch where it is allowed";
}

TEST(Named, UsersAndGpus) {
  const auto name = [](uid_t uid) { return uid == 1000 ? "anna" : std::to_string(uid); };
  EXPECT_EQ(people_named("user 1000 has 2 jobs, user 7 none; user x", name),
            "user anna has 2 jobs, user 7 none; user x");
  EXPECT_EQ(people_named("user 99999999999", name), "user 99999999999");
  protocol::GpuUuid gpu{};
  const std::string uuid = "GPU-00000000-0000-0000-0000-000000000000";
  EXPECT_EQ(gpus_named(uuid + " is lost (" + uuid + ")", {gpu}),
            "GPU 0 (" + uuid + ") is lost (" + uuid + ")");
}

TEST(Profiles, ByCgroupAndWhatIsBelowIt) {
  config::Config config = lab();
  EXPECT_FALSE(Profiles(config).by_cgroup());
  config::ProfileSettings course;
  course.name = "course";
  course.cgroups = {"/course.slice"};
  config.profiles.insert(config.profiles.begin(), course);
  const Profiles profiles(config);
  EXPECT_TRUE(profiles.by_cgroup());
  EXPECT_EQ(profiles.find({0, {0}, "/course.slice"}).name, "course") << "before root's own";
  EXPECT_EQ(profiles.find({3000, {}, "/course.slice/user-3000.slice/a.scope"}).name, "course");
  EXPECT_EQ(profiles.find({3000, {}, "/course.slices"}).name, "student");
  EXPECT_EQ(profiles.find({3000, {}, "/other/course.slice"}).name, "student");
  EXPECT_EQ(profiles.find_named("course", {3000, {}, "/"}), nullptr);
}

TEST(Policy, SumsOfAProfileBecomeTheCores) {
  config::Config config = lab();
  config.profiles[1].running_max = 2;
  config.profiles[1].user_memory_max_bytes = 3;
  config.profiles[1].all_running_max = 4;
  config.profiles[1].all_memory_max_bytes = 5;
  const core::Policy policy = policy_make(config, Profiles(config), 1ull << 30);
  const core::GroupPolicy& student = policy.groups.at("student");
  EXPECT_EQ(student.per_user.tenants_max, 2u);
  EXPECT_EQ(student.per_user.memory_max, 3u);
  EXPECT_EQ(student.all.tenants_max, 4u);
  EXPECT_EQ(student.all.memory_max, 5u);
  EXPECT_EQ(policy.groups.at("staff").all.memory_max, 0u) << "no limit";
}

TEST(Profiles, ByName) {
  const Profiles profiles(lab());
  EXPECT_EQ(profiles.find_named("student", {3000, {}, {}})->name, "student");
  EXPECT_EQ(profiles.find_named("staff", {3000, {}, {}}), nullptr);
  EXPECT_EQ(profiles.find_named("student", {0, {}, {}})->name, "student");
  EXPECT_EQ(profiles.find_named("nobody", {0, {}, {}}), nullptr);
}

TEST(Profiles, ClassesOfAProfile) {
  const Profiles profiles(lab());
  const Profile& student = profiles.find({3000, {}, {}});
  EXPECT_TRUE(student.classes[static_cast<int>(TenantClass::kDebug)]);
  EXPECT_FALSE(student.classes[static_cast<int>(TenantClass::kExclusive)]);
  EXPECT_TRUE(profiles.find({0, {}, {}}).classes[static_cast<int>(TenantClass::kExclusive)]);
  EXPECT_EQ(profiles.tenants_max(), 100u);
}

TEST(Policy, FromTheConfiguration) {
  config::Config config = lab();
  config.policy = "fifo";
  config.quantum_ns = 7;
  config.inference_burst_ns = 9;
  config.drain_timeout_ns = 8;
  config.oversell = 2.0;
  config.runaway = "report";
  config.runaway_after_ns = 9;
  config.classes["debug"].memory_max_bytes = 12345;
  config.classes["debug"].sm_percent = 30;
  config.classes["debug"].sm_mode = "fixed";
  config.classes["debug"].sm = "weight";
  config.classes["debug"].placement = "pack";
  config.classes["inference"].sm = "guaranteed";
  config.classes["batch"].memory_max_bytes = 0;
  const core::Policy policy = policy_make(config, Profiles(config), 4000);
  EXPECT_EQ(policy.order, core::Order::kFifo);
  EXPECT_EQ(policy.quantum_ns, 7);
  EXPECT_EQ(policy.inference_burst_ns, 9);
  EXPECT_EQ(policy.drain_timeout_ns, 8);
  EXPECT_EQ(policy.oversell_memory, 2.0);
  EXPECT_EQ(policy.runaway, core::RunawayPolicy::kReport);
  EXPECT_EQ(policy.runaway_after_ns, 9);
  EXPECT_EQ(policy.tenants_per_user_max, 100u);
  const auto& debug = policy.classes[static_cast<int>(TenantClass::kDebug)];
  EXPECT_EQ(debug.memory_max, 12345u);
  EXPECT_EQ(debug.sm_percent, 30u);
  EXPECT_EQ(debug.sm_mode, protocol::SmMode::kFixed);
  EXPECT_EQ(debug.sm, core::SmRule::kWeight);
  EXPECT_EQ(debug.placement, core::PlacementRule::kPack);
  const auto& inference = policy.classes[static_cast<int>(TenantClass::kInference)];
  EXPECT_EQ(inference.sm, core::SmRule::kGuaranteed);
  EXPECT_EQ(inference.placement, core::PlacementRule::kSpread);
  EXPECT_EQ(policy.classes[static_cast<int>(TenantClass::kBatch)].sm, core::SmRule::kAsked);
  EXPECT_EQ(policy.classes[static_cast<int>(TenantClass::kBatch)].memory_max, 1000u)
      << "a quarter of the smallest GPU";
}

TEST(Policy, MakingRoom) {
  config::Config config = lab();
  core::Policy policy = policy_make(config, Profiles(config), 4000);
  EXPECT_TRUE(policy.swap) << "who may is said tenant by tenant";
  EXPECT_EQ(policy.swap_quantum_ns, 1'000'000'000);
  EXPECT_GT(policy.swap_host_bytes_per_user, 1ull << 20) << "half of this machine's memory";
  EXPECT_EQ(policy.exclusive_room, core::ExclusiveRoom::kWait);
  config.swap_quantum_ns = 5;
  config.swap_host_max_bytes = 6;
  config.exclusive = "suspend";
  policy = policy_make(config, Profiles(config), 4000);
  EXPECT_EQ(policy.swap_quantum_ns, 5);
  EXPECT_EQ(policy.swap_host_bytes_per_user, 6u);
  EXPECT_EQ(policy.exclusive_room, core::ExclusiveRoom::kSuspend);
  config.exclusive = "move";
  policy = policy_make(config, Profiles(config), 4000);
  EXPECT_EQ(policy.exclusive_room, core::ExclusiveRoom::kMove);
}

TEST(Swap, WhoseMemoryMayBeMoved) {
  config::Config config = config::config_default();
  Profile profile;
  const auto choose = [&](bool asked, TenantClass tenant_class = TenantClass::kBatch) {
    return swap_choose(config, profile, tenant_class, asked);
  };
  EXPECT_EQ(choose(false), false);
  EXPECT_EQ(choose(true), true);
  config.swap = "on";
  EXPECT_EQ(choose(false), true);
  EXPECT_EQ(choose(false, TenantClass::kExclusive), false) << "whole GPUs only when they ask";
  EXPECT_EQ(choose(true, TenantClass::kExclusive), true);
  profile.swap = false;
  EXPECT_EQ(choose(false), false);
  EXPECT_EQ(choose(true), std::nullopt) << "refused";
  profile.swap = true;
  config.swap = "off";
  EXPECT_EQ(choose(false), true);
}

}  // namespace
}  // namespace sluice::daemon

// Who and what a command means, and what is said of it. The commands themselves run in
// tests/broker/daemon.
#include "broker/cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "broker/cli/admission.h"
#include "config/reader/config.h"

namespace sluice::cli {
namespace {

using protocol::CommandVerb;
using protocol::TenantState;
using testing::HasSubstr;

void tenant_add(Snapshot& snapshot, protocol::TenantId id, const char* name,
                TenantState state = TenantState::kRunning) {
  protocol::SnapshotTenant tenant{};
  tenant.tenant = id;
  tenant.state = state;
  std::strcpy(tenant.name, name);
  std::strcpy(tenant.user, id % 2 == 0 ? "ada" : "bob");
  snapshot.tenants.push_back(tenant);
}

Snapshot six_jobs() {
  Snapshot snapshot;
  snapshot.gpus.resize(2);
  snapshot.gpus[0].tenants = 3;
  snapshot.gpus[1].uuid.bytes[0] = 0xac;
  snapshot.gpus[1].tenants = 1;
  tenant_add(snapshot, 4, "train");
  tenant_add(snapshot, 5, "serve");
  tenant_add(snapshot, 6, "twin");
  tenant_add(snapshot, 7, "twin", TenantState::kSuspended);
  tenant_add(snapshot, 8, "4");
  tenant_add(snapshot, 0, "later", TenantState::kQueued);
  return snapshot;
}

protocol::TenantId id_of(const std::string& text, std::string* error) {
  const Snapshot snapshot = six_jobs();
  const protocol::SnapshotTenant* found = tenant_named(snapshot, text, error);
  return found == nullptr ? 0 : found->tenant;
}

TEST(TenantNamed, ByNumberAndByName) {
  std::string error;
  EXPECT_EQ(id_of("5", &error), 5u);
  EXPECT_EQ(id_of("train", &error), 4u);
  EXPECT_EQ(id_of("4", &error), 4u) << "a number is a number first";
}

TEST(TenantNamed, Mistakes) {
  std::string error;
  EXPECT_EQ(id_of("trian", &error), 0u);
  EXPECT_EQ(error,
            "there is no job 'trian'; did you mean 'train'? sluice status lists their numbers and "
            "names");
  EXPECT_EQ(id_of("99", &error), 0u);
  EXPECT_THAT(error, HasSubstr("there is no job '99'; sluice status"));
  EXPECT_EQ(id_of("", &error), 0u);
  EXPECT_EQ(id_of("twin", &error), 0u);
  EXPECT_EQ(error, "2 jobs are called 'twin': 6 of ada, 7 of bob; name one by its number");
  EXPECT_EQ(id_of("later", &error), 0u);
  EXPECT_EQ(error,
            "'later' waits in line and has nothing on a GPU yet; sluice status says what it waits "
            "for, and Ctrl-C in its sluice run takes it out");
}

CommandOptions options(CommandVerb verb, const char* tenant, const char* gpu) {
  CommandOptions out;
  out.verb = verb;
  out.tenant = tenant;
  out.gpu = gpu;
  return out;
}

TEST(Command, CarriesTenantAndGpu) {
  protocol::Command command;
  std::string error;
  ASSERT_TRUE(
      command_make(options(CommandVerb::kMove, "train", "1"), six_jobs(), &command, &error));
  EXPECT_EQ(command.verb, CommandVerb::kMove);
  EXPECT_EQ(command.tenant, 4u);
  EXPECT_EQ(command.gpu.bytes[0], 0xac);
  EXPECT_EQ(command.flags, 0u);
  ASSERT_TRUE(command_make(options(CommandVerb::kDrain, "", "1"), six_jobs(), &command, &error));
  EXPECT_EQ(command.tenant, 0u);
  EXPECT_FALSE(
      command_make(options(CommandVerb::kMove, "train", "7"), six_jobs(), &command, &error));
  EXPECT_THAT(error, HasSubstr("there is no GPU 7"));
  EXPECT_FALSE(command_make(options(CommandVerb::kSuspend, "x", ""), six_jobs(), &command, &error));
}

TEST(Command, WhatAResumedJobWaitsFor) {
  protocol::Command command;
  protocol::message_init(command, protocol::MessageType::kCommand, 1);
  command.verb = CommandVerb::kResume;
  command.tenant = 7;
  Snapshot snapshot = six_jobs();
  EXPECT_EQ(waiting_text(command, snapshot), "");
  std::strcpy(snapshot.tenants[3].why, "it waits in the queue: GPU 0 is drained");
  EXPECT_EQ(waiting_text(command, snapshot), "twin: it waits in the queue: GPU 0 is drained");
  snapshot.tenants[3].state = TenantState::kSwapped;  // it has its promise, and no room yet
  std::strcpy(snapshot.tenants[3].why, "its memory is on the host, for others' turn");
  EXPECT_EQ(waiting_text(command, snapshot), "twin: its memory is on the host, for others' turn");
  command.verb = CommandVerb::kSuspend;
  EXPECT_EQ(waiting_text(command, snapshot), "");
}

TEST(Command, WhatIsSaid) {
  protocol::Command command;
  protocol::message_init(command, protocol::MessageType::kCommand, 1);
  command.verb = CommandVerb::kSuspend;
  command.tenant = 4;
  Snapshot snapshot = six_jobs();
  EXPECT_EQ(progress_text(command, snapshot, 100'000'000), "suspending train: 0.1 s");
  for (const std::uint64_t out : {1U, 2U}) {
    protocol::SnapshotTenantGpu part{};
    part.tenant = 4;
    part.movable_bytes = 2ull << 30;
    part.swapped_bytes = out << 29;
    snapshot.tenant_gpus.push_back(part);
  }
  EXPECT_EQ(progress_text(command, snapshot, 2'100'000'000),
            "suspending train: 1.5 GiB of 4 GiB out, 2.1 s");
  protocol::CommandDone done;
  protocol::message_init(done, protocol::MessageType::kCommandDone, 1);
  done.bytes = 3ull << 29;
  done.taken_ns = 2'300'000'000;
  EXPECT_EQ(done_text(command, snapshot, done),
            "train (job 4) is suspended; 1.5 GiB moved in 2.3 s");
  command.verb = CommandVerb::kResume;
  EXPECT_EQ(done_text(command, snapshot, done), "train (job 4) goes on; 1.5 GiB moved in 2.3 s");
  EXPECT_EQ(done_text(command, snapshot, done, 3'200'000'000),
            "train (job 4) goes on; 1.5 GiB moved in 2.3 s");
  EXPECT_EQ(done_text(command, snapshot, done, 609'900'000'000),
            "train (job 4) goes on; 1.5 GiB moved in 2.3 s, after it had waited 607.6 s");
  command.verb = CommandVerb::kMove;
  command.gpu = snapshot.gpus[1].uuid;
  EXPECT_EQ(done_text(command, snapshot, done),
            "train (job 4) goes on on GPU 1; 1.5 GiB moved in 2.3 s");
  done.bytes = 0;
  EXPECT_EQ(done_text(command, snapshot, done), "train (job 4) goes on on GPU 1; it took 2.3 s");
  command.verb = CommandVerb::kDrain;
  EXPECT_EQ(done_text(command, snapshot, done),
            "GPU 1 takes no new jobs; 1 job stays until it ends");
  command.gpu = snapshot.gpus[0].uuid;
  EXPECT_EQ(done_text(command, snapshot, done),
            "GPU 0 takes no new jobs; 3 jobs stay until they end");
  snapshot.gpus[0].tenants = 0;
  EXPECT_EQ(done_text(command, snapshot, done),
            "GPU 0 takes no new jobs; nothing is on it: it is drained");
  command.until_s = 1;
  std::strcpy(command.reason, "new fans");
  EXPECT_EQ(done_text(command, snapshot, done), "GPU 0 takes no new jobs until " +
                                                    config::time_format(1) +
                                                    " (new fans); nothing is on it: it is drained");
  command.verb = CommandVerb::kUndrain;
  EXPECT_EQ(done_text(command, snapshot, done), "GPU 0 takes new jobs again");
}

}  // namespace
}  // namespace sluice::cli

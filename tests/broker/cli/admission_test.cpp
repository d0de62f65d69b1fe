// The question and the texts of the line.
#include "broker/cli/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "broker/cli/run.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;

RunOptions options() {
  RunOptions out;
  out.command = {"/usr/bin/python3", "train.py"};
  return out;
}

std::vector<protocol::SnapshotGpu> two_gpus() {
  std::vector<protocol::SnapshotGpu> gpus(2);
  gpus[0].uuid.bytes[0] = 0xab;
  gpus[1].uuid.bytes[0] = 0xac;
  return gpus;
}

TEST(Admit, CarriesTheOptions) {
  RunOptions run = options();
  run.tenant_class = protocol::TenantClass::kInference;
  run.sm_mode = protocol::SmMode::kFixed;
  run.sm_percent = 25;
  run.memory_max_bytes = 1000;
  run.memory_min_bytes = 500;
  run.timeout_ns = 7;
  run.no_wait = true;
  run.swap = true;
  run.gpus = {"1"};
  run.profile = "staff";
  protocol::Admit admit;
  std::string error;
  ASSERT_TRUE(admit_make(run, two_gpus(), &admit, &error)) << error;
  EXPECT_EQ(admit.header.size, sizeof admit);
  EXPECT_EQ(admit.tenant_class, protocol::TenantClass::kInference);
  EXPECT_EQ(admit.sm_mode, protocol::SmMode::kFixed);
  EXPECT_EQ(admit.sm_percent, 25u);
  EXPECT_EQ(admit.memory_max_bytes, 1000u);
  EXPECT_EQ(admit.memory_min_bytes, 500u);
  EXPECT_EQ(admit.wait_ns_max, 7u);
  EXPECT_EQ(admit.flags, protocol::kAdmitNoWait | protocol::kAdmitSwap);
  EXPECT_EQ(admit.pinned_count, 1u);
  EXPECT_EQ(admit.pinned[0].bytes[0], 0xac);
  EXPECT_STREQ(admit.name, "python3");
  EXPECT_STREQ(admit.profile, "staff");
}

TEST(Admit, AWeightIsAskedForAsSuch) {
  RunOptions run = options();
  run.sm_percent = 25;
  run.weight = true;
  protocol::Admit admit;
  std::string error;
  ASSERT_TRUE(admit_make(run, {}, &admit, &error));
  EXPECT_EQ(admit.sm_percent, 25u);
  EXPECT_EQ(admit.flags & ~protocol::kAdmitAnyClass, protocol::kAdmitWeight);
}

TEST(Admit, LongNamesAreCut) {
  RunOptions run = options();
  run.name = std::string(100, 'n');
  protocol::Admit admit;
  std::string error;
  ASSERT_TRUE(admit_make(run, {}, &admit, &error));
  EXPECT_EQ(std::strlen(admit.name), protocol::kNameBytes - 1);
  run.name = "job-" + std::string(8, '-') + "日本語日本語日本語";
  ASSERT_TRUE(admit_make(run, two_gpus(), &admit, &error)) << error;
  EXPECT_STREQ(admit.name, "job---------日本語日本語") << "whole characters";
}

TEST(GpuFind, Texts) {
  const auto gpus = two_gpus();
  std::string error;
  EXPECT_EQ(gpu_find(gpus, "0", &error), &gpus[0]);
  EXPECT_EQ(gpu_find(gpus, "GPU-ac", &error), &gpus[1]);
  EXPECT_EQ(gpu_find(gpus, "GPU-a", &error), nullptr);
  EXPECT_THAT(error, HasSubstr("more than one"));
  EXPECT_EQ(gpu_find(gpus, "2", &error), nullptr);
  EXPECT_THAT(error, HasSubstr("the broker has 2"));
  for (const char* text : {"", "GPU-", "GPU-ff", "-1", "99999999999999999999"}) {
    EXPECT_EQ(gpu_find(gpus, text, &error), nullptr) << text;
  }
}

TEST(Ordinal, English) {
  const char* expected[] = {"0th", "1st", "2nd", "3rd", "4th"};
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(ordinal(i), expected[i]);
  EXPECT_EQ(ordinal(11), "11th");
  EXPECT_EQ(ordinal(12), "12th");
  EXPECT_EQ(ordinal(21), "21st");
  EXPECT_EQ(ordinal(113), "113th");
}

TEST(QueuedText, WordForWord) {
  protocol::Queued queued{};
  queued.position = 3;
  queued.reason = protocol::QueueReason::kResources;
  queued.promised_bytes = 3ull << 30;
  queued.capacity_bytes = 4ull << 30;
  std::strcpy(queued.ahead, "train");
  std::strcpy(queued.text, "the quotas on GPU 0 add up to 3 GiB of 4 GiB");
  EXPECT_EQ(queued_text(queued),
            "no room yet: the quotas on GPU 0 add up to 3 GiB of 4 GiB; you are 3rd in line behind "
            "train (Resources); Ctrl-C leaves the line");
}

TEST(QueuedText, AWaitForTheJobAroundItIsSaid) {
  protocol::Queued queued{};
  queued.position = 1;
  queued.reason = protocol::QueueReason::kDrain;
  std::strcpy(queued.text, "job 12 (sh) of user ada runs on GPU 0");
  setenv("SLUICE_TENANT", "1:00ff", 1);
  EXPECT_EQ(queued_text(queued).find("around"), std::string::npos) << "another job";
  setenv("SLUICE_TENANT", "12:00ff", 1);
  EXPECT_NE(queued_text(queued).find("GPU 0; job 12 is the sluice run around this command: run it "
                                     "outside of that; you are 1st"),
            std::string::npos)
      << queued_text(queued);
  unsetenv("SLUICE_TENANT");
}

TEST(QueuedText, SaysHowMuchIsGuaranteed) {
  protocol::Queued queued{};
  queued.position = 1;
  queued.reason = protocol::QueueReason::kShare;
  std::strcpy(queued.text, "the guarantees on GPU 0 add up to 80 of 100 %");
  EXPECT_EQ(queued_text(queued),
            "no share yet: the guarantees on GPU 0 add up to 80 of 100 %; --weight asks for no "
            "guarantee; you are 1st in line (Share); Ctrl-C leaves the line");
}

TEST(QueuedText, SaysWhichLimit) {
  using protocol::QueueLimit;
  protocol::Queued queued{};
  queued.position = 1;
  queued.reason = protocol::QueueReason::kUserLimit;
  const auto text = [&](QueueLimit limit, std::uint64_t used, std::uint64_t most) {
    queued.limit = limit;
    queued.promised_bytes = used;
    queued.capacity_bytes = most;
    return queued_text(queued);
  };
  const std::string rest = "; you are 1st in line (UserLimit); Ctrl-C leaves the line";
  EXPECT_EQ(text(QueueLimit::kUserTenants, 64, 64),
            "not yet: you have 64 jobs, as many as one user may have" + rest);
  EXPECT_EQ(text(QueueLimit::kUserRunning, 2, 2),
            "not yet: you have 2 jobs running, as many as your profile allows each user" + rest);
  EXPECT_EQ(text(QueueLimit::kUserRunning, 1, 1),
            "not yet: you have 1 job running, as many as your profile allows each user" + rest);
  EXPECT_EQ(text(QueueLimit::kUserMemory, 1ull << 30, 2ull << 30),
            "not yet: your jobs have 1 GiB of the 2 GiB of GPU memory that your profile allows "
            "each user" +
                rest);
  EXPECT_EQ(
      text(QueueLimit::kAllRunning, 5, 5),
      "not yet: the users of your profile have 5 jobs running, as many as it allows all of them "
      "together" +
          rest);
  EXPECT_EQ(text(QueueLimit::kAllMemory, 1ull << 30, 2ull << 30),
            "not yet: the jobs with your profile have 1 GiB of the 2 GiB of GPU memory that it "
            "allows all its users together" +
                rest);
}

TEST(RefusalText, NamesTheMinimum) {
  protocol::Refused refused{};
  refused.code = protocol::RefusalCode::kMemoryBelowContext;
  refused.minimum_bytes = 32 << 20;
  std::strcpy(refused.text, "too small");
  EXPECT_EQ(refusal_text(refused), "too small; the smallest quota that would do is 32 MiB");
  std::strcpy(refused.text, "ask for 32 MiB");
  EXPECT_EQ(refusal_text(refused), "ask for 32 MiB");
  refused.code = protocol::RefusalCode::kTooManyGpus;
  std::snprintf(refused.text, sizeof refused.text, "ask for at most 1");
  EXPECT_EQ(refusal_text(refused), "ask for at most 1");
  EXPECT_EQ(refusal_text(refused, true), "ask for at most 1, or make more: --soft N");
}

std::string shown(bool terminal, const std::vector<std::string>& texts) {
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  WaitLine line(fds[1], terminal);
  for (const std::string& text : texts) line.show(text);
  line.finish();
  close(fds[1]);
  char buffer[256];
  const ssize_t got = read(fds[0], buffer, sizeof buffer);
  close(fds[0]);
  return std::string(buffer, got > 0 ? static_cast<std::size_t>(got) : 0);
}

TEST(WaitLine, OneLinePerChange) {
  EXPECT_EQ(shown(false, {"a", "a", "b"}), "sluice: a\nsluice: b\n");
}
TEST(WaitLine, InPlaceOnATerminal) {
  EXPECT_EQ(shown(true, {"a", "b"}), "\r\033[Ksluice: a\r\033[Ksluice: b\n");
}
TEST(WaitLine, NothingIsBroken) {
  protocol::Queued queued{};
  queued.position = 1;
  queued.reason = protocol::QueueReason::kResources;
  std::strcpy(queued.text,
              "the quotas on GPU 0 add up to 3.5 GiB of 3.5 GiB, and this job asks for 1 GiB; most "
              "of it has job 3 (train) of user anna: 2 GiB, idle for 12m");
  std::memset(queued.ahead, 'n', sizeof queued.ahead - 1);
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);  // no terminal, so 80 columns
  WaitLine line(fds[1], true);
  line.queued(queued);
  queued.position = 2;
  line.queued(queued);
  line.finish();
  close(fds[1]);
  char buffer[2048];
  const ssize_t got = read(fds[0], buffer, sizeof buffer);
  close(fds[0]);
  ASSERT_GT(got, 0);
  const std::string text(buffer, static_cast<std::size_t>(got));
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' || text[i] == '\r') {
      width = 0;
      i += text[i] == '\r' ? 3 : 0;  // and what clears the line
      continue;
    }
    EXPECT_LE(++width, 79U) << text;
  }
  EXPECT_THAT(text, HasSubstr("sluice: no room yet: the quotas on GPU 0 add up to 3.5 GiB"));
  EXPECT_THAT(text, HasSubstr("anna: 2 GiB, idle\n  for 12m\n"));
  EXPECT_THAT(text, HasSubstr("\r\033[Ksluice: 2nd in line behind nnnn"));
  EXPECT_EQ(text.find("no room yet", text.find("no room yet") + 1), std::string::npos)
      << "the reason stands there once";
}

TEST(WaitLine, NothingWithoutWaiting) { EXPECT_EQ(shown(true, {}), ""); }

}  // namespace
}  // namespace sluice::cli

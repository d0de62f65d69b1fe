// Which datagrams are messages.
#include "broker/daemon/validate.h"
#include "broker/protocol/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace sluice::daemon {
namespace {

using protocol::Envelope;
using protocol::MessageType;
using testing::HasSubstr;

template <class M>
Envelope envelope_of(const M& message) {
  Envelope envelope;
  std::memset(static_cast<void*>(&envelope), 0, sizeof envelope);
  std::memcpy(envelope.bytes, &message, sizeof message);
  envelope.size = sizeof message;
  return envelope;
}

template <class M>
std::string fault_of(const M& message) {
  return message_fault(envelope_of(message)).value_or("");
}

protocol::Admit good_admit() {
  protocol::Admit admit;
  protocol::message_init(admit, MessageType::kAdmit, 1);
  admit.gpu_count = 1;
  return admit;
}

TEST(Admit, GoodOnePasses) {
  protocol::Admit admit = good_admit();
  EXPECT_EQ(fault_of(admit), "");
  admit.gpu_count = protocol::kTenantGpusMax;
  admit.sm_percent = 100;
  admit.flags = protocol::kAdmitNoWait | protocol::kAdmitDryRun;
  EXPECT_EQ(fault_of(admit), "");
}

TEST(Admit, EveryFieldIsChecked) {
  struct Case {
    void (*spoil)(protocol::Admit&);
    const char* fault;
  };
  const Case cases[] = {
      {[](auto& a) { a.tenant_class = static_cast<protocol::TenantClass>(4); }, "class"},
      {[](auto& a) { a.sm_mode = static_cast<protocol::SmMode>(3); }, "sm mode"},
      {[](auto& a) { a.sm_percent = 101; }, "sm_percent"},
      {[](auto& a) { a.gpu_count = 0; }, "gpu_count"},
      {[](auto& a) { a.gpu_count = protocol::kTenantGpusMax + 1; }, "gpu_count"},
      {[](auto& a) { a.gpu_count = UINT32_MAX; }, "gpu_count"},
      {[](auto& a) { a.pinned_count = protocol::kTenantGpusMax + 1; }, "pinned_count"},
      {[](auto& a) { a.pinned_count = 2; }, "pinned_count differs"},
      {[](auto& a) { a.gpu_count = a.pinned_count = 2; }, "pinned twice"},
      {[](auto& a) { a.flags = 32; }, "flags"},
      {[](auto& a) { a.window_ns = UINT64_MAX; }, "duration"},
      {[](auto& a) { a.wait_ns_max = UINT64_MAX; }, "duration"},
      {[](auto& a) { std::memset(a.name, 'x', sizeof a.name); }, "terminated"},
      {[](auto& a) { std::memset(a.profile, 'x', sizeof a.profile); }, "terminated"},
  };
  for (const Case& c : cases) {
    protocol::Admit admit = good_admit();
    c.spoil(admit);
    EXPECT_THAT(fault_of(admit), HasSubstr(c.fault));
  }
}

TEST(Sizes, MustBeExact) {
  for (const MessageType type :
       {MessageType::kAdmit, MessageType::kRegister, MessageType::kGateWant, MessageType::kGateIdle,
        MessageType::kDrained, MessageType::kHeld, MessageType::kMoved, MessageType::kMemoryWant,
        MessageType::kCommand, MessageType::kJobReport, MessageType::kRelease,
        MessageType::kSnapshotRequest, MessageType::kActivityRequest}) {
    for (const std::size_t size :
         {sizeof(protocol::Header), sizeof(protocol::Header) + 4, protocol::kMessageBytesMax}) {
      Envelope envelope =
          envelope_of(protocol::Header{protocol::kMessageMagic, protocol::kVersion, type, 0, 0});
      envelope.size = size;
      if (type == MessageType::kSnapshotRequest && size == sizeof(protocol::Header))
        continue;  // that is its size
      EXPECT_TRUE(message_fault(envelope)) << static_cast<int>(type) << " of " << size << " bytes";
    }
  }
}

TEST(Types, RepliesAndUnknownOnesAreRefused) {
  for (int type = 0; type < 70000; type += type < 40 ? 1 : 997) {
    Envelope envelope =
        envelope_of(protocol::Header{protocol::kMessageMagic, protocol::kVersion,
                                     static_cast<MessageType>(type), sizeof(protocol::Header), 0});
    EXPECT_EQ(message_fault(envelope).has_value(), static_cast<std::uint16_t>(type) != 13) << type;
  }
}

TEST(GateNote, IndexIsBounded) {
  protocol::GateNote note;
  protocol::message_init(note, MessageType::kDrained, 0);
  note.gpu = protocol::kTenantGpusMax - 1;
  EXPECT_EQ(fault_of(note), "");
  note.gpu = protocol::kTenantGpusMax;
  EXPECT_THAT(fault_of(note), HasSubstr("index"));
}

TEST(Moved, NamesAnOrder) {
  protocol::Moved moved;
  protocol::message_init(moved, MessageType::kMoved, 0);
  using protocol::hold_word;
  const std::uint32_t set = protocol::kHoldSet, out = protocol::kHoldOut, in = protocol::kHoldIn;
  for (const std::uint32_t flags : {set | out, set | in}) {
    moved.word = hold_word(7, flags);
    EXPECT_EQ(fault_of(moved), "");
  }
  for (const std::uint32_t flags : {0U, set, out, in, set | out | in}) {
    moved.word = hold_word(7, flags);
    EXPECT_THAT(fault_of(moved), HasSubstr("order"));
  }
  moved.word = hold_word(7, set | out);
  moved.taken_ns = UINT64_MAX;
  EXPECT_THAT(fault_of(moved), HasSubstr("duration"));
  moved.taken_ns = 0;
  moved.gpu = protocol::kTenantGpusMax;
  EXPECT_THAT(fault_of(moved), HasSubstr("index"));
}

TEST(MemoryWant, IndexIsBounded) {
  protocol::MemoryWant want;
  protocol::message_init(want, MessageType::kMemoryWant, 0);
  EXPECT_EQ(fault_of(want), "");
  want.gpu = protocol::kTenantGpusMax;
  EXPECT_THAT(fault_of(want), HasSubstr("index"));
}

TEST(Command, VerbsAndFlags) {
  protocol::Command command;
  protocol::message_init(command, MessageType::kCommand, 0);
  for (std::uint32_t verb = 0; verb < 8; ++verb) {
    command.verb = static_cast<protocol::CommandVerb>(verb);
    EXPECT_EQ(fault_of(command).empty(), verb >= 1 && verb <= 5) << verb;
  }
  command.verb = protocol::CommandVerb::kSuspend;
  command.flags = 1;
  EXPECT_THAT(fault_of(command), HasSubstr("flags"));
}

TEST(JobReport, RanksAndRatios) {
  protocol::JobReport report;
  protocol::message_init(report, MessageType::kJobReport, 0);
  report.rank_count = 2;
  report.rank = 1;
  report.straggler_score = 1.5;
  EXPECT_EQ(fault_of(report), "");
  report.rank = 2;
  EXPECT_THAT(fault_of(report), HasSubstr("rank is not below"));
  report.rank = 0;
  report.rank_count = 0;
  EXPECT_THAT(fault_of(report), HasSubstr("rank_count"));
  report.rank_count = 1;
  for (const double score : {std::nan(""), HUGE_VAL, -1.0}) {
    report.straggler_score = score;
    EXPECT_THAT(fault_of(report), HasSubstr("straggler"));
  }
}

TEST(Descriptors, AreNeverExpected) {
  Envelope envelope = envelope_of(good_admit());
  envelope.fd_count = 1;
  EXPECT_THAT(message_fault(envelope).value_or(""), HasSubstr("descriptors"));
}

TEST(TextClean, NoControlCharactersReachAnybody) {
  const char field[8] = {'a', '\n', '\033', '[', 'b', '\0', 'c', 'd'};
  EXPECT_EQ(text_clean(field, sizeof field), "a??[b");
  EXPECT_EQ(text_clean("abcd", 2), "ab");
}

std::string clean(const std::string& text) { return text_clean(text.data(), text.size()); }

TEST(TextClean, WhatATerminalObeysOrAReaderChokesOnIsReplaced) {
  EXPECT_EQ(clean("gr\xc3\xbc\xc3\x9f \xe4\xbd\xa0\xf0\x9f\x98\x80"),
            "gr\xc3\xbc\xc3\x9f \xe4\xbd\xa0\xf0\x9f\x98\x80");
  EXPECT_EQ(clean("a\x9b"
                  "31m"),
            "a?31m")
      << "not UTF-8; a control sequence to 8-bit terminals";
  EXPECT_EQ(clean("a\xc2\x9b"
                  "31m"),
            "a?31m")
      << "the same control character in UTF-8";
  EXPECT_EQ(clean("a\xe2\x80\xae"
                  "b"),
            "a?b")
      << "turns the direction of what follows";
  EXPECT_EQ(clean("a\xe2\x81\xa6"
                  "b\xe2\x80\xa8"
                  "c"),
            "a?b?c")
      << "isolates, line separators";
  EXPECT_EQ(clean("cut\xc3"), "cut?");
  EXPECT_EQ(clean("\xed\xa0\x80\xc0\xaf\xf8"), "??????")
      << "surrogate, overlong form, no lead byte";
}

}  // namespace
}  // namespace sluice::daemon

// The rules, one function per message type.
#include "broker/daemon/validate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "broker/protocol/pages.h"

namespace sluice::daemon {
namespace {

using protocol::Envelope;
using protocol::MessageType;
using Fault = std::optional<std::string>;

bool terminated(const char* field, std::size_t size) {
  return std::memchr(field, '\0', size) != nullptr;
}

template <class E>
std::uint32_t raw(E value) {
  return static_cast<std::uint32_t>(value);
}

Fault admit_fault(const protocol::Admit& admit) {
  if (raw(admit.tenant_class) > raw(protocol::TenantClass::kExclusive))
    return "the class is none of the four";
  if (raw(admit.sm_mode) > raw(protocol::SmMode::kFixed)) return "the sm mode is none of the three";
  if (admit.sm_percent > 100) return "sm_percent is above 100";
  if (admit.gpu_count < 1 || admit.gpu_count > protocol::kTenantGpusMax) {
    return "gpu_count is outside 1.." + std::to_string(protocol::kTenantGpusMax);
  }
  if (admit.pinned_count > protocol::kTenantGpusMax) return "pinned_count is larger than its array";
  if (admit.pinned_count != 0 && admit.pinned_count != admit.gpu_count)
    return "pinned_count differs from gpu_count";
  for (std::uint32_t i = 0; i < admit.pinned_count; ++i) {
    for (std::uint32_t j = 0; j < i; ++j) {
      if (admit.pinned[i] == admit.pinned[j]) return "the same GPU is pinned twice";
    }
  }
  constexpr std::uint32_t kFlags = protocol::kAdmitNoWait | protocol::kAdmitDryRun |
                                   protocol::kAdmitSwap | protocol::kAdmitWeight |
                                   protocol::kAdmitAnyClass;
  if ((admit.flags & ~kFlags) != 0) return "unknown flags";
  if (admit.window_ns > INT64_MAX || admit.wait_ns_max > INT64_MAX / 2)
    return "a duration is beyond 146 years";
  if (!terminated(admit.name, sizeof admit.name) ||
      !terminated(admit.profile, sizeof admit.profile)) {
    return "a text is not terminated";
  }
  return std::nullopt;
}

Fault moved_fault(const protocol::Moved& moved) {
  if (moved.gpu >= protocol::kTenantGpusMax) return "the GPU index is too large";
  const std::uint32_t order = moved.word & (protocol::kHoldOut | protocol::kHoldIn);
  if ((moved.word & protocol::kHoldSet) == 0 ||
      (order != protocol::kHoldOut && order != protocol::kHoldIn))
    return "the word is no order";
  if (moved.taken_ns > INT64_MAX) return "a duration is beyond 146 years";
  return std::nullopt;
}

Fault command_fault(const protocol::Command& command) {
  const std::uint32_t verb = raw(command.verb);
  if (verb < raw(protocol::CommandVerb::kSuspend) || verb > raw(protocol::CommandVerb::kUndrain))
    return "there is no command " + std::to_string(verb);
  if (command.flags != 0) return "unknown flags";
  if (!terminated(command.reason, sizeof command.reason)) return "a text is not terminated";
  if (command.until_s > INT64_MAX / 1'000'000'000) return "a time is too far away";
  return std::nullopt;
}

Fault report_fault(const protocol::JobReport& report) {
  if (report.rank_count < 1 || report.rank_count > protocol::kTenantProcessesMax) {
    return "rank_count is outside 1.." + std::to_string(protocol::kTenantProcessesMax);
  }
  if (report.rank >= report.rank_count) return "rank is not below rank_count";
  if (!std::isfinite(report.straggler_score) || report.straggler_score < 0)
    return "straggler_score is not a ratio";
  return std::nullopt;
}

/// Length of the UTF-8 sequence at `at` and its code point; 0 for anything else, overlong forms and
/// surrogates included.
std::size_t utf8_decode(const unsigned char* at, std::size_t left, std::uint32_t* point) {
  const std::size_t length = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
  if (length > left || at[0] > 0xf4 || (at[0] >= 0x80 && at[0] < 0xc2)) return 0;
  *point = length == 1 ? at[0] : at[0] & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((at[i] & 0xc0) != 0x80) return 0;
    *point = (*point << 6) | (at[i] & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = *point >= 0xd800 && *point <= 0xdfff;
  return *point < kLeast[length] || *point > 0x10ffff || surrogate ? 0 : length;
}

/// Characters that act on a terminal instead of showing: controls, line separators, and those that
/// turn the direction of the text around them.
bool obeyed(std::uint32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0) || (point >= 0x2028 && point <= 0x202e) ||
         point == 0x200e || point == 0x200f || (point >= 0x2066 && point <= 0x2069);
}

template <class M>
Fault size_fault(const Envelope& envelope) {
  if (envelope.size == sizeof(M)) return std::nullopt;
  return "a message of type " + std::to_string(raw(envelope.header().type)) + " has " +
         std::to_string(sizeof(M)) + " bytes, this one " + std::to_string(envelope.size);
}

}  // namespace

Fault message_fault(const Envelope& envelope) {
  if (envelope.fd_count > 0) return "it carries descriptors, and no message to the broker does";
  Fault fault;
  switch (envelope.header().type) {
    case MessageType::kAdmit:
      fault = size_fault<protocol::Admit>(envelope);
      return fault ? fault : admit_fault(envelope.as<protocol::Admit>());
    case MessageType::kRegister:
      fault = size_fault<protocol::Register>(envelope);
      if (fault) return fault;
      if (!terminated(envelope.as<protocol::Register>().command, protocol::kNameBytes))
        return "a text is not terminated";
      return std::nullopt;
    case MessageType::kGateWant:
    case MessageType::kGateIdle:
    case MessageType::kDrained:
    case MessageType::kHeld:
      fault = size_fault<protocol::GateNote>(envelope);
      if (fault) return fault;
      if (envelope.as<protocol::GateNote>().gpu >= protocol::kTenantGpusMax)
        return "the GPU index is too large";
      return std::nullopt;
    case MessageType::kMoved:
      fault = size_fault<protocol::Moved>(envelope);
      return fault ? fault : moved_fault(envelope.as<protocol::Moved>());
    case MessageType::kMemoryWant:
      fault = size_fault<protocol::MemoryWant>(envelope);
      if (fault) return fault;
      if (envelope.as<protocol::MemoryWant>().gpu >= protocol::kTenantGpusMax)
        return "the GPU index is too large";
      return std::nullopt;
    case MessageType::kCommand:
      fault = size_fault<protocol::Command>(envelope);
      return fault ? fault : command_fault(envelope.as<protocol::Command>());
    case MessageType::kReload:
      fault = size_fault<protocol::Reload>(envelope);
      if (fault) return fault;
      if ((envelope.as<protocol::Reload>().flags & ~protocol::kReloadLook) != 0)
        return "unknown flags";
      return std::nullopt;
    case MessageType::kJobReport:
      fault = size_fault<protocol::JobReport>(envelope);
      return fault ? fault : report_fault(envelope.as<protocol::JobReport>());
    case MessageType::kRelease:
      return size_fault<protocol::Release>(envelope);
    case MessageType::kSnapshotRequest:
      return size_fault<protocol::SnapshotRequest>(envelope);
    case MessageType::kActivityRequest:
      return size_fault<protocol::ActivityRequest>(envelope);
    case MessageType::kQueued:
    case MessageType::kAdmitted:
    case MessageType::kRefused:
    case MessageType::kRegistered:
    case MessageType::kDone:
    case MessageType::kCommandDone:
    case MessageType::kSnapshotReply:
    case MessageType::kActivityReply:
    case MessageType::kReloaded:
      return "only the broker sends messages of type " +
             std::to_string(raw(envelope.header().type));
  }
  return "there is no message type " + std::to_string(raw(envelope.header().type));
}

std::string text_clean(const char* field, std::size_t size) {
  const std::size_t length = strnlen(field, size);
  const auto* bytes = reinterpret_cast<const unsigned char*>(field);
  std::string out;
  for (std::size_t i = 0; i < length;) {
    std::uint32_t point = 0;
    const std::size_t step = utf8_decode(bytes + i, length - i, &point);
    if (step == 0 || obeyed(point))
      out += '?';
    else
      out.append(field + i, step);
    i += std::max<std::size_t>(step, 1);
  }
  return out;
}

}  // namespace sluice::daemon

// Whether a datagram is a message the broker accepts from anybody: known type, exact size, every
// field in range, texts terminated. Says nothing about whether this sender may say it now (see
// sessions.h). Pure.
#pragma once

#include <optional>
#include <string>

#include "broker/protocol/wire.h"

namespace sluice::daemon {

/// What is wrong with the message, for the sender's eyes; nothing when it is sound. The header's
/// magic and size were checked by wire_receive, its version by the caller.
std::optional<std::string> message_fault(const protocol::Envelope& envelope);

/// A fixed text field as a string of sound UTF-8, without characters that could disturb a terminal
/// or a log; each that is not so becomes one '?'.
std::string text_clean(const char* field, std::size_t size);

}  // namespace sluice::daemon

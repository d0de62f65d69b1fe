// Whether a shim is believed that the driver has no room. See refusal.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

enum class Refusal : std::uint8_t {
  kSettled,   // the GPU's books show no room for it (any more): room is to be made
  kUnproven,  // the device's answer is to come, or its asker is to ask the driver a little later
  kUntrue,    // the device shows room: the driver is to be asked again
};

/// What is known of this want at its arrival.
void refusal_note(Want& want, const Share& share, const Gpu& gpu, Nanos now);
/// Is it true that the driver has no room for this want? Asks the device where it has to be.
Refusal refusal_judge(State& state, Gpu& gpu, Want& want, std::uint32_t uid, Nanos now,
                      Actions& out);
/// The want has been answered.
void refusal_answered(Gpu& gpu, const Want& want, Share& share, bool none, Nanos now);

}  // namespace sluice::core

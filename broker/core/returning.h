// Memory of processes that are gone, until the device shows it free. See returning.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// A process of the share's tenant is gone that had so much on its GPU.
void returning_add(State& state, const Share& share, Bytes held, Nanos now);
void device_seen(State& state, const DeviceSeen& event, Nanos now);
/// Asks for the device's figure where it is due, and gives up what has taken too long.
void returning_decide(State& state, Nanos now, Actions& out);
/// When it has something to do if nothing else happens.
Nanos returning_at(const State& state);

/// How often the device is asked while something is on its way back, and for how long without
/// progress.
inline constexpr Nanos kDeviceLookNs = 5'000'000;
inline constexpr Nanos kReturnMaxNs = 5'000'000'000;

}  // namespace sluice::core

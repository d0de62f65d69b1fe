// Who goes out for somebody else's want of memory. See victims.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

struct Victims {
  std::vector<Tenant*> chosen;  // to go now; empty = those that may go now do not suffice
  bool later = false;           // but they will with those that may go at another time,
  Nanos later_at = kNever;      // the first of them then; kNever = an event tells
};

/// Who is to go so that `missing` bytes of this GPU become free for the asker.
Victims victims_find(const State& state, const Gpu& gpu, const Tenant& asker, Bytes missing,
                     Nanos now);

}  // namespace sluice::core

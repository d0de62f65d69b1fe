// What the core is told of a tenant that a journal remembers.
#pragma once

#include <unistd.h>

#include "broker/core/core.h"
#include "broker/daemon/journal_format.h"

namespace sluice::daemon {

inline core::TenantRestored tenant_restored(const JournalTenant& known) {
  core::TenantRestored event;
  event.tenant = known.id;
  event.uid = known.uid;
  event.tenant_class = known.tenant_class;
  event.sm_mode = known.sm_mode;
  event.sm_kind = known.sm_kind;
  event.sm_percent = known.sm_percent;
  event.memory_max = known.memory_max_bytes;
  event.memory_min = known.memory_min_bytes;
  event.window_ns = known.window_ns;
  event.asked_at = known.asked_ns;
  event.admitted_at = known.admitted_ns;
  event.released = known.released;
  event.swap = known.swap;
  event.suspended = known.stay.suspended;
  event.rests = known.stay.rests;
  event.returns = known.stay.returns;
  event.swapped = known.stay.swapped;
  event.frozen = known.stay.frozen;
  event.frozen_on = known.stay.frozen_on;
  if (known.stay.by_other) event.suspended_by = geteuid();
  event.gpus = known.gpus;
  event.group = known.profile;
  event.name = known.name;
  return event;
}

}  // namespace sluice::daemon

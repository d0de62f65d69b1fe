// What is known of why GPUs stand idle, for those who show it: per tenant and GPU the account so
// far, and how it is known.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "broker/protocol/words.h"
#include "exporter/idle/account.h"

namespace sluice::exporter {

/// By tenant and the GPU's UUID as text.
using IdleTable = std::map<std::pair<protocol::TenantId, std::string>, IdleFigures>;

struct IdleState {
  const char* kind = "none";  // bpf, proc (samples), none
  std::string reason;         // why it is that, and no better
  IdleTable table;            // those that are observed; since they are
  std::uint64_t unseen = 0;   // shared tenants that are not observed
  std::uint64_t lost = 0;     // periods of threads that nobody read in time; only grows
};

}  // namespace sluice::exporter

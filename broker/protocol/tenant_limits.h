// The limits of an admitted tenant as a text in the environment of its processes. A process reads
// it when no broker answers, so that it keeps the limits of its tenant all the same. libc only, no
// allocation: the shim uses it as it is.
#pragma once

#include "broker/protocol/messages.h"

namespace sluice::protocol {

/// "ID-KEY memory=BYTES sm=PERCENT context=BYTES gpus=UUID,UUID", then for an exclusive tenant
/// " exclusive", then " founder=PID" if the first process of the job is known. A UUID is 32
/// hexadecimal digits. The text counts only beside a SLUICE_TENANT of the same ID-KEY.
inline constexpr char kTenantLimitsVariable[] = "SLUICE_TENANT_LIMITS";

struct TenantLimits {
  TenantId tenant;
  JoinKey key;
  std::uint64_t memory_max_bytes;  // on each GPU; 0 = none
  std::uint32_t sm_percent;        // 1-100, of each GPU's time
  std::uint32_t gpu_count;         // 1..kTenantGpusMax
  std::uint64_t context_bytes;     // what one context takes; 0 = unknown
  bool exclusive;
  std::uint32_t founder;  // the pid of the process that makes the job's family; 0 = any does
  GpuUuid gpus[kTenantGpusMax];
};

/// 33 for ID-KEY, 20 digits and 8 letters for memory, 3 and 4 for sm, 20 and 9 for context, 6 for
/// "gpus", 33 for each GPU, 10 for "exclusive", 9 and 10 for "founder", the NUL.
inline constexpr std::size_t kTenantLimitsTextBytes =
    33 + 8 + 20 + 4 + 3 + 9 + 20 + 6 + 33 * kTenantGpusMax + 10 + 9 + 10 + 1;

/// The limits that a broker's answer admits; it does not say what a context takes. The time of an
/// exclusive tenant is not divided: its share is 100.
TenantLimits tenant_limits_of(const Admitted& admitted);
void tenant_limits_format(const TenantLimits& limits, char out[kTenantLimitsTextBytes]);
/// False, and `out` is undefined, when the text is not exactly of that form.
[[nodiscard]] bool tenant_limits_parse(const char* text, TenantLimits* out);

}  // namespace sluice::protocol

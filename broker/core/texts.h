// The sentences of refusals: what happened with numbers, why, what to do. No prefix; the program
// that prints adds it.
#pragma once

#include <string>

#include "broker/core/core.h"

namespace sluice::core {

struct Tenant;

/// Two decimals at most: "4", "1.5".
std::string decimal_text(double value);
/// "512 MiB", "1.5 GiB", "100 bytes": the largest unit that keeps at most two decimals exact enough
/// for people.
std::string bytes_text(Bytes bytes);
std::string duration_text(Nanos ns);
/// Of a time that is known about: two digits of it.
std::string duration_about(Nanos ns);
const char* class_text(TenantClass tenant_class);
/// "job train (tenant 7)".
std::string job_text(const Tenant& tenant);
std::string unknown_gpu_text(const GpuUuid& uuid);
std::string host_limit_text(std::uint32_t uid, Bytes bytes, Bytes limit);
/// "its memory is promised to others" and the like: why a request waits.
const char* reason_text(QueueReason reason);

TenantRefused refusal_no_gpus(RequestId request);
TenantRefused refusal_all_lost(RequestId request, std::size_t lost);
TenantRefused refusal_pinned_lost(RequestId request, const GpuUuid& uuid);
TenantRefused refusal_malformed(RequestId request, std::string text);
TenantRefused refusal_too_many_gpus(RequestId request, std::uint32_t asked, std::size_t have,
                                    bool pinned, std::size_t lost);
TenantRefused refusal_unknown_gpu(RequestId request, const GpuUuid& uuid);
TenantRefused refusal_no_quota(RequestId request, TenantClass tenant_class, Bytes minimum);
TenantRefused refusal_below_context(RequestId request, Bytes asked, Bytes minimum);
TenantRefused refusal_too_large(RequestId request, Bytes asked, Bytes largest,
                                std::uint32_t gpu_count);
TenantRefused refusal_user_queue(RequestId request, std::uint32_t uid, std::uint32_t limit);
TenantRefused refusal_gpu_lost(RequestId request, std::size_t left);
TenantRefused refusal_group(RequestId request, std::string text);
/// `why` is limit_text's.
TenantRefused refusal_limit(RequestId request, const std::string& why);
TenantRefused refusal_full(RequestId request, std::uint32_t limit);
/// `why` is wait_text's, and `instead` instead_text's (binding.h).
TenantRefused refusal_no_room(RequestId request, const std::string& why, std::uint32_t position,
                              const std::string& instead);
TenantRefused refusal_dry_run(RequestId request, const std::string& why, std::uint32_t position);
TenantRefused refusal_timeout(RequestId request, Nanos waited, const std::string& why,
                              std::uint32_t position, const std::string& instead);

}  // namespace sluice::core

// The sentences of refusals. They are tested word by word where a number or a remedy is in them.
#include "broker/core/texts.h"

#include <cmath>

#include "broker/core/state.h"
#include "broker/protocol/ordinal.h"

namespace sluice::core {
namespace {

std::string uuid_text(const GpuUuid& uuid) {
  static const char digits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[uuid.bytes[i] >> 4];
    text += digits[uuid.bytes[i] & 15];
  }
  return text;
}

TenantRefused refusal(RequestId request, RefusalCode code, std::string text, Bytes minimum = 0) {
  return TenantRefused{request, code, minimum, std::move(text)};
}

std::string place_text(std::uint32_t position) {
  return std::to_string(position) + protocol::ordinal_ending(position) + " in line";
}

std::string gpus_text(std::size_t n) { return std::to_string(n) + (n == 1 ? " GPU" : " GPUs"); }

}  // namespace

std::string decimal_text(double value) {
  const auto hundredths = static_cast<std::uint64_t>(std::llround(value * 100));
  std::string text = std::to_string(hundredths / 100);
  if (hundredths % 100 == 0) return text;
  std::string fraction = std::to_string(hundredths % 100);
  if (fraction.size() == 1) fraction = "0" + fraction;
  if (fraction.back() == '0') fraction.pop_back();
  return text + "." + fraction;
}

std::string bytes_text(Bytes bytes) {
  static const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return decimal_text(value) + " " + units[unit];
}

std::string duration_text(Nanos ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1'000'000) return decimal_text(value / 1e3) + " us";
  if (ns < 1'000'000'000) return decimal_text(value / 1e6) + " ms";
  return decimal_text(value / 1e9) + " s";
}

std::string duration_about(Nanos ns) {
  Nanos unit = 1;
  while (ns / unit >= 100) unit *= 10;
  return duration_text((ns + unit / 2) / unit * unit);
}

const char* class_text(TenantClass tenant_class) {
  switch (tenant_class) {
    case TenantClass::kInference:
      return "inference";
    case TenantClass::kDebug:
      return "debug";
    case TenantClass::kBatch:
      return "batch";
    case TenantClass::kExclusive:
      return "exclusive";
  }
  return "unknown";
}

std::string job_text(const Tenant& tenant) {
  return "job " + tenant.name + " (tenant " + std::to_string(tenant.id) + ")";
}

std::string unknown_gpu_text(const GpuUuid& uuid) {
  return "this machine has no " + uuid_text(uuid) + "; `sluice status` lists the GPUs it has";
}

std::string host_limit_text(std::uint32_t uid, Bytes bytes, Bytes limit) {
  return "moving " + bytes_text(bytes) + " to the host would take user " + std::to_string(uid) +
         " beyond the " + bytes_text(limit) +
         " of host memory that one user's suspended and swapped jobs may fill";
}

const char* reason_text(QueueReason reason) {
  switch (reason) {
    case QueueReason::kNone:
      break;
    case QueueReason::kResources:
      return "the memory is promised to other tenants";
    case QueueReason::kPriority:
      return "a request ahead of it waits for the same GPUs";
    case QueueReason::kUserLimit:
      return "the user, or the profile, has as much as it may have";
    case QueueReason::kDrain:
      return "the GPUs are used whole, or are being emptied for whole use";
    case QueueReason::kGang:
      return "not enough GPUs have room at the same time";
    case QueueReason::kShare:
      return "the time of the GPUs is guaranteed to other tenants";
  }
  return "it has not been looked at";
}

TenantRefused refusal_no_gpus(RequestId request) {
  return refusal(request, RefusalCode::kNoSuchGpu,
                 "there is no GPU to share: the broker found none when it started; `sluice doctor` "
                 "shows what it "
                 "looked for");
}

TenantRefused refusal_all_lost(RequestId request, std::size_t lost) {
  return refusal(request, RefusalCode::kNoSuchGpu,
                 "no GPU of this machine answers any more (" + gpus_text(lost) +
                     " lost; dmesg has an Xid); reset them (nvidia-smi -r) or reboot, then start "
                     "the broker again");
}

TenantRefused refusal_pinned_lost(RequestId request, const GpuUuid& uuid) {
  return refusal(request, RefusalCode::kNoSuchGpu,
                 uuid_text(uuid) +
                     " no longer answers (it is lost; dmesg has an Xid) and takes no jobs; name "
                     "another, or leave the choice to the broker");
}

TenantRefused refusal_malformed(RequestId request, std::string text) {
  return refusal(request, RefusalCode::kMalformed, std::move(text));
}

TenantRefused refusal_too_many_gpus(RequestId request, std::uint32_t asked, std::size_t have,
                                    bool pinned, std::size_t lost) {
  return refusal(
      request, RefusalCode::kTooManyGpus,
      gpus_text(asked) + " asked for, but " +
          (pinned ? "only " + gpus_text(have) + " named" : "this machine has " + gpus_text(have)) +
          (lost > 0 && !pinned ? " and " + gpus_text(lost) + " lost" : "") + "; ask for at most " +
          std::to_string(have));
}

TenantRefused refusal_unknown_gpu(RequestId request, const GpuUuid& uuid) {
  return refusal(request, RefusalCode::kNoSuchGpu, unknown_gpu_text(uuid));
}

TenantRefused refusal_no_quota(RequestId request, TenantClass tenant_class, Bytes minimum) {
  return refusal(request, RefusalCode::kMemoryBelowContext,
                 std::string("no memory quota was asked for, and class ") +
                     class_text(tenant_class) + " has no default; ask for one of at least " +
                     bytes_text(minimum) + " (--memory)",
                 minimum);
}

TenantRefused refusal_below_context(RequestId request, Bytes asked, Bytes minimum) {
  return refusal(request, RefusalCode::kMemoryBelowContext,
                 "a quota of " + bytes_text(asked) +
                     " is less than what a context alone takes on this GPU (" +
                     bytes_text(minimum) + "), so no program could start; ask for at least " +
                     bytes_text(minimum),
                 minimum);
}

TenantRefused refusal_too_large(RequestId request, Bytes asked, Bytes largest,
                                std::uint32_t gpu_count) {
  const std::string where = gpu_count == 1
                                ? "any GPU here can promise"
                                : std::to_string(gpu_count) + " GPUs here can promise each";
  return refusal(request, RefusalCode::kMemoryTooLarge,
                 "a quota of " + bytes_text(asked) + " is more than " + where + " (" +
                     bytes_text(largest) + "), so waiting would not help; ask for at most " +
                     bytes_text(largest));
}

TenantRefused refusal_user_queue(RequestId request, std::uint32_t uid, std::uint32_t limit) {
  return refusal(
      request, RefusalCode::kUserLimit,
      "user " + std::to_string(uid) + " has " + std::to_string(limit) +
          " requests waiting, as many as one user may have; wait for some to start or end them");
}

TenantRefused refusal_gpu_lost(RequestId request, std::size_t left) {
  return refusal(request, RefusalCode::kNoSuchGpu,
                 "a GPU that it waited for is gone, and " + gpus_text(left) +
                     " is what is left for it; ask again for what `sluice status` lists");
}

TenantRefused refusal_group(RequestId request, std::string text) {
  return refusal(request, RefusalCode::kUserLimit, std::move(text));
}

TenantRefused refusal_limit(RequestId request, const std::string& why) {
  return refusal(
      request, RefusalCode::kNoRoom,
      why +
          ", and it would not wait; allow waiting, or try again when one of these jobs has ended");
}

TenantRefused refusal_full(RequestId request, std::uint32_t limit) {
  return refusal(request, RefusalCode::kNoRoom,
                 "the broker keeps " + std::to_string(limit) +
                     " tenants and waiting requests, as many as it may; try again later");
}

TenantRefused refusal_no_room(RequestId request, const std::string& why, std::uint32_t position,
                              const std::string& instead) {
  return refusal(
      request, RefusalCode::kNoRoom,
      "it would have to wait, " + place_text(position) + ": " + why + "; allow waiting" + instead);
}

TenantRefused refusal_dry_run(RequestId request, const std::string& why, std::uint32_t position) {
  return refusal(request, RefusalCode::kNoRoom,
                 "it would wait, " + place_text(position) + ": " + why + "; nothing was changed");
}

TenantRefused refusal_timeout(RequestId request, Nanos waited, const std::string& why,
                              std::uint32_t position, const std::string& instead) {
  return refusal(request, RefusalCode::kTimeout,
                 "it waited " + duration_text(waited) + " and is still " + place_text(position) +
                     ": " + why + "; wait longer" + instead);
}

}  // namespace sluice::core

// The text of a tenant's limits: written number by number into a buffer of the caller, and parsed
// strictly. The shim links this file, so it uses libc alone and allocates nothing.
#include "broker/protocol/tenant_limits.h"

#include <string.h>

#include "broker/protocol/wire.h"

namespace sluice::protocol {
namespace {

constexpr char kMemoryWord[] = " memory=";
constexpr char kSmWord[] = " sm=";
constexpr char kContextWord[] = " context=";
constexpr char kGpusWord[] = " gpus=";
constexpr char kExclusiveWord[] = " exclusive";
constexpr char kFounderWord[] = " founder=";
constexpr std::size_t kTenantDigits = kTenantTextBytes - 1;

char* limits_put(char* at, const char* text) {
  while (*text != '\0') *at++ = *text++;
  return at;
}

char* limits_put_number(char* at, std::uint64_t value) {
  char digits[21];
  char* begin = digits + sizeof digits - 1;
  *begin = '\0';
  do {
    *--begin = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return limits_put(at, begin);
}

// The text behind the word; nullptr when it does not begin with the word.
const char* limits_skip(const char* text, const char* word) {
  while (*word != '\0') {
    if (text == nullptr || *text++ != *word++) return nullptr;
  }
  return text;
}

const char* limits_take_number(const char* text, std::uint64_t* out) {
  if (text == nullptr || *text < '0' || *text > '9') return nullptr;
  for (*out = 0; *text >= '0' && *text <= '9'; ++text) {
    if (__builtin_mul_overflow(*out, std::uint64_t{10}, out) ||
        __builtin_add_overflow(*out, static_cast<std::uint64_t>(*text - '0'), out)) {
      return nullptr;
    }
  }
  return text;
}

int limits_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

const char* limits_take_gpu(const char* text, GpuUuid* out) {
  for (std::uint8_t& byte : out->bytes) {
    const int high = text == nullptr ? -1 : limits_digit(*text++);
    const int low = high < 0 ? -1 : limits_digit(*text++);
    if (low < 0) return nullptr;
    byte = static_cast<std::uint8_t>(high << 4 | low);
  }
  return text;
}

}  // namespace

TenantLimits tenant_limits_of(const Admitted& admitted) {
  TenantLimits out{};
  out.tenant = admitted.tenant;
  out.key = admitted.key;
  out.memory_max_bytes = admitted.memory_max_bytes;
  out.exclusive = admitted.tenant_class == TenantClass::kExclusive;
  const bool divided = !out.exclusive && admitted.sm_percent >= 1 && admitted.sm_percent <= 100;
  out.sm_percent = divided ? admitted.sm_percent : 100;
  out.gpu_count = admitted.gpu_count < kTenantGpusMax ? admitted.gpu_count : kTenantGpusMax;
  memcpy(out.gpus, admitted.gpus, sizeof out.gpus);
  return out;
}

void tenant_limits_format(const TenantLimits& limits, char out[kTenantLimitsTextBytes]) {
  constexpr char kDigits[] = "0123456789abcdef";
  tenant_format(limits.tenant, limits.key, out);
  char* at = limits_put(out + kTenantDigits, kMemoryWord);
  at = limits_put(limits_put_number(at, limits.memory_max_bytes), kSmWord);
  at = limits_put(limits_put_number(at, limits.sm_percent), kContextWord);
  at = limits_put(limits_put_number(at, limits.context_bytes), kGpusWord);
  for (std::uint32_t i = 0; i < limits.gpu_count && i < kTenantGpusMax; ++i) {
    if (i > 0) *at++ = ',';
    for (const std::uint8_t byte : limits.gpus[i].bytes) {
      *at++ = kDigits[byte >> 4];
      *at++ = kDigits[byte & 15];
    }
  }
  if (limits.exclusive) at = limits_put(at, kExclusiveWord);
  if (limits.founder != 0) at = limits_put_number(limits_put(at, kFounderWord), limits.founder);
  *at = '\0';
}

bool tenant_limits_parse(const char* text, TenantLimits* out) {
  char tenant[kTenantTextBytes] = {};
  memset(out, 0, sizeof *out);
  strncpy(tenant, text, kTenantDigits);
  if (strlen(tenant) != kTenantDigits || !tenant_parse(tenant, &out->tenant, &out->key)) {
    return false;
  }
  std::uint64_t percent = 0;
  const char* at = limits_skip(text + kTenantDigits, kMemoryWord);
  at = limits_skip(limits_take_number(at, &out->memory_max_bytes), kSmWord);
  at = limits_skip(limits_take_number(at, &percent), kContextWord);
  at = limits_skip(limits_take_number(at, &out->context_bytes), kGpusWord);
  if (at == nullptr || percent < 1 || percent > 100) return false;
  out->sm_percent = static_cast<std::uint32_t>(percent);
  do {
    if (out->gpu_count == kTenantGpusMax) return false;
    at = limits_take_gpu(at, &out->gpus[out->gpu_count++]);
  } while (at != nullptr && *at == ',' && *++at != '\0');
  if (at == nullptr || at[-1] == ',') return false;
  if (const char* behind = limits_skip(at, kExclusiveWord); behind != nullptr) {
    out->exclusive = true;
    at = behind;
  }
  if (*at == '\0') return true;
  std::uint64_t founder = 0;
  at = limits_take_number(limits_skip(at, kFounderWord), &founder);
  out->founder = static_cast<std::uint32_t>(founder);
  return at != nullptr && *at == '\0' && founder >= 1 && founder <= INT32_MAX;
}

}  // namespace sluice::protocol

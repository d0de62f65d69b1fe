// Records: their layout, their checksum (CRC-32, zlib's), and what values they may hold.
#include "broker/daemon/journal_format.h"

#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>

namespace sluice::daemon {
namespace {

constexpr std::uint32_t kJournalMagic = 0x314a4c53;  // "SLJ1"
// 3 has records of GPUs besides those of 2.
constexpr std::uint32_t kJournalVersion = 3;
constexpr std::uint32_t kJournalVersionMin = 2;  // the oldest that is read
constexpr std::size_t kClosedGpusMax = 64;
constexpr std::size_t kBootIdBytes = 40;

enum class RecordType : std::uint32_t {
  kBegin = 1,
  kTenant = 2,
  kTenantEnded = 3,
  kProcess = 4,
  kProcessEnded = 5,
  kGpu = 6,
};

// Host byte order: a journal never outlives the boot it was written in.
struct RecordHead {
  std::uint32_t crc;   // of everything after this word
  std::uint32_t size;  // of what follows the head
  RecordType type;
};
static_assert(sizeof(RecordHead) == 12);

struct BeginBody {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t next_tenant;
  char boot_id[kBootIdBytes];
};
static_assert(sizeof(BeginBody) == 56);

// TenantBody::stay
constexpr std::uint32_t kStaySwap = 1;
constexpr std::uint32_t kStaySuspended = 2;
constexpr std::uint32_t kStaySwapped = 4;
constexpr std::uint32_t kStayFrozen = 8;

struct TenantBody {
  std::uint64_t id;
  std::uint64_t key;
  std::uint32_t uid;
  std::uint8_t tenant_class;
  std::uint8_t sm_mode;
  std::uint8_t is_default;
  std::uint8_t released;
  std::uint32_t sm_percent;
  std::uint32_t asked_sm_percent;
  std::uint64_t memory_max_bytes;
  std::uint64_t memory_min_bytes;
  std::uint64_t asked_memory_max_bytes;
  std::uint64_t asked_memory_min_bytes;
  std::int64_t window_ns;
  std::int64_t asked_ns;
  std::int64_t admitted_ns;
  std::uint64_t founder_start_ticks;
  std::uint32_t founder_pid;
  std::uint32_t gpu_count;
  std::uint32_t stay;
  std::uint32_t frozen_on_count;
  protocol::GpuUuid gpus[protocol::kTenantGpusMax];
  protocol::GpuUuid frozen_on[protocol::kTenantGpusMax];
  char name[protocol::kNameBytes];
  char profile[protocol::kNameBytes];
};
static_assert(sizeof(TenantBody) == 112 + 16 * 16 + 2 * protocol::kNameBytes);

struct ProcessBody {
  std::uint64_t tenant;
  std::uint64_t start_ticks;
  std::uint64_t claims_device;
  std::uint64_t claims_inode;
  std::uint32_t pid;
  std::uint32_t reserved;
  char command[protocol::kNameBytes];
};
static_assert(sizeof(ProcessBody) == 40 + protocol::kNameBytes);

struct ProcessEndedBody {
  std::uint64_t tenant;
  std::uint64_t start_ticks;
  std::uint32_t pid;
  std::uint32_t reserved;
};
static_assert(sizeof(ProcessEndedBody) == 24);

struct TenantEndedBody {
  std::uint64_t tenant;
};

struct GpuBody {
  protocol::GpuUuid gpu;
  std::uint32_t closed;
  std::uint32_t reserved;
};
static_assert(sizeof(GpuBody) == 24);

constexpr std::size_t kBodyBytesMax = sizeof(TenantBody);

std::uint32_t checksum(const char* bytes, std::size_t size) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(bytes), size));
}

template <class Body>
std::string record_make(RecordType type, const Body& body) {
  RecordHead head{0, sizeof body, type};
  std::string record(sizeof head + sizeof body, '\0');
  std::memcpy(record.data(), &head, sizeof head);
  std::memcpy(record.data() + sizeof head, &body, sizeof body);
  head.crc = checksum(record.data() + sizeof head.crc, record.size() - sizeof head.crc);
  std::memcpy(record.data(), &head.crc, sizeof head.crc);
  return record;
}

template <std::size_t N>
void text_put(char (&field)[N], std::string_view text) {
  std::memcpy(field, text.data(), std::min(text.size(), N - 1));
}

template <std::size_t N>
bool terminated(const char (&field)[N]) {
  return std::memchr(field, '\0', N) != nullptr;
}

/// What the broker itself could have written.
bool sane(const TenantBody& body) {
  const bool exclusive =
      body.tenant_class == static_cast<std::uint8_t>(protocol::TenantClass::kExclusive);
  return body.id != 0 && body.id < UINT64_MAX && body.tenant_class <= 3 && body.sm_mode <= 2 &&
         body.is_default <= 1 && body.released <= 1 && body.stay < 16 &&
         (body.frozen_on_count == 0 || body.frozen_on_count == body.gpu_count) &&
         body.sm_percent >= 1 && body.sm_percent <= 100 && body.asked_sm_percent <= 100 &&
         body.gpu_count >= 1 && body.gpu_count <= protocol::kTenantGpusMax && body.window_ns >= 0 &&
         body.asked_ns >= 0 && body.admitted_ns >= 0 && body.memory_max_bytes != 0 &&
         (exclusive || body.memory_min_bytes <= body.memory_max_bytes) && terminated(body.name) &&
         terminated(body.profile);
}

bool distinct(const TenantBody& body) {
  for (std::uint32_t i = 0; i < body.gpu_count; ++i)
    for (std::uint32_t j = 0; j < i; ++j)
      if (body.gpus[i] == body.gpus[j]) return false;
  return true;
}

JournalTenant tenant_of(const TenantBody& body) {
  JournalTenant tenant;
  tenant.id = body.id;
  tenant.key = body.key;
  tenant.uid = body.uid;
  tenant.tenant_class = static_cast<protocol::TenantClass>(body.tenant_class);
  tenant.sm_mode = static_cast<protocol::SmMode>(body.sm_mode);
  tenant.is_default = body.is_default != 0;
  tenant.released = body.released != 0;
  tenant.swap = (body.stay & kStaySwap) != 0;
  tenant.stay = {(body.stay & kStaySuspended) != 0,
                 (body.stay & kStaySwapped) != 0,
                 (body.stay & kStayFrozen) != 0,
                 {body.frozen_on, body.frozen_on + body.frozen_on_count}};
  tenant.sm_percent = body.sm_percent;
  tenant.memory_max_bytes = body.memory_max_bytes;
  tenant.memory_min_bytes = body.memory_min_bytes;
  tenant.window_ns = body.window_ns;
  tenant.asked = {body.asked_memory_max_bytes, body.asked_memory_min_bytes, body.asked_sm_percent};
  tenant.asked_ns = body.asked_ns;
  tenant.admitted_ns = body.admitted_ns;
  tenant.founder = {body.founder_pid, body.founder_start_ticks};
  tenant.gpus.assign(body.gpus, body.gpus + body.gpu_count);
  tenant.name = body.name;
  tenant.profile = body.profile;
  return tenant;
}

void process_drop(JournalTenant& tenant, std::uint32_t pid) {
  std::erase_if(tenant.processes, [pid](const JournalProcess& p) { return p.name.pid == pid; });
}

/// One record taken into the state; false = its values are none that were ever written.
bool apply(JournalState& state, const TenantBody& body) {
  if (!sane(body) || !distinct(body)) return false;
  JournalTenant tenant = tenant_of(body);
  const auto [at, fresh] = state.tenants.try_emplace(body.id);
  if (!fresh) tenant.processes = std::move(at->second.processes);
  at->second = std::move(tenant);
  state.next_tenant = std::max(state.next_tenant, body.id + 1);
  return true;
}

bool apply(JournalState& state, const TenantEndedBody& body) {
  return state.tenants.erase(body.tenant) == 1;
}

bool apply(JournalState& state, const ProcessBody& body) {
  const auto found = state.tenants.find(body.tenant);
  if (found == state.tenants.end() || body.pid == 0 || !terminated(body.command)) return false;
  process_drop(found->second, body.pid);
  if (found->second.processes.size() >= protocol::kTenantProcessesMax) return false;
  found->second.processes.push_back(
      {{body.pid, body.start_ticks}, body.claims_device, body.claims_inode, body.command});
  return true;
}

bool apply(JournalState& state, const ProcessEndedBody& body) {
  const auto found = state.tenants.find(body.tenant);
  if (found == state.tenants.end()) return false;
  return std::erase_if(found->second.processes, [&](const JournalProcess& p) {
           return p.name == ProcessName{body.pid, body.start_ticks};
         }) == 1;
}

bool apply(JournalState& state, const GpuBody& body) {
  if (body.closed > 1) return false;
  std::erase(state.closed_gpus, body.gpu);
  if (state.closed_gpus.size() >= kClosedGpusMax) return false;
  if (body.closed != 0) state.closed_gpus.push_back(body.gpu);
  return true;
}

template <class Body>
bool record_apply(JournalState& state, const RecordHead& head, const char* bytes) {
  if (head.size != sizeof(Body)) return false;
  Body body;
  std::memcpy(&body, bytes, sizeof body);
  return apply(state, body);
}

bool record_take(JournalState& state, const RecordHead& head, const char* body) {
  switch (head.type) {
    case RecordType::kTenant:
      return record_apply<TenantBody>(state, head, body);
    case RecordType::kTenantEnded:
      return record_apply<TenantEndedBody>(state, head, body);
    case RecordType::kProcess:
      return record_apply<ProcessBody>(state, head, body);
    case RecordType::kProcessEnded:
      return record_apply<ProcessEndedBody>(state, head, body);
    case RecordType::kGpu:
      return record_apply<GpuBody>(state, head, body);
    case RecordType::kBegin:
      break;
  }
  return false;
}

/// The head of the record at the front of `bytes` if the record is whole.
std::optional<RecordHead> record_whole(std::string_view bytes, std::string* fault) {
  RecordHead head;
  *fault = "it ends in the middle of a record";
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.size > kBodyBytesMax) {
    *fault = "a record has an impossible length";
    return std::nullopt;
  }
  if (bytes.size() < sizeof head + head.size) return std::nullopt;
  const std::size_t summed = sizeof head - sizeof head.crc + head.size;
  if (checksum(bytes.data() + sizeof head.crc, summed) != head.crc) {
    *fault = "the checksum of a record is wrong";
    return std::nullopt;
  }
  fault->clear();
  return head;
}

std::optional<BeginBody> begin_of(std::string_view bytes, std::string* fault) {
  const auto head = record_whole(bytes, fault);
  if (!head) return std::nullopt;
  *fault = "it does not begin like a journal of this version";
  BeginBody body;
  if (head->type != RecordType::kBegin || head->size != sizeof body) return std::nullopt;
  std::memcpy(&body, bytes.data() + sizeof *head, sizeof body);
  const bool ours = body.magic == kJournalMagic && body.version >= kJournalVersionMin &&
                    body.version <= kJournalVersion && body.next_tenant != 0 &&
                    terminated(body.boot_id);
  if (!ours) return std::nullopt;
  fault->clear();
  return body;
}

}  // namespace

std::size_t JournalState::record_count() const {
  std::size_t count = tenants.size() + closed_gpus.size();
  for (const auto& [id, tenant] : tenants) count += tenant.processes.size();
  return count;
}

std::string record_begin(std::string_view boot_id, protocol::TenantId next_tenant) {
  assert(boot_id.size() < kBootIdBytes);
  BeginBody body{kJournalMagic, kJournalVersion, next_tenant, {}};
  text_put(body.boot_id, boot_id);
  return record_make(RecordType::kBegin, body);
}

std::string record_tenant(const JournalTenant& tenant) {
  assert(!tenant.gpus.empty() && tenant.gpus.size() <= protocol::kTenantGpusMax);
  TenantBody body{};
  body.id = tenant.id;
  body.key = tenant.key;
  body.uid = tenant.uid;
  body.tenant_class = static_cast<std::uint8_t>(tenant.tenant_class);
  body.sm_mode = static_cast<std::uint8_t>(tenant.sm_mode);
  body.is_default = tenant.is_default;
  body.released = tenant.released;
  body.stay = (tenant.swap ? kStaySwap : 0) | (tenant.stay.suspended ? kStaySuspended : 0) |
              (tenant.stay.swapped ? kStaySwapped : 0) | (tenant.stay.frozen ? kStayFrozen : 0);
  body.sm_percent = tenant.sm_percent;
  body.asked_sm_percent = tenant.asked.sm_percent;
  body.memory_max_bytes = tenant.memory_max_bytes;
  body.memory_min_bytes = tenant.memory_min_bytes;
  body.asked_memory_max_bytes = tenant.asked.memory_max_bytes;
  body.asked_memory_min_bytes = tenant.asked.memory_min_bytes;
  body.window_ns = tenant.window_ns;
  body.asked_ns = tenant.asked_ns;
  body.admitted_ns = tenant.admitted_ns;
  body.founder_start_ticks = tenant.founder.start_ticks;
  body.founder_pid = tenant.founder.pid;
  body.gpu_count = static_cast<std::uint32_t>(tenant.gpus.size());
  std::ranges::copy(tenant.gpus, body.gpus);
  assert(tenant.stay.frozen_on.size() <= protocol::kTenantGpusMax);
  body.frozen_on_count = static_cast<std::uint32_t>(tenant.stay.frozen_on.size());
  std::ranges::copy(tenant.stay.frozen_on, body.frozen_on);
  text_put(body.name, tenant.name);
  text_put(body.profile, tenant.profile);
  return record_make(RecordType::kTenant, body);
}

std::string record_tenant_ended(protocol::TenantId id) {
  return record_make(RecordType::kTenantEnded, TenantEndedBody{id});
}

std::string record_process(protocol::TenantId id, const JournalProcess& process) {
  ProcessBody body{};
  body.tenant = id;
  body.start_ticks = process.name.start_ticks;
  body.claims_device = process.claims_device;
  body.claims_inode = process.claims_inode;
  body.pid = process.name.pid;
  text_put(body.command, process.command);
  return record_make(RecordType::kProcess, body);
}

std::string record_process_ended(protocol::TenantId id, const ProcessName& name) {
  return record_make(RecordType::kProcessEnded,
                     ProcessEndedBody{id, name.start_ticks, name.pid, 0});
}

std::string record_gpu(const protocol::GpuUuid& gpu, bool closed) {
  return record_make(RecordType::kGpu, GpuBody{gpu, closed ? 1U : 0U, 0});
}

std::string journal_image(const JournalState& state, std::string_view boot_id) {
  std::string image = record_begin(boot_id, state.next_tenant);
  for (const protocol::GpuUuid& gpu : state.closed_gpus) image += record_gpu(gpu, true);
  for (const auto& [id, tenant] : state.tenants) {
    image += record_tenant(tenant);
    for (const JournalProcess& process : tenant.processes) image += record_process(id, process);
  }
  return image;
}

JournalReading journal_read(std::string_view bytes, std::string_view boot_id) {
  JournalReading reading;
  if (bytes.empty()) return reading;
  const auto begin = begin_of(bytes, &reading.fault);
  if (!begin) {
    reading.outcome = JournalOutcome::kUnreadable;
    return reading;
  }
  if (boot_id != begin->boot_id) {
    reading.outcome = JournalOutcome::kOtherBoot;
    return reading;
  }
  reading.outcome = JournalOutcome::kRead;
  reading.state.next_tenant = begin->next_tenant;
  reading.good_bytes = sizeof(RecordHead) + sizeof(BeginBody);
  while (reading.good_bytes < bytes.size()) {
    const std::string_view rest = bytes.substr(reading.good_bytes);
    const auto head = record_whole(rest, &reading.fault);
    if (!head) return reading;
    if (!record_take(reading.state, *head, rest.data() + sizeof *head)) {
      reading.fault = "a record says what no broker has written";
      return reading;
    }
    reading.good_bytes += sizeof *head + head->size;
    ++reading.records;
  }
  return reading;
}

}  // namespace sluice::daemon

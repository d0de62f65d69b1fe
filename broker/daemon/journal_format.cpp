// Records: their layout, their checksum (CRC-32, zlib's), what values they may hold, and how a
// reader finds the next one behind damage.
#include "broker/daemon/journal_format.h"

#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <optional>

namespace sluice::daemon {
namespace {

constexpr std::uint32_t kJournalMagic = 0x314a4c53;  // "SLJ1"
// 4 marks each record and names its boot. 3, and 2 without records of GPUs, have neither: they are
// read up to the first record that is not whole, and without the programs of processes.
constexpr std::uint32_t kJournalVersion = 4;
constexpr std::uint32_t kPlainVersionMin = 2;
constexpr std::uint32_t kPlainVersionMax = 3;
// Control characters are in it, which no text in a record has (text_clean), so that no name that a
// client chose begins like a record.
constexpr std::uint32_t kRecordMark = 0x044a5301;
constexpr std::size_t kClosedGpusMax = 64;
constexpr std::size_t kBootIdBytes = 40;

enum class RecordType : std::uint32_t {
  kBegin = 1,
  kTenant = 2,
  kTenantEnded = 3,
  kProcess = 4,
  kProcessEnded = 5,
  kGpu = 6,
  kDrain = 7,
};

// Host byte order: a journal never outlives the boot it was written in.
struct RecordHead {
  std::uint32_t mark;
  std::uint32_t crc;   // of everything after this word
  std::uint32_t size;  // of what follows the head
  RecordType type;
  std::uint64_t boot;  // boot_tag() of the boot that it was written in
};
static_assert(sizeof(RecordHead) == 24);

/// The head in versions 2 and 3.
struct PlainHead {
  std::uint32_t crc;  // of everything after this word
  std::uint32_t size;
  RecordType type;
};
static_assert(sizeof(PlainHead) == 12);

struct BeginBody {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t next_tenant;
  char boot_id[kBootIdBytes];
};
static_assert(sizeof(BeginBody) == 56);

// TenantBody::flags
constexpr std::uint32_t kStaySwap = 1;
constexpr std::uint32_t kStaySuspended = 2;
constexpr std::uint32_t kStaySwapped = 4;
constexpr std::uint32_t kStayFrozen = 8;
constexpr std::uint32_t kStayRests = 64;
constexpr std::uint32_t kStayReturns = 128;
constexpr std::uint32_t kStayByOther = 256;
constexpr std::uint32_t kShareGuaranteed = 16;
constexpr std::uint32_t kShareWeightAsked = 32;

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
  std::uint32_t flags;
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
  std::uint64_t program;
  std::uint64_t reserved0;
  std::uint32_t pid;
  std::uint32_t reserved1;
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

struct DrainBody {
  protocol::GpuUuid gpu;
  std::uint64_t until_s;
  std::uint32_t uid;
  std::uint32_t reserved;
  char reason[protocol::kDrainReasonBytes];
};
static_assert(sizeof(DrainBody) == 32 + protocol::kDrainReasonBytes);

constexpr std::size_t kBodyBytesMax = sizeof(TenantBody);

std::uint32_t checksum(const char* bytes, std::size_t size) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(bytes), size));
}

/// FNV-1a of the boot's name.
std::uint64_t boot_tag(std::string_view boot_id) {
  std::uint64_t tag = 0xcbf29ce484222325;
  for (const char c : boot_id) tag = (tag ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return tag;
}

constexpr std::size_t kCrcEnd = offsetof(RecordHead, size);  // what is summed begins here

template <class Body>
std::string record_make(std::uint64_t boot, RecordType type, const Body& body) {
  RecordHead head{kRecordMark, 0, sizeof body, type, boot};
  std::string record(sizeof head + sizeof body, '\0');
  std::memcpy(record.data(), &head, sizeof head);
  std::memcpy(record.data() + sizeof head, &body, sizeof body);
  head.crc = checksum(record.data() + kCrcEnd, record.size() - kCrcEnd);
  std::memcpy(record.data(), &head, sizeof head);
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
         body.is_default <= 1 && body.released <= 1 && body.flags < 512 &&
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
  tenant.swap = (body.flags & kStaySwap) != 0;
  tenant.stay = {
      (body.flags & kStaySuspended) != 0, (body.flags & kStayRests) != 0,
      (body.flags & kStayReturns) != 0,   (body.flags & kStaySwapped) != 0,
      (body.flags & kStayFrozen) != 0,    {body.frozen_on, body.frozen_on + body.frozen_on_count},
      (body.flags & kStayByOther) != 0};
  tenant.sm_percent = body.sm_percent;
  tenant.sm_kind = (body.flags & kShareGuaranteed) != 0 ? protocol::SmKind::kGuaranteed
                                                        : protocol::SmKind::kWeight;
  tenant.memory_max_bytes = body.memory_max_bytes;
  tenant.memory_min_bytes = body.memory_min_bytes;
  tenant.window_ns = body.window_ns;
  tenant.asked = {body.asked_memory_max_bytes, body.asked_memory_min_bytes, body.asked_sm_percent,
                  (body.flags & kShareWeightAsked) != 0};
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

/// The number is taken, even where the record that gave it is lost.
void number_take(JournalState& state, protocol::TenantId id) {
  if (id < UINT64_MAX) state.next_tenant = std::max(state.next_tenant, id + 1);
}

/// One record taken into the state; false = its values are none that were ever written.
bool apply(JournalState& state, const TenantBody& body) {
  if (!sane(body) || !distinct(body)) return false;
  JournalTenant tenant = tenant_of(body);
  const auto [at, fresh] = state.tenants.try_emplace(body.id);
  if (!fresh) tenant.processes = std::move(at->second.processes);
  at->second = std::move(tenant);
  number_take(state, body.id);
  return true;
}

bool apply(JournalState& state, const TenantEndedBody& body) {
  number_take(state, body.tenant);
  return state.tenants.erase(body.tenant) == 1;
}

bool apply(JournalState& state, const ProcessBody& body) {
  number_take(state, body.tenant);
  const auto found = state.tenants.find(body.tenant);
  if (found == state.tenants.end() || body.pid == 0 || !terminated(body.command)) return false;
  process_drop(found->second, body.pid);
  if (found->second.processes.size() >= protocol::kTenantProcessesMax) return false;
  found->second.processes.push_back({{body.pid, body.start_ticks}, body.program, body.command});
  return true;
}

bool apply(JournalState& state, const ProcessEndedBody& body) {
  const auto found = state.tenants.find(body.tenant);
  if (found == state.tenants.end()) return false;
  return std::erase_if(found->second.processes, [&](const JournalProcess& p) {
           return p.name == ProcessName{body.pid, body.start_ticks};
         }) == 1;
}

void drain_drop(JournalState& state, const protocol::GpuUuid& gpu) {
  std::erase_if(state.drains, [&](const JournalDrain& drain) { return drain.gpu == gpu; });
}

bool apply(JournalState& state, const DrainBody& body) {
  if (!terminated(body.reason) || body.until_s > INT64_MAX) return false;
  if (std::ranges::find(state.closed_gpus, body.gpu) == state.closed_gpus.end()) return false;
  drain_drop(state, body.gpu);
  state.drains.push_back(
      {body.gpu, body.uid, static_cast<std::int64_t>(body.until_s), body.reason});
  return true;
}

bool apply(JournalState& state, const GpuBody& body) {
  if (body.closed > 1) return false;
  std::erase(state.closed_gpus, body.gpu);
  drain_drop(state, body.gpu);
  if (body.closed == 0) return true;
  if (state.closed_gpus.size() >= kClosedGpusMax) return false;
  state.closed_gpus.push_back(body.gpu);
  return true;
}

/// A begin anywhere says no more than that these numbers are taken.
bool apply(JournalState& state, const BeginBody& body) {
  if (body.magic != kJournalMagic || body.version != kJournalVersion || body.next_tenant == 0)
    return false;
  state.next_tenant = std::max(state.next_tenant, body.next_tenant);
  return true;
}

/// One whole record, wherever it stands and in whichever version.
struct Record {
  RecordType type{};
  std::string_view body;
  std::size_t bytes = 0;  // with its head
  std::uint64_t boot = 0;
};

template <class Body>
bool record_apply(JournalState& state, const Record& record) {
  if (record.body.size() != sizeof(Body)) return false;
  Body body;
  std::memcpy(&body, record.body.data(), sizeof body);
  return apply(state, body);
}

bool record_take(JournalState& state, const Record& record) {
  switch (record.type) {
    case RecordType::kBegin:
      return record_apply<BeginBody>(state, record);
    case RecordType::kTenant:
      return record_apply<TenantBody>(state, record);
    case RecordType::kTenantEnded:
      return record_apply<TenantEndedBody>(state, record);
    case RecordType::kProcess:
      return record_apply<ProcessBody>(state, record);
    case RecordType::kProcessEnded:
      return record_apply<ProcessEndedBody>(state, record);
    case RecordType::kGpu:
      return record_apply<GpuBody>(state, record);
    case RecordType::kDrain:
      return record_apply<DrainBody>(state, record);
  }
  return false;
}

/// The record at the front of `bytes` if it is whole; `fault` says why it is not.
template <class Head>
std::optional<Record> record_whole(std::string_view bytes, std::size_t summed_from,
                                   std::string* fault) {
  Head head;
  *fault = "it ends in the middle of a record";
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.size > kBodyBytesMax) {
    *fault = "a record has an impossible length";
    return std::nullopt;
  }
  const std::size_t size = sizeof head + head.size;
  if (bytes.size() < size) return std::nullopt;
  if (checksum(bytes.data() + summed_from, size - summed_from) != head.crc) {
    *fault = "the checksum of a record is wrong";
    return std::nullopt;
  }
  fault->clear();
  return Record{head.type, bytes.substr(sizeof head, head.size), size, 0};
}

std::optional<Record> marked_whole(std::string_view bytes, std::string* fault) {
  RecordHead head;
  *fault = "something else stands where a record begins";
  if (bytes.size() >= sizeof head.mark) {
    std::memcpy(&head.mark, bytes.data(), sizeof head.mark);
    if (head.mark != kRecordMark) return std::nullopt;
  }
  auto record = record_whole<RecordHead>(bytes, kCrcEnd, fault);
  if (!record) return record;
  std::memcpy(&head, bytes.data(), sizeof head);
  record->boot = head.boot;
  return record;
}

std::optional<BeginBody> begin_of(const std::optional<Record>& record) {
  BeginBody body;
  if (!record || record->type != RecordType::kBegin || record->body.size() != sizeof body)
    return std::nullopt;
  std::memcpy(&body, record->body.data(), sizeof body);
  if (body.magic != kJournalMagic || body.next_tenant == 0 || !terminated(body.boot_id))
    return std::nullopt;
  return body;
}

std::optional<Record> plain_whole(std::string_view bytes, std::string* fault) {
  return record_whole<PlainHead>(bytes, sizeof(PlainHead::crc), fault);
}

/// Of versions 2 and 3: up to the first record that is not whole.
void plain_read(std::string_view bytes, JournalReading* reading) {
  while (reading->good_bytes < bytes.size()) {
    const auto record = plain_whole(bytes.substr(reading->good_bytes), &reading->fault);
    if (record && !record_take(reading->state, *record))
      reading->fault = "a record says what no broker has written";
    if (!reading->fault.empty()) {
      ++reading->lost;
      break;
    }
    reading->good_bytes += record->bytes;
    ++reading->records;
  }
  // What stands there named pages by which exec was seen then.
  for (auto& [id, tenant] : reading->state.tenants)
    for (JournalProcess& process : tenant.processes) process.program = 0;
}

void lost_note(JournalReading* reading, const std::string& fault) {
  if (reading->lost++ == 0) reading->fault = fault;
}

/// Every whole record of this boot, whatever stands between them. False when there is none.
bool marked_read(std::string_view bytes, std::uint64_t boot, JournalReading* reading) {
  bool any = false;
  bool other_boot = false;
  bool damage = false;  // what stands here is part of a damaged place that is counted
  const std::string_view mark(reinterpret_cast<const char*>(&kRecordMark), sizeof kRecordMark);
  for (std::size_t at = 0; at < bytes.size();) {
    std::string fault;
    const auto record = marked_whole(bytes.substr(at), &fault);
    if (!record) {
      if (!damage) lost_note(reading, fault);
      damage = true;
      at = std::min(bytes.find(mark, at + 1), bytes.size());
      continue;
    }
    damage = false;
    at += record->bytes;
    reading->good_bytes = at;
    if (record->boot != boot) {
      other_boot = true;
      continue;
    }
    any = true;
    const bool counts = record_take(reading->state, *record);
    if (!counts) lost_note(reading, "a record says what no broker has written");
    if (counts && record->type != RecordType::kBegin) ++reading->records;
  }
  if (!any && other_boot) reading->outcome = JournalOutcome::kOtherBoot;
  return any;
}

}  // namespace

std::size_t JournalState::record_count() const {
  std::size_t count = tenants.size() + closed_gpus.size() + drains.size();
  for (const auto& [id, tenant] : tenants) count += tenant.processes.size();
  return count;
}

JournalWriter::JournalWriter(std::string_view boot_id)
    : boot_id_(boot_id), boot_(boot_tag(boot_id)) {
  assert(boot_id.size() < kBootIdBytes);
}

std::string JournalWriter::begin(protocol::TenantId next_tenant) const {
  BeginBody body{kJournalMagic, kJournalVersion, next_tenant, {}};
  text_put(body.boot_id, boot_id_);
  return record_make(boot_, RecordType::kBegin, body);
}

std::string JournalWriter::tenant(const JournalTenant& tenant) const {
  assert(!tenant.gpus.empty() && tenant.gpus.size() <= protocol::kTenantGpusMax);
  TenantBody body{};
  body.id = tenant.id;
  body.key = tenant.key;
  body.uid = tenant.uid;
  body.tenant_class = static_cast<std::uint8_t>(tenant.tenant_class);
  body.sm_mode = static_cast<std::uint8_t>(tenant.sm_mode);
  body.is_default = tenant.is_default;
  body.released = tenant.released;
  body.flags = (tenant.swap ? kStaySwap : 0) | (tenant.stay.suspended ? kStaySuspended : 0) |
               (tenant.stay.rests ? kStayRests : 0) | (tenant.stay.returns ? kStayReturns : 0) |
               (tenant.stay.swapped ? kStaySwapped : 0) | (tenant.stay.frozen ? kStayFrozen : 0) |
               (tenant.stay.by_other ? kStayByOther : 0) |
               (tenant.sm_kind == protocol::SmKind::kGuaranteed ? kShareGuaranteed : 0) |
               (tenant.asked.sm_weight ? kShareWeightAsked : 0);
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
  return record_make(boot_, RecordType::kTenant, body);
}

std::string JournalWriter::tenant_ended(protocol::TenantId id) const {
  return record_make(boot_, RecordType::kTenantEnded, TenantEndedBody{id});
}

std::string JournalWriter::process(protocol::TenantId id, const JournalProcess& process) const {
  ProcessBody body{};
  body.tenant = id;
  body.start_ticks = process.name.start_ticks;
  body.program = process.program;
  body.pid = process.name.pid;
  text_put(body.command, process.command);
  return record_make(boot_, RecordType::kProcess, body);
}

std::string JournalWriter::process_ended(protocol::TenantId id, const ProcessName& name) const {
  return record_make(boot_, RecordType::kProcessEnded,
                     ProcessEndedBody{id, name.start_ticks, name.pid, 0});
}

std::string JournalWriter::gpu(const protocol::GpuUuid& gpu, bool closed) const {
  return record_make(boot_, RecordType::kGpu, GpuBody{gpu, closed ? 1U : 0U, 0});
}

std::string JournalWriter::drain(const JournalDrain& drain) const {
  DrainBody body{};
  body.gpu = drain.gpu;
  body.until_s = static_cast<std::uint64_t>(drain.until_s);
  body.uid = drain.uid;
  text_put(body.reason, drain.reason);
  return record_make(boot_, RecordType::kDrain, body);
}

std::string JournalWriter::image(const JournalState& state) const {
  std::string image = begin(state.next_tenant) + begin(state.next_tenant);
  for (const protocol::GpuUuid& uuid : state.closed_gpus) image += gpu(uuid, true);
  for (const JournalDrain& one : state.drains) image += drain(one);
  for (const auto& [id, known] : state.tenants) {
    image += tenant(known);
    for (const JournalProcess& member : known.processes) image += process(id, member);
  }
  return image;
}

JournalReading journal_read(std::string_view bytes, std::string_view boot_id) {
  JournalReading reading;
  if (bytes.empty()) return reading;
  reading.outcome = JournalOutcome::kRead;
  std::string fault;
  const auto first = plain_whole(bytes, &fault);
  if (const auto begin = begin_of(first);
      begin && begin->version >= kPlainVersionMin && begin->version <= kPlainVersionMax) {
    if (boot_id != begin->boot_id) {
      reading.outcome = JournalOutcome::kOtherBoot;
      return reading;
    }
    reading.earlier = true;
    reading.state.next_tenant = begin->next_tenant;
    reading.good_bytes = first->bytes;
    plain_read(bytes, &reading);
    return reading;
  }
  const auto marked = begin_of(marked_whole(bytes, &fault));
  const bool later = marked && marked->version != kJournalVersion;
  if (!later && marked_read(bytes, boot_tag(boot_id), &reading)) return reading;
  if (reading.outcome == JournalOutcome::kOtherBoot) return reading;
  reading = {};
  reading.outcome = JournalOutcome::kUnreadable;
  reading.fault = "it does not begin like a journal of this version, and no record in it is whole";
  if (later) reading.fault = "it is of version " + std::to_string(marked->version);
  return reading;
}

}  // namespace sluice::daemon

// Drives the core by hand: one event at a time, at a time the test chooses, with every invariant
// checked after each.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "broker/core/core.h"
#include "broker/core/state.h"
#include "broker/protocol/pages.h"

namespace sluice::core {

inline constexpr Nanos kUs = 1'000;
inline constexpr Nanos kMs = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

inline GpuUuid uuid_of(std::uint8_t n) {
  GpuUuid uuid{};
  uuid.bytes[0] = n;
  return uuid;
}

inline Policy policy_usual() {
  Policy policy;
  policy.quantum_ns = 10 * kMs;
  policy.drain_timeout_ns = 100 * kMs;
  return policy;
}

class Harness {
 public:
  explicit Harness(const Policy& policy = policy_usual(), std::uint8_t gpus = 1,
                   Bytes capacity = 4 * kGiB)
      : state_(state_create(policy)) {
    for (std::uint8_t g = 1; g <= gpus; ++g) step(GpuAdded{uuid_of(g), capacity, 32 * kMiB});
  }

  /// Feeds one event; keeps its actions and the lease words they set.
  const std::vector<Action>& step(const Event& event) {
    last_ = core::step(*state_, event, now);
    invariants_check(*state_, now);
    for (const Action& action : last_) {
      if (const auto* lease = std::get_if<LeaseSet>(&action))
        leases_[{lease->tenant, lease->gpu_index}] = *lease;
      if (const auto* hold = std::get_if<HoldSet>(&action))
        holds_[{hold->tenant, hold->gpu_index}] = hold->word;
      if (const auto* room = std::get_if<RoomSet>(&action))
        rooms_[{room->tenant, room->gpu_index}] = room->word;
      if (const auto* alarm = std::get_if<AlarmSet>(&action)) alarm_ = alarm->at;
    }
    return last_;
  }
  /// Time passes; the alarms that fall due ring.
  void pass(Nanos ns) {
    const Nanos end = now + ns;
    while (alarm_ <= end) {
      now = std::max(now, std::exchange(alarm_, kNever));
      step(Tick{});
    }
    now = end;
  }

  template <class T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const Action& action : last_)
      if (const auto* match = std::get_if<T>(&action)) found.push_back(*match);
    return found;
  }
  template <class T>
  T one() const {
    const std::vector<T> found = all<T>();
    EXPECT_EQ(found.size(), 1U);
    return found.empty() ? T{} : found.front();
  }

  /// What the request that was just queued is told.
  std::string waits_for() const { return queued_text(*state_, one<TenantQueued>().request); }

  TenantAsked ask(TenantClass tenant_class = TenantClass::kBatch, Bytes memory = 256 * kMiB) {
    TenantAsked asked;
    asked.request = ++requests_;
    asked.uid = 1000;
    asked.tenant_class = tenant_class;
    asked.memory_max = memory;
    asked.name = "job-" + std::to_string(requests_);
    return asked;
  }
  /// Admits and registers one process; its number is the tenant's plus 100.
  TenantId admit(const TenantAsked& asked) {
    step(asked);
    const TenantId tenant = one<TenantAdmitted>().tenant;
    if (tenant != 0) step(ProcessJoined{tenant, process(tenant)});
    return tenant;
  }
  TenantId admit(TenantClass tenant_class = TenantClass::kBatch, std::uint32_t percent = 100) {
    TenantAsked asked = ask(tenant_class);
    asked.sm_percent = percent;
    return admit(asked);
  }
  static ProcessId process(TenantId tenant) { return tenant + 100; }

  const LeaseSet& lease(TenantId tenant, std::uint32_t index = 0) {
    return leases_[{tenant, index}];
  }
  std::uint32_t epoch(TenantId tenant, std::uint32_t index = 0) {
    return protocol::lease_epoch(lease(tenant, index).word);
  }
  bool has(TenantId tenant, std::uint32_t flag, std::uint32_t index = 0) {
    return (lease(tenant, index).word & flag) != 0;
  }
  bool open(TenantId tenant, std::uint32_t index = 0) {
    return has(tenant, protocol::kLeaseOpen, index);
  }

  std::uint32_t hold(TenantId tenant, std::uint32_t index = 0) { return holds_[{tenant, index}]; }
  std::uint32_t room(TenantId tenant, std::uint32_t index = 0) { return rooms_[{tenant, index}]; }

  void want(TenantId tenant, std::uint32_t index = 0) {
    step(GateWanted{process(tenant), index, epoch(tenant, index)});
  }
  void drain(TenantId tenant, std::uint32_t index = 0) {
    step(Drained{process(tenant), index, epoch(tenant, index)});
  }
  void idle(TenantId tenant, std::uint32_t index = 0) {
    step(GateIdle{process(tenant), index, epoch(tenant, index)});
  }
  void end(TenantId tenant) {
    step(FounderGone{tenant});
    step(ProcessGone{process(tenant)});
  }

  State& state() { return *state_; }
  Nanos alarm() const { return alarm_; }

  Nanos now = kSecond;

 private:
  std::unique_ptr<State, void (*)(State*)> state_;
  std::vector<Action> last_;
  std::map<std::pair<TenantId, std::uint32_t>, LeaseSet> leases_;
  std::map<std::pair<TenantId, std::uint32_t>, std::uint32_t> holds_;
  std::map<std::pair<TenantId, std::uint32_t>, std::uint32_t> rooms_;
  RequestId requests_ = 0;
  Nanos alarm_ = kNever;
};

}  // namespace sluice::core

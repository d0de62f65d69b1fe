// What is done to a device from outside while it works: other settings, other weights, faults, Xid
// events, the loss of the device. All of it is state of the segment, so that it needs nobody's
// cooperation and outlives whoever asked for it. See device.h.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

bool is(const Account& account, const ProcessName& name) {
  return account.pid == name.pid && account.space == name.space;
}

bool strikes(const Fault& fault, const Account& account) {
  return fault.pid == 0 || is(account, {fault.pid, fault.space});
}

void fault_free(Segment& segment, Fault& fault) {
  fault.kind = FaultKind::kFree;
  segment.fault_count = static_cast<std::uint32_t>(
      std::count_if(std::begin(segment.faults), std::end(segment.faults),
                    [](const Fault& f) { return f.kind != FaultKind::kFree; }));
}

}  // namespace

void alarm_sound(Segment& segment) {
  __atomic_store_n(&segment.alarm, segment.alarm + 1, __ATOMIC_RELEASE);
}

bool client_hangs(const Segment& segment, std::uint32_t client) {
  if (segment.fault_count == 0 || client >= kClientsMax) return false;
  const Account& account = segment.clients[client];
  // What has been struck by an Xid or by the loss of the device is to fail, not to wait.
  if (segment.lost != 0 || account.xid != 0) return false;
  return std::any_of(std::begin(segment.faults), std::end(segment.faults), [&](const Fault& f) {
    return f.kind == FaultKind::kHang && strikes(f, account);
  });
}

/// Whether this request for memory is the one that a fault wants to fail.
bool Device::refused_locked(std::uint32_t client) {
  if (segment_->lost != 0) return true;
  if (segment_->fault_count == 0) return false;
  bool refused = false;
  for (Fault& fault : segment_->faults) {
    if (fault.kind != FaultKind::kAllocation || !strikes(fault, segment_->clients[client]))
      continue;
    if (fault.after > 1) {
      --fault.after;
      continue;
    }
    refused = true;
    if (--fault.times == 0) fault_free(*segment_, fault);
  }
  return refused;
}

double Device::copy_cost(WorkKind kind, std::uint64_t bytes) const {
  const double rate = segment_->copy_rate * (kind == WorkKind::kCopyInside ? kInsideFactor : 1);
  double factor = 1;
  if (segment_->fault_count != 0) {
    Account self;
    const ProcessName name = process_named(getpid());
    self.pid = name.pid;
    self.space = name.space;
    for (const Fault& fault : segment_->faults)
      if (fault.kind == FaultKind::kSlowCopy && strikes(fault, self))
        factor = std::max(factor, fault.factor);
  }
  return 1000 + static_cast<double>(bytes) * 1e9 / rate * factor;
}

void Device::change(const Change& change) {
  const Lock lock(*this);
  if (change.rate > 0) segment_->rate = change.rate;
  if (change.copy_rate > 0) segment_->copy_rate = change.copy_rate;
  if (change.slice_ns > 0) segment_->slice_ns = static_cast<std::uint64_t>(change.slice_ns);
  if (change.switch_ns >= 0) segment_->switch_ns = change.switch_ns;
  if (change.launch_ns >= 0) segment_->launch_ns = change.launch_ns;
  if (change.pacing >= 0) {
    segment_->pacing = change.pacing != 0 ? 1 : 0;
    for (Idle& idle : segment_->idle) idle_forget(idle, segment_->now_ns);
  }
  if (change.timed) {
    std::copy(change.timed->begin(), change.timed->end(), segment_->timed);
    __atomic_store_n(&segment_->timed_count, static_cast<std::uint32_t>(change.timed->size()),
                     __ATOMIC_RELEASE);
  }
}

bool Device::weight_set(int pid, double weight) {
  const ProcessName name = process_named(pid);
  const Lock lock(*this);
  bool found = false;
  for (Account& account : segment_->clients) {
    if (account.life == 0 || !is(account, name)) continue;
    account.weight = weight;
    found = true;
  }
  return found;
}

bool Device::has_process(int pid) {
  const ProcessName name = process_named(pid);
  const Lock lock(*this);
  return std::any_of(
      std::begin(segment_->clients), std::end(segment_->clients),
      [&](const Account& account) { return account.life != 0 && is(account, name); });
}

bool Device::fault_add(const Fault& wanted, std::uint32_t& id) {
  Fault fault = wanted;
  if (fault.pid != 0) {
    const ProcessName name = process_named(wanted.pid);
    fault.pid = name.pid;
    fault.space = name.space;
  }
  const Lock lock(*this);
  for (std::uint32_t i = 0; i < kFaultsMax; ++i) {
    Fault& place = segment_->faults[i];
    if (place.kind != FaultKind::kFree) continue;
    place = fault;
    ++segment_->fault_count;
    id = i;
    return true;
  }
  return false;
}

bool Device::fault_remove(std::uint32_t id) {
  const Lock lock(*this);
  if (id >= kFaultsMax || segment_->faults[id].kind == FaultKind::kFree) return false;
  fault_free(*segment_, segment_->faults[id]);
  return true;
}

void Device::faults_clear() {
  const Lock lock(*this);
  for (Fault& fault : segment_->faults) fault_free(*segment_, fault);
  __atomic_store_n(&segment_->lost, 0U, __ATOMIC_RELEASE);
}

std::vector<FaultRule> Device::faults() {
  const Lock lock(*this);
  std::vector<FaultRule> rules;
  for (std::uint32_t i = 0; i < kFaultsMax; ++i)
    if (segment_->faults[i].kind != FaultKind::kFree) rules.push_back({i, segment_->faults[i]});
  return rules;
}

void Device::xid_add_locked(std::uint32_t number) {
  segment_->xids[segment_->xid_count % kXidsMax] = Xid{number, segment_->now_ns};
  __atomic_store_n(&segment_->xid_count, segment_->xid_count + 1, __ATOMIC_RELEASE);
}

void Device::xid_wake() const {
  syscall(SYS_futex, &segment_->xid_count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Device::xid_wait(std::uint32_t number, double timeout_ns) const {
  const auto seconds = static_cast<time_t>(timeout_ns / 1e9);
  const timespec limit{seconds, static_cast<long>(timeout_ns - static_cast<double>(seconds) * 1e9)};
  if (xid_count() == number)
    syscall(SYS_futex, &segment_->xid_count, FUTEX_WAIT, number, &limit, nullptr, 0);
}

void Device::xid_note(std::uint32_t number) {
  {
    const Lock lock(*this);
    xid_add_locked(number);
  }
  xid_wake();
}

void Device::xid_raise(std::uint32_t number, int pid) {
  const ProcessName name = pid == 0 ? ProcessName{} : process_named(pid);
  {
    const Lock lock(*this);
    for (Account& account : segment_->clients) {
      if (account.life == 0 || (pid != 0 && !is(account, name))) continue;
      account.xid = number;
      account.xid_alarm = segment_->alarm + 1;
    }
    xid_add_locked(number);
    alarm_sound(*segment_);
  }
  xid_wake();
}

void Device::lose() {
  constexpr std::uint32_t kFellOffTheBus = 79;
  {
    const Lock lock(*this);
    segment_->lost_alarm = segment_->alarm + 1;
    __atomic_store_n(&segment_->lost, 1U, __ATOMIC_RELEASE);
    alarm_sound(*segment_);
  }
  xid_raise(kFellOffTheBus, 0);
}

Alarm Device::alarm_since(std::uint32_t client, std::uint32_t alarm) const {
  Alarm result;
  result.lost = lost() || segment_->lost_alarm > alarm;
  result.evicted = client < kClientsMax && segment_->clients[client].life != lives_->own();
  if (client < kClientsMax && segment_->clients[client].xid_alarm > alarm)
    result.xid = segment_->clients[client].xid;
  return result;
}

bool Device::xid_get(std::uint32_t number, Xid& xid) {
  const Lock lock(*this);
  if (number >= segment_->xid_count || segment_->xid_count - number > kXidsMax) return false;
  xid = segment_->xids[number % kXidsMax];
  return true;
}

}  // namespace softgpu::device

// Event sets: who watches which devices, and the Xid events that have come since. The events
// themselves are in the device's history (device.h).
#include <algorithm>
#include <map>

#include "softgpu/nvml/library.h"

using namespace softgpu::nvml;

struct nvmlEventSet_st {
  struct Watched {
    nvmlDevice_t device = nullptr;
    std::uint32_t next = 0;  // number of the first event that has not been delivered
  };
  std::mutex mutex;
  std::vector<Watched> watched;
};

namespace {

using SetRef = std::shared_ptr<nvmlEventSet_st>;

/// With several devices no single futex tells of all: they are looked at in turn.
constexpr double kTurnNs = 5e6;
constexpr double kOnceNs = 1e9;

struct Sets {
  std::mutex mutex;
  std::map<nvmlEventSet_t, SetRef> live;
};

Sets& sets() {
  static auto* instance = new Sets;
  return *instance;
}

SetRef set_find(nvmlEventSet_t set) {
  const std::lock_guard lock(sets().mutex);
  const auto found = sets().live.find(set);
  return found == sets().live.end() ? nullptr : found->second;
}

/// Events that fell out of the history are skipped.
bool event_take(nvmlEventSet_st& set, nvmlEventData_t& data) {
  const std::lock_guard lock(set.mutex);
  for (auto& watched : set.watched) {
    const std::uint32_t count = watched.device->model.xid_count();
    softgpu::device::Xid xid;
    while (watched.next != count) {
      if (!watched.device->model.xid_get(watched.next++, xid)) continue;
      data = {watched.device, NVML_EVENT_XID_CRITICAL_ERROR, xid.number, NVML_NO_INSTANCE,
              NVML_NO_INSTANCE};
      return true;
    }
  }
  return false;
}

/// Sleeps until something may have come, not longer than `limit_ns`.
void event_sleep(nvmlEventSet_st& set, double limit_ns) {
  nvmlEventSet_st::Watched first;
  std::size_t count = 0;
  {
    const std::lock_guard lock(set.mutex);
    count = set.watched.size();
    if (count > 0) first = set.watched.front();
  }
  const double step = std::min(limit_ns, count == 1 ? kOnceNs : kTurnNs);
  if (count > 0) {
    first.device->model.xid_wait(first.next, step);
    return;
  }
  const timespec pause{0, static_cast<long>(step)};
  nanosleep(&pause, nullptr);
}

}  // namespace

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
  return give(device, types, NVML_EVENT_XID_CRITICAL_ERROR);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const auto made = std::make_shared<nvmlEventSet_st>();
  const std::lock_guard lock(sets().mutex);
  sets().live[made.get()] = made;
  *set = made.get();
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set) {
  const nvmlReturn_t result = device_ready(device);
  if (result != NVML_SUCCESS) return result;
  const SetRef found = set_find(set);
  if (found == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if ((types & ~NVML_EVENT_XID_CRITICAL_ERROR) != 0) return NVML_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(found->mutex);
  const bool known = std::any_of(found->watched.begin(), found->watched.end(),
                                 [&](const auto& watched) { return watched.device == device; });
  if (!known && types != 0) found->watched.push_back({device, device->model.xid_count()});
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  const SetRef found = set_find(set);
  if (found == nullptr || data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const double end = softgpu::device::clock_ns() + timeout_ms * 1e6;
  for (;;) {
    if (event_take(*found, *data)) return NVML_SUCCESS;
    const double left = end - softgpu::device::clock_ns();
    if (left <= 0) return NVML_ERROR_TIMEOUT;
    event_sleep(*found, left);
  }
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t* data, unsigned timeout_ms) {
  nvmlEventData_t whole{};
  const nvmlReturn_t result =
      nvmlEventSetWait_v2(set, data == nullptr ? nullptr : &whole, timeout_ms);
  if (result == NVML_SUCCESS) *data = {whole.device, whole.eventType, whole.eventData};
  return result;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  if (ready() != NVML_SUCCESS) return NVML_ERROR_UNINITIALIZED;
  const std::lock_guard lock(sets().mutex);
  return sets().live.erase(set) == 1 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

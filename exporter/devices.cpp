// The few functions of NVML, and the thread that calls them.
#include "exporter/devices.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace sluice::exporter {
namespace nvml {

using Device = void*;
using EventSet = void*;

// Layouts and numbers of nvml.h.
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kEventXid = 8;
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;
constexpr unsigned kProcessesMax = 4096;

class Library {
 public:
  ~Library() {
    if (events_ != nullptr && event_set_free_ != nullptr) event_set_free_(events_);
    if (started_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }

  bool start() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return false;
    int (*init)() = nullptr;
    int (*count_get)(unsigned*) = nullptr;
    int (*handle_get)(unsigned, Device*) = nullptr;
    int (*uuid_get)(Device, char*, unsigned) = nullptr;
    if (!find(&init, "nvmlInit_v2") || !find(&shutdown_, "nvmlShutdown") ||
        !find(&count_get, "nvmlDeviceGetCount_v2") ||
        !find(&handle_get, "nvmlDeviceGetHandleByIndex_v2") ||
        !find(&uuid_get, "nvmlDeviceGetUUID") || init() != 0)
      return false;
    started_ = true;
    find(&memory_get_, "nvmlDeviceGetMemoryInfo");
    find(&processes_get_, "nvmlDeviceGetComputeRunningProcesses_v3");
    unsigned count = 0;
    if (count_get(&count) != 0) return false;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      char uuid[96] = "";
      if (handle_get(i, &device) == 0 && uuid_get(device, uuid, sizeof uuid) == 0)
        devices_.emplace_back(device, uuid);
    }
    events_start();
    return true;
  }

  void look(DeviceFigures& out) {
    for (const auto& [device, uuid] : devices_) {
      DeviceLook& gpu = out.gpus[uuid];
      for (const std::uint64_t xid : kXidsKnown) gpu.xids.emplace(xid, 0);
      MemoryInfo memory{};
      gpu.used_bytes.reset();
      if (memory_get_ != nullptr && memory_get_(device, &memory) == 0) gpu.used_bytes = memory.used;
      gpu.processes = processes_of(device);
    }
    EventData event{};
    while (events_ != nullptr && event_wait_(events_, &event, 0) == 0) {
      if (event.type != kEventXid) continue;
      for (const auto& [device, uuid] : devices_)
        if (device == event.device) xid_count(out.gpus[uuid].xids, event.data);
    }
  }

 private:
  template <class Function>
  bool find(Function* function, const char* name) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    return *function != nullptr;
  }

  void events_start() {
    int (*create)(EventSet*) = nullptr;
    int (*add)(Device, unsigned long long, EventSet) = nullptr;
    if (!find(&create, "nvmlEventSetCreate") || !find(&add, "nvmlDeviceRegisterEvents") ||
        !find(&event_wait_, "nvmlEventSetWait_v2") || !find(&event_set_free_, "nvmlEventSetFree") ||
        create(&events_) != 0) {
      events_ = nullptr;
      return;
    }
    for (const auto& [device, uuid] : devices_) (void)add(device, kEventXid, events_);
  }

  std::optional<std::vector<DeviceProcess>> processes_of(Device device) const {
    if (processes_get_ == nullptr) return std::nullopt;
    std::vector<ProcessInfo> infos(64);
    for (;;) {
      unsigned count = static_cast<unsigned>(infos.size());
      const int result = processes_get_(device, &count, infos.data());
      if (result == 0) {
        infos.resize(count);
        break;
      }
      if (result != kInsufficientSize || infos.size() >= kProcessesMax) return std::nullopt;
      infos.resize(infos.size() * 4);
    }
    std::vector<DeviceProcess> out;
    for (const ProcessInfo& info : infos) {
      out.push_back({info.pid, std::nullopt});
      if (info.used_bytes != kNotAvailable) out.back().used_bytes = info.used_bytes;
    }
    return out;
  }

  static void xid_count(std::map<std::uint64_t, std::uint64_t>& xids, std::uint64_t xid) {
    const bool told_apart = xids.contains(xid) || xids.size() < kXidsMax;
    ++xids[told_apart ? xid : kXidOther];
  }

  void* library_ = nullptr;
  bool started_ = false;
  std::vector<std::pair<Device, std::string>> devices_;
  EventSet events_ = nullptr;
  int (*shutdown_)() = nullptr;
  int (*memory_get_)(Device, MemoryInfo*) = nullptr;
  int (*processes_get_)(Device, unsigned*, ProcessInfo*) = nullptr;
  int (*event_wait_)(EventSet, EventData*, unsigned) = nullptr;
  int (*event_set_free_)(EventSet) = nullptr;
};

}  // namespace nvml

struct Devices::Shared {
  nvml::Library library;  // of the thread alone
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t asked = 0, answered = 0;
  bool ending = false;
  DeviceFigures figures;

  void run() {
    DeviceFigures now;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || answered < asked; });
      if (ending) return;
      const std::uint64_t question = asked;
      lock.unlock();
      library.look(now);
      lock.lock();
      figures = now;
      figures.up = true;
      answered = question;
      changed.notify_all();
    }
  }
};

std::unique_ptr<Devices> Devices::open() {
  auto shared = std::make_shared<Shared>();
  if (!shared->library.start()) return nullptr;
  // Not joined at the end: a thread in a call that never returns must not keep the program.
  std::thread([shared] { shared->run(); }).detach();
  return std::unique_ptr<Devices>(new Devices(std::move(shared)));
}

Devices::~Devices() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
}

DeviceFigures Devices::look(int timeout_ms) const {
  std::unique_lock lock(shared_->mutex);
  const std::uint64_t question = ++shared_->asked;
  shared_->changed.notify_all();
  const bool told = shared_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                              [&] { return shared_->answered >= question; });
  return told ? shared_->figures : DeviceFigures{};
}

}  // namespace sluice::exporter

// The few functions of NVML, and the thread that calls them.
#include "exporter/devices.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

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
struct Utilization {
  unsigned gpu_percent, memory_percent;
};
// The hardware's counters are read as differences of two samples ("GPM"). The real array is
// shorter, and as many of it are read as are asked for.
struct GpmMetric {
  unsigned id;
  int result;
  double value;
  const char* names[3];
};
struct GpmMetricsGet {
  unsigned version, count;
  void *before, *after;
  GpmMetric metrics[512];
};
struct GpmSupport {
  unsigned version, supported;
};
constexpr unsigned kGpmVersion = 1;
constexpr unsigned kGpmSmUtilization = 2;  // percent
constexpr unsigned long long kEventXid = 8;
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;
constexpr unsigned kProcessesMax = 4096;

/// How many SMs have work, of the GPUs that count it.
class SmCounters {
 public:
  ~SmCounters() {
    for (auto& [device, sample] : samples_) free_(sample);
  }
  bool start(void* library) {
    const auto find = [library](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    there_ = find(&support_, "nvmlGpmQueryDeviceSupport") && find(&alloc_, "nvmlGpmSampleAlloc") &&
             find(&free_, "nvmlGpmSampleFree") && find(&take_, "nvmlGpmSampleGet") &&
             find(&get_, "nvmlGpmMetricsGet");
    return there_;
  }

  /// Since it was asked before.
  std::optional<double> ratio(Device device) {
    GpmSupport support{kGpmVersion, 0};
    if (!there_ || support_(device, &support) != 0 || support.supported == 0) return std::nullopt;
    void* now = nullptr;
    if (alloc_(&now) != 0) return std::nullopt;
    if (take_(device, now) != 0) {
      free_(now);
      return std::nullopt;
    }
    void* const before = std::exchange(samples_[device], now);
    if (before == nullptr) return std::nullopt;
    const auto asked = std::make_unique<GpmMetricsGet>();
    asked->version = kGpmVersion;
    asked->count = 1;
    asked->before = before;
    asked->after = now;
    asked->metrics[0].id = kGpmSmUtilization;
    const bool good = get_(asked.get()) == 0 && asked->metrics[0].result == 0;
    free_(before);
    const double percent = asked->metrics[0].value;
    if (!good || !(percent >= 0)) return std::nullopt;
    return std::min(1.0, percent / 100);
  }

 private:
  bool there_ = false;
  std::map<Device, void*> samples_;
  int (*support_)(Device, GpmSupport*) = nullptr;
  int (*alloc_)(void**) = nullptr;
  int (*free_)(void*) = nullptr;
  int (*take_)(Device, void*) = nullptr;
  int (*get_)(GpmMetricsGet*) = nullptr;
};

class Library {
 public:
  ~Library() {
    counters_.reset();
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
    find(&utilization_get_, "nvmlDeviceGetUtilizationRates");
    counters_.emplace().start(library_);
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
      Utilization utilization{};
      gpu.busy_ratio.reset();
      if (utilization_get_ != nullptr && utilization_get_(device, &utilization) == 0)
        gpu.busy_ratio = std::min(1.0, utilization.gpu_percent / 100.0);
      gpu.sm_ratio = counters_->ratio(device);
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
  std::optional<SmCounters> counters_;
  int (*memory_get_)(Device, MemoryInfo*) = nullptr;
  int (*utilization_get_)(Device, Utilization*) = nullptr;
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

#include "trainer/lab/nvml.h"

#include <dlfcn.h>

namespace sluice::lab {

template <class Function>
Function Nvml::find(const char* name) const {
  return library_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library_, name));
}

Nvml::Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  const auto init = find<int (*)()>("nvmlInit_v2");
  if (library_ == nullptr || (init != nullptr && init() == 0)) return;
  dlclose(library_);
  library_ = nullptr;
}

Nvml::~Nvml() {
  if (const auto shutdown = find<int (*)()>("nvmlShutdown")) shutdown();
  if (library_ != nullptr) dlclose(library_);
}

void* Nvml::device(unsigned index) const {
  void* handle = nullptr;
  const auto get = find<int (*)(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
  return get != nullptr && get(index, &handle) == 0 ? handle : nullptr;
}

std::vector<std::string> Nvml::gpu_names() const {
  std::vector<std::string> out;
  const auto count_get = find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto name_get = find<int (*)(void*, char*, unsigned)>("nvmlDeviceGetName");
  unsigned count = 0;
  if (count_get == nullptr || name_get == nullptr || count_get(&count) != 0) return out;
  for (unsigned i = 0; i < count; ++i) {
    char name[96] = "";
    void* handle = device(i);
    if (handle != nullptr && name_get(handle, name, sizeof name) == 0) out.emplace_back(name);
  }
  return out;
}

std::string Nvml::driver_version() const {
  char driver[81] = "";
  const auto get = find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  return get != nullptr && get(driver, sizeof driver) == 0 ? driver : "";
}

std::optional<double> Nvml::utilization(unsigned index) const {
  Utilization now;
  const auto get = find<int (*)(void*, Utilization*)>("nvmlDeviceGetUtilizationRates");
  void* handle = device(index);
  if (get == nullptr || handle == nullptr || get(handle, &now) != 0) return std::nullopt;
  return now.gpu / 100.0;
}

}  // namespace sluice::lab

// NVML by dlopen: own declarations of the eleven entry points used, taken from NVIDIA's published
// API reference.
#include "broker/devices/nvml.h"

#include <dlfcn.h>

#include <cstring>

#include "broker/devices/uuid.h"

namespace sluice::devices {
namespace {

using Device = void*;
using Return = int;

constexpr Return kSuccess = 0;
constexpr Return kNoPermission = 4;
constexpr Return kNotFound = 6;
constexpr Return kInsufficientSize = 7;
constexpr Return kDriverNotLoaded = 9;
constexpr Return kLibraryNotFound = 12;
constexpr Return kGpuIsLost = 15;
constexpr Return kLibRmVersionMismatch = 18;
constexpr std::uint64_t kValueNotAvailable = ~std::uint64_t{0};
constexpr unsigned kProcessesMax = 4096;
constexpr unsigned kUuidTextBytes = 96;
constexpr unsigned kNameTextBytes = 96;

std::string remedy(Return code) {
  switch (code) {
    case kDriverNotLoaded:
      return "the NVIDIA kernel driver is not loaded; load it (modprobe nvidia) or install the "
             "driver";
    case kNoPermission:
      return "this user may not open the GPU device files; check the permissions of /dev/nvidia*";
    case kLibraryNotFound:
      return "NVML found no driver library; install the NVIDIA driver";
    case kLibRmVersionMismatch:
      return "the driver's library and kernel module differ in version; reboot or reload the "
             "module after the upgrade";
    default:
      return "see dmesg for the driver's own report";
  }
}

template <class F>
bool symbol_load(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

}  // namespace

const char* lost_remedy(bool software) {
  return software ? "bring it back with softgpu-ctl clear"
                  : "reset it (nvidia-smi -r) or reboot (dmesg has an Xid)";
}

struct Nvml::Table {
  struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
  };
  struct ProcessInfo {
    unsigned pid;
    unsigned long long used_gpu_memory;
    unsigned gpu_instance_id;
    unsigned compute_instance_id;
  };
  struct UtilizationSample {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;  // per cent
  };
  void* library = nullptr;
  bool initialised = false;
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*device_count)(unsigned*) = nullptr;
  Return (*device_by_index)(unsigned, Device*) = nullptr;
  Return (*device_by_uuid)(const char*, Device*) = nullptr;
  Return (*device_uuid)(Device, char*, unsigned) = nullptr;
  Return (*device_name)(Device, char*, unsigned) = nullptr;
  Return (*device_memory)(Device, Memory*) = nullptr;
  Return (*device_processes)(Device, unsigned*, ProcessInfo*) = nullptr;  // optional
  Return (*device_utilization)(Device, UtilizationSample*, unsigned*,
                               unsigned long long) = nullptr;  // optional
  const char* (*software_fault)() = nullptr;                   // the software GPU's only

  ~Table() {
    if (initialised) shutdown();
    if (library != nullptr) dlclose(library);
  }
  bool load(const char* path, DeviceError* error);
  Return read(unsigned index, GpuInfo* out, std::string* foreign_uuid) const;
  std::string why(Return code) const {
    return std::string(error_string(code)) + "; " +
           (code == kGpuIsLost ? lost_remedy(software_fault != nullptr) : remedy(code));
  }
  std::string start_fault(Return code) const;
  Device device(const protocol::GpuUuid& uuid) const {
    Device handle = nullptr;
    return device_by_uuid(uuid_format(uuid).c_str(), &handle) == kSuccess ? handle : nullptr;
  }
};

bool Nvml::Table::load(const char* path, DeviceError* error) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    error->text = std::string("cannot load ") + path + " (" +
                  (reason != nullptr ? reason : "unknown reason") +
                  "); the NVIDIA driver is not installed here; install it, or use software GPUs "
                  "with --soft N";
    return false;
  }
  const bool complete = symbol_load(library, "nvmlInit_v2", &init) &&
                        symbol_load(library, "nvmlShutdown", &shutdown) &&
                        symbol_load(library, "nvmlErrorString", &error_string) &&
                        symbol_load(library, "nvmlDeviceGetCount_v2", &device_count) &&
                        symbol_load(library, "nvmlDeviceGetHandleByIndex_v2", &device_by_index) &&
                        symbol_load(library, "nvmlDeviceGetHandleByUUID", &device_by_uuid) &&
                        symbol_load(library, "nvmlDeviceGetUUID", &device_uuid) &&
                        symbol_load(library, "nvmlDeviceGetName", &device_name) &&
                        symbol_load(library, "nvmlDeviceGetMemoryInfo", &device_memory);
  symbol_load(library, "nvmlDeviceGetComputeRunningProcesses_v3", &device_processes);
  symbol_load(library, "nvmlDeviceGetProcessUtilization", &device_utilization);
  symbol_load(library, "softgpu_fault", &software_fault);
  if (!complete) {
    error->text = std::string(path) +
                  " lacks entry points that every driver since 2012 has; it is not NVML or it is "
                  "damaged; reinstall the driver";
  }
  return complete;
}

// The software GPU gives its reason itself; the codes and remedies are those of an NVIDIA driver.
std::string Nvml::Table::start_fault(Return code) const {
  const std::string fault = software_fault != nullptr ? software_fault() : "";
  if (fault.empty()) return "NVML does not start: " + why(code);
  const bool remedied = fault.find("; ") != std::string::npos;
  return fault + (remedied ? "" : "; correct what it names, or run softgpu-ctl reset");
}

Return Nvml::Table::read(unsigned index, GpuInfo* out, std::string* foreign_uuid) const {
  Device handle = nullptr;
  Memory memory{};
  char uuid_text[kUuidTextBytes] = "";
  char name[kNameTextBytes] = "";
  Return code = device_by_index(index, &handle);
  if (code == kSuccess) code = device_uuid(handle, uuid_text, sizeof uuid_text);
  if (code == kSuccess) code = device_name(handle, name, sizeof name);
  if (code == kSuccess) code = device_memory(handle, &memory);
  if (code != kSuccess) return code;
  const auto uuid = uuid_parse(uuid_text);
  if (!uuid) {
    *foreign_uuid = uuid_text;
    return kSuccess;
  }
  const bool software =
      std::strncmp(name, kSoftwareNamePrefix, sizeof kSoftwareNamePrefix - 1) == 0;
  *out = {*uuid, name, memory.total, memory.used, software};
  return kSuccess;
}

Nvml::Nvml(std::unique_ptr<Table> table) : table_(std::move(table)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::open(const char* library, DeviceError* error) {
  auto table = std::make_unique<Table>();
  if (!table->load(library, error)) return nullptr;
  const Return code = table->init();
  if (code != kSuccess) {
    error->text = table->start_fault(code);
    return nullptr;
  }
  table->initialised = true;
  return std::unique_ptr<Nvml>(new Nvml(std::move(table)));
}

bool Nvml::gpus(std::vector<GpuInfo>* out, DeviceError* error) const {
  out->clear();
  error->text.clear();
  unsigned count = 0;
  unsigned lost = 0;
  Return code = table_->device_count(&count);
  if (code == kSuccess && count == 0) {
    error->text =
        "the driver is loaded but there is no GPU; check that one is fitted (lspci) and not bound "
        "to another driver, or use software GPUs with --soft N";
    return false;
  }
  for (unsigned i = 0; code == kSuccess && i < count; ++i) {
    GpuInfo gpu;
    std::string foreign;
    code = table_->read(i, &gpu, &foreign);
    if (!foreign.empty()) {
      error->text = std::string("GPU ") + std::to_string(i) + " has the UUID '" + foreign +
                    "', which is not of the form GPU-8-4-4-4-12; this driver is not supported";
      return false;
    }
    if (code == kSuccess) {
      out->push_back(std::move(gpu));
    } else if (code == kGpuIsLost) {
      ++lost;
      code = kSuccess;
    }
  }
  if (code != kSuccess) {
    error->text = "NVML cannot list the GPUs: " + table_->why(code);
  } else if (lost != 0) {
    error->text = std::to_string(lost) + " of " + std::to_string(count) +
                  " GPUs cannot be used: " + table_->why(kGpuIsLost);
  }
  return code == kSuccess && !out->empty();
}

bool Nvml::lost(const protocol::GpuUuid& uuid) const {
  Device handle = nullptr;
  Table::Memory memory{};
  Return code = table_->device_by_uuid(uuid_format(uuid).c_str(), &handle);
  if (code == kSuccess) code = table_->device_memory(handle, &memory);
  return code == kGpuIsLost;
}

std::optional<std::uint64_t> Nvml::used_bytes(const protocol::GpuUuid& uuid) const {
  Device handle = table_->device(uuid);
  Table::Memory memory{};
  if (handle == nullptr || table_->device_memory(handle, &memory) != kSuccess) return std::nullopt;
  return memory.used;
}

bool Nvml::processes(const protocol::GpuUuid& uuid, std::vector<ProcessMemory>* out) const {
  out->clear();
  Device handle = table_->device(uuid);
  if (handle == nullptr || table_->device_processes == nullptr) return false;
  // The list may grow between the two calls; the driver then says how many there are now.
  std::vector<Table::ProcessInfo> list(64);
  unsigned count = static_cast<unsigned>(list.size());
  Return code = table_->device_processes(handle, &count, list.data());
  while (code == kInsufficientSize && count < kProcessesMax) {
    list.resize(count + 16);
    count = static_cast<unsigned>(list.size());
    code = table_->device_processes(handle, &count, list.data());
  }
  if (code != kSuccess) return false;
  for (unsigned i = 0; i < count; ++i) {
    const std::uint64_t used = list[i].used_gpu_memory;
    out->push_back({list[i].pid, used == kValueNotAvailable ? 0 : used});
  }
  return true;
}

bool Nvml::busy(const protocol::GpuUuid& uuid, std::uint64_t since_us,
                std::vector<std::uint32_t>* out) const {
  out->clear();
  Device handle = table_->device(uuid);
  if (handle == nullptr || table_->device_utilization == nullptr) return false;
  unsigned count = 0;
  Return code = table_->device_utilization(handle, nullptr, &count, since_us);
  if (code == kSuccess || code == kNotFound) return true;  // nothing to tell of
  if (code != kInsufficientSize || count > kProcessesMax) return false;
  std::vector<Table::UtilizationSample> samples(count + 16);
  count = static_cast<unsigned>(samples.size());
  code = table_->device_utilization(handle, samples.data(), &count, since_us);
  if (code == kNotFound) return true;
  if (code != kSuccess) return false;
  for (unsigned i = 0; i < count; ++i)
    if (samples[i].sm > 0) out->push_back(samples[i].pid);
  return true;
}

}  // namespace sluice::devices

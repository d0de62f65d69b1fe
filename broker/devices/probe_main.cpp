// sluice-probe: makes one context on every GPU, measures what it costs, prints one line per GPU and
// ends. `sluice-probe --watch PERIOD_MS UUID...` makes none: it tells of each GPU that is lost when
// NVML first says so, and answers each UUID on its standard input with what of that GPU's memory is
// in use. A program of its own because a driver may block or crash, and because the
// memory goes back only when the process does.
//
// The figure is the driver's own account of this process (NVML) where it knows us by pid; in a
// container NVML speaks host pids, then the growth of the whole device's use stands in, and without
// NVML what cuMemGetInfo says is missing.
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/devices/loss_watch.h"
#include "broker/devices/nvml.h"
#include "broker/devices/probe.h"
#include "broker/devices/process.h"
#include "broker/devices/uuid.h"

namespace {

constexpr char kUsage[] =
    R"(usage: sluice-probe
       sluice-probe --watch PERIOD_MS UUID...

Makes a context on every GPU, prints one line per GPU with what it cost, and ends.

  --watch   makes no context: says which of these GPUs is lost, asking every PERIOD_MS milliseconds, and answers a UUID
            on standard input, with PID:START_TICKS of processes that have ended behind it, with what of that GPU's memory
            is in use. sluiced runs it so

exit codes: 0, 1 no driver or a GPU that failed, 2 wrong usage
)";

using sluice::devices::DeviceError;
using sluice::devices::DeviceUse;
using sluice::devices::EndedProcess;
using sluice::devices::ListedUse;
using sluice::devices::Nvml;
using sluice::devices::ProbedGpu;

struct Driver {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*count)(int*) = nullptr;
  CUresult (*device)(CUdevice*, int) = nullptr;
  CUresult (*uuid)(CUuuid*, CUdevice) = nullptr;
  CUresult (*total)(size_t*, CUdevice) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
  CUresult (*memory_info)(size_t*, size_t*) = nullptr;
  CUresult (*error_name)(CUresult, const char**) = nullptr;
};

template <class F>
bool symbol_load(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  if (*out == nullptr) std::fprintf(stderr, "sluice-probe: the driver library lacks %s\n", name);
  return *out != nullptr;
}

bool driver_load(Driver* driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "sluice-probe: %s; install the NVIDIA driver or use software GPUs\n",
                 dlerror());
    return false;
  }
  return symbol_load(library, "cuInit", &driver->init) &&
         symbol_load(library, "cuDeviceGetCount", &driver->count) &&
         symbol_load(library, "cuDeviceGet", &driver->device) &&
         symbol_load(library, "cuDeviceGetUuid", &driver->uuid) &&
         symbol_load(library, "cuDeviceTotalMem_v2", &driver->total) &&
         symbol_load(library, "cuDevicePrimaryCtxRetain", &driver->retain) &&
         symbol_load(library, "cuCtxSetCurrent", &driver->set_current) &&
         symbol_load(library, "cuMemGetInfo_v2", &driver->memory_info) &&
         symbol_load(library, "cuGetErrorName", &driver->error_name);
}

bool check(const Driver& driver, CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return true;
  const char* name = nullptr;
  driver.error_name(code, &name);
  std::fprintf(stderr, "sluice-probe: %s failed: %s\n", what,
               name != nullptr ? name : "unknown error");
  return false;
}

std::int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

/// What is in use beyond what the driver lists for processes.
std::optional<std::uint64_t> unlisted_bytes(const Nvml& nvml,
                                            const sluice::protocol::GpuUuid& uuid) {
  constexpr int kTries = 4;
  for (int i = 0; i < kTries; ++i) {
    const auto before = nvml.used_bytes(uuid);
    std::vector<sluice::devices::ProcessMemory> list;
    const bool listed = nvml.processes(uuid, &list);
    const auto after = nvml.used_bytes(uuid);
    if (!listed || !before || !after) return std::nullopt;
    if (*before != *after) continue;
    std::uint64_t rest = *after;
    for (const auto& process : list) rest -= std::min<std::uint64_t>(rest, process.used_bytes);
    return rest;
  }
  return std::nullopt;
}

std::uint64_t own_bytes(const Nvml& nvml, const sluice::protocol::GpuUuid& uuid) {
  std::vector<sluice::devices::ProcessMemory> list;
  if (!nvml.processes(uuid, &list)) return 0;
  for (const auto& process : list) {
    if (process.pid == static_cast<std::uint32_t>(getpid())) return process.used_bytes;
  }
  return 0;
}

bool gpu_probe(const Driver& driver, const Nvml* nvml, int index, ProbedGpu* out) {
  CUdevice device = 0;
  CUuuid uuid{};
  size_t total = 0;
  CUcontext context = nullptr;
  if (!check(driver, driver.device(&device, index), "cuDeviceGet") ||
      !check(driver, driver.uuid(&uuid, device), "cuDeviceGetUuid") ||
      !check(driver, driver.total(&total, device), "cuDeviceTotalMem")) {
    return false;
  }
  std::memcpy(out->uuid.bytes, uuid.bytes, sizeof out->uuid.bytes);
  out->total_bytes = total;
  const std::uint64_t before = nvml != nullptr ? nvml->used_bytes(out->uuid).value_or(0) : 0;
  const auto unlisted = nvml != nullptr ? unlisted_bytes(*nvml, out->uuid) : std::nullopt;
  if (!check(driver, driver.retain(&context, device), "cuDevicePrimaryCtxRetain") ||
      !check(driver, driver.set_current(context), "cuCtxSetCurrent")) {
    return false;
  }
  out->method = "process";
  out->context_bytes = nvml != nullptr ? own_bytes(*nvml, out->uuid) : 0;
  const auto unlisted_now = unlisted ? unlisted_bytes(*nvml, out->uuid) : std::nullopt;
  if (unlisted_now && out->context_bytes != 0)
    out->unlisted_bytes = *unlisted_now - std::min(*unlisted_now, *unlisted);
  if (out->context_bytes == 0 && nvml != nullptr) {
    const std::uint64_t after = nvml->used_bytes(out->uuid).value_or(0);
    out->method = "device";
    out->context_bytes = after > before ? after - before : 0;
  }
  if (out->context_bytes == 0) {
    size_t free_now = 0;
    size_t total_now = 0;
    if (!check(driver, driver.memory_info(&free_now, &total_now), "cuMemGetInfo")) return false;
    out->method = "driver";
    out->context_bytes = total_now - free_now;
  }
  return true;
}

enum class Life : std::uint8_t { kLives, kEnded, kOther };

/// Whether what the driver lists under this number is of a process that lives. kOther: it may be of
/// one of the `ended`, because the process that has the number now has started at another time.
Life life_of(std::uint32_t pid, const std::vector<EndedProcess>& ended) {
  constexpr long kPidfdOpen = 434;
  const sluice::devices::Fd fd(static_cast<int>(syscall(kPidfdOpen, pid, 0)));
  if (!fd) return errno != ESRCH ? Life::kLives : Life::kEnded;
  bool other = false;
  for (const EndedProcess& one : ended) {
    if (one.pid != pid || one.start_ticks == 0) continue;
    const std::uint64_t start = sluice::devices::process_start_ticks(static_cast<pid_t>(pid));
    other = other || (start != 0 && start != one.start_ticks);
  }
  if (sluice::devices::pidfd_ended(fd.get())) return Life::kEnded;
  return other ? Life::kOther : Life::kLives;
}

std::uint64_t second_ago_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec - 1) * 1'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000;
}

void listed_add(ListedUse* listed, const ListedUse::Process& process, Life life) {
  if (life == Life::kEnded) listed->ended += process.bytes;
  if (life != Life::kLives) return;
  listed->living += process.bytes;
  ++listed->processes;
  listed->of.push_back(process);
}

/// What the driver lists is one figure for each process, and what is in use is another one: they
/// belong together where the latter is the same before and after.
std::optional<DeviceUse> use_read(const Nvml& nvml, const sluice::protocol::GpuUuid& uuid,
                                  const std::vector<EndedProcess>& ended) {
  constexpr int kTries = 4;
  DeviceUse use;
  use.gpu = uuid;
  for (int i = 0; i < kTries && !use.listed; ++i) {
    const auto before = nvml.used_bytes(uuid);
    std::vector<sluice::devices::ProcessMemory> list;
    const bool listed = nvml.processes(uuid, &list);
    const auto after = nvml.used_bytes(uuid);
    if (!before || !after) return std::nullopt;
    use.bytes = *after;
    if (!listed) return use;
    if (*before != *after) continue;
    use.listed.emplace();
    bool some_ended = false;
    for (const auto& process : list) {
      const Life life = life_of(process.pid, ended);
      listed_add(&*use.listed, {process.pid, process.used_bytes}, life);
      some_ended = some_ended || life != Life::kLives;
    }
    std::vector<std::uint32_t> busy;
    use.busy_known = some_ended && nvml.busy(uuid, second_ago_us(), &busy);
    for (const std::uint32_t pid : busy)
      if (life_of(pid, ended) != Life::kLives) use.busy.push_back(pid);
  }
  return use;
}

/// Waits for questions for so long, and answers them. False = nobody will ask any more.
bool questions_answer(const Nvml& nvml, int wait_ms, std::string* text) {
  constexpr std::size_t kQuestionBytesMax = 8192;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, wait_ms) <= 0) return true;
  char buffer[kQuestionBytesMax];
  const ssize_t got = read(STDIN_FILENO, buffer, sizeof buffer);
  if (got <= 0) return false;
  text->append(buffer, static_cast<std::size_t>(got));
  for (std::size_t end = text->find('\n'); end != std::string::npos; end = text->find('\n')) {
    sluice::protocol::GpuUuid uuid;
    std::vector<EndedProcess> ended;
    const bool asked =
        sluice::devices::use_question_parse(std::string_view(*text).substr(0, end), &uuid, &ended);
    text->erase(0, end + 1);
    if (!asked) continue;
    const auto use = use_read(nvml, uuid, ended);
    const std::string answer =
        use ? sluice::devices::used_line(*use) : sluice::devices::unknown_line(uuid);
    std::printf("%s\n", answer.c_str());
  }
  if (text->size() > kQuestionBytesMax) text->clear();
  std::fflush(stdout);
  return true;
}

/// The broker reads the lines, and kills this program with itself (child.cpp).
int watch(int argc, char** argv) {
  unsigned period_ms = 0;
  const std::string_view period = argc > 0 ? argv[0] : "";
  std::from_chars(period.data(), period.data() + period.size(), period_ms);
  std::vector<sluice::protocol::GpuUuid> gpus;
  for (int i = 1; i < argc; ++i)
    if (const auto uuid = sluice::devices::uuid_parse(argv[i])) gpus.push_back(*uuid);
  if (period_ms == 0 || gpus.size() + 1 != static_cast<std::size_t>(argc)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  DeviceError error;
  const std::unique_ptr<Nvml> nvml = Nvml::open(sluice::devices::kNvmlLibrary, &error);
  if (nvml == nullptr) {
    std::fprintf(stderr, "sluice-probe: %s\n", error.text.c_str());
    return 1;
  }
  std::string questions;
  bool asked = true;
  const auto period_ns = static_cast<std::int64_t>(period_ms) * 1'000'000;
  for (std::int64_t next_ns = 0;;) {
    const std::int64_t wait_ns = next_ns - clock_ns();
    if (wait_ns > 0 && asked) {
      asked = questions_answer(*nvml, static_cast<int>(wait_ns / 1'000'000 + 1), &questions);
      continue;
    }
    if (wait_ns > 0) poll(nullptr, 0, static_cast<int>(wait_ns / 1'000'000 + 1));
    next_ns = clock_ns() + period_ns;
    std::erase_if(gpus, [&](const sluice::protocol::GpuUuid& uuid) {
      if (!nvml->lost(uuid)) return false;
      std::printf("%s\n", sluice::devices::loss_line(uuid).c_str());
      std::fflush(stdout);
      return true;
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0)) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (argc > 1 && std::strcmp(argv[1], "--watch") == 0) return watch(argc - 2, argv + 2);
  Driver driver;
  if (!driver_load(&driver) || !check(driver, driver.init(0), "cuInit")) return 1;
  int count = 0;
  if (!check(driver, driver.count(&count), "cuDeviceGetCount")) return 1;
  DeviceError error;
  const std::unique_ptr<Nvml> nvml = Nvml::open(sluice::devices::kNvmlLibrary, &error);
  bool all = true;
  for (int i = 0; i < count; ++i) {
    ProbedGpu gpu;
    if (gpu_probe(driver, nvml.get(), i, &gpu)) {
      std::printf("%s\n", sluice::devices::probe_line(gpu).c_str());
      std::fflush(stdout);
    } else {
      all = false;
    }
  }
  return all ? 0 : 1;
}

// The process-wide state of the driver: initialisation, fork, exit, the log, and the prologue of
// every entry point.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/directory.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/gate.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/memory_strict.h"
#include "softgpu/driver/pool.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"
#include "softgpu/driver/visibility.h"
#include "softgpu/thread_object.h"

namespace softgpu::driver {
namespace {

/// A process that has been refused a mapping may have a few less than it may have.
constexpr long kMapsSpare = 64;

}  // namespace

/// After this nothing of the driver touches the device: workers stop at their next charge, and the
/// process's account is closed. Nothing is joined or unmapped, so a kernel that never ends cannot
/// keep the process from ending.
void process_exit() {
  Process& process = Process::get();
  if (process.state_.exchange(CUDA_ERROR_DEINITIALIZED) != CUDA_SUCCESS) return;
  for (const ContextRef& context : Registry<Context>::all().list()) context->stop = true;
  // A child that ran no fork handlers has all this of its parent, and ends no account of it.
  const device::ProcessName self = device::process_named(getpid());
  for (const auto& gpu : process.gpus_) {
    const device::LifeName& owner = gpu->model.lives().name();
    if (gpu->client != device::kNone && owner.pid == self.pid && owner.space == self.space)
      gpu->model.client_close(gpu->client);
  }
}

/// A forked child of a process that used CUDA cannot use it, as on hardware: threads and
/// registrations are the parent's.
void process_forked() {
  gate_fork_child();
  checkpoint_forked();
  Process& process = Process::get();
  if (process.state_ != CUDA_ERROR_NOT_INITIALIZED) process.state_ = CUDA_ERROR_UNKNOWN;
}

Process& Process::get() {
  static auto* process = new Process;
  return *process;
}

Process::Process() {
  const char* log = std::getenv("SOFTGPU_LOG");
  silent_ = log != nullptr && std::strcmp(log, "0") == 0;
  if (log == nullptr || *log == '\0' || silent_) return;
  log_level_ = std::strcmp(log, "1") == 0 ? 1 : 2;
  if (std::strcmp(log, "1") == 0 || std::strcmp(log, "2") == 0) return;
  const int file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file >= 0) log_file_ = file;
}

CUresult Process::status() const {
  const int state = state_.load(std::memory_order_acquire);
  // A forked child is told the same as one that never initialised.
  return state == CUDA_ERROR_UNKNOWN ? CUDA_ERROR_NOT_INITIALIZED : static_cast<CUresult>(state);
}

CUresult Process::initialize() {
  const std::lock_guard lock(mutex_);
  if (state_ != CUDA_ERROR_NOT_INITIALIZED) return status();
  std::string error;
  bool strict = false;
  std::vector<device::Segment*> segments;
  if (device::settings_strict(strict, error) && (!strict || strict_enable(error)) &&
      bounds_read(strict, error))
    segments = device::directory_open(device::settings_directory(), error);
  segments_ = segments;
  if (segments.empty()) {
    device::line_write(STDERR_FILENO, "softgpu: no device: " + error + "\n");
    return CUDA_ERROR_NO_DEVICE;
  }
  std::vector<double> rates;
  for (const device::Segment* segment : segments) rates.push_back(segment->rate);
  const std::vector<int> order = device_order(rates, std::getenv("CUDA_DEVICE_ORDER"));
  std::vector<std::string> uuids;
  for (const int index : order)
    uuids.push_back(device::uuid_text(segments[static_cast<std::size_t>(index)]->uuid));
  const Visible visible = visible_devices(uuids, std::getenv("CUDA_VISIBLE_DEVICES"));
  if (visible.repeated) return CUDA_ERROR_INVALID_DEVICE;
  for (const int number : visible.devices) {
    const int index = order[static_cast<std::size_t>(number)];
    gpus_.push_back(std::make_unique<Gpu>(static_cast<int>(gpus_.size()),
                                          segments[static_cast<std::size_t>(index)]));
  }
  if (gpus_.empty()) return CUDA_ERROR_NO_DEVICE;
  for (const auto& gpu : gpus_) {
    gpu->default_pool = gpu->pool = std::make_shared<Pool>(*gpu);
    Registry<Pool>::all().add(gpu->default_pool);
  }
  std::atexit(process_exit);
  pthread_atfork(gate_fork_begin, gate_fork_parent, process_forked);
  checkpoint_serve();
  state_ = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

Gpu* Process::gpu(CUdevice ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= gpus_.size()) return nullptr;
  return gpus_[static_cast<std::size_t>(ordinal)].get();
}

void Process::log_missing(const char* name) {
  if (log_level_ == 0) return;
  static std::mutex mutex;
  static auto* said = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (said->insert(name).second)
    device::line_write(log_file_, std::string("softgpu: ") + name + " is not implemented\n");
}

void Process::complain(const std::string& what) {
  const bool first = !complained_.exchange(true);
  if (silent_ || (log_level_ == 0 && !first)) return;
  const char* const more =
      log_level_ == 0 ? "; SOFTGPU_LOG=1 tells of each failure, SOFTGPU_LOG=0 of none" : "";
  device::line_write(STDERR_FILENO, "softgpu: " + what + more + "\n");
}

void Process::complain_of_mapping(int error) {
  std::string why = std::string("the host maps no more memory: ") + std::strerror(error);
  std::ifstream maps("/proc/self/maps"), most("/proc/sys/vm/max_map_count");
  const auto count = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  long limit = 0;
  if (error == ENOMEM && most >> limit && count >= limit - kMapsSpare)
    why += "; this process has " + std::to_string(count) + " mappings of " + std::to_string(limit) +
           " (sysctl vm.max_map_count): raise it, or make fewer allocations";
  else if (error == ENOMEM)
    why += "; look at `ulimit -v` and at the memory of the host";
  else if (error == EFBIG)
    why += "; the memory of a software GPU is a file, and `ulimit -f` limits it: raise it";
  if (error == EBADF)
    why = "this program closed a file of the software GPU; close only descriptors that it opened";
  complain("out of memory: " + why);
}

void Process::log_call(const char* name, CUresult result) {
  if (log_level_ < 2) return;
  const std::string how = result == CUDA_SUCCESS ? "" : " refused: " + std::to_string(result);
  device::line_write(log_file_, "softgpu: " + std::to_string(getpid()) + " " + name + how + "\n");
}

Thread& thread_state() { return ThreadObject<Thread>::get(); }

CUresult enter_any(const char* name) {
  Process& process = Process::get();
  CUresult result = process.status();
  if (result == CUDA_SUCCESS && thread_state().in_callback) result = CUDA_ERROR_NOT_PERMITTED;
  if (result == CUDA_SUCCESS) result = capture_enter_any(name);
  if (process.log_level() >= 2) process.log_call(name, result);
  return result;
}

CUresult enter_gpu(CUdevice device, Gpu*& gpu, const char* name) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  gpu = Process::get().gpu(device);
  return gpu == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult context_find(CUcontext handle, ContextRef& context) {
  if (handle == nullptr) {
    const Thread& thread = thread_state();
    if (thread.stack.empty() || thread.stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    context = Registry<Context>::all().find(thread.stack.back());
    return context != nullptr && !context->closed ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  context = Registry<Context>::all().find(handle);
  if (context != nullptr && !context->closed) return CUDA_SUCCESS;
  // A primary context that nobody retains is there, but not initialised.
  return context_bindable(handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

bool context_bindable(CUcontext handle) {
  for (const auto& gpu : Process::get().gpus())
    if (reinterpret_cast<CUcontext>(gpu.get()) == handle) return true;
  const ContextRef context = Registry<Context>::all().find(handle);
  return context != nullptr && !context->closed;
}

CUresult enter_failed(ContextRef& context, const char* name) {
  const CUresult result = enter_any(name);
  return result == CUDA_SUCCESS ? context_find(nullptr, context) : result;
}

CUresult enter(ContextRef& context, const char* name) {
  CUresult result = enter_failed(context, name);
  if (result == CUDA_SUCCESS) result = context->status();
  return result == CUDA_SUCCESS ? capture_enter(*context, name) : result;
}

CUresult not_implemented(const char* name) {
  Process::get().log_missing(name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace softgpu::driver

// The objects behind the handles of the driver API, and how an entry point finds them: process,
// GPUs, contexts, threads. Streams are in stream.h, memory in memory.h, modules in module.h.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/driver/cuda_api.h"

namespace softgpu::driver {

class Context;
class Stream;
class Pool;
class Gpu;

using ContextRef = std::shared_ptr<Context>;
using StreamRef = std::shared_ptr<Stream>;

/// The live objects of one kind, by handle. A handle is the object's address; one that is not here
/// is refused instead of followed.
template <typename T>
class Registry {
 public:
  static Registry& all() {
    static auto* registry = new Registry;  // never destroyed: threads may still run at exit
    return *registry;
  }
  void add(const std::shared_ptr<T>& object) {
    const std::unique_lock lock(mutex_);
    objects_[object.get()] = object;
  }
  std::shared_ptr<T> find(const void* handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> take(const void* handle) {
    const std::unique_lock lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = found->second;
    objects_.erase(found);
    return object;
  }
  std::vector<std::shared_ptr<T>> list() const {
    const std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> result;
    for (const auto& [handle, object] : objects_) result.push_back(object);
    return result;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

/// One GPU that this process can see.
class Gpu {
 public:
  Gpu(int number, device::Segment* segment) : ordinal(number), model(segment) {}

  /// Registers this process with the device at its first context. False: too many processes.
  [[nodiscard]] bool client_need();
  /// A charged piece of device memory. nullptr = the device is full.
  void* memory_map(std::size_t bytes, std::size_t align, int* file, std::uint64_t* offset);
  void memory_unmap(void* p, std::size_t bytes, std::uint64_t offset);

  const int ordinal;
  device::Device model;
  std::mutex mutex;  // of everything below
  std::uint32_t client = device::kNone;
  ContextRef primary;
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  std::shared_ptr<Pool> default_pool, pool;

 private:
  int arena_ =
      -1;  // one sparse memfd: allocations are ranges of it, so that they can be shared by IPC
  std::uint64_t arena_end_ = 0;
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  Context(Gpu& on, unsigned flags_given, bool is_primary)
      : gpu(on), flags(flags_given), primary(is_primary) {}

  /// Takes the context's memory and makes its default stream.
  [[nodiscard]] CUresult open();
  /// Stops all work, waits for the workers, returns all memory. The context stays as an error for
  /// whoever holds it.
  void close();
  /// The first fault stays for ever: nothing of this context runs afterwards.
  void fail(CUresult error);
  CUresult status() const { return static_cast<CUresult>(sticky_.load(std::memory_order_acquire)); }
  void print(std::string_view text);
  void print_flush();  // at synchronisation, as on hardware
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }

  Gpu& gpu;
  const unsigned flags;
  const bool primary;
  unsigned api_version = 3020;
  std::uint64_t id = 0;
  std::atomic<bool> stop{false};
  std::atomic<bool> closed{false};

  std::mutex order;  // submission order across the streams: legacy stream rules
  StreamRef legacy;
  std::vector<StreamRef> streams;  // created ones and per-thread ones
  std::array<std::atomic<std::size_t>, CU_LIMIT_MAX> limits{};
  std::set<Context*> peers;

  std::mutex workers_mutex;
  std::condition_variable workers_changed;
  int workers = 0;

 private:
  std::atomic<int> sticky_{CUDA_SUCCESS};
  std::mutex print_mutex_;
  std::string printed_;
};

/// What a thread carries: its context stack and modes.
struct Thread {
  std::vector<CUcontext> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool per_thread_default = false;                     // while a _ptsz/_ptds entry point runs
  bool in_callback = false;                            // no driver calls from a host function
  std::map<std::uint64_t, StreamRef> default_streams;  // by context id
};
Thread& thread_state();

class Process {
 public:
  static Process& get();
  [[nodiscard]] CUresult initialize();
  /// CUDA_SUCCESS, NOT_INITIALIZED (also in the child of a process that used CUDA) or
  /// DEINITIALIZED.
  CUresult status() const;
  Gpu* gpu(CUdevice ordinal);
  const std::vector<std::unique_ptr<Gpu>>& gpus() const { return gpus_; }
  /// A line on stderr when SOFTGPU_LOG asks for it.
  void log_missing(const char* name);
  void log_call(const char* name, CUresult result);
  int log_level() const { return log_level_; }

 private:
  Process();
  friend void process_exit();
  friend void process_forked();
  std::mutex mutex_;
  std::atomic<int> state_{CUDA_ERROR_NOT_INITIALIZED};
  std::vector<std::unique_ptr<Gpu>> gpus_;
  int log_level_ = 0;
  int log_file_ = 2;
};

/// Opens an entry point: the library is up, the calling thread has a living context without a
/// fault, and the thread may call. `enter_any` does not ask for a context.
CUresult enter(ContextRef& context, const char* name = __builtin_FUNCTION());
CUresult enter_any(const char* name = __builtin_FUNCTION());
/// The same for calls that also work in a context that has failed.
CUresult enter_failed(ContextRef& context, const char* name = __builtin_FUNCTION());
/// `handle` or, when null, the current one.
CUresult context_find(CUcontext handle, ContextRef& context);
CUresult not_implemented(const char* name);

/// A _ptsz/_ptds entry point: the null stream means the calling thread's own.
class PerThreadDefault {
 public:
  PerThreadDefault() { thread_state().per_thread_default = true; }
  ~PerThreadDefault() { thread_state().per_thread_default = false; }
  PerThreadDefault(const PerThreadDefault&) = delete;
  PerThreadDefault& operator=(const PerThreadDefault&) = delete;
};

}  // namespace softgpu::driver

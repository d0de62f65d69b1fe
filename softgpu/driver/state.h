// The objects behind the handles of the driver API, and how an entry point finds them: process,
// GPUs, contexts, threads. Streams are in stream.h, memory in memory.h, modules in module.h.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/own_file.h"
#include "softgpu/driver/cuda_api.h"
#include "softgpu/driver/device_heap.h"

namespace softgpu::driver {

class Context;
class Op;
class Stream;
class Pool;
class Gpu;

/// The one kind of handle by which memory leaves a process here.
inline constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
inline constexpr std::size_t kHostPage = 4096;  // bytes: what mmap() deals in
constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

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
  void add(const std::shared_ptr<T>& object) { add_as(object.get(), object); }
  /// Under a handle that is not the object's address: one that outlives it.
  void add_as(const void* handle, const std::shared_ptr<T>& object) {
    const std::unique_lock lock(mutex_);
    objects_[handle] = object;
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
  std::size_t size() const {
    const std::shared_lock lock(mutex_);
    return objects_.size();
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

class Gpu;

/// What pieces of memory take of a GPU that gives it out in pages (SOFTGPU_PAGE): large ones whole
/// pages, small ones a part of a page that is taken with its first piece and given back with its
/// last. Seen so by NVML's figure of a process on an H100. Without pages: their bytes.
class DevicePages {
 public:
  explicit DevicePages(Gpu& gpu) : gpu_(gpu) {}
  /// Takes what a piece needs. False: the device is full. `key` names the piece.
  [[nodiscard]] bool take(std::uint64_t key, std::uint64_t bytes);
  void give(std::uint64_t key, std::uint64_t bytes);
  /// What of a piece's charge goes along when it becomes an object that others may hold.
  std::uint64_t alone(std::uint64_t bytes) const;
  /// The piece has gone, and its charge is no longer this process's.
  void forget(std::uint64_t key, std::uint64_t bytes);

 private:
  struct Page {
    std::uint64_t used = 0, given_away = 0;
  };
  bool small(std::uint64_t bytes) const;
  Gpu& gpu_;
  std::mutex mutex_;
  std::map<std::uint64_t, Page> pages_;             // that small pieces share, by number
  std::map<std::uint64_t, std::uint64_t> page_of_;  // by the piece's key
  std::uint64_t next_ = 0;
};

/// One GPU that this process can see.
class Gpu {
 public:
  Gpu(int number, device::Segment* segment) : ordinal(number), model(segment) {}

  /// The host's clock, as far as this process's work on the GPU has come by it: what is submitted
  /// now begins no earlier. Without pacing it can be behind (Stream::go_on).
  double now_ns() const { return device::clock_ns() - behind_ns.load(std::memory_order_relaxed); }

  /// Registers this process with the device, before it takes something there. False: too many
  /// processes.
  [[nodiscard]] bool client_need();
  /// A charged piece of device memory, at the beginning of a page, with a margin on either side.
  /// nullptr = the device is full.
  void* memory_map(std::size_t bytes, std::uint64_t& offset);
  /// `shared` names it in the account when other processes may hold it too (ipc.h).
  void memory_unmap(void* p, std::size_t bytes, std::uint64_t offset, std::uint64_t shared = 0);
  /// Names it in the account, so that other processes may hold it too. False: too many objects.
  [[nodiscard]] bool memory_share(std::uint64_t name, std::size_t bytes);
  /// The file that all of them are ranges of; not opened when it cannot be made.
  const device::OwnFile& memory_file();

  const int ordinal;
  device::Device model;
  std::atomic<double> behind_ns{0};
  // Streams that wait for a queue of the device, one at a time (stream_queue.cpp).
  std::timed_mutex queue_turn;
  std::atomic<unsigned> queue_waiters{0};
  std::mutex mutex;  // of everything below
  std::uint32_t client = device::kNone;
  ContextRef primary;
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  std::shared_ptr<Pool> default_pool, pool;

 private:
  bool has_contexts() const;
  const device::OwnFile& file_need_locked();
  void* arena_map_locked(std::size_t whole);
  DevicePages pages_{*this};
  device::OwnFile
      arena_;  // sparse: allocations are ranges of it, so that they can be shared by IPC
  std::uint64_t arena_bytes_ = 0, arena_end_ = 0;
  std::byte* window_ = nullptr;  // where the next of it is mapped, and how much fits there
  std::size_t window_left_ = 0;
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
  std::vector<StreamRef> streams_all();
  /// Waits for everything submitted to any of its streams so far.
  void wait_all();
  /// The first fault stays for ever: nothing of this context runs afterwards.
  void fail(CUresult error);
  CUresult status() {
    if (gpu.model.alarm() != alarm_seen_.load(std::memory_order_relaxed)) alarm_look();
    return static_cast<CUresult>(sticky_.load(std::memory_order_acquire));
  }
  /// What happens to the device from now on strikes this context.
  void alarm_watch();
  /// Output of kernels: as much as the FIFO holds, the oldest goes first.
  void print(std::string_view text);
  void print_flush();  // at synchronisation, as on hardware
  /// The handle of a primary context stands for the GPU: it stays through release and reset, and
  /// what still holds it then is told that the context is destroyed until it is retained again.
  CUcontext handle() {
    return primary ? reinterpret_cast<CUcontext>(&gpu) : reinterpret_cast<CUcontext>(this);
  }

  /// See context_limits.cpp: what the limits cost in device memory, and the device heap.
  CUresult limit_set(CUlimit limit, std::size_t value);
  /// Room for kernels whose threads need this much local memory; it never shrinks.
  CUresult local_need(std::size_t bytes_per_thread);
  CUresult heap_need();
  CUresult fifo_need();
  /// Gives back what the limits took. Precondition: no kernel of the context runs any more.
  void limits_release();

  Gpu& gpu;
  std::atomic<unsigned> flags;
  const bool primary;
  unsigned api_version = 3020;
  std::uint64_t id = 0;
  int attached = 1;  // cuCtxAttach; guarded by `order`
  std::atomic<int> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  std::atomic<bool> stop{false};
  std::atomic<bool> closed{false};

  std::mutex order;  // submission order across the streams: legacy stream rules
  StreamRef legacy;
  std::vector<StreamRef> streams;  // created ones and per-thread ones
  StreamRef marker;                // records events of the whole context; one of `streams`
  std::vector<std::shared_ptr<Op>> awaited;  // what streams made from now on wait for
  std::array<std::atomic<std::size_t>, CU_LIMIT_MAX> limits{};
  DeviceHeap heap;                // of device malloc; open once a kernel that uses it is loaded
  std::set<std::uint64_t> peers;  // ids of the contexts whose memory it may access

  std::mutex workers_mutex;
  std::condition_variable workers_changed;
  std::atomic<int> workers = 0;  // changed under the mutex

 private:
  void alarm_look();
  std::atomic<int> sticky_{CUDA_SUCCESS};
  std::atomic<std::uint32_t> alarm_seen_{0};  // Device::alarm() when it was looked at last
  std::uint32_t alarm_opened_ = 0;            // and when the context began
  std::mutex print_mutex_;
  std::deque<std::string> printed_;
  std::size_t printed_bytes_ = 0;

  CUresult reserve_locked(std::uint64_t& reserved, std::uint64_t bytes);
  std::mutex limits_mutex_;                                          // of what follows
  std::uint64_t local_bytes_ = 0, heap_bytes_ = 0, fifo_bytes_ = 0;  // charged for the limits
  std::uint64_t heap_offset_ = 0;                                    // in the GPU's arena
};

/// What a thread carries: its context stack and modes.
struct Thread {
  Thread() = default;
  ~Thread();  // its default streams end with it, when they have done what is in them
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
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
  /// All devices of the directory, also those that this process does not see.
  const std::vector<device::Segment*>& segments() const { return segments_; }
  /// A line on stderr when SOFTGPU_LOG asks for it.
  void log_missing(const char* name);
  void log_call(const char* name, CUresult result);
  int log_level() const { return log_level_; }
  /// A line on stderr about a failure that a program may overlook: the first one of the process;
  /// each one with SOFTGPU_LOG=1 or more, none with SOFTGPU_LOG=0.
  void complain(const std::string& what);
  /// The same about a mapping that the kernel refused with `error`.
  void complain_of_mapping(int error);

 private:
  Process();
  friend void process_exit();
  friend void process_forked();
  std::mutex mutex_;
  std::atomic<int> state_{CUDA_ERROR_NOT_INITIALIZED};
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<device::Segment*> segments_;
  int log_level_ = 0;
  bool silent_ = false;
  std::atomic<bool> complained_{false};
  int log_file_ = 2;
};

/// Opens an entry point: the library is up, the calling thread has a living context without a
/// fault, and the thread may call. `enter_any` does not ask for a context.
CUresult enter(ContextRef& context, const char* name = __builtin_FUNCTION());
CUresult enter_any(const char* name = __builtin_FUNCTION());
/// The same for calls that also work in a context that has failed.
CUresult enter_failed(ContextRef& context, const char* name = __builtin_FUNCTION());
/// enter_any(), and the device of that number.
CUresult enter_gpu(CUdevice device, Gpu*& gpu, const char* name = __builtin_FUNCTION());
/// `handle` or, when null, the current one.
CUresult context_find(CUcontext handle, ContextRef& context);
/// Only known flags, and one of the scheduling flags at most (cuda.h, cuCtxCreate).
bool context_flags_valid(unsigned flags);
/// Whether a thread may make this current: a living context, or any primary one.
bool context_bindable(CUcontext handle);
CUresult not_implemented(const char* name);
/// "CUDA_ERROR_INVALID_PTX", for messages.
std::string error_name(CUresult error);

/// A _ptsz/_ptds entry point: the null stream means the calling thread's own.
class PerThreadDefault {
 public:
  PerThreadDefault() { thread_state().per_thread_default = true; }
  ~PerThreadDefault() { thread_state().per_thread_default = false; }
  PerThreadDefault(const PerThreadDefault&) = delete;
  PerThreadDefault& operator=(const PerThreadDefault&) = delete;
};

}  // namespace softgpu::driver

// Tricks: calls in an order, or on a thread, that could make an account count something twice or
// not at all. After each the attack takes what it can; the driver refuses most of these calls, and
// a refusal must change no account.
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>

#include "tests/attacks/attacker/attack.h"

namespace attacks {
namespace {

constexpr std::size_t kBytes = 3 * kMiB;

CUdeviceptr plain() {
  CUdeviceptr at = 0;
  (void)cuMemAlloc(&at, kBytes);
  return at;
}

CUdeviceptr ordered() {
  CUdeviceptr at = 0;
  (void)cuMemAllocAsync(&at, kBytes, nullptr);
  return at;
}

void free_twice() {
  const CUdeviceptr at = plain();
  for (int n = 0; n < 3; ++n) (void)cuMemFree(at);
}

void free_inside() {
  const CUdeviceptr at = plain();
  (void)cuMemFree(at + 256);
  (void)cuMemFree(at + kBytes - 1);
  (void)cuMemFree(at + kBytes);
}

void free_by_other_call() {
  (void)cuMemFreeAsync(plain(), nullptr);
  (void)cuMemFree(ordered());
  (void)cuMemFreeHost(reinterpret_cast<void*>(plain()));
  (void)cuArrayDestroy(reinterpret_cast<CUarray>(plain()));
}

void free_ordered_twice() {
  const CUdeviceptr at = ordered();
  (void)cuMemFreeAsync(at, nullptr);
  (void)cuMemFreeAsync(at, nullptr);
  (void)cuMemFree(at);
  (void)cuCtxSynchronize();
}

void free_after_reset() {
  const CUdeviceptr at = plain();
  const CUdeviceptr also = ordered();
  (void)cuDevicePrimaryCtxReset(options.device);
  (void)gpu_open();
  (void)cuMemFree(at);
  (void)cuMemFreeAsync(also, nullptr);
}

void free_race() {
  const CUdeviceptr at = plain();
  std::array<std::thread, 6> threads;
  for (std::thread& one : threads)
    one = std::thread([at] {
      (void)gpu_open();
      (void)cuMemFree(at);
    });
  for (std::thread& one : threads) one.join();
}

/// An address is given again while its last free is still returning.
void reuse_race() {
  std::array<std::thread, 4> threads;
  for (std::thread& one : threads)
    one = std::thread([] {
      (void)gpu_open();
      for (int n = 0; n < 50; ++n) (void)cuMemFree(plain());
    });
  for (std::thread& one : threads) one.join();
}

CUmemGenericAllocationHandle piece() {
  CUmemAllocationProp wish{};
  wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  wish.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle made = 0;
  (void)cuMemCreate(&made, 4 * kMiB, &wish, 0);
  return made;
}

CUdeviceptr mapped(CUmemGenericAllocationHandle made) {
  CUdeviceptr at = 0;
  (void)cuMemAddressReserve(&at, 4 * kMiB, 0, 0, 0);
  (void)cuMemMap(at, 4 * kMiB, 0, made, 0);
  return at;
}

void release_twice() {
  const CUmemGenericAllocationHandle made = piece();
  for (int n = 0; n < 3; ++n) (void)cuMemRelease(made);
}

void release_while_mapped() {
  const CUmemGenericAllocationHandle made = piece();
  const CUdeviceptr at = mapped(made);
  (void)cuMemRelease(made);
  (void)cuMemRelease(made);  // the mapping holds it
  (void)cuMemUnmap(at, 2 * kMiB);
  (void)cuMemUnmap(at, 4 * kMiB);
  (void)cuMemUnmap(at, 4 * kMiB);
  (void)cuMemAddressFree(at, 4 * kMiB);
}

void retain_and_release() {
  const CUmemGenericAllocationHandle made = piece();
  const CUdeviceptr at = mapped(made);
  CUmemGenericAllocationHandle again = 0;
  for (int n = 0; n < 3; ++n)
    (void)cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at));
  for (int n = 0; n < 6; ++n) (void)cuMemRelease(again);
  (void)cuMemUnmap(at, 4 * kMiB);
}

void export_and_forget() {
  const CUmemGenericAllocationHandle made = piece();
  int first = -1;
  int second = -1;
  (void)cuMemExportToShareableHandle(&first, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  (void)cuMemExportToShareableHandle(&second, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  (void)cuMemRelease(made);
  if (first >= 0) close(first);
  CUmemGenericAllocationHandle again = 0;
  (void)cuMemImportFromShareableHandle(&again,
                                       reinterpret_cast<void*>(static_cast<std::intptr_t>(second)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  (void)cuMemRelease(again);
  if (second >= 0) close(second);
}

void ipc_own() {
  const CUdeviceptr at = plain();
  CUipcMemHandle handle{};
  CUdeviceptr seen = 0;
  (void)cuIpcGetMemHandle(&handle, at);
  (void)cuIpcOpenMemHandle(&seen, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  (void)cuIpcCloseMemHandle(at);
  (void)cuIpcCloseMemHandle(at);
  (void)cuMemFree(at);
}

void array_twice() {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 1024;
  shape.Height = 768;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  CUarray array = nullptr;
  if (cuArrayCreate(&array, &shape) != CUDA_SUCCESS) return;
  (void)cuArrayDestroy(array);
  (void)cuArrayDestroy(array);
  (void)cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(array));
}

void unload_twice() {
  CUmodule module = nullptr;
  if (cuModuleLoadData(&module, module_text(kBytes).c_str()) != CUDA_SUCCESS) return;
  CUdeviceptr at = 0;
  std::size_t size = 0;
  (void)cuModuleGetGlobal(&at, &size, module, "room");
  (void)cuMemFree(at);  // a variable is no allocation
  (void)cuModuleUnload(module);
  (void)cuModuleUnload(module);
}

void pool_in_use_destroyed() {
  CUmemPoolProps wish{};
  wish.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  CUmemoryPool pool = nullptr;
  CUdeviceptr at = 0;
  if (cuMemPoolCreate(&pool, &wish) != CUDA_SUCCESS) return;
  (void)cuMemAllocFromPoolAsync(&at, kBytes, pool, nullptr);
  (void)cuMemPoolTrimTo(pool, 0);
  (void)cuMemPoolDestroy(pool);
  (void)cuMemPoolTrimTo(pool, 0);
  (void)cuMemFreeAsync(at, nullptr);
  (void)cuCtxSynchronize();
  (void)cuMemPoolDestroy(pool);
}

void pool_peaks_reset() {
  CUmemoryPool pool = nullptr;
  (void)cuDeviceGetDefaultMemPool(&pool, options.device);
  cuuint64_t zero = 0;
  (void)cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero);
  (void)cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
  cuuint64_t all = ~cuuint64_t{0};
  (void)cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
  (void)cuMemFreeAsync(ordered(), nullptr);
}

void capture_abandoned() {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUdeviceptr at = 0;
  (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  (void)cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  (void)cuMemAllocAsync(&at, kBytes, stream);
  (void)cuMemFree(at);
  (void)cuStreamDestroy(stream);
  (void)cuStreamEndCapture(stream, &graph);
}

void capture_frees_others() {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  const CUdeviceptr at = plain();
  (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  (void)cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  (void)cuMemFreeAsync(at, stream);
  (void)cuStreamEndCapture(stream, &graph);
  if (graph != nullptr && cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS) {
    (void)cuGraphLaunch(exec, stream);
    (void)cuGraphLaunch(exec, stream);
  }
  (void)cuStreamSynchronize(stream);
  (void)cuMemFree(at);
}

void graph_freed_outside() {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS wish{};
  wish.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  wish.bytesize = kBytes;
  (void)cuGraphCreate(&graph, 0);
  (void)cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &wish);
  (void)cuGraphInstantiate(&exec, graph, 0);
  (void)cuGraphLaunch(exec, nullptr);
  (void)cuMemFreeAsync(wish.dptr, nullptr);
  (void)cuMemFree(wish.dptr);
  (void)cuGraphExecDestroy(exec);
  (void)cuMemFreeAsync(wish.dptr, nullptr);
  (void)cuDeviceGraphMemTrim(options.device);
  (void)cuDeviceGraphMemTrim(options.device);
}

void context_freed_elsewhere() {
  CUcontext context = nullptr;
  CUcontext popped = nullptr;
  if (cuCtxCreate(&context, nullptr, 0, options.device) != CUDA_SUCCESS) return;
  const CUdeviceptr at = plain();
  (void)cuCtxPopCurrent(&popped);
  (void)gpu_open();
  (void)cuMemFree(at);
  (void)cuCtxDestroy(context);
  (void)cuMemFree(at);
  (void)cuCtxDestroy(context);
}

void managed_odd_frees() {
  CUdeviceptr at = 0;
  (void)cuMemAllocManaged(&at, kBytes, CU_MEM_ATTACH_GLOBAL);
  (void)cuMemFreeAsync(at, nullptr);
  (void)cuCtxSynchronize();
  (void)cuMemFree(at);
}

void nothing_at_all() {
  CUdeviceptr at = 0;
  (void)cuMemAlloc(&at, 0);
  (void)cuMemFree(0);
  (void)cuMemFreeAsync(0, nullptr);
  (void)cuMemAlloc(nullptr, kBytes);
  (void)cuMemAllocManaged(nullptr, kBytes, CU_MEM_ATTACH_GLOBAL);
  (void)cuMemAllocAsync(nullptr, kBytes, nullptr);
  (void)cuMemAllocPitch(nullptr, nullptr, kBytes, 1, 4);
}

void* cancelled_take(void*) {
  (void)gpu_open();
  for (int n = 0; n < 400; ++n) {
    (void)cuMemFree(plain());
    pthread_testcancel();
  }
  return nullptr;
}

void threads_cancelled() {
  std::array<pthread_t, 4> threads{};
  for (pthread_t& one : threads) (void)pthread_create(&one, nullptr, cancelled_take, nullptr);
  usleep(300);
  for (const pthread_t one : threads) (void)pthread_cancel(one);
  for (const pthread_t one : threads) (void)pthread_join(one, nullptr);
}

void wake(int) {}

void signals_in_calls() {
  struct sigaction action {};
  action.sa_handler = wake;
  (void)sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, 50}, {0, 50}};
  (void)setitimer(ITIMER_REAL, &often, nullptr);
  for (int n = 0; n < 50; ++n) (void)cuMemFree(plain());
  const itimerval never{};
  (void)setitimer(ITIMER_REAL, &never, nullptr);
}

/// A refused limit, a lower one, a raised one: what each takes and gives back.
void limits_up_and_down() {
  constexpr std::size_t kUsual = 1024;
  for (const std::size_t value : {std::size_t{400} * 1024, kUsual, 2 * kUsual, kUsual})
    (void)cuCtxSetLimit(CU_LIMIT_STACK_SIZE, value);
}

struct Trick {
  const char* name;
  void (*play)();
};
constexpr Trick kTricks[] = {{"free_twice", free_twice},
                             {"free_inside", free_inside},
                             {"free_by_other_call", free_by_other_call},
                             {"free_ordered_twice", free_ordered_twice},
                             {"free_after_reset", free_after_reset},
                             {"free_race", free_race},
                             {"reuse_race", reuse_race},
                             {"release_twice", release_twice},
                             {"release_while_mapped", release_while_mapped},
                             {"retain_and_release", retain_and_release},
                             {"export_and_forget", export_and_forget},
                             {"ipc_own", ipc_own},
                             {"array_twice", array_twice},
                             {"unload_twice", unload_twice},
                             {"pool_in_use_destroyed", pool_in_use_destroyed},
                             {"pool_peaks_reset", pool_peaks_reset},
                             {"capture_abandoned", capture_abandoned},
                             {"capture_frees_others", capture_frees_others},
                             {"graph_freed_outside", graph_freed_outside},
                             {"context_freed_elsewhere", context_freed_elsewhere},
                             {"managed_odd_frees", managed_odd_frees},
                             {"nothing_at_all", nothing_at_all},
                             {"threads_cancelled", threads_cancelled},
                             {"signals_in_calls", signals_in_calls},
                             {"limits_up_and_down", limits_up_and_down}};

}  // namespace

bool trick_play(const std::string& name) {
  for (const Trick& trick : kTricks) {
    if (name != trick.name) continue;
    trick.play();
    return true;
  }
  return false;
}

}  // namespace attacks

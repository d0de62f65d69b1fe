// Entry points: memory and events of one process, opened by another.
#include <unistd.h>

#include <cstring>

#include "softgpu/driver/event.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/ipc_event.h"

using namespace softgpu::driver;

namespace {

/// A handle that has been opened: every context shows it once and counts.
struct Opened {
  std::uint64_t key = 0;
  CUcontext context = nullptr;
  unsigned references = 0;
};

std::mutex opened_mutex;

std::map<std::uintptr_t, Opened>& opened_all() {
  static auto* all = new std::map<std::uintptr_t, Opened>;
  return *all;
}

/// The mapping is gone already when its context was destroyed.
bool opened_alive(std::uintptr_t base, const Opened& opened) {
  const auto allocation = MemoryMap::get().find(base);
  return allocation && allocation->base == base && allocation->inode == opened.key &&
         allocation->context == opened.context;
}

CUresult memory_open(const ContextRef& context, Gpu& gpu, const IpcHandle& handle,
                     CUdeviceptr& out) {
  const std::lock_guard lock(opened_mutex);
  std::erase_if(opened_all(),
                [](const auto& entry) { return !opened_alive(entry.first, entry.second); });
  for (auto& [base, opened] : opened_all()) {
    if (opened.key != handle.key || opened.context != context->handle()) continue;
    ++opened.references;
    out = base;
    return CUDA_SUCCESS;
  }
  const softgpu::device::OwnFile file = ipc_file_open(handle, gpu);
  if (!file.opened()) return CUDA_ERROR_INVALID_VALUE;
  Allocation import;
  const CUresult result = import_map(gpu, file, handle, import);
  if (result != CUDA_SUCCESS) return result;
  import.context = context->handle();
  MemoryMap::get().add(import);
  opened_all()[import.base] = Opened{handle.key, import.context, 1};
  out = import.base;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = MemoryMap::get().find(address);
  if (out == nullptr || !allocation || allocation->kind != MemoryKind::kDevice)
    return CUDA_ERROR_INVALID_VALUE;
  // The handle stands for the whole allocation, whichever of its addresses is given.
  IpcHandle handle = ipc_handle_make(IpcKind::kMemory, *allocation->gpu);
  if (!ipc_file_tell(allocation->gpu->memory_file(), handle)) return CUDA_ERROR_OPERATING_SYSTEM;
  handle.offset = allocation->offset;
  handle.bytes = allocation->size;
  const CUresult shared = memory_share(*allocation, handle.key);
  if (shared == CUDA_SUCCESS) std::memcpy(out, &handle, sizeof handle);
  return shared;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle bytes, unsigned int flags) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  IpcHandle handle;
  Gpu* gpu = nullptr;
  result = ipc_handle_read(&bytes, IpcKind::kMemory, handle, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (ipc_handle_own(handle, *gpu)) return CUDA_ERROR_INVALID_CONTEXT;
  return memory_open(context, *gpu, handle, *out);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  return cuIpcOpenMemHandle_v2(out, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(opened_mutex);
    const auto found = opened_all().find(address);
    if (found == opened_all().end() || !opened_alive(found->first, found->second) ||
        found->second.context != context->handle())
      return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.references > 0) return CUDA_SUCCESS;
    opened_all().erase(found);
  }
  context->wait_all();  // queued work may still use the mapping
  if (const auto import = MemoryMap::get().take(address)) memory_release(*import);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* out, CUevent event_handle) {
  ContextRef context;
  const CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  const EventRef event = Registry<Event>::all().find(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // An imported event is not this process's to hand on.
  if (event->shared == nullptr || event->shared->imported()) return CUDA_ERROR_INVALID_HANDLE;
  IpcHandle handle = ipc_handle_make(IpcKind::kEvent, event->gpu);
  if (!event->shared->describe(handle)) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(out, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle bytes) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  IpcHandle handle;
  Gpu* gpu = nullptr;
  result = ipc_handle_read(&bytes, IpcKind::kEvent, handle, gpu);
  if (result != CUDA_SUCCESS) return result;
  if (ipc_handle_own(handle, *gpu)) return CUDA_ERROR_INVALID_CONTEXT;
  const auto event =
      std::make_shared<Event>(*context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  event->shared = IpcEvent::open(handle, *gpu);
  if (event->shared == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Registry<Event>::all().add(event);
  *out = event->handle();
  return CUDA_SUCCESS;
}

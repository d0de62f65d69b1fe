// Ways of the partner to take memory that no call tells the size of: code and its variables, limits
// of contexts; and memory that belongs to other processes. See softgpu_partner_ways.h.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <mutex>

#include "tests/interpose/softgpu_partner_ways.h"

namespace sluice::test::partner {
namespace {

LoadsPage* loads_page() {
  static auto* const page = [] {
    const char* directory = getenv("SOFTGPU_DIR");
    const int file = open((std::string(directory) + "/loads").c_str(), O_RDWR | O_CLOEXEC);
    static LoadsPage own;
    if (file < 0) return &own;
    void* at = mmap(nullptr, sizeof(LoadsPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? &own : static_cast<LoadsPage*>(at);
  }();
  return page;
}

// From before the driver may take something until it is charged within the quota, or gone again.
class LoadScope {
 public:
  explicit LoadScope(std::uint64_t bytes) : bytes_(bytes) {
    LoadsPage& page = *loads_page();
    const std::uint64_t now = __atomic_add_fetch(&page.now_bytes, bytes, __ATOMIC_SEQ_CST);
    std::uint64_t most = __atomic_load_n(&page.most_bytes, __ATOMIC_SEQ_CST);
    while (most < now && !__atomic_compare_exchange_n(&page.most_bytes, &most, now, false,
                                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
  }
  ~LoadScope() { __atomic_sub_fetch(&loads_page()->now_bytes, bytes_, __ATOMIC_SEQ_CST); }
  LoadScope(const LoadScope&) = delete;
  LoadScope& operator=(const LoadScope&) = delete;

 private:
  const std::uint64_t bytes_;
};

// As a driver takes them.
size_t whole(size_t bytes) { return at_least_one(bytes / 512) * 512; }

CUresult module_load(size_t bytes, CUmodule* module) {
  return cuModuleLoadData(module, code_with_room(whole(bytes)).c_str());
}

CUresult library_load(size_t bytes, CUlibrary* library) {
  return cuLibraryLoadData(library, code_with_room(whole(bytes)).c_str(), nullptr, nullptr, 0,
                           nullptr, nullptr, 0);
}

CUresult variable_of(CUlibrary library, CUdeviceptr* out) {
  return cuLibraryGetGlobal(out, nullptr, library, "room");
}

CUresult module_way(Taking& t) {
  return t.run<CUmodule>(
      [&](CUmodule* out) {
        const LoadScope load(whole(t.bytes));
        return module_load(t.bytes, out);
      },
      [](CUmodule module) { return cuModuleUnload(module); });
}

// What comes late is charged also above the quota, until its library is unloaded.
template <class Handle, class Late>
CUresult late_way(Taking& t, Late late) {
  const LoadScope load(whole(t.bytes));
  return t.run<CUlibrary>(
      [&](CUlibrary* out) { return library_load(t.bytes, out); },
      [&](CUlibrary library) {
        const CUresult result = t.run<Handle>([&](Handle* out) { return late(library, out); },
                                              [](Handle) { return CUDA_SUCCESS; });
        return cuLibraryUnload(library) == CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN;
      });
}

CUresult function_of(CUlibrary library, CUfunction* out) {
  CUkernel kernel = nullptr;
  const CUresult result = cuLibraryGetKernel(&kernel, library, "k");
  return result == CUDA_SUCCESS ? cuKernelGetFunction(out, kernel) : result;
}

// Of a context of its own, for half of what there is; the other half is the context's.
CUresult limit_way(Taking& t) {
  constexpr size_t kThreads = 2048;  // of the one multiprocessor
  size_t before = 0, after = 0;
  CUresult limited = CUDA_SUCCESS;
  const CUresult result = t.run<CUcontext>(
      [](CUcontext* out) { return cuCtxCreate(out, nullptr, 0, device); },
      [&](CUcontext made) {
        const size_t bytes = t.bytes / 2 / kThreads / 16 * 16;
        {
          const LoadScope load(bytes * kThreads);
          limited = cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE);
          if (limited == CUDA_SUCCESS) limited = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + bytes);
        }
        const bool known = cuCtxGetLimit(&after, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS;
        const size_t expected = limited == CUDA_SUCCESS ? before + bytes : before;
        CUresult ended = cuCtxDestroy(made);
        if (ended == CUDA_SUCCESS) ended = cuCtxSetCurrent(context);
        return known && after == expected ? ended : CUDA_ERROR_UNKNOWN;
      });
  return result == CUDA_SUCCESS ? limited : result;
}

// ---- other processes' memory

struct Neighbour {
  CUipcMemHandle allocation{};
  int physical = -1;
};
Neighbour neighbour;

CUresult import(int file, CUmemGenericAllocationHandle* out) {
  return cuMemImportFromShareableHandle(out,
                                        reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult ipc_way(Taking& t) {
  return t.run<CUdeviceptr>(
      [](CUdeviceptr* out) {
        return cuIpcOpenMemHandle(out, neighbour.allocation, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      },
      [](CUdeviceptr opened) { return cuIpcCloseMemHandle(opened); });
}

CUresult mapped_for_a_moment(CUmemGenericAllocationHandle memory) {
  CUdeviceptr at = 0;
  CUresult result = map(memory, kGrain, &at);
  // The mapping holds it now.
  if (cuMemRelease(memory) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
  if (result == CUDA_SUCCESS) result = cuMemUnmap(at, kGrain);
  return result == CUDA_SUCCESS ? cuMemAddressFree(at, kGrain) : CUDA_ERROR_UNKNOWN;
}

CUresult import_way(Taking& t) {
  return t.run<CUmemGenericAllocationHandle>(
      [](CUmemGenericAllocationHandle* out) { return import(neighbour.physical, out); },
      mapped_for_a_moment);
}

CUresult external_way(Taking& t) {
  return t.run<CUexternalMemory>(
      [](CUexternalMemory* out) { return external_import(neighbour.physical, kGrain, out); },
      [](CUexternalMemory memory) {
        CUdeviceptr at = 0;
        CUresult result = external_map(memory, kGrain, &at);
        if (cuDestroyExternalMemory(memory) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
        if (result == CUDA_SUCCESS) result = cuMemFree(at);
        return result == CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN;
      });
}

CUresult export_way(Taking& t) {
  const CUmemAllocationProp properties = shareable();
  return t.run<CUmemGenericAllocationHandle>(
      [&](CUmemGenericAllocationHandle* out) {
        return cuMemCreate(out, grains(t.bytes), &properties, 0);
      },
      [](CUmemGenericAllocationHandle memory) {
        int file = -1;
        CUmemGenericAllocationHandle again = 0;
        CUresult result = cuMemExportToShareableHandle(&file, memory,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (result == CUDA_SUCCESS) result = import(file, &again);
        close(file);
        if (cuMemRelease(memory) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
        return result == CUDA_SUCCESS ? cuMemRelease(again) : CUDA_ERROR_UNKNOWN;
      });
}

std::vector<std::function<CUresult()>> kept;
std::mutex kept_lock;

void kept_add(std::function<CUresult()> end) {
  const std::lock_guard scope(kept_lock);
  kept.push_back(std::move(end));
}

using KeepingWay = CUresult (*)(size_t bytes);
const KeepingWay kKeepingWays[] = {
    [](size_t bytes) {
      const LoadScope load(whole(bytes));
      CUmodule module = nullptr;
      const CUresult result = module_load(bytes, &module);
      if (result == CUDA_SUCCESS) kept_add([module] { return cuModuleUnload(module); });
      return result;
    },
    [](size_t bytes) {
      const LoadScope load(whole(bytes));
      CUlibrary library = nullptr;
      CUdeviceptr variable = 0;
      CUresult result = library_load(bytes, &library);
      if (result != CUDA_SUCCESS) return result;
      result = variable_of(library, &variable);
      if (result == CUDA_SUCCESS) {
        kept_add([library] { return cuLibraryUnload(library); });
      } else if (cuLibraryUnload(library) != CUDA_SUCCESS) {
        return CUDA_ERROR_UNKNOWN;
      }
      return result;
    },
    [](size_t bytes) {
      CUdeviceptr pointer = 0;
      const CUresult result = cuMemAlloc(&pointer, bytes);
      if (result == CUDA_SUCCESS) kept_add([pointer] { return cuMemFree(pointer); });
      return result;
    },
};

}  // namespace

const std::vector<TakingWay> kLoadWays = {
    module_way,
    [](Taking& t) { return late_way<CUdeviceptr>(t, variable_of); },
    [](Taking& t) { return late_way<CUfunction>(t, function_of); },
    limit_way,
};
const std::vector<TakingWay> kShareWays = {ipc_way, import_way, external_way, export_way};

CUresult neighbour_set(const PartnerMessage& request, int fd) {
  memcpy(&neighbour.allocation, request.blob, sizeof neighbour.allocation);
  neighbour.physical = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return neighbour.physical >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void keep(const PartnerMessage& request, PartnerMessage* answer) {
  std::atomic<std::uint64_t> refused{0}, wrong{0};
  std::vector<std::thread> threads;
  for (unsigned index = 0; index < 4; ++index) {
    threads.emplace_back([&, index] {
      if (cuCtxSetCurrent(context) != CUDA_SUCCESS) ++wrong;
      const auto way = (request.value + index) % std::size(kKeepingWays);
      const CUresult result = kKeepingWays[way](request.a);
      if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        ++refused;
      } else if (result != CUDA_SUCCESS) {
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  answer->value = refused;
  answer->extra = wrong;
}

CUresult let_go() {
  CUresult result = CUDA_SUCCESS;
  for (const auto& end : kept) {
    if (end() != CUDA_SUCCESS) result = CUDA_ERROR_UNKNOWN;
  }
  kept.clear();
  return result;
}

}  // namespace sluice::test::partner

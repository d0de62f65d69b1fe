// The fake driver's virtual memory management and its copies, with real memory behind the
// addresses: a piece is a file without a name, shown where it is mapped. Any of these calls can be
// told to fail.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>

#include "tests/interpose/fake_driver.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kGranule = 2 << 20;

struct Piece {
  int file;
  size_t bytes;
  int references;  // the handle and the mappings
};

std::mutex memory_mutex;
std::map<unsigned long long, Piece> pieces;
struct Shown {
  size_t bytes;
  unsigned long long piece;
};
std::map<CUdeviceptr, Shown> shown;
// Never destroyed: what a free that was told to fail has left is still known at the end.
std::set<void*>& host_buffers = *new std::set<void*>;

/// Drivers leave errno alone.
class ErrnoKept {
 public:
  ~ErrnoKept() { errno = value_; }

 private:
  const int value_ = errno;
};
unsigned long long next_piece = 0x9001;
unsigned long long ended_piece;  // the last; 0 = none

// Counts the call; true when it is one that shall fail.
bool fails() {
  const unsigned long long n = ++fake.calls_memory;
  if (fake.fail_at == 0 || n < fake.fail_at || n >= fake.fail_at + fake.fail_times) return false;
  ++fake.calls_failed;
  return true;
}

void wait_as_told() {
  if (__atomic_load_n(&fake.wait_on_sync, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_add_fetch(&fake.syncs_waiting, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&fake.wait_on_sync, __ATOMIC_SEQ_CST) != 0) usleep(1000);
  __atomic_sub_fetch(&fake.syncs_waiting, 1, __ATOMIC_SEQ_CST);
}

void piece_drop(unsigned long long handle) {
  const auto found = pieces.find(handle);
  if (found == pieces.end() || --found->second.references > 0) return;
  close(found->second.file);
  fake.used_bytes -= found->second.bytes;
  pieces.erase(found);
  ended_piece = handle;
}

void* blank(void* at, size_t bytes, int flags) {
  return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

}  // namespace

#define FAIL_IF_TOLD(error) \
  fake_enter(__func__);     \
  if (fails()) return error

FAKE CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                            CUmemAllocationGranularity_flags) {
  *bytes = kGranule;
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                          const CUmemAllocationProp*, unsigned long long) {
  FAIL_IF_TOLD(CUDA_ERROR_OUT_OF_MEMORY);
  const std::lock_guard lock(memory_mutex);
  if (fake.alloc_result != CUDA_SUCCESS) return fake.alloc_result;
  if (fake.used_bytes + bytes > fake.capacity_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("fake", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  fake.used_bytes += bytes;
  const bool again = fake.handles_again != 0 && ended_piece != 0;
  *handle = again ? ended_piece : next_piece++;
  ended_piece = 0;
  pieces[*handle] = Piece{file, bytes, 1};
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  FAIL_IF_TOLD(CUDA_ERROR_INVALID_VALUE);
  {
    const std::lock_guard lock(memory_mutex);
    piece_drop(handle);
  }
  if (fake.on_released != nullptr) fake.on_released();
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t, CUdeviceptr,
                                  unsigned long long) {
  const ErrnoKept kept;
  FAIL_IF_TOLD(CUDA_ERROR_OUT_OF_MEMORY);
  auto* wide = static_cast<char*>(blank(nullptr, bytes + kGranule, 0));
  const auto at = reinterpret_cast<CUdeviceptr>(wide);
  *out = (at + kGranule - 1) / kGranule * kGranule;
  ++fake.reserved_ranges;
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  const ErrnoKept kept;
  FAIL_IF_TOLD(CUDA_ERROR_INVALID_VALUE);
  munmap(reinterpret_cast<void*>(address), bytes);
  --fake.reserved_ranges;
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long) {
  FAIL_IF_TOLD(CUDA_ERROR_INVALID_VALUE);
  const std::lock_guard lock(memory_mutex);
  const auto found = pieces.find(handle);
  if (found == pieces.end()) return CUDA_ERROR_INVALID_VALUE;
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
       found->second.file, static_cast<off_t>(offset));
  ++found->second.references;
  shown[address] = Shown{bytes, handle};
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  FAIL_IF_TOLD(CUDA_ERROR_INVALID_VALUE);
  const std::lock_guard lock(memory_mutex);
  // Whole mappings, one behind the other.
  for (const CUdeviceptr end = address + bytes; address < end;) {
    const auto found = shown.find(address);
    if (found == shown.end()) return CUDA_ERROR_INVALID_VALUE;
    blank(reinterpret_cast<void*>(address), found->second.bytes, MAP_FIXED);
    address += found->second.bytes;
    piece_drop(found->second.piece);
    shown.erase(found);
  }
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                             size_t count) {
  FAIL_IF_TOLD(CUDA_ERROR_INVALID_VALUE);
  const std::lock_guard lock(memory_mutex);
  if (!shown.contains(address)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const bool on = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const unsigned long long device = 1ull << access[i].location.id;
    if (on) mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
    fake.accessible = on ? fake.accessible | device : fake.accessible & ~device;
  }
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned int) {
  FAIL_IF_TOLD(CUDA_ERROR_OUT_OF_MEMORY);
  const ErrnoKept kept;
  const std::lock_guard lock(memory_mutex);
  *out = malloc(bytes);
  if (*out == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  host_buffers.insert(*out);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemFreeHost(void* p) {
  FAIL_IF_TOLD(CUDA_ERROR_INVALID_VALUE);
  const std::lock_guard lock(memory_mutex);
  if (host_buffers.erase(p) == 0) return CUDA_ERROR_INVALID_VALUE;
  free(p);
  return CUDA_SUCCESS;
}
FAKE CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  FAIL_IF_TOLD(CUDA_ERROR_OUT_OF_MEMORY);
  *stream = reinterpret_cast<CUstream>(0x7700);
  return CUDA_SUCCESS;
}
FAKE CUresult cuStreamSynchronize(CUstream) {
  FAIL_IF_TOLD(CUDA_ERROR_UNKNOWN);
  wait_as_told();
  return CUDA_SUCCESS;
}
// A loop, of which a sanitizer knows nothing where this file is compiled without it.
static void bytes_copy(void* to, const void* from, size_t bytes) {
  if (to == from) return;  // some call with whatever arguments
  for (size_t i = 0; i < bytes; ++i) static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
}
FAKE CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  FAIL_IF_TOLD(CUDA_ERROR_UNKNOWN);
  if (to != nullptr) bytes_copy(to, reinterpret_cast<void*>(from), bytes);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  FAIL_IF_TOLD(CUDA_ERROR_UNKNOWN);
  if (from != nullptr) bytes_copy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}
FAKE CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}

// Arrays have handles and no memory.
static CUresult array_make(void* out) {
  fake_enter("an array");
  static uintptr_t next_array = 0xA0000;
  const uintptr_t handle = next_array += 0x100;
  memcpy(out, &handle, sizeof handle);
  ++fake.arrays;
  return CUDA_SUCCESS;
}
static CUresult array_end() {
  fake_enter("an array's end");
  --fake.arrays;
  return CUDA_SUCCESS;
}
FAKE CUresult cuArrayCreate(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1*) {
  return array_make(out);
}
FAKE CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR*) {
  return array_make(out);
}
FAKE CUresult cuArray3DCreate(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1*) {
  return array_make(out);
}
FAKE CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR*) {
  return array_make(out);
}
FAKE CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR*,
                                     unsigned int) {
  return array_make(out);
}
FAKE CUresult cuArrayDestroy(CUarray) { return array_end(); }
FAKE CUresult cuMipmappedArrayDestroy(CUmipmappedArray) { return array_end(); }

// A process of the tenant that does what a test tells it. See softgpu_partner.h.
#include "tests/interpose/softgpu_partner.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <unistd.h>

#include <string>

#include "tests/interpose/softgpu_partner_ways.h"

using namespace sluice::test;

namespace sluice::test::partner {

CUcontext context;
CUdevice device;

CUmemAllocationProp shareable() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

CUresult map(CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr* at) {
  const CUresult result = cuMemAddressReserve(at, bytes, 0, 0, 0);
  return result == CUDA_SUCCESS ? cuMemMap(*at, bytes, 0, memory, 0) : result;
}

// The driver keeps the descriptor that it is given.
CUresult external_import(int fd, std::uint64_t bytes, CUexternalMemory* memory) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  what.size = bytes;
  const CUresult result = cuImportExternalMemory(memory, &what);
  if (result != CUDA_SUCCESS) close(what.handle.fd);
  return result;
}

CUresult external_map(CUexternalMemory memory, std::uint64_t bytes, CUdeviceptr* at) {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC what{};
  what.size = bytes;
  return cuExternalMemoryGetMappedBuffer(at, memory, &what);
}

std::string code_with_room(size_t bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 room[" +
         std::to_string(bytes) + "];\n.visible .entry k()\n{\n  ret;\n}\n";
}

}  // namespace sluice::test::partner

namespace {

using namespace sluice::test::partner;

template <class Handle>
Handle handle(std::uint64_t value) {
  return reinterpret_cast<Handle>(value);
}

CUresult init(int ordinal) {
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, ordinal);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

// Counts to n in one thread.
constexpr char kSpin[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [n];
  mov.u32 %r2, 0;
LOOP:
  add.s32 %r2, %r2, 1;
  setp.lt.s32 %p1, %r2, %r1;
  @%p1 bra LOOP;
  ret;
}
)";

CUresult spin(std::uint64_t launches, std::uint64_t count) {
  static CUfunction function;
  CUmodule module = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (function == nullptr) {
    result = cuModuleLoadData(&module, kSpin);
    if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&function, module, "spin");
  }
  auto n = static_cast<unsigned>(count);
  void* parameters[] = {&n};
  for (std::uint64_t i = 0; i < launches && result == CUDA_SUCCESS; ++i)
    result = cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
  return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

CUresult serve(const PartnerMessage& request, int fd, PartnerMessage* answer, int* fd_out) {
  auto* const sent_fd = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  const CUmemAllocationProp properties = shareable();
  switch (request.op) {
    case PartnerOp::kInit:
      return init(static_cast<int>(request.a));
    case PartnerOp::kAlloc:
      return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(&answer->value), request.a);
    case PartnerOp::kFree:
      return cuMemFree(request.a);
    case PartnerOp::kIpcGet:
      return cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(answer->blob), request.a);
    case PartnerOp::kIpcOpen: {
      CUipcMemHandle from;
      memcpy(&from, request.blob, sizeof from);
      return cuIpcOpenMemHandle(reinterpret_cast<CUdeviceptr*>(&answer->value), from,
                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    }
    case PartnerOp::kIpcClose:
      return cuIpcCloseMemHandle(request.a);
    case PartnerOp::kVmmCreate:
      return cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(&answer->value), request.a,
                         &properties, 0);
    case PartnerOp::kVmmRelease:
      return cuMemRelease(request.a);
    case PartnerOp::kVmmExport:
      return cuMemExportToShareableHandle(fd_out, request.a,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    case PartnerOp::kVmmImport:
      return cuMemImportFromShareableHandle(
          reinterpret_cast<CUmemGenericAllocationHandle*>(&answer->value), sent_fd,
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    case PartnerOp::kVmmMap:
      return map(request.a, request.b, reinterpret_cast<CUdeviceptr*>(&answer->value));
    case PartnerOp::kVmmUnmap:
      return cuMemUnmap(request.a, request.b);
    case PartnerOp::kExternalImport:
      return external_import(fd, request.a, reinterpret_cast<CUexternalMemory*>(&answer->value));
    case PartnerOp::kExternalMap:
      return external_map(handle<CUexternalMemory>(request.a), request.b,
                          reinterpret_cast<CUdeviceptr*>(&answer->value));
    case PartnerOp::kExternalDestroy:
      return cuDestroyExternalMemory(handle<CUexternalMemory>(request.a));
    case PartnerOp::kPoolCreate: {
      CUmemPoolProps pool{};
      pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
      pool.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
      return cuMemPoolCreate(reinterpret_cast<CUmemoryPool*>(&answer->value), &pool);
    }
    case PartnerOp::kPoolDestroy:
      return cuMemPoolDestroy(handle<CUmemoryPool>(request.a));
    case PartnerOp::kPoolAlloc:
      return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(&answer->value), request.b,
                                     handle<CUmemoryPool>(request.a), nullptr);
    case PartnerOp::kPoolTrim:
      return cuMemPoolTrimTo(handle<CUmemoryPool>(request.a), 0);
    case PartnerOp::kPoolExport:
      return cuMemPoolExportToShareableHandle(fd_out, handle<CUmemoryPool>(request.a),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    case PartnerOp::kPoolImport:
      return cuMemPoolImportFromShareableHandle(reinterpret_cast<CUmemoryPool*>(&answer->value),
                                                sent_fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                0);
    case PartnerOp::kPointerExport:
      return cuMemPoolExportPointer(reinterpret_cast<CUmemPoolPtrExportData*>(answer->blob),
                                    request.a);
    case PartnerOp::kPointerImport: {
      CUmemPoolPtrExportData from;
      memcpy(&from, request.blob, sizeof from);
      return cuMemPoolImportPointer(reinterpret_cast<CUdeviceptr*>(&answer->value),
                                    handle<CUmemoryPool>(request.a), &from);
    }
    case PartnerOp::kMemoryInfo:
      return cuMemGetInfo(&answer->value, &answer->extra);
    case PartnerOp::kSynchronize:
      return cuCtxSynchronize();
    case PartnerOp::kModuleLoad:
      return cuModuleLoadData(reinterpret_cast<CUmodule*>(&answer->value),
                              code_with_room(request.a).c_str());
    case PartnerOp::kSpin:
      return spin(request.a, request.b);
    case PartnerOp::kChurn:
      churn(request, answer);
      return CUDA_SUCCESS;
    case PartnerOp::kChurnAllWays:
      churn_all_ways(request, answer);
      return CUDA_SUCCESS;
    case PartnerOp::kChurnPools:
      churn_pools(request, answer);
      return CUDA_SUCCESS;
    case PartnerOp::kNeighbour:
      return neighbour_set(request, fd);
    case PartnerOp::kKeep:
      keep(request, answer);
      return CUDA_SUCCESS;
    case PartnerOp::kLetGo:
      return let_go();
    case PartnerOp::kExec:
    case PartnerOp::kEnd:
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

int main(int, char** arguments) {
  const int socket = atoi(arguments[1]);
  PartnerMessage request;
  int fd = -1;
  while (partner_receive(socket, &request, &fd)) {
    PartnerMessage answer;
    int fd_out = -1;
    answer.result = serve(request, fd, &answer, &fd_out);
    if (fd >= 0) close(fd);
    partner_send(socket, answer, fd_out);
    if (fd_out >= 0) close(fd_out);
    if (request.op == PartnerOp::kEnd) return 0;
    if (request.op == PartnerOp::kExec) {
      personality(ADDR_NO_RANDOMIZE);
      execv("/proc/self/exe", arguments);
    }
  }
  return 1;
}

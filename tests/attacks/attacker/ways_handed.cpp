// Ways in which a partner process holds what this process gives away, so that no account may have
// it.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <mutex>

#include "tests/attacks/attacker/attack.h"

namespace attacks {
namespace {

enum class Kind : int { kIpc, kPiece, kPooled };

struct Parcel {
  Kind kind = Kind::kIpc;
  std::size_t bytes = 0;
  CUipcMemHandle handle{};
  CUmemPoolPtrExportData pointer{};
};

int channel = -1;
std::mutex channel_mutex;

bool parcel_send(const Parcel& parcel, int descriptor) {
  iovec part{const_cast<Parcel*>(&parcel), sizeof parcel};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  char answer = 0;
  return sendmsg(channel, &message, MSG_NOSIGNAL) > 0 && read(channel, &answer, 1) == 1 &&
         answer == 'y';
}

bool parcel_receive(Parcel& parcel, int& descriptor) {
  iovec part{&parcel, sizeof parcel};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  descriptor = -1;
  if (recvmsg(channel, &message, 0) <= 0) return false;
  const cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head != nullptr) std::memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
  return true;
}

CUresult parcel_open(const Parcel& parcel, int descriptor) {
  CUdeviceptr at = 0;
  void* const by = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  if (parcel.kind == Kind::kIpc)
    return cuIpcOpenMemHandle(&at, parcel.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (parcel.kind == Kind::kPiece) {
    CUmemGenericAllocationHandle piece = 0;
    return cuMemImportFromShareableHandle(&piece, by, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  CUmemoryPool pool = nullptr;
  CUmemPoolPtrExportData pointer = parcel.pointer;
  const CUresult result =
      cuMemPoolImportFromShareableHandle(&pool, by, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return result == CUDA_SUCCESS ? cuMemPoolImportPointer(&at, pool, &pointer) : result;
}

/// Holds whatever it is given, until it is killed.
[[noreturn]] void partner_live() {
  Parcel parcel;
  int descriptor = -1;
  bool open = false;
  while (parcel_receive(parcel, descriptor)) {
    if (!open) open = gpu_open() == CUDA_SUCCESS;
    const char answer = open && parcel_open(parcel, descriptor) == CUDA_SUCCESS ? 'y' : 'n';
    if (descriptor >= 0) close(descriptor);
    if (write(channel, &answer, 1) != 1) break;
  }
  park();
}

CUresult handed(const Parcel& parcel, int descriptor) {
  const std::lock_guard lock(channel_mutex);
  const bool held = channel >= 0 && parcel_send(parcel, descriptor);
  return held ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult take_ipc_handed(std::size_t bytes) {
  Parcel parcel;
  parcel.bytes = bytes;
  CUdeviceptr at = 0;
  CUresult result = cuMemAlloc(&at, bytes);
  if (result == CUDA_SUCCESS) result = cuIpcGetMemHandle(&parcel.handle, at);
  if (result == CUDA_SUCCESS) result = handed(parcel, -1);
  (void)cuMemFree(at);
  return result;
}

CUresult take_piece_handed(std::size_t bytes) {
  constexpr std::size_t kGrainOfPieces = 2 * kMiB;
  Parcel parcel;
  parcel.kind = Kind::kPiece;
  CUmemAllocationProp wish{};
  wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  wish.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle piece = 0;
  int descriptor = -1;
  CUresult result =
      cuMemCreate(&piece, (bytes + kGrainOfPieces - 1) / kGrainOfPieces * kGrainOfPieces, &wish, 0);
  if (result != CUDA_SUCCESS) return result;
  result =
      cuMemExportToShareableHandle(&descriptor, piece, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS) result = handed(parcel, descriptor);
  if (descriptor >= 0) close(descriptor);
  (void)cuMemRelease(piece);
  return result;
}

CUresult take_pooled_handed(std::size_t bytes) {
  Parcel parcel;
  parcel.kind = Kind::kPooled;
  CUmemPoolProps wish{};
  wish.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, {options.device}};
  wish.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr;
  CUdeviceptr at = 0;
  int descriptor = -1;
  CUresult result = cuMemPoolCreate(&pool, &wish);
  if (result == CUDA_SUCCESS) result = cuMemAllocFromPoolAsync(&at, bytes, pool, nullptr);
  if (result == CUDA_SUCCESS) result = cuStreamSynchronize(nullptr);
  if (result == CUDA_SUCCESS)
    result = cuMemPoolExportToShareableHandle(&descriptor, pool,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS) result = cuMemPoolExportPointer(&parcel.pointer, at);
  if (result == CUDA_SUCCESS) result = handed(parcel, descriptor);
  if (descriptor >= 0) close(descriptor);
  if (at != 0) (void)cuMemFreeAsync(at, nullptr);
  (void)cuStreamSynchronize(nullptr);
  if (pool != nullptr) (void)cuMemPoolDestroy(pool);
  return result;
}

}  // namespace

void partner_start() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return;
  if (fork() == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    channel = ends[1];
    partner_live();
  }
  close(ends[1]);
  channel = ends[0];
}

const Way kHandedWays[] = {{"ipc_handed", take_ipc_handed},
                           {"piece_handed", take_piece_handed},
                           {"pooled_handed", take_pooled_handed},
                           {nullptr, nullptr}};

}  // namespace attacks

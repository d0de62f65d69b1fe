// A library with NCCL's names and meaning for the six calls that the trainer makes, for machines
// without GPUs: the ranks meet in a shared file and add on the host. It shows that the trainer's
// NCCL path keeps NCCL's contract; NVIDIA's library itself needs hardware.
#include <cuda.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int kRanksMax = 8;
constexpr std::size_t kChunk = 1 << 16;  // floats of one rank at a time
constexpr std::chrono::seconds kPatience{30};

struct Meeting {
  std::atomic<int> arrived;
  std::atomic<unsigned> round;
  float data[kRanksMax][kChunk];
};

}  // namespace

struct ncclComm {
  Meeting* meeting = nullptr;
  int rank = 0;
  int count = 0;

  /// Returns when all have come; false when somebody does not.
  bool meet() const {
    const unsigned round = meeting->round.load();
    if (meeting->arrived.fetch_add(1) + 1 == count) {
      meeting->arrived.store(0);
      meeting->round.fetch_add(1);
      return true;
    }
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (meeting->round.load() == round) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }
};

namespace {

std::size_t bytes(std::size_t floats) { return floats * sizeof(float); }

bool fetch(ncclComm_t comm, CUdeviceptr from, std::size_t count, cudaStream_t stream) {
  return cuMemcpyDtoHAsync(comm->meeting->data[comm->rank], from, bytes(count), stream) ==
             CUDA_SUCCESS &&
         cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

bool deliver(CUdeviceptr to, const float* from, std::size_t count, cudaStream_t stream) {
  return cuMemcpyHtoDAsync(to, from, bytes(count), stream) == CUDA_SUCCESS &&
         cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

CUdeviceptr at(const void* p, std::size_t offset) {
  return reinterpret_cast<CUdeviceptr>(static_cast<const float*>(p) + offset);
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/dev/shm/nccl-standin-%08x%08x",
                std::random_device{}(), std::random_device{}());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int count, ncclUniqueId id, int rank) {
  if (count > kRanksMax || rank < 0 || rank >= count) return ncclInvalidArgument;
  const int file = open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Meeting)) != 0) return ncclSystemError;
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  auto* made = new ncclComm;
  made->meeting = static_cast<Meeting*>(memory);
  made->rank = rank;
  made->count = count;
  *comm = made;
  if (!made->meet()) return ncclSystemError;
  unlink(id.internal);  // all have it open
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->meeting, sizeof(Meeting));
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat || op != ncclSum) return ncclInvalidArgument;
  std::vector<float> sum;
  for (std::size_t done = 0; done < count; done += kChunk) {
    const std::size_t part = std::min(kChunk, count - done);
    if (!fetch(comm, at(send, done), part, stream)) return ncclUnhandledCudaError;
    if (!comm->meet()) return ncclSystemError;
    sum.assign(part, 0);
    for (int rank = 0; rank < comm->count; ++rank) {
      for (std::size_t i = 0; i < part; ++i) sum[i] += comm->meeting->data[rank][i];
    }
    if (!comm->meet()) return ncclSystemError;  // all have read
    if (!deliver(at(receive, done), sum.data(), part, stream)) return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat) return ncclInvalidArgument;
  for (std::size_t done = 0; done < count; done += kChunk) {
    const std::size_t part = std::min(kChunk, count - done);
    if (comm->rank == root && !fetch(comm, at(send, done), part, stream)) {
      return ncclUnhandledCudaError;
    }
    if (!comm->meet()) return ncclSystemError;
    if (!deliver(at(receive, done), comm->meeting->data[root], part, stream)) {
      return ncclUnhandledCudaError;
    }
    if (!comm->meet()) return ncclSystemError;
  }
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "stand-in error";
}

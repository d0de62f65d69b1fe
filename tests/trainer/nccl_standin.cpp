// A library with NCCL's names and meaning for the calls that the trainer makes, for machines
// without GPUs: the ranks meet in a shared file and add on the host. As NCCL it refuses two ranks
// of one host on one GPU. It shows that the trainer's NCCL path keeps NCCL's contract; NVIDIA's
// library itself needs hardware.
#include <cuda.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "trainer/base/bfloat16.h"

namespace {

constexpr int kRanksMax = 8;
constexpr std::size_t kChunk = 1 << 18;  // bytes of one rank at a time
constexpr std::chrono::seconds kPatience{30};

/// From one rank to another: a chunk at a time.
struct Mailbox {
  std::atomic<bool> full;
  std::size_t bytes;
  std::byte data[kChunk];
};

/// Where a rank runs. NCCL tells hosts apart by NCCL_HOSTID, where it is set, and GPUs by their
/// bus.
struct Seat {
  char host[256];
  char bus[32];
};

struct Meeting {
  Seat seats[kRanksMax];
  std::atomic<int> arrived;
  std::atomic<unsigned> round;
  std::byte data[kRanksMax][kChunk];
  Mailbox mail[kRanksMax][kRanksMax];  // [from][to]
};

using Clock = std::chrono::steady_clock;

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
    const auto deadline = Clock::now() + kPatience;
    while (meeting->round.load() == round) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }
};

namespace {

std::size_t size_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 1;
}

CUdeviceptr at(const void* p, std::size_t offset) {
  return reinterpret_cast<CUdeviceptr>(static_cast<const std::byte*>(p) + offset);
}

bool fetch(std::byte* to, CUdeviceptr from, std::size_t bytes, cudaStream_t stream) {
  return cuMemcpyDtoHAsync(to, from, bytes, stream) == CUDA_SUCCESS &&
         cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

bool deliver(CUdeviceptr to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  return cuMemcpyHtoDAsync(to, from, bytes, stream) == CUDA_SUCCESS &&
         cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

float load(const std::byte* from, ncclDataType_t type, std::size_t i) {
  if (type == ncclFloat32) return reinterpret_cast<const float*>(from)[i];
  return reinterpret_cast<const sluice::train::Bfloat16*>(from)[i].value();
}

void store(std::byte* to, ncclDataType_t type, std::size_t i, float value) {
  if (type == ncclFloat32) {
    reinterpret_cast<float*>(to)[i] = value;
  } else {
    reinterpret_cast<sluice::train::Bfloat16*>(to)[i] = sluice::train::Bfloat16(value);
  }
}

/// `bytes` of every rank's `send`, reduced, in pieces: each goes to `take` with its offset.
template <class Take>
ncclResult_t reduced(const void* send, std::size_t bytes, ncclDataType_t type, ncclRedOp_t op,
                     ncclComm_t comm, cudaStream_t stream, Take take) {
  if (type != ncclFloat32 && type != ncclBfloat16) return ncclInvalidArgument;
  std::vector<std::byte> sum;
  for (std::size_t done = 0; done < bytes; done += kChunk) {
    const std::size_t part = std::min(kChunk, bytes - done);
    if (!fetch(comm->meeting->data[comm->rank], at(send, done), part, stream))
      return ncclUnhandledCudaError;
    if (!comm->meet()) return ncclSystemError;
    sum.assign(comm->meeting->data[0], comm->meeting->data[0] + part);
    for (std::size_t i = 0; i < part / size_of(type); ++i) {
      float value = load(sum.data(), type, i);
      for (int rank = 1; rank < comm->count; ++rank) {
        const float other = load(comm->meeting->data[rank], type, i);
        value = op == ncclSum   ? value + other
                : op == ncclMin ? std::min(value, other)
                                : std::max(value, other);
      }
      store(sum.data(), type, i, value);
    }
    if (!comm->meet()) return ncclSystemError;  // all have read
    if (!take(done, sum)) return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

/// A send or a reception of a group, as far as it has come.
struct Transfer {
  bool sends;
  CUdeviceptr data;
  std::size_t bytes;
  int peer;
  ncclComm_t comm;
  cudaStream_t stream;
  std::size_t done = 0;

  Mailbox& box() const {
    return sends ? comm->meeting->mail[comm->rank][peer] : comm->meeting->mail[peer][comm->rank];
  }
  /// One chunk, if the mailbox is as it must be for that.
  bool advance(bool* moved) {
    Mailbox& mail = box();
    if (mail.full.load() == sends) return true;
    *moved = true;
    if (sends) {
      mail.bytes = std::min(kChunk, bytes - done);
      if (!fetch(mail.data, data + done, mail.bytes, stream)) return false;
    } else if (mail.bytes > bytes - done || !deliver(data + done, mail.data, mail.bytes, stream)) {
      return false;
    }
    done += mail.bytes;
    mail.full.store(sends);
    return true;
  }
};

/// Where this thread's current context is.
bool seat_find(Seat* seat) {
  const char* host = std::getenv("NCCL_HOSTID");
  if (host != nullptr) {
    std::snprintf(seat->host, sizeof seat->host, "%s", host);
  } else if (gethostname(seat->host, sizeof seat->host - 1) != 0) {
    return false;
  }
  CUdevice device = 0;
  return cuCtxGetDevice(&device) == CUDA_SUCCESS &&
         cuDeviceGetPCIBusId(seat->bus, sizeof seat->bus, device) == CUDA_SUCCESS;
}

bool seats_differ(const Meeting& meeting, int count) {
  const auto same = [&](const Seat& a, const Seat& b) {
    return std::strcmp(a.host, b.host) == 0 && std::strcmp(a.bus, b.bus) == 0;
  };
  for (int i = 0; i < count; ++i)
    for (int j = 0; j < i; ++j)
      if (same(meeting.seats[i], meeting.seats[j])) return false;
  return true;
}

thread_local int group_depth = 0;
thread_local std::vector<Transfer> group;

/// All of them side by side; those of one mailbox in order.
ncclResult_t group_run() {
  std::vector<Transfer> work = std::exchange(group, {});
  auto deadline = Clock::now() + kPatience;
  while (!work.empty()) {
    bool moved = false;
    std::vector<Mailbox*> busy;
    for (Transfer& one : work) {
      if (std::find(busy.begin(), busy.end(), &one.box()) != busy.end()) continue;
      busy.push_back(&one.box());
      if (!one.advance(&moved)) return ncclInvalidUsage;
    }
    std::erase_if(work, [](const Transfer& one) { return one.done == one.bytes; });
    if (moved) {
      deadline = Clock::now() + kPatience;
    } else if (Clock::now() > deadline) {
      return ncclSystemError;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return ncclSuccess;
}

ncclResult_t transfer(const Transfer& one) {
  group.push_back(one);
  return group_depth == 0 ? group_run() : ncclSuccess;
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
  if (!seat_find(&made->meeting->seats[rank])) return ncclUnhandledCudaError;
  if (!made->meet()) return ncclSystemError;
  unlink(id.internal);                                                // all have it open
  if (!seats_differ(*made->meeting, count)) return ncclInvalidUsage;  // a duplicate GPU
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->meeting, sizeof(Meeting));
  delete comm;
  return ncclSuccess;
}

/// Of a rank that is in no collective.
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return reduced(send, count * size_of(type), type, op, comm, stream,
                 [&](std::size_t done, const std::vector<std::byte>& sum) {
                   return deliver(at(receive, done), sum.data(), sum.size(), stream);
                 });
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return reduced(send, count * size_of(type), type, op, comm, stream,
                 [&](std::size_t done, const std::vector<std::byte>& sum) {
                   return comm->rank != root ||
                          deliver(at(receive, done), sum.data(), sum.size(), stream);
                 });
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  // `receive` may lie in `send`, whose other parts are still to be read.
  const std::size_t part = count * size_of(type);
  std::vector<std::byte> whole;
  const ncclResult_t result =
      reduced(send, part * static_cast<std::size_t>(comm->count), type, op, comm, stream,
              [&](std::size_t, const std::vector<std::byte>& sum) {
                whole.insert(whole.end(), sum.begin(), sum.end());
                return true;
              });
  if (result != ncclSuccess) return result;
  const std::byte* mine = whole.data() + part * static_cast<std::size_t>(comm->rank);
  return deliver(at(receive, 0), mine, part, stream) ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  for (std::size_t done = 0; done < bytes; done += kChunk) {
    const std::size_t part = std::min(kChunk, bytes - done);
    if (!fetch(comm->meeting->data[comm->rank], at(send, done), part, stream))
      return ncclUnhandledCudaError;
    if (!comm->meet()) return ncclSystemError;
    for (int rank = 0; rank < comm->count; ++rank) {
      const std::size_t offset = bytes * static_cast<std::size_t>(rank) + done;
      if (!deliver(at(receive, offset), comm->meeting->data[rank], part, stream))
        return ncclUnhandledCudaError;
    }
    if (!comm->meet()) return ncclSystemError;
  }
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  for (std::size_t done = 0; done < bytes; done += kChunk) {
    const std::size_t part = std::min(kChunk, bytes - done);
    if (comm->rank == root && !fetch(comm->meeting->data[root], at(send, done), part, stream))
      return ncclUnhandledCudaError;
    if (!comm->meet()) return ncclSystemError;
    if (!deliver(at(receive, done), comm->meeting->data[root], part, stream))
      return ncclUnhandledCudaError;
    if (!comm->meet()) return ncclSystemError;
  }
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return transfer({true, at(send, 0), count * size_of(type), peer, comm, stream});
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer({false, at(receive, 0), count * size_of(type), peer, comm, stream});
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return --group_depth == 0 ? group_run() : ncclSuccess; }

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess        ? "no error"
         : result == ncclInvalidUsage ? "invalid usage (stand-in)"
                                      : "stand-in error";
}

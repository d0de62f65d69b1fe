// Within the partner (softgpu_partner.h): how it takes memory in many threads at once, and what its
// calls share.
#pragma once

#include <cuda.h>
#include <string.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/softgpu_partner.h"

namespace sluice::test::partner {

extern CUcontext context;
extern CUdevice device;

CUmemAllocationProp shareable();
CUresult map(CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr* at);
CUresult external_import(int fd, std::uint64_t bytes, CUexternalMemory* memory);
CUresult external_map(CUexternalMemory memory, std::uint64_t bytes, CUdeviceptr* at);
/// Code with a variable `room` of so many bytes, which is all that it takes, and a kernel `k`.
std::string code_with_room(size_t bytes);

/// What a thread has for it.
struct Worker {
  unsigned index;
  CUstream stream;
  CUmemoryPool pool;
};

/// Takes at most that many bytes and gives them back; looks at what the program is shown meanwhile.
/// `untouched` is set to false where a refusal changed an output.
struct Taking {
  const Worker& worker;
  size_t bytes;
  bool untouched = true;
  bool shown_right = true;
  template <class Handle, class Take, class Give>
  CUresult run(Take take, Give give) {
    auto* const before = reinterpret_cast<void*>(0x77);
    Handle out;
    memcpy(&out, &before, sizeof out);
    const CUresult result = take(&out);
    if (result != CUDA_SUCCESS) {
      untouched = memcmp(&out, &before, sizeof out) == 0;
      return result;
    }
    std::this_thread::yield();  // others are to meet it
    size_t free_bytes = 0, total_bytes = 0;
    shown_right =
        cuMemGetInfo(&free_bytes, &total_bytes) == CUDA_SUCCESS && free_bytes < total_bytes;
    return give(out);
  }
};
using TakingWay = CUresult (*)(Taking& t);

constexpr size_t kGrain = 2 << 20;  // of physical memory and of pools
inline size_t at_least_one(size_t n) { return n > 0 ? n : 1; }
inline size_t grains(size_t bytes) { return at_least_one(bytes / kGrain) * kGrain; }

/// Modules, libraries, what is loaded late, limits.
extern const std::vector<TakingWay> kLoadWays;
/// What the neighbour has exported, and what this process exports itself.
extern const std::vector<TakingWay> kShareWays;
/// A neighbour's memory: the handle of an allocation in `blob`, a descriptor of kGrain bytes.
CUresult neighbour_set(const PartnerMessage& request, int fd);

// See the operations of the same names.
void churn(const PartnerMessage& request, PartnerMessage* answer);
void churn_all_ways(const PartnerMessage& request, PartnerMessage* answer);
void churn_pools(const PartnerMessage& request, PartnerMessage* answer);
void keep(const PartnerMessage& request, PartnerMessage* answer);
CUresult let_go();

}  // namespace sluice::test::partner

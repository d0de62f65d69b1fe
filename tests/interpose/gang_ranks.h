// Ranks whose kernels wait for each other: a kernel of one spins until that of the other has come
// as far, as collectives do.
#pragma once

#include <cuda.h>

namespace sluice::test {

// Says that it has come to round k and waits for the other one to come there.
inline constexpr char kMeetPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry meet(.param .u64 mine, .param .u64 other, .param .u32 k)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [mine];
  ld.param.u64 %rd2, [other];
  ld.param.u32 %r1, [k];
  st.volatile.global.u32 [%rd1], %r1;
LOOP:
  ld.volatile.global.u32 %r2, [%rd2];
  setp.lt.u32 %p1, %r2, %r1;
  @%p1 bra LOOP;
  ret;
}
)";

struct Rank {
  CUcontext context = nullptr;
  CUfunction meet = nullptr;
  CUdeviceptr mine = 0, other = 0;
  CUstream stream = nullptr;
};

/// A rank on the device, its context current to the caller. False when the driver says no.
inline bool rank_make(int device, Rank* rank) {
  CUmodule module = nullptr;
  return cuDevicePrimaryCtxRetain(&rank->context, device) == CUDA_SUCCESS &&
         cuCtxSetCurrent(rank->context) == CUDA_SUCCESS &&
         cuModuleLoadData(&module, kMeetPtx) == CUDA_SUCCESS &&
         cuModuleGetFunction(&rank->meet, module, "meet") == CUDA_SUCCESS &&
         cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
}

/// Where ranks of two processes meet: a page that both have mapped, shown to the calling thread's
/// context.
inline constexpr size_t kMeetBytes = 4096;
inline bool rank_join(Rank* rank, bool first, void* page) {
  CUdeviceptr base = 0;
  if (cuMemHostRegister(page, kMeetBytes,
                        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) !=
          CUDA_SUCCESS ||
      cuMemHostGetDevicePointer(&base, page, 0) != CUDA_SUCCESS) {
    return false;
  }
  rank->mine = first ? base : base + 128;
  rank->other = first ? base + 128 : base;
  return true;
}

/// Where they meet: memory of the host, of the calling thread's context.
inline bool ranks_join(Rank* a, Rank* b) {
  void* words = nullptr;
  CUdeviceptr base = 0;
  if (cuMemHostAlloc(&words, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) !=
          CUDA_SUCCESS ||
      cuMemHostGetDevicePointer(&base, words, 0) != CUDA_SUCCESS) {
    return false;
  }
  a->mine = b->other = base;
  b->mine = a->other = base + 128;
  return true;
}

inline CUresult rank_meet(const Rank& rank, unsigned round) {
  CUdeviceptr mine = rank.mine, other = rank.other;
  void* parameters[] = {&mine, &other, &round};
  return cuLaunchKernel(rank.meet, 1, 1, 1, 1, 1, 1, 0, rank.stream, parameters, nullptr);
}

}  // namespace sluice::test

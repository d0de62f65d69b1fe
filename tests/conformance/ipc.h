// What the rows about sharing between processes have in common.
#pragma once

#include "tests/conformance/gate.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/ipc_partner.h"

namespace conformance {

inline constexpr unsigned kLazyPeers = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
inline constexpr unsigned kInterprocess = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;

inline CUdeviceptr device_memory(std::size_t bytes) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
  return p;
}

inline CUipcMemHandle handle_of(CUdeviceptr p) {
  CUipcMemHandle handle{};
  EXPECT_EQ(cuIpcGetMemHandle(&handle, p), CUDA_SUCCESS);
  return handle;
}

inline CUipcEventHandle handle_of(CUevent event) {
  CUipcEventHandle handle{};
  EXPECT_EQ(cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
  return handle;
}

inline CUdeviceptr memory_open(const CUipcMemHandle& handle) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&p, handle, kLazyPeers), CUDA_SUCCESS);
  return p;
}

inline CUevent event_open(const CUipcEventHandle& handle) {
  CUevent event = nullptr;
  EXPECT_EQ(cuIpcOpenEventHandle(&event, handle), CUDA_SUCCESS);
  return event;
}

inline void word_write(CUdeviceptr p, unsigned value) {
  EXPECT_EQ(cuMemcpyHtoD(p, &value, sizeof value), CUDA_SUCCESS);
}

inline unsigned word_get(CUdeviceptr p) {
  unsigned value = 0;
  EXPECT_EQ(cuMemcpyDtoH(&value, p, sizeof value), CUDA_SUCCESS);
  return value;
}

inline std::size_t bytes_free() {
  std::size_t free = 0, total = 0;
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

}  // namespace conformance

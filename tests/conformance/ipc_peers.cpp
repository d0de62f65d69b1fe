// Rows of family `ipc`: devices of one process that reach each other's memory.
#include "tests/conformance/ipc.h"

namespace conformance {
namespace {

void two_devices() { settings_soft({{"SOFTGPU_COUNT", "2"}}); }

#define NEEDS_PEERS()                                        \
  two_devices();                                             \
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs"; \
  int can_access = 0;                                        \
  MUST(cuDeviceCanAccessPeer(&can_access, 0, 1));            \
  if (can_access == 0) GTEST_SKIP() << "needs GPUs that are peers"

/// Makes a context current for a while.
class Current {
 public:
  explicit Current(CUcontext context) { EXPECT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS); }
  ~Current() {
    CUcontext context = nullptr;
    EXPECT_EQ(cuCtxPopCurrent(&context), CUDA_SUCCESS);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

ROW(ipc, peers_check_their_devices) {
  const int count = devices_count();
  int can = 0;
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, 0, count));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, -1, 0));
}

ROW(ipc, peers_tell_the_same_by_attribute) {
  two_devices();
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  int can = -1, supported = -2;
  MUST(cuDeviceCanAccessPeer(&can, 0, 1));
  MUST(cuDeviceGetP2PAttribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
  EXPECT_EQ(can, supported);
}

ROW(ipc, peer_attributes_need_two_devices) {
  const int count = devices_count();
  int value = 0;
  ANSWERS(CUDA_ERROR_INVALID_DEVICE,
          cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE,
          cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, count));
}

ROW(ipc, peer_attributes_are_checked) {
  two_devices();
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  int value = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetP2PAttribute(&value, no_such<CUdevice_P2PAttribute>(99), 0, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetP2PAttribute(nullptr, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
}

ROW(ipc, peer_access_is_enabled_once) {
  NEEDS_PEERS();
  const Context first(0), second(1);
  const Current current(first);
  MUST(cuCtxEnablePeerAccess(second, 0));
  ANSWERS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(second, 0));
}

ROW(ipc, peer_access_has_no_flags) {
  NEEDS_PEERS();
  const Context first(0), second(1);
  const Current current(first);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(second, 1));
}

ROW(ipc, peer_access_to_oneself_refused) {
  const Context context;
  ANSWERS(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(context, 0));
}

ROW(ipc, peer_access_needs_two_contexts) {
  NEEDS_PEERS();
  const Context first(0);
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(nullptr, 0));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDisablePeerAccess(nullptr));
  MUST(cuCtxSetCurrent(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(first, 0));
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDisablePeerAccess(first));
}

ROW(ipc, peer_access_on_one_device_unsupported) {
  const Context first(0), second(0);
  int can = 1;
  MUST(cuDeviceCanAccessPeer(&can, 0, 0));
  if (can != 0) GTEST_SKIP() << "the device is a peer of itself";
  ANSWERS(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(first, 0));
}

ROW(ipc, peer_access_is_disabled_once) {
  NEEDS_PEERS();
  const Context first(0), second(1);
  const Current current(first);
  ANSWERS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(second));
  MUST(cuCtxEnablePeerAccess(second, 0));
  MUST(cuCtxDisablePeerAccess(second));
  ANSWERS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(second));
  MUST(cuCtxEnablePeerAccess(second, 0));
}

ROW(ipc, peer_access_goes_one_way) {
  NEEDS_PEERS();
  const Context first(0), second(1);
  {
    const Current current(first);
    MUST(cuCtxEnablePeerAccess(second, 0));
  }
  const Current current(second);
  ANSWERS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(first));
  MUST(cuCtxEnablePeerAccess(first, 0));
}

ROW(ipc, kernels_reach_peers) {
  NEEDS_PEERS();
  const Context second(1);
  CUdeviceptr there = device_memory(1024);
  MUST(cuMemsetD32(there, 5, 256));
  MUST(cuCtxSynchronize());
  const Context first(0);
  MUST(cuCtxEnablePeerAccess(second, 0));
  unsigned count = 256;
  MUST(launch(kernel("add_one"), 1, 256, {&there, &count}));
  MUST(cuCtxSynchronize());
  const Current current(second);
  EXPECT_EQ(word_get(there + 1020), 6U);
}

ROW(ipc, peer_copies_need_no_access) {
  two_devices();
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context second(1);
  const CUdeviceptr there = device_memory(4096);
  const Context first(0);
  const CUdeviceptr here = device_memory(4096);
  word_write(here + 400, 91);
  MUST(cuMemcpyPeer(there, second, here, first, 4096));
  MUST(cuCtxSynchronize());
  const Current current(second);
  EXPECT_EQ(word_get(there + 400), 91U);
}

ROW(ipc, peer_copies_work_with_access) {
  NEEDS_PEERS();
  const Context second(1);
  const CUdeviceptr there = device_memory(4096);
  const Context first(0);
  MUST(cuCtxEnablePeerAccess(second, 0));
  const CUdeviceptr here = device_memory(4096);
  word_write(here + 400, 92);
  MUST(cuMemcpyDtoD(there, here, 4096));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word_get(there + 400), 92U);
}

ROW(ipc, peer_copies_keep_the_stream_s_order) {
  two_devices();
  if (devices_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Context second(1);
  const CUdeviceptr there = device_memory(4096);
  word_write(there, 0);
  MUST(cuCtxSynchronize());
  const Context first(0);
  const Store store;
  const CUstream stream = stream_new();
  CUdeviceptr here = device_memory(4096);
  unsigned value = 93;
  {
    Gate gate;
    MUST(gate.hold(stream));
    MUST(launch(store.function(), 1, 1, {&here, &value}, stream));
    MUST(cuMemcpyPeerAsync(there, second, here, first, 4, stream));
    ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  }
  MUST(cuStreamSynchronize(stream));
  const Current current(second);
  EXPECT_EQ(word_get(there), 93U);
}

ROW(ipc, memory_is_opened_on_a_peer) {
  two_devices();
  Partner importer([](Channel& channel) {
    const auto handle = channel.get<CUipcMemHandle>();
    const Context context(1);
    CUdeviceptr p = memory_open(handle);
    unsigned count = 1;
    MUST(launch(kernel("add_one"), 1, 1, {&p, &count}));
    MUST(cuCtxSynchronize());
    MUST(cuIpcCloseMemHandle(p));
    channel.signal();
  });
  int can = 0;
  const bool peers = devices_count() >= 2 && cuDeviceCanAccessPeer(&can, 1, 0) == CUDA_SUCCESS;
  if (!peers || can == 0) {
    importer.kill();
    GTEST_SKIP() << "needs two GPUs that are peers";
  }
  const Context context(0);
  const CUdeviceptr p = device_memory(4096);
  word_write(p, 95);
  importer.put(handle_of(p));
  importer.await();
  EXPECT_EQ(word_get(p), 96U);
}

}  // namespace
}  // namespace conformance

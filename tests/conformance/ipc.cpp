// Rows of family `ipc`: device memory that another process opens. Events are in ipc_events.cpp,
// devices that reach each other in ipc_peers.cpp.
#include "tests/conformance/ipc.h"

#include <memory>

namespace conformance {
namespace {

constexpr std::size_t kSharedBytes = 64u << 20;

ROW(ipc, memory_is_the_same_in_both_processes) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUdeviceptr p = memory_open(channel.get<CUipcMemHandle>());
    EXPECT_EQ(word_get(p), 11U);
    EXPECT_EQ(word_get(p + kSharedBytes - 4), 12U);
    word_write(p + 4096, 13);
    MUST(cuIpcCloseMemHandle(p));
    channel.signal();
  });
  const Context context;
  const CUdeviceptr p = device_memory(kSharedBytes);
  word_write(p, 11);
  word_write(p + kSharedBytes - 4, 12);
  importer.put(handle_of(p));
  importer.await();
  EXPECT_EQ(word_get(p + 4096), 13U);
}

ROW(ipc, kernels_use_opened_memory) {
  Partner importer([](Channel& channel) {
    const Context context;
    CUdeviceptr p = memory_open(channel.get<CUipcMemHandle>());
    unsigned count = 256;
    MUST(launch(kernel("add_one"), 1, 256, {&p, &count}));
    MUST(cuCtxSynchronize());
    channel.signal();
  });
  const Context context;
  const CUdeviceptr p = device_memory(1024);
  MUST(cuMemsetD32(p, 20, 256));
  MUST(cuCtxSynchronize());
  importer.put(handle_of(p));
  importer.await();
  EXPECT_EQ(word_get(p), 21U);
  EXPECT_EQ(word_get(p + 1020), 21U);
}

ROW(ipc, several_processes_open_one_memory) {
  const auto body = [](Channel& channel) {
    const auto index = channel.get<unsigned>();
    const Context context;
    const CUdeviceptr p = memory_open(channel.get<CUipcMemHandle>());
    word_write(p + 4 * index, index + 30);
    channel.signal();
    channel.await();
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(word_get(p + 4 * i), i + 30);
    channel.signal();
  };
  Partner first(body), second(body), third(body);
  Partner* const all[] = {&first, &second, &third};
  const Context context;
  const CUdeviceptr p = device_memory(4096);
  for (unsigned i = 0; i < 3; ++i) {
    all[i]->put(i);
    all[i]->put(handle_of(p));
  }
  for (Partner* partner : all) partner->await();
  for (Partner* partner : all) partner->signal();
  for (Partner* partner : all) partner->await();
}

ROW(ipc, memory_handle_of_the_own_process_refused) {
  const Context context;
  const CUdeviceptr p = device_memory(4096);
  CUdeviceptr opened = 0;
  EXPECT_NE(cuIpcOpenMemHandle(&opened, handle_of(p), kLazyPeers), CUDA_SUCCESS);
}

ROW(ipc, open_flags_are_checked) {
  Partner importer([](Channel& channel) {
    const Context context;
    const auto handle = channel.get<CUipcMemHandle>();
    CUdeviceptr p = 0;
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&p, handle, 0));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&p, handle, 2));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(nullptr, handle, kLazyPeers));
    channel.signal();
  });
  const Context context;
  importer.put(handle_of(device_memory(4096)));
  importer.await();
}

ROW(ipc, opening_needs_a_context) {
  Partner importer([](Channel& channel) {
    EXPECT_GE(devices_count(), 1);
    const auto handle = channel.get<CUipcMemHandle>();
    CUdeviceptr p = 0;
    ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&p, handle, kLazyPeers));
    channel.signal();
  });
  const Context context;
  importer.put(handle_of(device_memory(4096)));
  importer.await();
}

ROW(ipc, handles_of_nothing_refused) {
  const Context context;
  CUdeviceptr p = 0;
  const CUipcMemHandle nothing{};
  EXPECT_NE(cuIpcOpenMemHandle(&p, nothing, kLazyPeers), CUDA_SUCCESS);
  CUevent event = nullptr;
  const CUipcEventHandle no_event{};
  EXPECT_NE(cuIpcOpenEventHandle(&event, no_event), CUDA_SUCCESS);
}

ROW(ipc, only_device_allocations_have_handles) {
  const Context context;
  CUipcMemHandle handle{};
  CUdeviceptr managed = 0, pooled = 0;
  void* host = nullptr;
  MUST(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemAllocAsync(&pooled, 4096, nullptr));
  MUST(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  MUST(cuCtxSynchronize());
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, managed));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, pooled));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuIpcGetMemHandle(&handle, reinterpret_cast<CUdeviceptr>(host)));
}

ROW(ipc, pointers_tell_whether_they_can_be_shared) {
  const Context context;
  CUdeviceptr pooled = 0;
  MUST(cuMemAllocAsync(&pooled, 4096, nullptr));
  MUST(cuCtxSynchronize());
  const CUdeviceptr plain = device_memory(4096);
  unsigned capable = 7;
  MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, plain));
  EXPECT_EQ(capable & 0xff, 1U);
  MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled));
  EXPECT_EQ(capable & 0xff, 0U);
}

ROW(ipc, get_handle_checks_its_arguments) {
  const Context context;
  CUipcMemHandle handle{};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(nullptr, device_memory(4096)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, 0));
}

ROW(ipc, opening_again_gives_the_same_pointer) {
  Partner importer([](Channel& channel) {
    const Context context;
    const auto handle = channel.get<CUipcMemHandle>();
    const CUdeviceptr first = memory_open(handle), second = memory_open(handle);
    EXPECT_EQ(first, second);
    MUST(cuIpcCloseMemHandle(first));
    EXPECT_EQ(word_get(second), 41U);
    MUST(cuIpcCloseMemHandle(second));
    EXPECT_NE(cuIpcCloseMemHandle(second), CUDA_SUCCESS);
    channel.signal();
  });
  const Context context;
  const CUdeviceptr p = device_memory(4096);
  word_write(p, 41);
  importer.put(handle_of(p));
  importer.await();
}

ROW(ipc, handles_can_be_made_often) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUdeviceptr first = memory_open(channel.get<CUipcMemHandle>());
    EXPECT_EQ(word_get(first), 51U);
    MUST(cuIpcCloseMemHandle(first));
    const CUdeviceptr second = memory_open(channel.get<CUipcMemHandle>());
    EXPECT_EQ(word_get(second), 51U);
    MUST(cuIpcCloseMemHandle(second));
    channel.signal();
  });
  const Context context;
  const CUdeviceptr p = device_memory(4096);
  word_write(p, 51);
  importer.put(handle_of(p));
  importer.put(handle_of(p));
  importer.await();
}

ROW(ipc, new_memory_has_a_new_handle) {
  const Context context;
  const CUdeviceptr first = device_memory(kSharedBytes);
  const CUipcMemHandle before = handle_of(first);
  MUST(cuMemFree(first));
  const CUdeviceptr second = device_memory(kSharedBytes);  // often at the same address
  const CUipcMemHandle after = handle_of(second);
  EXPECT_NE(std::memcmp(&before, &after, sizeof before), 0);
}

ROW(ipc, closing_leaves_the_exporter_alone) {
  Partner importer([](Channel& channel) {
    const Context context;
    MUST(cuIpcCloseMemHandle(memory_open(channel.get<CUipcMemHandle>())));
    channel.signal();
  });
  const Context context;
  const std::size_t before = bytes_free();
  const CUdeviceptr p = device_memory(kSharedBytes);
  word_write(p, 61);
  importer.put(handle_of(p));
  importer.await();
  EXPECT_EQ(word_get(p), 61U);
  MUST(cuMemFree(p));
  EXPECT_GE(bytes_free() + kSharedBytes / 2, before);
}

ROW(ipc, opened_memory_is_closed_not_freed) {
  Partner importer([](Channel& channel) {
    const Context context;
    const CUdeviceptr p = memory_open(channel.get<CUipcMemHandle>());
    EXPECT_NE(cuMemFree(p), CUDA_SUCCESS);
    MUST(cuIpcCloseMemHandle(p));
    channel.signal();
  });
  const Context context;
  importer.put(handle_of(device_memory(4096)));
  importer.await();
}

ROW(ipc, only_opened_memory_is_closed) {
  const Context context;
  const CUdeviceptr p = device_memory(4096);
  EXPECT_NE(cuIpcCloseMemHandle(p), CUDA_SUCCESS);
  word_write(p, 1);
}

ROW(ipc, opening_takes_no_memory) {
  Partner importer([](Channel& channel) {
    const Context context;
    const auto handle = channel.get<CUipcMemHandle>();
    const std::size_t before = bytes_free();
    const CUdeviceptr p = memory_open(handle);
    EXPECT_GT(bytes_free() + kSharedBytes / 2, before);
    MUST(cuIpcCloseMemHandle(p));
    channel.signal();
  });
  const Context context;
  importer.put(handle_of(device_memory(kSharedBytes)));
  importer.await();
}

ROW(ipc, a_killed_importer_leaves_nothing) {
  Partner importer([](Channel& channel) {
    const Context context;
    (void)memory_open(channel.get<CUipcMemHandle>());
    channel.signal();
    channel.await();
  });
  const Context context;
  const CUdeviceptr p = device_memory(kSharedBytes);
  const std::size_t before = bytes_free();
  word_write(p, 71);
  importer.put(handle_of(p));
  importer.await();
  importer.kill();
  EXPECT_EQ(word_get(p), 71U);
  MUST(cuMemFree(p));
  EXPECT_GE(bytes_free(), before + kSharedBytes / 2);
}

ROW(ipc, a_killed_exporter_leaves_nothing) {
  Partner exporter([](Channel& channel) {
    const Context context;
    channel.put(handle_of(device_memory(kSharedBytes)));
    channel.await();
  });
  const Context context;
  const CUdeviceptr p = memory_open(exporter.get<CUipcMemHandle>());
  const std::size_t shared = bytes_free();
  exporter.kill();
  MUST(cuIpcCloseMemHandle(p));
  const std::size_t wanted = shared + kSharedBytes / 2;
  EXPECT_GE(memory_free_from(wanted), wanted);
}

ROW(ipc, handles_end_with_their_process) {
  auto exporter = std::make_unique<Partner>([](Channel& channel) {
    const Context context;
    channel.put(handle_of(device_memory(4096)));
    channel.await();
  });
  const Context context;
  const auto handle = exporter->get<CUipcMemHandle>();
  exporter->kill();
  CUdeviceptr p = 0;
  EXPECT_NE(cuIpcOpenMemHandle(&p, handle, kLazyPeers), CUDA_SUCCESS);
}

}  // namespace
}  // namespace conformance

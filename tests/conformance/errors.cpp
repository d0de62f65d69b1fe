// Rows of family `errors`: faults of kernels - which error each kind is, when it is told, what it
// does to the context and what it leaves alone. Errors of calls are in errors_calls.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

/// A kernel that goes wrong when it is launched, made before anything has.
class Bad {
 public:
  explicit Bad(const char* name) : function_(kernel(name)) {
    EXPECT_EQ(cuMemAlloc(&memory_, 64), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(memory_, 0, 64), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  CUresult run(std::vector<void*> arguments = {}, CUstream stream = nullptr) const {
    return launch(function_, 1, 1, std::move(arguments), stream);
  }
  CUdeviceptr memory() const { return memory_; }

 private:
  CUfunction function_;
  CUdeviceptr memory_ = 0;
};

/// The context has failed with a store to an address that is nobody's.
void context_fail() {
  const Bad bad("write_address");
  unsigned long long address = 0x40;
  MUST(bad.run({&address}));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/// The context has failed with an assertion of a kernel: the one fault after which the header lets
/// a process go on.
void context_assert() {
  const Bad bad("assert_zero");
  unsigned value = 1;
  MUST(bad.run({&value}));
  ANSWERS(CUDA_ERROR_ASSERT, cuCtxSynchronize());
}

ROW(errors, illegal_address) {
  const Context context;
  const Bad bad("write_address");
  unsigned long long address = 0x40;
  MUST(bad.run({&address}));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

ROW(errors, misaligned_address) {
  const Context context;
  const Bad bad("write_address");
  unsigned long long address = bad.memory() + 2;
  MUST(bad.run({&address}));
  ANSWERS(CUDA_ERROR_MISALIGNED_ADDRESS, cuCtxSynchronize());
}

ROW(errors, trap_is_launch_failed) {
  const Context context;
  const Bad bad("trap");
  MUST(bad.run());
  ANSWERS(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
}

ROW(errors, assertion) {
  const Context context;
  const Bad bad("assert_zero");
  unsigned value = 0;
  MUST(bad.run({&value}));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  value = 1;
  MUST(bad.run({&value}));
  ANSWERS(CUDA_ERROR_ASSERT, cuCtxSynchronize());
}

ROW(errors, stack_overflow) {
  const Context context;
  MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16 * 1024));
  const Bad bad("recurse");
  CUdeviceptr data = bad.memory();
  unsigned depth = 8;
  MUST(bad.run({&data, &depth}));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  depth = 100000;
  MUST(bad.run({&data, &depth}));
  ANSWERS(CUDA_ERROR_HARDWARE_STACK_ERROR, cuCtxSynchronize());
}

ROW(errors, illegal_instruction) {
  const Context context;
  const Bad bad("use_barrier");
  unsigned number = 15;
  MUST(bad.run({&number}));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  number = 16;
  MUST(bad.run({&number}));
  ANSWERS(CUDA_ERROR_ILLEGAL_INSTRUCTION, cuCtxSynchronize());
}

ROW(errors, invalid_address_space) {
  const Context context;
  const Bad bad("add_to_local");
  CUdeviceptr data = bad.memory();
  MUST(bad.run({&data}));
  ANSWERS(CUDA_ERROR_INVALID_ADDRESS_SPACE, cuCtxSynchronize());
}

ROW(errors, a_launch_does_not_tell_its_own_fault) {
  const Context context;
  const Bad bad("write_address");
  Gate gate;
  unsigned long long address = 0x40;
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  ANSWERS(CUDA_SUCCESS, bad.run({&address}, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  gate.open();
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}

ROW(errors, a_fault_stays) {
  const Context context;
  context_fail();
  for (int i = 0; i < 3; ++i) ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

ROW(errors, after_a_fault_launches_tell_it) {
  const Context context;
  const CUfunction fine = kernel("empty");
  context_fail();
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, launch(fine, 1, 1, {}));
}

ROW(errors, after_a_fault_memory_calls_tell_it) {
  const Context context;
  CUdeviceptr before = 0, after = 0;
  std::size_t free_bytes = 0, total = 0;
  unsigned word = 0;
  MUST(cuMemAlloc(&before, 64));
  context_fail();
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&after, 64));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree(before));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemGetInfo(&free_bytes, &total));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoH(&word, before, 4));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD32(before, 1, 1));
}

ROW(errors, after_a_fault_streams_and_events_tell_it) {
  const Context context;
  const CUstream stream = stream_new();
  const CUevent event = event_new();
  context_fail();
  CUstream another = nullptr;
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(stream));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventRecord(event, stream));
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamCreate(&another, CU_STREAM_NON_BLOCKING));
}

ROW(errors, after_a_fault_modules_tell_it) {
  const Context context;
  const std::string& image = kernels_image();
  context_fail();
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuModuleLoadData(&module, image.data()));
}

ROW(errors, every_thread_is_told) {
  const Context context;
  context_fail();
  std::thread([&] {
    ANSWERS(CUDA_SUCCESS, cuCtxSetCurrent(context));
    ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  }).join();
}

ROW(errors, work_behind_a_fault_does_not_run) {
  const Context context;
  const Bad bad("write_address");
  const Store store;
  const Word word;
  Gate gate;
  unsigned long long address = 0x40;
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  MUST(bad.run({&address}, stream));
  MUST(store(word, 1, stream));
  gate.open();
  ANSWERS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  EXPECT_EQ(word.value(), 0U);
}

ROW(errors, after_a_fault_devices_still_answer) {
  const Context context;
  context_fail();
  int count = 0, value = 0;
  CUdevice device = 0;
  CUuuid uuid;
  CUcontext current = nullptr;
  ANSWERS(CUDA_SUCCESS, cuDeviceGetCount(&count));
  ANSWERS(CUDA_SUCCESS, cuDeviceGet(&device, 0));
  ANSWERS(CUDA_SUCCESS, cuDeviceGetUuid(&uuid, device));
  ANSWERS(CUDA_SUCCESS, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
  ANSWERS(CUDA_SUCCESS, cuDriverGetVersion(&value));
  ANSWERS(CUDA_SUCCESS, cuCtxGetCurrent(&current));
  EXPECT_EQ(current, CUcontext{context});
}

ROW(errors, a_failed_context_can_be_replaced) {
  {
    const Context failed;
    context_assert();
  }
  const Context fresh;
  const Store store;
  const Word word;
  MUST(store(word, 5, nullptr));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  EXPECT_EQ(word.value(), 5U);
}

ROW(errors, a_reset_clears_the_primary_context) {
  MUST(cuInit(0));
  CUdevice device = 0;
  CUcontext primary = nullptr;
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&primary, device));
  MUST(cuCtxSetCurrent(primary));
  context_assert();
  ANSWERS(CUDA_SUCCESS, cuDevicePrimaryCtxReset(device));
  MUST(cuDevicePrimaryCtxRetain(&primary, device));
  MUST(cuCtxSetCurrent(primary));
  const Store store;
  const Word word;
  MUST(store(word, 5, nullptr));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  EXPECT_EQ(word.value(), 5U);
}

ROW(errors, other_contexts_are_unharmed) {
  const Context healthy;
  const Store store;
  const Word word;
  {
    const Context failed;
    context_assert();
    MUST(cuCtxSetCurrent(healthy));
    MUST(store(word, 5, nullptr));
    ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
    EXPECT_EQ(word.value(), 5U);
    MUST(cuCtxSetCurrent(failed));
    ANSWERS(CUDA_ERROR_ASSERT, cuCtxSynchronize());
  }
}

ROW(errors, other_processes_are_unharmed) {
  int failed[2], go[2];
  ASSERT_EQ(pipe(failed), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();  // before the driver is used
  char byte = 0;
  if (child == 0) {
    {
      const Context context;
      EXPECT_EQ(read(go[0], &byte, 1), 1);
      context_fail();
      EXPECT_EQ(write(failed[1], &byte, 1), 1);
      EXPECT_EQ(read(go[0], &byte, 1), 1);
    }
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  const Context context;
  const Store store;
  const Word word;
  ASSERT_EQ(write(go[1], &byte, 1), 1);
  ASSERT_EQ(read(failed[0], &byte, 1), 1);
  MUST(store(word, 5, nullptr));
  ANSWERS(CUDA_SUCCESS, cuCtxSynchronize());
  EXPECT_EQ(word.value(), 5U);
  ASSERT_EQ(write(go[1], &byte, 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

ROW(errors, no_devices_of_no_graphics_context) {
  MUST(cuInit(0));
  // The toolkit's stub library has no functions for graphics.
  void* found = nullptr;
  MUST(cuGetProcAddress("cuGLGetDevices", &found, 6050, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
  const auto devices_of =
      reinterpret_cast<CUresult (*)(unsigned*, CUdevice*, unsigned, unsigned)>(found);
  unsigned count = 7;
  CUdevice device = -1;
  const unsigned all = 1;  // CU_GL_DEVICE_LIST_ALL
  ANSWERS(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, devices_of(&count, &device, 1, all));
  EXPECT_EQ(device, -1);
}

}  // namespace
}  // namespace conformance

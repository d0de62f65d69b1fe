// See least.h.
#include "interpose/memory/least.h"

#include "interpose/account.h"
#include "interpose/residual.h"

namespace sluice::interpose {

// CUDA programming guide, "Technical Specifications per Compute Capability": a thread has no more.
// What is asked beyond it the driver refuses.
constexpr uint64_t kLocalMaxBytes = 512 * 1024;

uint64_t contexts_bytes_least(int device) {
  // Without a broker the first one told what a context takes, with the code of the libraries that
  // were loaded into it: that may go while it stays.
  const uint64_t cost = process.entry(device_gpu(device)).context_bytes;
  const uint64_t sure = load_acquire(process.alone) != 0 ? cost - cost / 8 : cost;
  return static_cast<uint64_t>(contexts_on(device)) * sure;
}

// A context may have more local memory than its limit says. It is then among the bytes that no call
// tells, and of these among what the contexts do not explain: each bounds what is still to come.
uint64_t stack_bytes_least(int device, uint64_t before, uint64_t after) {
  const int gpu = device_gpu(device);
  if (after <= before || after > kLocalMaxBytes || gpu < 0) return 0;
  int processors = 0, threads = 0;
  if (driver.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
          CUDA_SUCCESS ||
      driver.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                  device) != CUDA_SUCCESS ||
      processors <= 0 || threads <= 0)
    return 0;
  const uint64_t stacks = static_cast<uint64_t>(processors) * static_cast<uint64_t>(threads);
  const uint64_t raised = (after - before) * stacks;
  const uint64_t charged = residual_charged(gpu), contexts = contexts_bytes_least(device);
  const uint64_t of_all = less(after * stacks, charged);
  const uint64_t of_raise = less(raised, less(charged, contexts));
  const uint64_t most = of_all > of_raise ? of_all : of_raise;
  return most < raised ? most : raised;
}

bool libraries_load_at_once() {
  CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
  return driver.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_EAGER_LOADING;
}

LeastCharge::LeastCharge(int device, uint64_t bytes) {
  const int gpu = bytes == 0 || process_mode() != Mode::kActive ? -1 : device_gpu(device);
  if (gpu < 0 || process.memory_max(gpu) == 0) return;
  const AccountScope account;
  if (!account.active()) return;
  fits_ = charge_reserve(device, bytes);
  if (!fits_) return;
  if (!residual_is_measured(gpu)) {
    charge_abort(device, bytes);
    return;
  }
  charge_commit(device, bytes);
  residual_take(gpu, bytes);
  device_ = device;
}

LeastCharge::~LeastCharge() {
  if (device_ >= 0) residual_settle_device(device_);
}

}  // namespace sluice::interpose

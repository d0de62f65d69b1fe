// See local_memory.h.
#include "interpose/memory/local_memory.h"

#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/late.h"
#include "interpose/memory/context_limits.h"
#include "interpose/meter.h"
#include "interpose/threads.h"

namespace sluice::interpose {

uint32_t local_deepest;
uint32_t local_pending;

namespace {

constexpr auto kLocal = CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
// More than any kernel can have: of functions that the driver tells nothing of until they are
// loaded, which are those of cuModuleEnumerateFunctions.
constexpr uint32_t kUntold = INT32_MAX;

// Of the kernel on all of the tenant's devices, which may need different code.
uint32_t bytes_of(CUkernel kernel) {
  uint32_t most = 0;
  for (int device = 0; device < process.device_count; ++device) {
    int bytes = 0;
    if (device_gpu(device) >= 0 &&
        driver.cuKernelGetAttribute(&bytes, kLocal, kernel, device) == CUDA_SUCCESS &&
        bytes > static_cast<int>(most))
      most = static_cast<uint32_t>(bytes);
  }
  return most;
}

uint32_t bytes_of(CUfunction function) {
  int bytes = 0;
  const CUresult result = driver.cuFuncGetAttribute(&bytes, kLocal, function);
  if (result == CUDA_SUCCESS) return bytes > 0 ? static_cast<uint32_t>(bytes) : 0;
  if (result == CUDA_ERROR_FUNCTION_NOT_LOADED) return kUntold;
  return bytes_of(reinterpret_cast<CUkernel>(function));
}

// Of a function that is loaded for it if it was not.
CUresult bytes_here(CUfunction function, uint32_t* bytes) {
  *bytes = bytes_of(function);
  if (*bytes != kUntold) return CUDA_SUCCESS;
  Late late(owner_of(function), nullptr);
  // Another error is for the call itself to tell.
  if (driver.cuFuncLoad(function) != CUDA_SUCCESS) return CUDA_SUCCESS;
  if (!late.fits(device_of(function))) return CUDA_ERROR_OUT_OF_MEMORY;
  *bytes = bytes_of(function);
  return CUDA_SUCCESS;
}

// From here on no thread takes the short way where the limit is too low.
void pending_begin() {
  store_release(local_pending, 1u);
  threads_look_again(true);
}

bool is_in_all() {
  for (int i = 0, n = context_count(); i < n; ++i) {
    const ContextRecord& context = *context_at(i);
    if (context.is_usable() && !local_is_in(&context)) return false;
  }
  return true;
}

// A thread that gives out a deeper kernel, or makes a context, says so first and sets the flag
// after. Either it sets the flag behind this end of it, or the second look finds what it said.
void pending_end_if_all() {
  if (!is_in_all()) return;
  __atomic_store_n(&local_pending, 0u, __ATOMIC_SEQ_CST);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (!is_in_all()) pending_begin();
}

void deepen(uint32_t bytes) {
  uint32_t before = load_acquire(local_deepest);
  do {
    if (bytes <= before) return;
  } while (!__atomic_compare_exchange_n(&local_deepest, &before, bytes, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
  pending_begin();
}

// What the current context has now. Before a lower limit is set it has nothing.
void stack_is(ContextRecord* context, size_t bytes) {
  if (context == nullptr || load_acquire(local_deepest) == 0) return;
  store_release(context->stack_bytes, static_cast<uint32_t>(bytes));
  if (!local_is_in(context)) return pending_begin();
  pending_end_if_all();
  threads_look_again(false);
}

void stack_look(ContextRecord* context) {
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  size_t bytes = 0;
  if (context != nullptr && load_acquire(local_deepest) != 0 &&
      driver.cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS)
    stack_is(context, bytes);
}

bool is_wanted() { return process_mode() == Mode::kActive; }

}  // namespace

void local_known(CUfunction function) {
  const ErrnoGuard guard;
  if (is_wanted()) deepen(bytes_of(function));
}

void local_known(CUkernel kernel) {
  const ErrnoGuard guard;
  if (is_wanted()) deepen(bytes_of(kernel));
}

void local_context_made() {
  if (load_acquire(local_deepest) != 0) store_release(local_pending, 1u);
}

bool local_is_in(const ContextRecord* context) {
  const uint32_t deepest = load_acquire(local_deepest);
  return SLUICE_LIKELY(deepest == 0) ||
         (context != nullptr && load_relaxed(context->stack_bytes) >= deepest);
}

CUresult local_take_here(CUfunction function) {
  ContextRecord* const context = this_thread->context_record;
  if (function == nullptr || context == nullptr || local_is_in(context)) return CUDA_SUCCESS;
  stack_look(context);
  uint32_t needed = 0;
  if (local_is_in(context)) return CUDA_SUCCESS;
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  const CUresult result = bytes_here(function, &needed);
  return result != CUDA_SUCCESS || needed <= load_relaxed(context->stack_bytes) || needed == kUntold
             ? result
             : limit_set_at_once(CU_LIMIT_STACK_SIZE, needed);
}

void stack_limit_falls() {
  if (this_thread != nullptr) stack_is(this_thread->context_record, 0);
}

void stack_limit_set() {
  if (this_thread != nullptr) stack_look(this_thread->context_record);
}

void local_reset_after_fork() { local_deepest = local_pending = 0; }

}  // namespace sluice::interpose

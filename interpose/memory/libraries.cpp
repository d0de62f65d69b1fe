// See libraries.h.
#include "interpose/memory/libraries.h"

#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/late.h"
#include "interpose/memory/local_memory.h"
#include "interpose/place.h"
#include "interpose/say.h"
#include "interpose/touch.h"

namespace sluice::interpose {

uint32_t libraries_watched;

namespace {

// A library is a record by its handle, with its number as `context`, because the driver may give
// the handle of an unloaded library to the next one. Its `device` says whether it is watched. A use
// is a record by number and context.
constexpr int32_t kUnwatched = -1, kWatched = 0;

uint64_t libraries_seen;  // how many there were; numbers begin with 1
// Held for changes of what is counted: libraries_watched, and ContextRecord::libraries.
Lock counts_lock;
// Held while a library is loaded, or local memory taken: a thread that needs it meanwhile waits, as
// it may be taken back.
Lock loading_lock;

uint64_t key_of(const void* library) { return reinterpret_cast<uint64_t>(library); }
uint64_t number_of(const Record& library) { return reinterpret_cast<uint64_t>(library.context); }

// Odd numbers, which no handle is.
uint64_t use_key(uint64_t number, const void* context) {
  return key_in_context(reinterpret_cast<const void*>(number << 1), context) | 1;
}

bool is_used(uint64_t number, const void* context) {
  Record use;
  return process.records.find(RecordKind::kLibrary, use_key(number, context), &use);
}

bool find(uint64_t key, Record* library) {
  return process.records.find(RecordKind::kLibrary, key, library);
}

// With counts_lock held: `change` for each context that has the library. One that ends may go on.
template <class Change>
void each_user(uint64_t number, Change change) {
  for (int i = 0, n = context_count(); i < n; ++i) {
    ContextRecord& context = *context_at(i);
    if (load_acquire(context.life) != kContextFree && is_used(number, context.context))
      change(context);
  }
}

// False without memory.
bool watch(uint64_t key, uint64_t number) {
  {
    const LockScope scope(counts_lock);
    Record library;
    if (!find(key, &library) || number_of(library) != number || library.device == kWatched)
      return true;
    library.device = kWatched;
    if (!process.records.insert(library)) return false;
    each_user(number, [](ContextRecord& context) { ++context.libraries; });
    __atomic_add_fetch(&libraries_watched, 1, __ATOMIC_SEQ_CST);
  }
  threads_look_again(true);
  return true;
}

// The library with this number is gone, as its record said it.
void unwatch(const Record& library) {
  const uint64_t number = number_of(library);
  const bool watched = library.device == kWatched;
  {
    const LockScope scope(counts_lock);
    each_user(number, [&](ContextRecord& context) {
      Record use;
      (void)process.records.remove(RecordKind::kLibrary, use_key(number, context.context), &use);
      if (watched) --context.libraries;
    });
    if (watched) __atomic_sub_fetch(&libraries_watched, 1, __ATOMIC_SEQ_CST);
  }
  if (watched) threads_look_again(false);
}

// The library is loaded in the thread's current context. Without memory for the record it is asked
// for again.
void use(uint64_t key, uint64_t number) {
  const void* const context = this_thread->context;
  ContextRecord* const counted = this_thread->context_record;
  {
    const LockScope scope(counts_lock);
    Record library;
    if (!find(key, &library) || number_of(library) != number || is_used(number, context) ||
        !process.records.insert(
            Record{use_key(number, context), 0, context, RecordKind::kLibrary, kUnwatched}) ||
        library.device != kWatched || counted == nullptr)
      return;
    ++counted->libraries;
  }
  threads_look_again(false);
}

// What a call needs in a context: a library (0 = none), and the local memory of a function.
struct Needs {
  CUfunction function = nullptr;
  uint64_t key = 0;
  uint64_t number = 0;  // of the library
};

// Into the calling thread's current context, which is known.
CUresult library_load(uint64_t key, uint64_t number) {
  Record library;
  if (!find(key, &library) || number_of(library) != number || is_used(number, this_thread->context))
    return CUDA_SUCCESS;
  const auto handle = reinterpret_cast<CUlibrary>(key);
  Late late(handle, nullptr, library.bytes);
  if (!late.may_ask()) {
    const CUresult fault = context_fault();
    return fault != CUDA_SUCCESS ? fault : CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUmodule module = nullptr;
  CUresult result;
  {
    const RelaxedScope relaxed(RelaxedScope::When::kAlways);
    result = driver.cuLibraryGetModule(&module, handle);
  }
  // Another error is for the call itself to tell.
  if (result != CUDA_SUCCESS) return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
  use(key, number);
  return late.fits(this_thread->device) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult load_here(const Needs& needs) {
  const LockScope scope(loading_lock);
  const CUresult result = needs.key == 0 ? CUDA_SUCCESS : library_load(needs.key, needs.number);
  return result == CUDA_SUCCESS ? local_take_here(needs.function) : result;
}

// The current context has it all.
bool is_here(const Needs& needs) {
  return (needs.key == 0 || is_used(needs.number, this_thread->context)) &&
         (needs.function == nullptr || local_is_in(this_thread->context_record));
}

// The calling thread, if what it asks for is the program's own and has a context of the tenant's.
ThreadRecord* asker() {
  ThreadRecord* thread = this_thread;
  if (process_mode() != Mode::kActive || thread == nullptr || (thread->depth | thread->inside) != 0)
    return nullptr;
  return thread;
}

CUresult load_into(CUcontext context, const Needs& needs) {
  ThreadRecord* const thread = asker();
  if (thread == nullptr) return CUDA_SUCCESS;
  const bool has_current = thread_context(thread);
  if (context == nullptr || (has_current && thread->context == context)) {
    return !has_current || thread->gpu < 0 || is_here(needs) ? CUDA_SUCCESS : load_here(needs);
  }
  CUresult result = CUDA_SUCCESS;
  {
    const CurrentScope current(context);
    thread_context_forget();
    if (current.result() == CUDA_SUCCESS && thread_context(thread) && thread->gpu >= 0 &&
        !is_here(needs))
      result = load_here(needs);
  }
  thread_context_forget();
  return result;
}

// False: nothing that has to be there first.
bool needs_of(CUfunction function, Needs* needs) {
  if (load_relaxed(local_pending) != 0) needs->function = function;
  Record kernel;
  if (load_relaxed(libraries_watched) != 0 &&
      process.records.find(RecordKind::kLibraryKernel, key_of(function), &kernel)) {
    needs->key = key_of(kernel.context);
    needs->number = kernel.bytes;
  }
  return needs->function != nullptr || needs->key != 0;
}

}  // namespace

void library_known(CUlibrary library, uint64_t bytes) {
  const ErrnoGuard guard;
  Record former;
  if (process.records.remove(RecordKind::kLibrary, key_of(library), &former)) unwatch(former);
  if (bytes == 0) return;
  const uint64_t number = __atomic_add_fetch(&libraries_seen, 1, __ATOMIC_RELAXED);
  (void)process.records.insert(Record{key_of(library), bytes, reinterpret_cast<const void*>(number),
                                      RecordKind::kLibrary, kUnwatched});
}

bool library_gave(CUlibrary library, CUkernel kernel) {
  const ErrnoGuard guard;
  Record known;
  if (!find(key_of(library), &known)) return true;
  const Record given{key_of(kernel), number_of(known), library, RecordKind::kLibraryKernel, -1};
  if (process.records.insert(given) &&
      (known.device == kWatched || watch(key_of(library), number_of(known))))
    return true;
  unrecorded_say("a kernel's record");
  return false;
}

bool library_listed(CUlibrary library, const CUkernel* kernels, unsigned count) {
  const ErrnoGuard guard;
  Record known;
  unsigned listed = 0;
  if (!find(key_of(library), &known) ||
      driver.cuLibraryGetKernelCount(&listed, library) != CUDA_SUCCESS)
    return true;
  for (unsigned i = 0; i < count && i < listed; ++i) {
    if (!library_gave(library, kernels[i])) return false;
  }
  return true;
}

LibraryEnd::LibraryEnd(CUlibrary library) : key_(key_of(library)) {
  const ErrnoGuard guard;
  Record known;
  if (find(key_, &known)) number_ = number_of(known);
}

void LibraryEnd::ended() {
  const ErrnoGuard guard;
  Record known;
  // The handle may be another library's already, which has ended this one (library_known).
  if (number_ == 0 || !find(key_, &known) || number_of(known) != number_ ||
      !process.records.remove(RecordKind::kLibrary, key_, &known))
    return;
  unwatch(known);
}

CUresult library_load_here(CUlibrary library) {
  const ErrnoGuard guard;
  Record known;
  return find(key_of(library), &known)
             ? load_into(nullptr, {nullptr, key_of(library), number_of(known)})
             : CUDA_SUCCESS;
}

CUresult kernel_load_in(CUfunction function, CUcontext context) {
  const ErrnoGuard guard;
  Needs needs;
  return kernels_need() && needs_of(function, &needs) ? load_into(context, needs) : CUDA_SUCCESS;
}

CUresult kernel_load(const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return params == nullptr ? CUDA_SUCCESS : kernel_load(params->func);
}

namespace {

// cuda.h: the context is that of the parameters only for a kernel that is named as one.
template <class Params>
CUresult node_load(const Params& params) {
  return params.func != nullptr
             ? kernel_load(params.func)
             : kernel_load_in(reinterpret_cast<CUfunction>(params.kern), params.ctx);
}

}  // namespace

CUresult kernel_load(const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return params == nullptr ? CUDA_SUCCESS : node_load(*params);
}

CUresult kernel_load(const CUgraphNodeParams* params) {
  return params == nullptr || params->type != CU_GRAPH_NODE_TYPE_KERNEL ? CUDA_SUCCESS
                                                                        : node_load(params->kernel);
}

CUresult kernel_load_for(CUfunction function, CUstream stream) {
  Needs needs;
  if (!needs_of(function, &needs) || asker() == nullptr) return CUDA_SUCCESS;
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const ErrnoGuard guard;
  return load_into(stream_is_special(stream) ? nullptr : stream_context(stream), needs);
}

bool kernels_are_in(const ContextRecord* context) {
  const uint32_t watched = load_acquire(libraries_watched);
  return local_is_in(context) &&
         (SLUICE_LIKELY(watched == 0) ||
          (context != nullptr && load_relaxed(context->libraries) == watched));
}

void libraries_reset_after_fork() {
  counts_lock.reset_after_fork();
  loading_lock.reset_after_fork();
  store_release(libraries_watched, 0u);
}

}  // namespace sluice::interpose

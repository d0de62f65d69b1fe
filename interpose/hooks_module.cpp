// Modules, libraries and their functions: code and variables are memory that counts, and no call
// tells how much. What an image surely takes is asked of the quota before (memory/least.h); the
// load is then made and measured, and one that does not fit the quota is taken back. A library that
// is loaded lazily is loaded here, before the first call that needs it (memory/libraries.h).
//
// What the driver loads late besides, with the handle of a function, the address of a variable or a
// first launch, only the module's end takes back. So it is charged when it is there, and while the
// tenant is above its quota with it, no new handle or address is handed out. Green contexts, too,
// take memory that only the figure for the process shows.
#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/estimate.h"
#include "interpose/green.h"
#include "interpose/late.h"
#include "interpose/memory/image_size.h"
#include "interpose/memory/least.h"
#include "interpose/memory/libraries.h"
#include "interpose/memory/local_memory.h"
#include "interpose/residual.h"
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

// The options of the just-in-time compiler, some of which the driver answers in place.
class JitValues {
 public:
  JitValues(void** values, unsigned count) : values_(values), count_(count) {
    for (unsigned i = 0; values_ != nullptr && i < count_ && i < kMost; ++i) saved_[i] = values_[i];
  }
  /// As they were; false = there are too many.
  bool restore() {
    if (values_ == nullptr) return true;
    for (unsigned i = 0; i < count_ && i < kMost; ++i) values_[i] = saved_[i];
    return count_ <= kMost;
  }

 private:
  static constexpr unsigned kMost = 32;  // there are thirty-four options, few of which go together
  void** values_;
  unsigned count_;
  void* saved_[kMost];
};

// What a program is told of a call that the quota has no room for.
CUresult refused() {
  const CUresult fault = context_fault();
  return fault != CUDA_SUCCESS ? fault : CUDA_ERROR_OUT_OF_MEMORY;
}

// `least`: what is taken on the current context's device at least.
template <class Handle, class Call, class Undo>
CUresult load(const Reach& reach, uint64_t least, Handle* out, Call call, Undo undo,
              JitValues values = {nullptr, 0}) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (out == nullptr) return call();
  const Handle before = *out;
  for (bool again = false;; again = true) {
    LeastCharge charged(reach_here().device, least);
    if (!charged.fits()) return refused();
    Estimate estimate;  // behind it, because it may clear the accounts of processes that ended
    const CUresult result = call();
    if (result != CUDA_SUCCESS) return result;
    charged.taken();
    const bool measured_fits = residual_settle_load(reach);
    if (measured_fits && estimate.charge(*out)) return result;
    relaxed_call([&] { return undo(*out); });
    *out = before;
    const bool whole = values.restore();
    if (measured_fits && !again && whole && estimate.was_others()) continue;
    if (measured_fits) estimate.refuse();
    residual_settle();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// Whether anything is asked for before a load.
bool least_counts() {
  const int device = reach_here().device;
  const int gpu = device < 0 ? -1 : device_gpu(device);
  return gpu >= 0 && process.memory_max(gpu) != 0;
}

uint64_t least_of(const void* image) { return least_counts() ? image_bytes_least(image) : 0; }
uint64_t least_of_file(const char* path) {
  return least_counts() ? image_file_bytes_least(path) : 0;
}

template <class Call>
CUresult module_load(CUmodule* module, uint64_t least, Call call, JitValues values = {nullptr, 0}) {
  const auto undo = [](CUmodule made) { return driver.cuModuleUnload(made); };
  const CUresult result = load(reach_here(), least, module, call, undo, values);
  if (result == CUDA_SUCCESS && module != nullptr) module_is_known(*module);
  return result;
}

template <class Call>
CUresult library_load(CUlibrary* library, uint64_t least, Call call, const JitValues& values) {
  const auto undo = [](CUlibrary made) { return driver.cuLibraryUnload(made); };
  const bool at_once = least != 0 && libraries_load_at_once();
  const CUresult result = load(reach_wide(), at_once ? least : 0, library, call, undo, values);
  if (result == CUDA_SUCCESS && library != nullptr) library_known(*library, at_once ? 0 : least);
  return result;
}

template <class Handle, class Call>
CUresult unload(Handle gone, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  CUresult result;
  {
    EstimateEnd end(gone);
    ModuleEnd module(gone);
    // Before, as another thread may be given the same handle at once; and behind, as others may
    // have asked for it in between.
    handles_changed();
    result = call();
    if (result != CUDA_SUCCESS) return result;
    handles_changed();
    end.ended();
    module.ended();
  }
  residual_settle();
  return result;
}

template <class Handle>
constexpr RecordKind kKindOf = RecordKind::kFunction;
template <>
constexpr RecordKind kKindOf<CUkernel> = RecordKind::kKernel;

// On which device what is got of its owner is loaded: of a library, in the current context.
int device_asked(CUmodule module) { return device_of(module); }
int device_asked(const void*) { return reach_here().device; }

// A module that is got of a library is asked for its own functions next.
void owner_is_known(CUmodule module) { module_is_known(module); }
void owner_is_known(const void*) {}

// A handle that comes with code, at once or with its first launch.
template <class Handle, class Owner, class Call>
CUresult function_get(Handle* out, Owner owner, const char* name, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (out == nullptr) return call();
  const Handle before = *out;
  Late late(owner, name);
  const CUresult result = call();
  const auto key = reinterpret_cast<uint64_t>(*out);
  if (result != CUDA_SUCCESS || !handle_is_new(kKindOf<Handle>, key)) return result;
  residual_expect();
  const int device = device_asked(owner);
  if (late.fits(device)) {
    handle_is_known(kKindOf<Handle>, key, owner, device);
    owner_is_known(*out);
    local_known(*out);
    return result;
  }
  *out = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// The address of a variable, which may be loaded with this call. Either output may be null, and
// then the call is measured each time.
template <class Pointer, class Bytes, class Owner, class Call>
CUresult variable_get(Pointer* pointer, Bytes* bytes, Owner owner, const char* name, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const Pointer pointer_before = pointer == nullptr ? 0 : *pointer;
  const Bytes bytes_before = bytes == nullptr ? 0 : *bytes;
  Late late(owner, name);
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  const bool keeps = pointer != nullptr;
  if (keeps && !handle_is_new(RecordKind::kVariable, *pointer)) return result;
  const int device = device_asked(owner);
  if (late.fits(device)) {
    if (keeps) handle_is_known(RecordKind::kVariable, *pointer, nullptr, device);
    return result;
  }
  if (keeps) *pointer = pointer_before;
  if (bytes != nullptr) *bytes = bytes_before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// A call that gives out a kernel.
template <class Handle, class Call>
CUresult library_kernel(CUlibrary library, Handle* kernel, Call call) {
  const Handle before = kernel == nullptr ? Handle{} : *kernel;
  const CUresult result = call();
  if (result != CUDA_SUCCESS || library_gave(library, reinterpret_cast<CUkernel>(*kernel)))
    return result;
  *kernel = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// A call that loads the library into the current context, if it is not there.
template <class Call>
CUresult with_library(CUlibrary library, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult loaded = library_load_here(library);
  return loaded == CUDA_SUCCESS ? call() : loaded;
}

template <class Call>
CUresult functions_list(Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = call();
  if (result == CUDA_SUCCESS && process_mode() == Mode::kActive) residual_expect();
  return result;
}

// It holds the primary context, and may be the process's first one.
CUresult green_refuse(CUdevice device) {
  process_begin(device);
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  return account.active() ? device_refuse(device, "context") : CUDA_SUCCESS;
}

}  // namespace

SLUICE_HOOK CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return module_load(module, least_of_file(path),
                     [&] { return driver.cuModuleLoad(module, path); });
}

SLUICE_HOOK CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return module_load(module, least_of(image),
                     [&] { return driver.cuModuleLoadData(module, image); });
}

SLUICE_HOOK CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                        CUjit_option* options, void** values) {
  return module_load(
      module, least_of(image),
      [&] { return driver.cuModuleLoadDataEx(module, image, count, options, values); },
      JitValues(values, count));
}

SLUICE_HOOK CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return module_load(module, least_of(image),
                     [&] { return driver.cuModuleLoadFatBinary(module, image); });
}

SLUICE_HOOK CUresult cuModuleUnload(CUmodule module) {
  return unload(module, [&] { return driver.cuModuleUnload(module); });
}

SLUICE_HOOK CUresult cuLibraryLoadData(CUlibrary* library, const void* code,
                                       CUjit_option* jit_options, void** jit_values,
                                       unsigned int jit_count, CUlibraryOption* options,
                                       void** values, unsigned int count) {
  return library_load(
      library, least_of(code),
      [&] {
        return driver.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options,
                                        values, count);
      },
      JitValues(jit_values, jit_count));
}

SLUICE_HOOK CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path,
                                           CUjit_option* jit_options, void** jit_values,
                                           unsigned int jit_count, CUlibraryOption* options,
                                           void** values, unsigned int count) {
  return library_load(
      library, least_of_file(path),
      [&] {
        return driver.cuLibraryLoadFromFile(library, path, jit_options, jit_values, jit_count,
                                            options, values, count);
      },
      JitValues(jit_values, jit_count));
}

SLUICE_HOOK CUresult cuLibraryUnload(CUlibrary library) {
  LibraryEnd end(library);
  const CUresult result = unload(library, [&] { return driver.cuLibraryUnload(library); });
  if (result == CUDA_SUCCESS) end.ended();
  return result;
}

SLUICE_HOOK CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return function_get(function, module, name,
                      [&] { return driver.cuModuleGetFunction(function, module, name); });
}

SLUICE_HOOK CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult loaded = kernel_load(kernel);
  if (loaded != CUDA_SUCCESS) return loaded;
  return function_get(function, library_of(kernel), nullptr,
                      [&] { return driver.cuKernelGetFunction(function, kernel); });
}

SLUICE_HOOK CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return function_get(kernel, library, name, [&] {
    return library_kernel(library, kernel,
                          [&] { return driver.cuLibraryGetKernel(kernel, library, name); });
  });
}

SLUICE_HOOK CUresult cuLibraryGetUnifiedFunction(void** function, CUlibrary library,
                                                 const char* name) {
  return with_library(library, [&] {
    return function_get(function, library, name, [&] {
      return driver.cuLibraryGetUnifiedFunction(function, library, name);
    });
  });
}

SLUICE_HOOK CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count,
                                                CUmodule module) {
  return functions_list([&] {
    const CUresult result = driver.cuModuleEnumerateFunctions(functions, count, module);
    unsigned listed = 0;
    if (result != CUDA_SUCCESS || process_mode() != Mode::kActive ||
        driver.cuModuleGetFunctionCount(&listed, module) != CUDA_SUCCESS)
      return result;
    for (unsigned i = 0; i < count && i < listed; ++i) local_known(functions[i]);
    return result;
  });
}

SLUICE_HOOK CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count,
                                               CUlibrary library) {
  return functions_list([&] {
    const CUresult result = driver.cuLibraryEnumerateKernels(kernels, count, library);
    return result != CUDA_SUCCESS || library_listed(library, kernels, count)
               ? result
               : CUDA_ERROR_OUT_OF_MEMORY;
  });
}

SLUICE_HOOK CUresult cuFuncLoad(CUfunction function) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult loaded = kernel_load(function);
  if (loaded != CUDA_SUCCESS) return loaded;
  Late late(owner_of(function), nullptr);
  const CUresult result = driver.cuFuncLoad(function);
  if (result != CUDA_SUCCESS || late.fits(device_of(function))) return result;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

SLUICE_HOOK CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return with_library(library, [&] {
    return function_get(module, library, nullptr,
                        [&] { return driver.cuLibraryGetModule(module, library); });
  });
}

SLUICE_HOOK CUresult cuModuleGetGlobal(CUdeviceptr_v1* pointer, unsigned int* bytes,
                                       CUmodule module, const char* name) {
  return variable_get(pointer, bytes, module, name,
                      [&] { return driver.cuModuleGetGlobal(pointer, bytes, module, name); });
}

SLUICE_HOOK CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule module,
                                          const char* name) {
  return variable_get(pointer, bytes, module, name,
                      [&] { return driver.cuModuleGetGlobal_v2(pointer, bytes, module, name); });
}

SLUICE_HOOK CUresult cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUlibrary library,
                                        const char* name) {
  return with_library(library, [&] {
    return variable_get(pointer, bytes, library, name,
                        [&] { return driver.cuLibraryGetGlobal(pointer, bytes, library, name); });
  });
}

SLUICE_HOOK CUresult cuLibraryGetManaged(CUdeviceptr* pointer, size_t* bytes, CUlibrary library,
                                         const char* name) {
  return with_library(library, [&] {
    return variable_get(pointer, bytes, library, name,
                        [&] { return driver.cuLibraryGetManaged(pointer, bytes, library, name); });
  });
}

SLUICE_HOOK CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources,
                                      CUdevice device, unsigned int flags) {
  const CUresult refusal = context == nullptr ? CUDA_SUCCESS : green_refuse(device);
  if (refusal != CUDA_SUCCESS) return refusal;
  const CUgreenCtx before = context == nullptr ? nullptr : *context;
  const CUresult result = load(
      reach_of(device), 0, context,
      [&] { return driver.cuGreenCtxCreate(context, resources, device, flags); },
      [](CUgreenCtx made) { return driver.cuGreenCtxDestroy(made); });
  if (result != CUDA_SUCCESS || context == nullptr || green_made(*context, device)) return result;
  (void)unload(*context,
               [&] { return relaxed_call([&] { return driver.cuGreenCtxDestroy(*context); }); });
  *context = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

SLUICE_HOOK CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  GreenEnd end(context);
  const CUresult result =
      unload(context, [&] { return end.call([&] { return driver.cuGreenCtxDestroy(context); }); });
  if (result == CUDA_SUCCESS) end.settle();
  return result;
}

// Modules, libraries and their functions: code and variables are memory that counts, and no call
// tells how much. A load is made and then measured; one that does not fit the quota is taken back.
// What the driver loads late, with the handle of a function, the address of a variable or a first
// launch, only the module's end takes back: it is charged when it is there, and while the tenant is
// above its quota for it, neither handles nor addresses that were not known are handed out. Green
// contexts, too, take memory that only the figure for the process shows.
#include "interpose/growth.h"
#include "interpose/residual.h"
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

uint64_t unloads = 1;  // handles of functions may mean others afterwards

template <class Handle, class Call, class Undo>
CUresult load(Handle* out, Call call, Undo undo) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (out == nullptr) return call();
  const Handle before = *out;
  const Growth growth;
  const CUresult result = call();
  if (result != CUDA_SUCCESS || (residual_settle(true) && !growth.is_above())) return result;
  undo(*out);
  *out = before;
  (void)residual_settle(false);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult module_undo(CUmodule module) { return driver.cuModuleUnload(module); }
CUresult library_undo(CUlibrary library) { return driver.cuLibraryUnload(library); }

template <class Call>
CUresult unload(Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  __atomic_add_fetch(&unloads, 1, __ATOMIC_RELEASE);
  (void)residual_settle(false);
  return result;
}

// Programs that ask for the same handle before every launch pay for one look in a table.
bool is_new(RecordKind kind, uint64_t key) {
  if (process_mode() != Mode::kActive) return false;
  const ErrnoGuard guard;
  Record record;
  return !process.records.find(kind, key, &record) || record.bytes != load_acquire(unloads);
}

void is_known(RecordKind kind, uint64_t key) {
  const ErrnoGuard guard;
  const uint64_t round = load_acquire(unloads);
  (void)process.records.insert(Record{key, round, nullptr, kind, 0});
}

// A handle that comes with code, or whose code comes with its first launch.
template <class Handle, class Call>
CUresult function_get(Handle* out, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (out == nullptr) return call();
  const Handle before = *out;
  const Growth growth;
  const CUresult result = call();
  const auto key = reinterpret_cast<uint64_t>(*out);
  if (result != CUDA_SUCCESS || !is_new(RecordKind::kFunction, key)) return result;
  residual_expect();
  if (residual_settle_late() && !growth.is_above_late()) {
    is_known(RecordKind::kFunction, key);
    return result;
  }
  *out = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// The address of a variable, which may be loaded with this call. Either output may be null, and
// then the call is measured each time.
template <class Pointer, class Bytes, class Call>
CUresult variable_get(Pointer* pointer, Bytes* bytes, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const Pointer pointer_before = pointer == nullptr ? 0 : *pointer;
  const Bytes bytes_before = bytes == nullptr ? 0 : *bytes;
  const Growth growth;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  const bool keeps = pointer != nullptr;
  if (keeps && !is_new(RecordKind::kVariable, *pointer)) return result;
  if (residual_settle_late() && !growth.is_above_late()) {
    if (keeps) is_known(RecordKind::kVariable, *pointer);
    return result;
  }
  if (keeps) *pointer = pointer_before;
  if (bytes != nullptr) *bytes = bytes_before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call>
CUresult functions_list(Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = call();
  if (result == CUDA_SUCCESS && process_mode() == Mode::kActive) residual_expect();
  return result;
}

}  // namespace

SLUICE_HOOK CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return load(
      module, [&] { return driver.cuModuleLoad(module, path); }, module_undo);
}

SLUICE_HOOK CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load(
      module, [&] { return driver.cuModuleLoadData(module, image); }, module_undo);
}

SLUICE_HOOK CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                        CUjit_option* options, void** values) {
  return load(
      module, [&] { return driver.cuModuleLoadDataEx(module, image, count, options, values); },
      module_undo);
}

SLUICE_HOOK CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(
      module, [&] { return driver.cuModuleLoadFatBinary(module, image); }, module_undo);
}

SLUICE_HOOK CUresult cuModuleUnload(CUmodule module) {
  return unload([&] { return driver.cuModuleUnload(module); });
}

SLUICE_HOOK CUresult cuLibraryLoadData(CUlibrary* library, const void* code,
                                       CUjit_option* jit_options, void** jit_values,
                                       unsigned int jit_count, CUlibraryOption* options,
                                       void** values, unsigned int count) {
  return load(
      library,
      [&] {
        return driver.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options,
                                        values, count);
      },
      library_undo);
}

SLUICE_HOOK CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path,
                                           CUjit_option* jit_options, void** jit_values,
                                           unsigned int jit_count, CUlibraryOption* options,
                                           void** values, unsigned int count) {
  return load(
      library,
      [&] {
        return driver.cuLibraryLoadFromFile(library, path, jit_options, jit_values, jit_count,
                                            options, values, count);
      },
      library_undo);
}

SLUICE_HOOK CUresult cuLibraryUnload(CUlibrary library) {
  return unload([&] { return driver.cuLibraryUnload(library); });
}

SLUICE_HOOK CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return function_get(function, [&] { return driver.cuModuleGetFunction(function, module, name); });
}

SLUICE_HOOK CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return function_get(function, [&] { return driver.cuKernelGetFunction(function, kernel); });
}

SLUICE_HOOK CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return function_get(kernel, [&] { return driver.cuLibraryGetKernel(kernel, library, name); });
}

SLUICE_HOOK CUresult cuLibraryGetUnifiedFunction(void** function, CUlibrary library,
                                                 const char* name) {
  return function_get(function,
                      [&] { return driver.cuLibraryGetUnifiedFunction(function, library, name); });
}

SLUICE_HOOK CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count,
                                                CUmodule module) {
  return functions_list(
      [&] { return driver.cuModuleEnumerateFunctions(functions, count, module); });
}

SLUICE_HOOK CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count,
                                               CUlibrary library) {
  return functions_list([&] { return driver.cuLibraryEnumerateKernels(kernels, count, library); });
}

SLUICE_HOOK CUresult cuFuncLoad(CUfunction function) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const Growth growth;
  const CUresult result = driver.cuFuncLoad(function);
  if (result != CUDA_SUCCESS || (residual_settle_late() && !growth.is_above_late())) return result;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Loads the library into the current context.
SLUICE_HOOK CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return function_get(module, [&] { return driver.cuLibraryGetModule(module, library); });
}

SLUICE_HOOK CUresult cuModuleGetGlobal(CUdeviceptr_v1* pointer, unsigned int* bytes,
                                       CUmodule module, const char* name) {
  return variable_get(pointer, bytes,
                      [&] { return driver.cuModuleGetGlobal(pointer, bytes, module, name); });
}

SLUICE_HOOK CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule module,
                                          const char* name) {
  return variable_get(pointer, bytes,
                      [&] { return driver.cuModuleGetGlobal_v2(pointer, bytes, module, name); });
}

SLUICE_HOOK CUresult cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUlibrary library,
                                        const char* name) {
  return variable_get(pointer, bytes,
                      [&] { return driver.cuLibraryGetGlobal(pointer, bytes, library, name); });
}

SLUICE_HOOK CUresult cuLibraryGetManaged(CUdeviceptr* pointer, size_t* bytes, CUlibrary library,
                                         const char* name) {
  return variable_get(pointer, bytes,
                      [&] { return driver.cuLibraryGetManaged(pointer, bytes, library, name); });
}

SLUICE_HOOK CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources,
                                      CUdevice device, unsigned int flags) {
  return load(
      context, [&] { return driver.cuGreenCtxCreate(context, resources, device, flags); },
      [](CUgreenCtx made) { return driver.cuGreenCtxDestroy(made); });
}

SLUICE_HOOK CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  return unload([&] { return driver.cuGreenCtxDestroy(context); });
}

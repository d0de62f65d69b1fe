// Entry points: the linker.
#include "softgpu/driver/module_link.h"

namespace softgpu::driver {
namespace {

CUresult link_find(CUlinkState handle, std::shared_ptr<Linker>& linker,
                   const char* name = __builtin_FUNCTION()) {
  ContextRef context;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  linker = Registry<Linker>::all().find(handle);
  return linker == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

/// Options of one input override those of the link; buffers and the target belong to the link.
CUresult input_options_check(unsigned count, CUjit_option* options, void** values) {
  if (count > 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  LoadOptions load;
  return JitRequest(count, options, values).read(load, false);
}

}  // namespace
}  // namespace softgpu::driver

using namespace softgpu::driver;

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                         CUlinkState* out) {
  ContextRef context;
  CUresult result = enter(context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (count > 0 && (options == nullptr || values == nullptr)))
    return CUDA_ERROR_INVALID_VALUE;
  const JitRequest request(count, options, values);
  LoadOptions load;
  result = request.read(load);
  if (result != CUDA_SUCCESS) return result;
  const auto linker = std::make_shared<Linker>(request, load);
  Registry<Linker>::all().add(linker);
  *out = linker->handle();
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void* data, std::size_t bytes,
                          const char* name, unsigned int count, CUjit_option* options,
                          void** values) {
  std::shared_ptr<Linker> linker;
  CUresult result = link_find(handle, linker);
  if (result == CUDA_SUCCESS) result = input_options_check(count, options, values);
  if (result != CUDA_SUCCESS) return result;
  if (data == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return linker->add(type, data, bytes, name);
}

CUresult cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char* path,
                          unsigned int count, CUjit_option* options, void** values) {
  std::shared_ptr<Linker> linker;
  CUresult result = link_find(handle, linker);
  if (result == CUDA_SUCCESS) result = input_options_check(count, options, values);
  if (result != CUDA_SUCCESS) return result;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string bytes;
  if (!file_read(path, bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
  return linker->add(type, bytes.data(), bytes.size() + 1, path);
}

CUresult cuLinkComplete(CUlinkState handle, void** image, std::size_t* bytes) {
  std::shared_ptr<Linker> linker;
  const CUresult result = link_find(handle, linker);
  if (result != CUDA_SUCCESS) return result;
  return image == nullptr ? CUDA_ERROR_INVALID_VALUE : linker->complete(image, bytes);
}

CUresult cuLinkDestroy(CUlinkState handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  return Registry<Linker>::all().take(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned int count, CUjit_option* options, void** values, CUlinkState* out) {
  return cuLinkCreate_v2(count, options, values, out);
}
CUresult cuLinkAddData(CUlinkState handle, CUjitInputType type, void* data, std::size_t bytes,
                       const char* name, unsigned int count, CUjit_option* options, void** values) {
  return cuLinkAddData_v2(handle, type, data, bytes, name, count, options, values);
}
CUresult cuLinkAddFile(CUlinkState handle, CUjitInputType type, const char* path,
                       unsigned int count, CUjit_option* options, void** values) {
  return cuLinkAddFile_v2(handle, type, path, count, options, values);
}

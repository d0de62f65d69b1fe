// Entry points: graphics. Displays are none of the software GPU's, so that no context of OpenGL can
// be on it; every other function of graphics.tsv is refused by its stub.
#include "softgpu/driver/state.h"

using namespace softgpu::driver;

CUresult cuGLGetDevices_v2(unsigned int* count, CUdevice* /*devices*/, unsigned int /*room*/,
                           unsigned int /*list*/) {
  if (const CUresult result = enter_any(); result != CUDA_SUCCESS) return result;
  return count == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_GRAPHICS_CONTEXT;
}

CUresult cuGLGetDevices(unsigned int* count, CUdevice* devices, unsigned int room,
                        unsigned int list) {
  return cuGLGetDevices_v2(count, devices, room, list);
}

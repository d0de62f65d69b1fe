// Entry points: user objects, and the references to them that graphs own.
#include <climits>

#include "softgpu/driver/api_graph.h"

using namespace softgpu::driver;

namespace {

CUresult object_enter(CUuserObject handle, unsigned count, UserObjectRef& object,
                      const char* name = __builtin_FUNCTION()) {
  const CUresult result = enter_any(name);
  if (result != CUDA_SUCCESS) return result;
  object = Registry<UserObject>::all().find(handle);
  return object == nullptr || count == 0 || count > INT_MAX ? CUDA_ERROR_INVALID_VALUE
                                                            : CUDA_SUCCESS;
}

}  // namespace

CUresult cuUserObjectCreate(CUuserObject* out, void* data, CUhostFn destroy, unsigned int count,
                            unsigned int flags) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || destroy == nullptr || count == 0 || count > INT_MAX ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  const auto object = std::make_shared<UserObject>(destroy, data, count);
  Registry<UserObject>::all().add(object);
  *out = object->handle();
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count) {
  UserObjectRef object;
  const CUresult result = object_enter(handle, count, object);
  if (result == CUDA_SUCCESS) object->retain(count);
  return result;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count) {
  UserObjectRef object;
  const CUresult result = object_enter(handle, count, object);
  if (result != CUDA_SUCCESS) return result;
  return object->release(count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int count,
                                 unsigned int flags) {
  UserObjectRef object;
  GraphRef graph;
  CUresult result = object_enter(handle, count, object);
  if (result == CUDA_SUCCESS) result = graph_enter(graph_handle, graph);
  if (result != CUDA_SUCCESS) return result;
  if ((flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags == 0) object->retain(count);
  graph->objects.own(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int count) {
  UserObjectRef object;
  GraphRef graph;
  CUresult result = object_enter(handle, count, object);
  if (result == CUDA_SUCCESS) result = graph_enter(graph_handle, graph);
  if (result != CUDA_SUCCESS) return result;
  return graph->objects.release(object, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

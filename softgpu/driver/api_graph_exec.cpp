// Entry points: instances of graphs - making, uploading, launching, destroying, and updating them
// as a whole. Single nodes of instances are in api_graph_exec_nodes.cpp.
#include "softgpu/driver/api_graph.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/graph_update.h"

using namespace softgpu::driver;

namespace {

CUresult instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags,
                     InstantiateFailure& failure, const char* name) {
  GraphRef graph;
  CUresult result = graph_enter(handle, graph, name);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExecRef exec;
  result = GraphExec::make(graph, flags, exec, failure);
  if (result != CUDA_SUCCESS) return result;
  Registry<GraphExec>::all().add(exec);
  *out = exec->handle();
  return CUDA_SUCCESS;
}

CUresult stream_enter_of(CUstream handle, StreamRef& stream, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  if (result == CUDA_SUCCESS) result = stream_find(handle, context, stream);
  return result == CUDA_SUCCESS ? capture_stream_check(*stream, name) : result;
}

CUresult exec_update(CUgraphExec exec_handle, CUgraph handle, CUgraphExecUpdateResultInfo& info,
                     const char* name) {
  info = {CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
  GraphRef graph;
  CUresult result = graph_enter(handle, graph, name);
  const GraphExecRef exec =
      result == CUDA_SUCCESS ? Registry<GraphExec>::all().find(exec_handle) : nullptr;
  if (result != CUDA_SUCCESS) return result;
  if (exec == nullptr || graph->moved) return CUDA_ERROR_INVALID_VALUE;
  UpdateFailure failure;
  result = exec->change([&](Graph& target) {
    failure = graph_update(target, *graph, exec->flags());
    return failure.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                          : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  });
  info = {failure.result, failure.node == nullptr ? nullptr : failure.node->handle(),
          failure.from == nullptr ? nullptr : failure.from->handle()};
  return result;
}

}  // namespace

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  InstantiateFailure failure;
  // An upload needs a stream to be ordered in.
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) return CUDA_ERROR_INVALID_VALUE;
  return instantiate(out, graph, flags, failure, __func__);
}

CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error, char* log,
                            std::size_t bytes) {
  InstantiateFailure failure;
  const CUresult result = instantiate(out, graph, 0, failure, __func__);
  if (error != nullptr) *error = failure.node == nullptr ? nullptr : failure.node->handle();
  if (log != nullptr && bytes > 0) *log = '\0';
  return result;
}
CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error, char* log,
                               std::size_t bytes) {
  return cuGraphInstantiate(out, graph, error, log, bytes);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  InstantiateFailure failure;
  CUresult result = instantiate(out, graph, params->flags, failure, __func__);
  params->hErrNode_out = failure.node == nullptr ? nullptr : failure.node->handle();
  params->result_out = failure.result;
  if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0)
    result = cuGraphUpload(*out, params->hUploadStream);
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  const CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  // A launch in flight has what it needs.
  return Registry<GraphExec>::all().take(handle) != nullptr ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  GraphExecRef exec;
  const CUresult result = exec_enter(handle, exec);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags();
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
  StreamRef stream;
  const CUresult result = stream_enter_of(stream_handle, stream, __func__);
  if (result != CUDA_SUCCESS) return result;
  const GraphExecRef exec = Registry<GraphExec>::all().find(handle);
  return exec != nullptr ? exec->upload() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  StreamRef stream;
  const CUresult result = stream_enter_of(stream_handle, stream, __func__);
  if (result != CUDA_SUCCESS) return result;
  const GraphExecRef exec = Registry<GraphExec>::all().find(handle);
  return exec != nullptr ? exec->launch(stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error,
                           CUgraphExecUpdateResult* outcome) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = exec_update(exec, graph, info, __func__);
  if (error != nullptr) *error = info.errorNode;
  if (outcome != nullptr) *outcome = info.result;
  return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  return info == nullptr ? CUDA_ERROR_INVALID_VALUE : exec_update(exec, graph, *info, __func__);
}

// Executable graphs: what they allocate counts from their first launch or upload on
// (account_graphs.cpp). The launch itself is a launch like others (gate.h).
#include "interpose/account.h"
#include "interpose/gate.h"
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

// Nothing of this for programs whose graphs do not allocate.
bool launch_takes_memory(CUstream stream) {
  return SLUICE_UNLIKELY(graph_memory_used()) && !stream_is_capturing(stream);
}

template <class Call>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, Call call) {
  const TouchScope touch;
  const AccountScope account;
  const CUresult result = call();
  if (result != CUDA_SUCCESS || !account.active()) return result;
  graph_memory_learn(*exec, graph);
  if (graph_memory_used()) graph_memory_settle();  // it may have been uploaded as well
  return result;
}

template <class Call>
CUresult upload(CUgraphExec exec, CUstream stream, Call call) {
  const TouchScope touch;
  const AccountScope account;
  if (!account.active() || !launch_takes_memory(stream)) return call();
  if (!graph_memory_fits(exec)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result == CUDA_SUCCESS) graph_memory_taken(exec);
  return result;
}

template <class Call>
CUresult launch(CUgraphExec exec, CUstream stream, Call call) {
  if (SLUICE_LIKELY(!launch_takes_memory(stream))) return call();
  {
    const AccountScope account;
    if (account.active() && !graph_memory_fits(exec)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = call();
  const AccountScope account;
  if (account.active() && result == CUDA_SUCCESS) graph_memory_taken(exec);
  return result;
}

}  // namespace

SLUICE_HOOK CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node,
                                        char* log, size_t log_bytes) {
  return instantiate(exec, graph, [&] {
    return driver.cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
  });
}

SLUICE_HOOK CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph,
                                           CUgraphNode* error_node, char* log, size_t log_bytes) {
  return instantiate(exec, graph, [&] {
    return driver.cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes);
  });
}

SLUICE_HOOK CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                                 unsigned long long flags) {
  return instantiate(exec, graph,
                     [&] { return driver.cuGraphInstantiateWithFlags(exec, graph, flags); });
}

SLUICE_HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate(exec, graph,
                     [&] { return driver.cuGraphInstantiateWithParams(exec, graph, params); });
}

SLUICE_HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate(exec, graph,
                     [&] { return driver.cuGraphInstantiateWithParams_ptsz(exec, graph, params); });
}

SLUICE_HOOK CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return upload(exec, stream, [&] { return driver.cuGraphUpload(exec, stream); });
}

SLUICE_HOOK CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return upload(exec, stream_per_thread(stream),
                [&] { return driver.cuGraphUpload_ptsz(exec, stream); });
}

SLUICE_HOOK CUresult cuGraphExecDestroy(CUgraphExec exec) {
  const TouchScope touch;
  const AccountScope account;
  const CUresult result = driver.cuGraphExecDestroy(exec);
  if (account.active() && result == CUDA_SUCCESS) {
    graph_memory_forget(exec);
    if (graph_memory_used()) graph_memory_settle();
  }
  return result;
}

SLUICE_HOOK CUresult cuDeviceGraphMemTrim(CUdevice device) {
  const TouchScope touch;
  const AccountScope account;
  const CUresult result = driver.cuDeviceGraphMemTrim(device);
  if (account.active() && result == CUDA_SUCCESS) graph_memory_trimmed(device);
  return result;
}

SLUICE_HOOK CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return launch(exec, stream, [&] {
    return launch_through<&DriverTable::cuGraphLaunch, LaunchKind::kGraph, NullStream::kLegacy>(
        exec, stream);
  });
}

SLUICE_HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(exec, stream_per_thread(stream), [&] {
    return launch_through<&DriverTable::cuGraphLaunch_ptsz, LaunchKind::kGraph,
                          NullStream::kPerThread>(exec, stream);
  });
}

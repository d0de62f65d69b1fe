// Executable graphs: what they allocate counts from their first launch or upload on
// (account_graphs.cpp), and what a launch takes is learned (graphs.h). The launch itself is a
// launch like others (gate.h). Updates need no hook of this kind: the handle stays, and so does
// what was learned, until the next measured launch shows otherwise.
#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/gate.h"
#include "interpose/touch.h"

using namespace sluice::interpose;

namespace {

bool launch_takes_memory(CUstream stream) {
  return graph_memory_used() && !stream_is_capturing(stream);
}

// Within an AccountScope that is active or not. What the graph allocates is learned.
template <class Call>
CUresult learned(CUgraphExec* exec, CUgraph graph, const AccountScope& account, Call call) {
  const CUgraphExec before = exec == nullptr ? nullptr : *exec;
  const CUresult result = call();
  if (result != CUDA_SUCCESS || !account.active()) return result;
  graph_forget(*exec);  // one with this handle may have ended with its context
  if (SLUICE_UNLIKELY(!graph_memory_learn(*exec, graph))) {
    (void)relaxed_call([&] { return driver.cuGraphExecDestroy(*exec); });
    *exec = before;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return result;
}

template <class Call>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const AccountScope account;
  return learned(exec, graph, account, call);
}

// Uploaded in the same call, it takes its memory there.
template <class Call>
CUresult instantiate_uploaded(CUgraphExec* exec, CUgraph graph, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const AccountScope account;
  if (!account.active()) return call();
  GraphMemoryScope memory(graph);
  if (memory.refusal() != CUDA_SUCCESS) return memory.refusal();
  const CUgraphExec before = exec == nullptr ? nullptr : *exec;
  const CUresult result = learned(exec, graph, account, call);
  if (result != CUDA_SUCCESS) return result;
  if (SLUICE_LIKELY(memory.holds())) {
    memory.taken_for(*exec);
    return result;
  }
  graph_forget(*exec);
  graph_memory_forget(*exec);
  (void)relaxed_call([&] { return driver.cuGraphExecDestroy(*exec); });
  *exec = before;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// The driver answers in the parameters, too.
template <class Call>
CUresult instantiate_with(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params,
                          Call call) {
  const CUDA_GRAPH_INSTANTIATE_PARAMS before =
      params == nullptr ? CUDA_GRAPH_INSTANTIATE_PARAMS{} : *params;
  CUresult told = CUDA_ERROR_UNKNOWN;
  const bool uploads =
      params != nullptr && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
  const auto tell = [&] { return told = call(); };
  const CUresult result =
      uploads ? instantiate_uploaded(exec, graph, tell) : instantiate(exec, graph, tell);
  if (result != told && params != nullptr) *params = before;
  return result;
}

template <class Call>
CUresult upload_within(GraphMemoryScope& memory, Call call) {
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  if (!memory.holds()) return CUDA_ERROR_OUT_OF_MEMORY;
  memory.taken();
  return result;
}

template <class Call>
CUresult upload(CUgraphExec exec, Call call) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const AccountScope account;
  if (!account.active() || !graph_memory_used()) return call();
  GraphMemoryScope memory(exec);
  return memory.refusal() == CUDA_SUCCESS ? upload_within(memory, call) : memory.refusal();
}

// A launch cannot be taken back: near the quota the driver is to take the memory before it. That it
// cannot is what the launch would say, too.
template <class Upload, class Call>
CUresult launch_within(CUgraphExec exec, Upload upload_first, Call call) {
  GraphMemoryScope memory(exec);
  if (memory.refusal() != CUDA_SUCCESS) return memory.refusal();
  if (memory.is_near() && upload_within(memory, upload_first) == CUDA_ERROR_OUT_OF_MEMORY)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result == CUDA_SUCCESS) memory.taken();
  return result;
}

// By the long way; what an allocating graph takes must fit the quota first. That is asked inside of
// the gate: nothing is kept from others while the launch waits for its lease.
template <auto Real, NullStream Null>
__attribute__((noinline)) CUresult launch_long_way(CUgraphExec exec, CUstream stream) {
  if (process_mode() == Mode::kInert) return real_call<Real>(exec, stream);
  const CUstream meant = Null == NullStream::kPerThread ? stream_per_thread(stream) : stream;
  if (!launch_takes_memory(meant))
    return launch_long<Real, LaunchKind::kGraph, Null, CUgraphExec, CUstream>(exec, stream);
  return launch_gated(meant, exec, LaunchKind::kGraph, [&] {
    const AccountScope account;
    const auto call = [&] { return real_call<Real>(exec, stream); };
    const auto upload_first = [&] {
      return Null == NullStream::kPerThread ? driver.cuGraphUpload_ptsz(exec, stream)
                                            : driver.cuGraphUpload(exec, stream);
    };
    return account.active() ? launch_within(exec, upload_first, call) : call();
  });
}

template <auto Real, NullStream Null>
SLUICE_ALWAYS_INLINE CUresult launch_inside(CUgraphExec exec, CUstream named, ThreadRecord* thread,
                                            uint32_t word) {
  const CUstream stream = Null == NullStream::kPerThread ? stream_per_thread(named) : named;
  StreamRecord* record = graph_begin(thread, stream, exec, word);
  if (SLUICE_UNLIKELY(record == nullptr)) return launch_long_way<Real, Null>(exec, named);
  const CUresult result = real_call<Real>(exec, named);
  graph_end(thread, record, result);
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
  return instantiate_with(exec, graph, params,
                          [&] { return driver.cuGraphInstantiateWithParams(exec, graph, params); });
}

SLUICE_HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate_with(exec, graph, params, [&] {
    return driver.cuGraphInstantiateWithParams_ptsz(exec, graph, params);
  });
}

SLUICE_HOOK CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return upload(exec, [&] { return driver.cuGraphUpload(exec, stream); });
}

SLUICE_HOOK CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return upload(exec, [&] { return driver.cuGraphUpload_ptsz(exec, stream); });
}

SLUICE_HOOK CUresult cuGraphExecDestroy(CUgraphExec exec) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const AccountScope account;
  // Before the driver can give the same handle to another thread.
  graph_forget(exec);
  if (!account.active()) return driver.cuGraphExecDestroy(exec);
  const GraphMemoryEnd memory(exec);
  const CUresult result = driver.cuGraphExecDestroy(exec);
  if (result != CUDA_SUCCESS) {
    memory.undo();
  } else if (graph_memory_used()) {
    graph_memory_settle();
  }
  return result;
}

SLUICE_HOOK CUresult cuDeviceGraphMemTrim(CUdevice device) {
  const TouchScope touch;
  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  const AccountScope account;
  const CUresult result = driver.cuDeviceGraphMemTrim(device);
  if (account.active() && result == CUDA_SUCCESS) graph_memory_trimmed(device);
  return result;
}

// They begin in launch.S.
SLUICE_HOOK_ASSEMBLED(cuGraphLaunch);
SLUICE_HOOK_ASSEMBLED(cuGraphLaunch_ptsz);

extern "C" {
CUresult sluice_graph_inside(CUgraphExec exec, CUstream stream, ThreadRecord* thread,
                             uint32_t word) {
  return launch_inside<&DriverTable::cuGraphLaunch, NullStream::kLegacy>(exec, stream, thread,
                                                                         word);
}
CUresult sluice_graph_inside_ptsz(CUgraphExec exec, CUstream stream, ThreadRecord* thread,
                                  uint32_t word) {
  return launch_inside<&DriverTable::cuGraphLaunch_ptsz, NullStream::kPerThread>(exec, stream,
                                                                                 thread, word);
}
CUresult sluice_graph_long(CUgraphExec exec, CUstream stream) {
  return launch_long_way<&DriverTable::cuGraphLaunch, NullStream::kLegacy>(exec, stream);
}
CUresult sluice_graph_long_ptsz(CUgraphExec exec, CUstream stream) {
  return launch_long_way<&DriverTable::cuGraphLaunch_ptsz, NullStream::kPerThread>(exec, stream);
}
}

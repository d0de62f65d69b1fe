// Descriptions of nodes, validated and turned into commands; see graph_nodes.h.
#include "softgpu/driver/graph_nodes.h"

#include <algorithm>

#include "softgpu/driver/copy.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/word.h"

namespace softgpu::driver {
namespace {

/// The context that a function belongs to; for a kernel the one that is asked for, or the current.
CUresult kernel_context(const CUDA_KERNEL_NODE_PARAMS_v3& p, ContextRef& context) {
  const FunctionRef function = Registry<Function>::all().find(p.func);
  if (function == nullptr) return context_find(p.func == nullptr ? p.ctx : nullptr, context);
  context = function->module->owner().shared_from_this();
  return context->status();
}

CUresult alloc_check(const CUDA_MEM_ALLOC_NODE_PARAMS& p) {
  if (p.bytesize == 0 || p.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      p.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE || p.poolProps.maxSize != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (p.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return p.poolProps.location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                     : CUDA_ERROR_NOT_SUPPORTED;
  const std::size_t gpus = Process::get().gpus().size();
  if (p.accessDescCount > gpus || (p.accessDescCount > 0 && p.accessDescs == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < p.accessDescCount; ++i)
    if (Process::get().gpu(p.accessDescs[i].location.id) == nullptr)
      return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

/// Bytes of the union that a description of this type leaves unused must be zero.
bool unused_zero(const CUgraphNodeParams& p, std::size_t used) {
  const auto* at = reinterpret_cast<const unsigned char*>(p.reserved1);
  return p.reserved2 == 0 &&
         std::all_of(std::begin(p.reserved0), std::end(p.reserved0),
                     [](int word) { return word == 0; }) &&
         std::all_of(at + used, at + sizeof p.reserved1, [](unsigned char b) { return b == 0; });
}

CUresult union_check(const CUgraphNodeParams& p) {
  const auto checked = [&](std::size_t used) {
    return unused_zero(p, used) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return checked(sizeof p.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return p.memcpy.flags != 0 || p.memcpy.reserved != 0 ? CUDA_ERROR_INVALID_VALUE
                                                           : checked(sizeof p.memcpy);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return checked(sizeof p.memset);
    case CU_GRAPH_NODE_TYPE_HOST:
      return checked(sizeof p.host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return checked(sizeof p.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return checked(0);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return checked(sizeof p.eventWait);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return checked(sizeof p.eventRecord);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return checked(sizeof p.alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return checked(sizeof p.free);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return checked(sizeof p.memOp);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult node_describe(const CUDA_KERNEL_NODE_PARAMS_v3& p, NodeSpec& spec) {
  ContextRef context;
  CUresult result = kernel_context(p, context);
  if (result != CUDA_SUCCESS) return result;
  LaunchRequest request;
  request.function = p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
  request.grid = {p.gridDimX, p.gridDimY, p.gridDimZ};
  request.block = {p.blockDimX, p.blockDimY, p.blockDimZ};
  request.shared_bytes = p.sharedMemBytes;
  request.params = p.kernelParams;
  request.extra = p.extra;
  KernelCommand command;
  result = launch_prepare(request, context, command);
  if (result != CUDA_SUCCESS) return result;
  spec.type = CU_GRAPH_NODE_TYPE_KERNEL;
  spec.command = std::move(command);
  spec.detail.context = context;
  spec.detail.packed = p.extra != nullptr;
  return CUDA_SUCCESS;
}

CUresult node_describe(const CUDA_MEMCPY3D& p, CUcontext handle, NodeSpec& spec) {
  ContextRef context;
  CUresult result = context_find(handle, context);
  CopyCommand command;
  const DormantVisible visible;
  if (result == CUDA_SUCCESS) result = copy_describe(p, command);
  if (result != CUDA_SUCCESS) return result;
  spec.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  spec.command = std::move(command);
  spec.detail.context = context;
  spec.detail.copy = p;
  return CUDA_SUCCESS;
}

CUresult node_describe(const CUDA_MEMSET_NODE_PARAMS& p, CUcontext handle, NodeSpec& spec) {
  ContextRef context;
  const CUresult result = context_find(handle, context);
  if (result != CUDA_SUCCESS) return result;
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = p.width * p.elementSize;
  if (row == 0 || p.height == 0 || (p.height > 1 && p.pitch < row)) return CUDA_ERROR_INVALID_VALUE;
  if (p.dst % p.elementSize != 0 || (p.height > 1 && p.pitch % p.elementSize != 0))
    return CUDA_ERROR_INVALID_VALUE;
  const DormantVisible visible;
  if (!MemoryMap::get().covers(p.dst, row + (p.height - 1) * p.pitch))
    return CUDA_ERROR_INVALID_VALUE;
  SetCommand command;
  command.to = reinterpret_cast<std::byte*>(p.dst);
  command.pitch = p.pitch;
  command.width = p.width;
  command.height = p.height;
  command.value = p.value;
  command.element = p.elementSize;
  spec.type = CU_GRAPH_NODE_TYPE_MEMSET;
  spec.command = command;
  spec.detail.context = context;
  return CUDA_SUCCESS;
}

CUresult node_describe(const CUDA_HOST_NODE_PARAMS& p, NodeSpec& spec) {
  if (p.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  spec.type = CU_GRAPH_NODE_TYPE_HOST;
  spec.command = HostCommand{[p] { p.fn(p.userData); }, p.fn, p.userData};
  return CUDA_SUCCESS;
}

CUresult node_describe(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, NodeSpec& spec) {
  ContextRef context;
  CUresult result = context_find(p.ctx, context);
  if (result != CUDA_SUCCESS) return result;
  if (p.count == 0 || p.count > 256 || p.paramArray == nullptr || p.flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const DormantVisible visible;
  WordsCommand command;
  result = words_read(p.paramArray, p.count, command);
  if (result != CUDA_SUCCESS) return result;
  spec.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  spec.command = std::move(command);
  spec.detail.context = context;
  spec.detail.operations.assign(p.paramArray, p.paramArray + p.count);
  return CUDA_SUCCESS;
}

CUresult node_describe_event(CUgraphNodeType type, CUevent handle, NodeSpec& spec) {
  const EventRef event = Registry<Event>::all().find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->shared != nullptr) return not_implemented("graph nodes of interprocess events");
  spec.type = type;
  if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
    spec.command = RecordCommand{event};
  else
    spec.command = WaitCommand{event};
  return CUDA_SUCCESS;
}

CUresult node_describe_child(CUgraph handle, CUgraphChildGraphNodeOwnership ownership,
                             NodeSpec& spec) {
  const GraphRef child = Registry<Graph>::all().find(handle);
  if (child == nullptr || child->moved) return CUDA_ERROR_INVALID_VALUE;
  const bool move = ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  if (!move && ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) return CUDA_ERROR_INVALID_VALUE;
  if (move && (child->parent != nullptr || child->instance.lock() != nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  if (!move && child->has_memory_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
  spec.type = CU_GRAPH_NODE_TYPE_GRAPH;
  spec.child = child;
  spec.ownership = ownership;
  return CUDA_SUCCESS;
}

CUresult node_describe(CUDA_MEM_ALLOC_NODE_PARAMS& p, NodeSpec& spec) {
  CUresult result = alloc_check(p);
  if (result == CUDA_SUCCESS) result = GraphAllocation::create(p, spec.detail.allocation);
  if (result != CUDA_SUCCESS) return result;
  spec.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  p.dptr = spec.detail.allocation->address();
  return CUDA_SUCCESS;
}

CUresult node_describe_free(CUdeviceptr address, NodeSpec& spec) {
  spec.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  spec.detail.allocation = GraphAllocation::find(address);
  const auto& allocation = spec.detail.allocation;
  return allocation == nullptr || allocation->freed_by_owner || allocation->freed_by_other
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

CUresult node_describe(CUgraphNodeParams& p, NodeSpec& spec) {
  static_assert(sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS) == sizeof p.memOp &&
                    sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == sizeof p.alloc &&
                    sizeof(CUDA_HOST_NODE_PARAMS) == sizeof p.host,
                "one layout under several names");
  const CUresult result = union_check(p);
  if (result != CUDA_SUCCESS) return result;
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return node_describe(p.kernel, spec);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return node_describe(p.memcpy.copyParams, p.memcpy.copyCtx, spec);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return node_describe({p.memset.dst, p.memset.pitch, p.memset.value, p.memset.elementSize,
                            p.memset.width, p.memset.height},
                           p.memset.ctx, spec);
    case CU_GRAPH_NODE_TYPE_HOST:
      return node_describe(CUDA_HOST_NODE_PARAMS{p.host.fn, p.host.userData}, spec);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return node_describe_child(p.graph.graph, p.graph.ownership, spec);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return node_describe_event(p.type, p.eventWait.event, spec);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return node_describe_event(p.type, p.eventRecord.event, spec);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return node_describe(reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS&>(p.alloc), spec);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return node_describe_free(p.free.dptr, spec);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return node_describe(CUDA_BATCH_MEM_OP_NODE_PARAMS{p.memOp.ctx, p.memOp.count,
                                                         p.memOp.paramArray, p.memOp.flags},
                           spec);
    default:
      spec.type = CU_GRAPH_NODE_TYPE_EMPTY;
      return CUDA_SUCCESS;
  }
}

ContextRef node_context(const Command& command, const NodeDetail& detail) {
  if (const auto* kernel = std::get_if<KernelCommand>(&command))
    return kernel->module->owner().shared_from_this();
  return detail.context.lock();
}

}  // namespace softgpu::driver

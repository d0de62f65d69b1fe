// Steps of random programs: graphs that allocate, built node by node or captured
// (random_streams.cpp), and their instances.
#include <algorithm>

#include "tests/interpose/random_world.h"

namespace sluice::test {
namespace {

void graph_say(Step& step, const GraphSlot& slot) {
  step.say("g" + std::to_string(step.world.graphs.number(slot)));
}
void exec_say(Step& step, const ExecSlot& slot) {
  step.say("x" + std::to_string(step.world.execs.number(slot)));
}

void graph_create(Step& step) {
  GraphSlot* slot = step.world.graphs.free_one(step.random);
  if (slot == nullptr) return;
  CUgraph graph = untouched<CUgraph>();
  const CUresult result = CALL(step, cuGraphCreate, &graph, step.random.chance(5) ? 9u : 0u);
  step.output("graph", result, graph, untouched<CUgraph>());
  if (result == CUDA_SUCCESS) *slot = {{true, -1}, graph, {}};
}

void graph_destroy(Step& step) {
  GraphSlot* slot = step.world.graphs.live_one(step.random);
  if (slot == nullptr) return;
  graph_say(step, *slot);
  if (CALL(step, cuGraphDestroy, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

/// The node behind which a new one comes: the last of the graph, so that what it frees is
/// allocated.
std::vector<CUgraphNode> last_node(CUgraph graph) {
  size_t count = 0;
  cuGraphGetNodes(graph, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) cuGraphGetNodes(graph, nodes.data(), &count);
  return count == 0 ? nodes : std::vector<CUgraphNode>{nodes.back()};
}

void node_allocate(Step& step) {
  GraphSlot* slot = step.world.graphs.live_one(step.random);
  if (slot == nullptr) return;
  graph_say(step, *slot);
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {
      CU_MEM_LOCATION_TYPE_DEVICE,
      {step.random.chance(4) ? 33 : static_cast<int>(step.random.below(kDevices))}};
  params.bytesize = step.random.chance(3) ? 0 : step.random.bytes();
  step.say(std::to_string(params.bytesize));
  const std::vector<CUgraphNode> after = last_node(slot->handle);
  CUgraphNode node = untouched<CUgraphNode>();
  const CUresult result =
      CALL(step, cuGraphAddMemAllocNode, &node, slot->handle, after.data(), after.size(), &params);
  step.output("node", result, node, untouched<CUgraphNode>());
  if (result == CUDA_SUCCESS)
    slot->deeds.allocations.push_back(
        {params.dptr, params.bytesize, false, params.poolProps.location.id});
}

void node_free(Step& step) {
  GraphSlot* slot = step.world.graphs.live_one(step.random);
  if (slot == nullptr) return;
  graph_say(step, *slot);
  const std::vector<CUgraphNode> after = last_node(slot->handle);
  CUgraphNode node = untouched<CUgraphNode>();
  for (GraphDeeds::Allocation& allocation : slot->deeds.allocations) {
    if (allocation.freed && step.random.chance(80)) continue;
    const CUresult result = CALL(step, cuGraphAddMemFreeNode, &node, slot->handle, after.data(),
                                 after.size(), allocation.address);
    if (result == CUDA_SUCCESS) allocation.freed = true;
    return;
  }
  const BlockSlot& block = step.world.blocks.any(step.random);
  if (!block.live || block.kind != BlockKind::kGraph || step.world.shared()) return;
  step.say("b" + std::to_string(step.world.blocks.number(block)));
  if (CALL(step, cuGraphAddMemFreeNode, &node, slot->handle, after.data(), after.size(),
           block.address) == CUDA_SUCCESS)
    slot->deeds.frees.push_back(block.address);
}

void host_nothing(void*) {}

void node_other(Step& step) {
  GraphSlot* slot = step.world.graphs.live_one(step.random);
  if (slot == nullptr) return;
  graph_say(step, *slot);
  const std::vector<CUgraphNode> after = last_node(slot->handle);
  const int context = step.here();
  CUgraphNode node = nullptr;
  switch (step.random.below(5)) {
    case 0:
      CALL(step, cuGraphAddEmptyNode, &node, slot->handle, after.data(), after.size());
      break;
    case 1: {
      const CUDA_HOST_NODE_PARAMS params{host_nothing, nullptr};
      CALL(step, cuGraphAddHostNode, &node, slot->handle, after.data(), after.size(), &params);
      break;
    }
    case 2: {
      CUDA_KERNEL_NODE_PARAMS params{};
      params.kern = step.world.empty;
      params.gridDimX = params.gridDimY = params.gridDimZ = 1;
      params.blockDimX = params.blockDimY = params.blockDimZ = 1;
      if (CALL(step, cuGraphAddKernelNode, &node, slot->handle, after.data(), after.size(),
               &params) == CUDA_SUCCESS &&
          context >= 0)
        slot->deeds.contexts |= 1u << context;
      break;
    }
    case 3: {  // of an allocation of its own
      if (context < 0 || slot->deeds.allocations.empty() || slot->deeds.allocations.back().freed)
        return;
      CUDA_MEMSET_NODE_PARAMS params{};
      params.dst = slot->deeds.allocations.back().address;
      params.elementSize = 1;
      params.width = std::min<std::size_t>(slot->deeds.allocations.back().bytes, 4096);
      params.height = 1;
      if (CALL(step, cuGraphAddMemsetNode, &node, slot->handle, after.data(), after.size(), &params,
               step.world.contexts[static_cast<std::size_t>(context)].handle) == CUDA_SUCCESS)
        slot->deeds.contexts |= 1u << context;
      break;
    }
    case 4: {
      GraphSlot* child = step.world.graphs.live_one(step.random);
      graph_say(step, *child);
      if (child == slot) return;
      if (CALL(step, cuGraphAddChildGraphNode, &node, slot->handle, after.data(), after.size(),
               child->handle) != CUDA_SUCCESS)
        return;
      slot->deeds.contexts |= child->deeds.contexts;
      slot->deeds.spoiled |= child->deeds.spoiled;
      break;
    }
  }
}

void node_destroy(Step& step) {
  GraphSlot* slot = step.world.graphs.live_one(step.random);
  if (slot == nullptr) return;
  graph_say(step, *slot);
  const std::vector<CUgraphNode> last = last_node(slot->handle);
  if (last.empty()) return;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (CALL(step, cuGraphNodeGetType, last[0], &type) == CUDA_SUCCESS)
    step.say("type " + std::to_string(type));
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    CALL(step, cuGraphDestroyNode, last[0]);  // is not supported
    return;
  }
  CALL(step, cuGraphDestroyNode, last[0]);
}

void graph_clone(Step& step) {
  GraphSlot* from = step.world.graphs.live_one(step.random);
  GraphSlot* to = step.world.graphs.free_one(step.random);
  if (from == nullptr || to == nullptr) return;
  graph_say(step, *from);
  CUgraph graph = untouched<CUgraph>();
  const CUresult result = CALL(step, cuGraphClone, &graph, from->handle);
  step.output("graph", result, graph, untouched<CUgraph>());
  if (result != CUDA_SUCCESS) return;
  *to = *from;
  to->handle = graph;
}

void instantiate(Step& step) {
  GraphSlot* graph = step.world.graphs.live_one(step.random);
  ExecSlot* slot = step.world.execs.free_one(step.random);
  if (graph == nullptr || slot == nullptr) return;
  graph_say(step, *graph);
  CUgraphExec exec = untouched<CUgraphExec>();
  const unsigned long long auto_free =
      step.random.chance(30) ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0;
  CUresult result;
  if (step.random.chance(40)) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
    params.flags = auto_free;
    if (step.random.chance(50) && !graph->deeds.spoiled) {
      params.flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
      params.hUploadStream = step.stream();
    }
    result = CALL(step, cuGraphInstantiateWithParams, &exec, graph->handle, &params);
    step.say("outcome " + std::to_string(params.result_out));
  } else {
    result = CALL(step, cuGraphInstantiate, &exec, graph->handle, auto_free);
  }
  step.output("exec", result, exec, untouched<CUgraphExec>());
  if (result != CUDA_SUCCESS) return;
  *slot = {{true, -1}, exec, graph->deeds};
  exec_say(step, *slot);
}

/// What a launch leaves to the program, and what it has taken from it.
void launched(Step& step, const GraphDeeds& deeds) {
  auto& blocks = step.world.blocks;
  const auto find = [&](CUdeviceptr address) {
    return std::find_if(blocks.begin(), blocks.end(), [&](const BlockSlot& block) {
      return block.live && block.kind == BlockKind::kGraph && block.address == address;
    });
  };
  for (const CUdeviceptr address : deeds.frees) {
    if (const auto block = find(address); block != blocks.end()) block->live = false;
  }
  for (const GraphDeeds::Allocation& allocation : deeds.allocations) {
    if (allocation.freed || find(allocation.address) != blocks.end()) continue;
    BlockSlot* slot = blocks.free_one(step.random);
    if (slot == nullptr)
      CALL(step, cuMemFree, allocation.address);
    else
      *slot = {{true, -1}, allocation.address, allocation.bytes, BlockKind::kGraph};
  }
}

/// It must not fit on one of the devices. What is loaded with its first launch is little.
void graph_refused(Step& step, CUresult result, const GraphDeeds& deeds) {
  for (int device = 0; device < kDevices; ++device) {
    const std::size_t bytes = deeds.chunk_bytes(device);
    if (bytes != 0 && Accounts::get().used(device) + bytes > step.limit.quota[device]) return;
  }
  for (int device = 0; device < kDevices; ++device)
    step.refused(result, device, deeds.chunk_bytes(device));
}

void exec_launch(Step& step) {
  ExecSlot* slot = step.world.execs.live_one(step.random);
  if (slot == nullptr || slot->deeds.spoiled) return;
  exec_say(step, *slot);
  const CUstream stream = step.stream();
  if (GraphDeeds* capture = step.capture_of(stream); capture != nullptr) {
    CALL(step, cuGraphLaunch, slot->handle, stream);
    capture->spoiled = true;
    return;
  }
  const CUresult result = CALL(step, cuGraphLaunch, slot->handle, stream);
  graph_refused(step, result, slot->deeds);
  if (result == CUDA_SUCCESS) launched(step, slot->deeds);
}

void exec_upload(Step& step) {
  ExecSlot* slot = step.world.execs.live_one(step.random);
  if (slot == nullptr || slot->deeds.spoiled) return;
  exec_say(step, *slot);
  graph_refused(step, CALL(step, cuGraphUpload, slot->handle, step.stream()), slot->deeds);
}

void exec_update(Step& step) {
  ExecSlot* slot = step.world.execs.live_one(step.random);
  GraphSlot* graph = step.world.graphs.live_one(step.random);
  if (slot == nullptr || graph == nullptr) return;
  exec_say(step, *slot);
  graph_say(step, *graph);
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = CALL(step, cuGraphExecUpdate, slot->handle, graph->handle, &info);
  step.say("outcome " + std::to_string(info.result));
  // Its allocations stay: a graph that has some cannot be another's update.
  slot->deeds.contexts |= graph->deeds.contexts;
  if (result == CUDA_SUCCESS) slot->deeds.spoiled |= graph->deeds.spoiled;
}

void exec_destroy(Step& step) {
  ExecSlot* slot = step.world.execs.live_one(step.random);
  if (slot == nullptr) return;
  exec_say(step, *slot);
  if (CALL(step, cuGraphExecDestroy, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

void memory_trim(Step& step) {
  const int device = static_cast<int>(step.random.below(kDevices));
  if (step.random.chance(50)) CALL(step, cuCtxSynchronize);
  CALL(step, cuDeviceGraphMemTrim, step.random.chance(5) ? 44 : device);
}

void memory_attribute(Step& step) {
  cuuint64_t value = 0;
  const int device = static_cast<int>(step.random.below(kDevices));
  const auto attribute =
      step.random.of({CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH});
  if (step.random.chance(50))
    CALL(step, cuDeviceSetGraphMemAttribute, device, attribute, &value);
  else
    CALL(step, cuDeviceGetGraphMemAttribute, device, attribute, &value);
}

}  // namespace

void graph_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"graphs", "graph_create", 5, graph_create},
                             {"graphs", "graph_destroy", 4, graph_destroy},
                             {"graphs", "node_allocate", 10, node_allocate},
                             {"graphs", "node_free", 6, node_free},
                             {"graphs", "node_other", 8, node_other},
                             {"graphs", "node_destroy", 2, node_destroy},
                             {"graphs", "graph_clone", 2, graph_clone},
                             {"graphs", "instantiate", 8, instantiate},
                             {"graphs", "exec_launch", 14, exec_launch},
                             {"graphs", "exec_upload", 3, exec_upload},
                             {"graphs", "exec_update", 3, exec_update},
                             {"graphs", "exec_destroy", 5, exec_destroy},
                             {"graphs", "memory_trim", 4, memory_trim},
                             {"graphs", "memory_attribute", 2, memory_attribute}});
}

}  // namespace sluice::test

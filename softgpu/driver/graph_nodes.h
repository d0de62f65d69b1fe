// What a node does, between the structures of the driver API and commands: descriptions are
// validated and turned into a NodeSpec, and a node tells its parameters. Building, changing and
// updating instances all take a NodeSpec.
#pragma once

#include "softgpu/driver/graph.h"

namespace softgpu::driver {

struct NodeSpec {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Command command;
  NodeDetail detail;
  GraphRef child;  // of a child graph node: still the program's
  CUgraphChildGraphNodeOwnership ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
};

// Each of them: CUDA_SUCCESS, or what is wrong with the description.
CUresult node_describe(const CUDA_KERNEL_NODE_PARAMS_v3& params, NodeSpec& spec);
CUresult node_describe(const CUDA_MEMCPY3D& params, CUcontext context, NodeSpec& spec);
CUresult node_describe(const CUDA_MEMSET_NODE_PARAMS& params, CUcontext context, NodeSpec& spec);
CUresult node_describe(const CUDA_HOST_NODE_PARAMS& params, NodeSpec& spec);
CUresult node_describe(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, NodeSpec& spec);
CUresult node_describe_event(CUgraphNodeType type, CUevent event, NodeSpec& spec);
CUresult node_describe_child(CUgraph child, CUgraphChildGraphNodeOwnership ownership,
                             NodeSpec& spec);
CUresult node_describe_free(CUdeviceptr address, NodeSpec& spec);
/// Whichever of the above the type says; `params` receives the address of an allocation.
CUresult node_describe(CUgraphNodeParams& params, NodeSpec& spec);
/// The allocation is made.
CUresult node_describe(CUDA_MEM_ALLOC_NODE_PARAMS& params, NodeSpec& spec);

// What a node tells of itself; the node must be of the right type. Pointers in the answer are the
// node's.
void node_tell(Node& node, CUDA_KERNEL_NODE_PARAMS_v2& params);
void node_tell(const Node& node, CUDA_MEMCPY3D& params);
void node_tell(const Node& node, CUDA_MEMSET_NODE_PARAMS& params);
void node_tell(Node& node, CUDA_BATCH_MEM_OP_NODE_PARAMS& params);

/// The context in which a node runs; nullptr: the one of the launch.
ContextRef node_context(const Command& command, const NodeDetail& detail);

// Attributes of kernel nodes (graph_attributes.cpp). INVALID_VALUE: kernel nodes have no such one.
CUresult attribute_get(const Node& node, CUkernelNodeAttrID attribute,
                       CUkernelNodeAttrValue& value);
CUresult attribute_set(Node& node, CUkernelNodeAttrID attribute,
                       const CUkernelNodeAttrValue& value);
/// Gives the command the attributes that the node has been given.
void attributes_apply(Node& node);
/// The priority that was asked for, not clamped.
int node_priority(const NodeDetail& detail);

}  // namespace softgpu::driver

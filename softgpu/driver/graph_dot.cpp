// See graph_dot.h.
#include "softgpu/driver/graph_dot.h"

#include <fstream>
#include <sstream>

#include "softgpu/driver/event.h"
#include "softgpu/driver/graph_memory.h"

namespace softgpu::driver {
namespace {

const char* type_name(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "WAIT_EVENT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "BATCH_MEM_OP";
    default:
      return "EMPTY";
  }
}

/// Writes graphs one after another: a child is a cluster of its own.
class Dot {
 public:
  explicit Dot(unsigned flags) : flags_(flags) {}
  std::string text(const Graph& graph) {
    out_ << "digraph graph_" << graph.id << " {\n  node [shape=box];\n";
    body(graph);
    out_ << "}\n";
    return out_.str();
  }

 private:
  bool asked(unsigned flag) const {
    return (flags_ & (flag | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE)) != 0;
  }
  void body(const Graph& graph) {
    for (const Node& node : graph.nodes) {
      out_ << "  node_" << node.id << " [label=\"" << node.id << "\\n" << type_name(node.type);
      details(node);
      if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES)) out_ << "\\nhandle " << &node;
      out_ << "\"];\n";
    }
    for (const Node& node : graph.nodes) {
      int number = 0;
      for (const Node* before : node.after) {
        out_ << "  node_" << before->id << " -> node_" << node.id;
        if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_EXTRA_TOPO_INFO))
          out_ << " [label=\"" << number << "\"]";
        out_ << ";\n";
        ++number;
      }
    }
    for (const Node& node : graph.nodes) {
      const GraphRef child = node.child();
      if (child == nullptr) continue;
      out_ << "  subgraph cluster_" << child->id << " {\n  label=\"graph of node " << node.id
           << "\";\n";
      body(*child);
      out_ << "  }\n";
    }
  }
  void details(const Node& node) {
    if (const auto* kernel = std::get_if<KernelCommand>(&node.command)) kernel_details(*kernel);
    if (const auto* copy = std::get_if<CopyCommand>(&node.command)) copy_details(*copy);
    if (const auto* set = std::get_if<SetCommand>(&node.command))
      if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS))
        out_ << "\\ndst " << set->to << " value " << set->value << " element " << set->element
             << "\\n"
             << set->width << " x " << set->height << " pitch " << set->pitch;
    if (const auto* host = std::get_if<HostCommand>(&node.command))
      if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS))
        out_ << "\\nfn " << reinterpret_cast<const void*>(host->function) << " data " << host->data;
    if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS)) {
      if (const auto* record = std::get_if<RecordCommand>(&node.command))
        out_ << "\\nevent " << record->event.get();
      if (const auto* wait = std::get_if<WaitCommand>(&node.command))
        out_ << "\\nevent " << wait->event.get();
    }
    if (const auto* words = std::get_if<WordsCommand>(&node.command))
      if (asked(CU_GRAPH_DEBUG_DOT_FLAGS_BATCH_MEM_OP_NODE_PARAMS))
        for (const Word& word : words->words)
          out_ << "\\n"
               << (word.wait ? "wait " : "write ") << std::hex << word.address << std::dec << " "
               << word.value;
    if (node.of_memory() && asked(node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC
                                      ? CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS
                                      : CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS))
      out_ << "\\naddress " << std::hex << node.detail.allocation->address() << std::dec
           << " bytes " << node.detail.allocation->params().bytesize;
  }
  void kernel_details(const KernelCommand& kernel) {
    out_ << "\\n" << kernel.function->info().name;
    if (!asked(CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS)) return;
    out_ << "\\ngrid " << kernel.grid.x << " x " << kernel.grid.y << " x " << kernel.grid.z
         << " block " << kernel.block.x << " x " << kernel.block.y << " x " << kernel.block.z
         << " shared " << kernel.shared_bytes;
  }
  void copy_details(const CopyCommand& copy) {
    out_ << "\\n"
         << (!copy.on_device                              ? "HtoH"
             : copy.kind == device::WorkKind::kCopyIn     ? "HtoD"
             : copy.kind == device::WorkKind::kCopyInside ? "DtoD"
                                                          : "DtoH");
    if (!asked(CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS)) return;
    out_ << "\\n"
         << copy.from << " to " << copy.to << "\\n"
         << copy.width << " x " << copy.height << " x " << copy.depth;
  }

  const unsigned flags_;
  std::ostringstream out_;
};

}  // namespace

CUresult graph_dot_write(const Graph& graph, const char* path, unsigned flags) {
  std::ofstream file(path);
  file << Dot(flags).text(graph);
  file.close();
  return file.good() ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace softgpu::driver

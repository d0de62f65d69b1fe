// What nodes tell of themselves, in the structures of the driver API; see graph_nodes.h. Nodes of
// captures answer like those built by hand: from their commands.
#include "softgpu/driver/graph_nodes.h"
#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

struct Side3D {
  CUmemorytype& type;
  const void*& host;
  CUdeviceptr& device;
  std::size_t& pitch;
  std::size_t& height;
};

/// One side of a copy whose description is not known any more.
void side_tell(const std::byte* p, std::size_t pitch, std::size_t plane, Side3D side) {
  const DormantVisible visible;
  const auto allocation = MemoryMap::get().find(address_of(p));
  const bool device = allocation && allocation->on_device();
  side.type = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  if (device)
    side.device = address_of(p);
  else
    side.host = p;
  side.pitch = pitch;
  side.height = pitch == 0 ? 0 : plane / pitch;
}

CUstreamBatchMemOpParams word_tell(const Word& word) {
  CUstreamBatchMemOpParams p{};
  const bool wide = word.bytes == 8;
  if (word.wait) {
    p.waitValue.operation = wide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
    p.waitValue.address = word.address;
    p.waitValue.value64 = word.value;
    p.waitValue.flags = word.flags;
  } else {
    p.writeValue.operation =
        wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    p.writeValue.address = word.address;
    p.writeValue.value64 = word.value;
    p.writeValue.flags = word.flags;
  }
  return p;
}

}  // namespace

void node_tell(Node& node, CUDA_KERNEL_NODE_PARAMS_v2& p) {
  auto& c = std::get<KernelCommand>(node.command);
  p = {};
  if (c.kernel != nullptr)
    p.kern = c.kernel;
  else
    p.func = c.function->handle();
  p.ctx = c.module->owner().handle();
  p.gridDimX = c.grid.x;
  p.gridDimY = c.grid.y;
  p.gridDimZ = c.grid.z;
  p.blockDimX = c.block.x;
  p.blockDimY = c.block.y;
  p.blockDimZ = c.block.z;
  p.sharedMemBytes = c.shared_bytes;
  if (node.detail.packed) {
    node.argument_bytes = c.params.size();
    node.extra = {CU_LAUNCH_PARAM_BUFFER_POINTER, c.params.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                  &node.argument_bytes, CU_LAUNCH_PARAM_END};
    p.extra = node.extra.data();
    return;
  }
  node.arguments.clear();
  for (const auto& param : c.function->info().params)
    node.arguments.push_back(c.params.data() + param.offset);
  p.kernelParams = node.arguments.empty() ? nullptr : node.arguments.data();
}

void node_tell(const Node& node, CUDA_MEMCPY3D& p) {
  if (node.detail.copy) {
    p = *node.detail.copy;
    return;
  }
  const auto& c = std::get<CopyCommand>(node.command);
  p = {};
  p.WidthInBytes = c.width;
  p.Height = c.height;
  p.Depth = c.depth;
  const std::byte* from = c.staged != nullptr ? c.staged->data() : c.from;
  side_tell(from, c.from_pitch, c.from_plane,
            {p.srcMemoryType, p.srcHost, p.srcDevice, p.srcPitch, p.srcHeight});
  const void* host = nullptr;
  side_tell(c.to, c.to_pitch, c.to_plane,
            {p.dstMemoryType, host, p.dstDevice, p.dstPitch, p.dstHeight});
  p.dstHost = const_cast<void*>(host);
}

void node_tell(const Node& node, CUDA_MEMSET_NODE_PARAMS& p) {
  const auto& c = std::get<SetCommand>(node.command);
  p = {address_of(c.to), c.pitch, c.value, c.element, c.width, c.height};
}

void node_tell(Node& node, CUDA_BATCH_MEM_OP_NODE_PARAMS& p) {
  auto& operations = node.detail.operations;
  if (operations.empty())
    for (const Word& word : std::get<WordsCommand>(node.command).words)
      operations.push_back(word_tell(word));
  const ContextRef context = node.detail.context.lock();
  p = {context == nullptr ? nullptr : context->handle(), static_cast<unsigned>(operations.size()),
       operations.data(), 0};
}

}  // namespace softgpu::driver

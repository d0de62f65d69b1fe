// Memory nodes. An allocation of a graph has its address from the moment the node is made; physical
// memory is behind it from an upload or launch on, taken from what the device keeps for graphs, and
// stays until it is trimmed or the graph is gone. Whether it may be launched, freed or trimmed is
// decided in the order of the host's calls.
#pragma once

#include "softgpu/driver/stream.h"

namespace softgpu::driver {

class GraphPool;

class GraphAllocation {
 public:
  /// Reserves the address. OUT_OF_MEMORY: the address space is full.
  static CUresult create(const CUDA_MEM_ALLOC_NODE_PARAMS& params,
                         std::shared_ptr<GraphAllocation>& allocation);
  /// The one that begins at `address`; nullptr: there is none.
  static std::shared_ptr<GraphAllocation> find(CUdeviceptr address);
  ~GraphAllocation();

  CUDA_MEM_ALLOC_NODE_PARAMS params() const;
  CUdeviceptr address() const { return address_; }
  /// Streams may be told to use it although it is not held: a capture is being made of that.
  void show(bool visible);

  // Said of the graph, not of its launches; graphs are not synchronised inside.
  std::uint64_t owner = 0;      // the id of the graph with the allocation node
  bool freed_by_owner = false;  // it has the free node, too
  bool freed_by_other = false;  // another graph has it

 private:
  friend class GraphPool;
  friend class GraphMemoryUse;
  explicit GraphAllocation(GraphPool& pool) : pool_(pool) {}
  GraphPool& pool_;
  CUDA_MEM_ALLOC_NODE_PARAMS params_{};
  std::vector<CUmemAccessDesc> access_;
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;  // whole pages of the pool
  // Guarded by the pool.
  bool backed_ = false;     // physical memory is behind the address
  bool held_ = false;       // launched, and nobody has freed it
  unsigned scheduled_ = 0;  // launches and frees that have not executed
};
using GraphAllocationRef = std::shared_ptr<GraphAllocation>;

/// Physical memory of one device for graphs.
class GraphPool {
 public:
  static GraphPool& of(Gpu& gpu);
  /// Gives back what no launch in flight and no unfreed allocation needs.
  void trim();
  CUresult attribute_get(CUgraphMem_attribute attribute, std::uint64_t& value);
  /// Only the high watermarks, and only to zero.
  CUresult attribute_reset(CUgraphMem_attribute attribute);
  Gpu& gpu() { return gpu_; }

 private:
  friend class GraphAllocation;
  friend class GraphMemoryUse;
  explicit GraphPool(Gpu& gpu) : gpu_(gpu) {}
  CUresult back_locked(GraphAllocation& allocation);
  void strip_locked(GraphAllocation& allocation);
  bool take_locked(std::size_t bytes);
  void trim_locked();

  Gpu& gpu_;
  std::mutex mutex_;
  std::set<GraphAllocation*> allocations_;
  // Bytes: behind some address, charged to the device (with those that are behind none), the most.
  std::uint64_t used_ = 0, reserved_ = 0, used_high_ = 0, reserved_high_ = 0;
};

/// What the launches of one instance do to memory.
class GraphMemoryUse {
 public:
  std::vector<GraphAllocationRef> allocated;  // by its allocation nodes
  std::vector<GraphAllocationRef> freed;      // by its free nodes, of other graphs' allocations
  // Of its own by its own: those that its graph had when it was instantiated.
  std::set<const GraphAllocation*> freed_within;
  bool free_on_launch = false;  // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH

  bool empty() const { return allocated.empty() && freed.empty(); }
  /// Puts physical memory behind all that is allocated. All of it or nothing new.
  CUresult upload() const;
  /// At the call that launches. INVALID_VALUE: something is still allocated, or not to be freed.
  CUresult launch_begin() const;
  /// When the launch has executed.
  void launch_end() const;
  /// A capture that allocated is over: what it made is for the nodes of graphs only.
  void capture_over() const;

  /// Outside graphs, at the call and when it has executed. INVALID_VALUE: it is not held.
  static CUresult free_begin(CUdeviceptr address, GraphAllocationRef& allocation);
  static void free_end(const GraphAllocationRef& allocation);
};

/// cuMemFreeAsync and cuMemFree of an allocation that a graph has made.
CUresult graph_memory_free(CUdeviceptr address, const StreamRef& stream);
CUresult graph_memory_free(CUdeviceptr address, const ContextRef& context);

/// cuMemAllocAsync, from whichever pool, and cuMemFreeAsync in a stream that captures. The memory
/// is on the pool's device.
CUresult graph_memory_capture(const StreamRef& stream, const Gpu& gpu, std::size_t bytes,
                              CUdeviceptr& address);
CUresult graph_memory_capture_free(const StreamRef& stream, CUdeviceptr address);

}  // namespace softgpu::driver

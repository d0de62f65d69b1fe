// See graph_memory.h. The rules are those of cuda.h (cuGraphAddMemAllocNode, cuGraphLaunch) and of
// the programming guide, "Graph memory nodes".
#include "softgpu/driver/graph_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/memory_strict.h"

namespace softgpu::driver {
namespace {

constexpr std::size_t kDevicePage = 2u << 20;

struct Addresses {
  std::mutex mutex;
  std::map<CUdeviceptr, std::weak_ptr<GraphAllocation>> known;
  // Launched and not freed: they outlive their graph.
  std::map<CUdeviceptr, GraphAllocationRef> held;
};

Addresses& addresses() {
  static auto* addresses = new Addresses;  // never destroyed: graphs may go at exit
  return *addresses;
}

void held_keep(const GraphAllocationRef& allocation) {
  const std::lock_guard lock(addresses().mutex);
  addresses().held[allocation->address()] = allocation;
}

/// What is returned is to be dropped outside all locks: it may be the last reference.
GraphAllocationRef held_drop(CUdeviceptr address) {
  const std::lock_guard lock(addresses().mutex);
  const auto found = addresses().held.find(address);
  if (found == addresses().held.end()) return nullptr;
  GraphAllocationRef allocation = std::move(found->second);
  addresses().held.erase(found);
  return allocation;
}

bool mapped(CUdeviceptr address, std::size_t bytes, int protection) {
  return mmap(reinterpret_cast<void*>(address), bytes, protection,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace

CUresult GraphAllocation::create(const CUDA_MEM_ALLOC_NODE_PARAMS& params,
                                 GraphAllocationRef& allocation) {
  Gpu* gpu = Process::get().gpu(params.poolProps.location.id);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  allocation = GraphAllocationRef(new GraphAllocation(GraphPool::of(*gpu)));
  GraphAllocation& made = *allocation;
  const std::size_t bytes = (params.bytesize + kDevicePage - 1) / kDevicePage * kDevicePage;
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  made.bytes_ = bytes;
  made.address_ = address_of(p);
  made.params_ = params;
  made.params_.dptr = made.address_;
  if (params.accessDescCount > 0)
    made.access_.assign(params.accessDescs, params.accessDescs + params.accessDescCount);
  made.params_.accessDescs = made.access_.empty() ? nullptr : made.access_.data();
  Allocation entry;
  entry.base = made.address_;
  entry.size = params.bytesize;
  entry.kind = MemoryKind::kGraph;
  entry.gpu = gpu;
  entry.dormant = true;
  MemoryMap::get().add(entry);
  {
    const std::lock_guard lock(made.pool_.mutex_);
    made.pool_.allocations_.insert(&made);
  }
  const std::lock_guard lock(addresses().mutex);
  addresses().known[made.address_] = allocation;
  return CUDA_SUCCESS;
}

GraphAllocation::~GraphAllocation() {
  if (address_ == 0) return;
  {
    const std::lock_guard lock(addresses().mutex);
    addresses().known.erase(address_);
  }
  {
    const std::lock_guard lock(pool_.mutex_);
    pool_.allocations_.erase(this);
    if (backed_) pool_.used_ -= bytes_;  // kept by the pool until it is trimmed
  }
  MemoryMap::get().take(address_);
  munmap(reinterpret_cast<void*>(address_), bytes_);
}

GraphAllocationRef GraphAllocation::find(CUdeviceptr address) {
  const std::lock_guard lock(addresses().mutex);
  const auto found = addresses().known.find(address);
  return found == addresses().known.end() ? nullptr : found->second.lock();
}

CUDA_MEM_ALLOC_NODE_PARAMS GraphAllocation::params() const { return params_; }

void GraphAllocation::show(bool visible) {
  MemoryMap::get().change(address_, [&](Allocation& entry) { entry.dormant = !visible; });
}

GraphPool& GraphPool::of(Gpu& gpu) {
  static std::mutex mutex;
  static auto* pools = new std::map<const Gpu*, std::unique_ptr<GraphPool>>;
  const std::lock_guard lock(mutex);
  auto& pool = (*pools)[&gpu];
  if (pool == nullptr) pool.reset(new GraphPool(gpu));
  return *pool;
}

/// Makes room for so many bytes behind addresses: what lies idle first, then the device's.
bool GraphPool::take_locked(std::size_t bytes) {
  if (used_ + bytes > reserved_) {
    const std::uint64_t missing = used_ + bytes - reserved_;
    if (!gpu_.client_need() || !gpu_.model.memory_take(gpu_.client, missing)) return false;
    reserved_ += missing;
    reserved_high_ = std::max(reserved_high_, reserved_);
  }
  used_ += bytes;
  used_high_ = std::max(used_high_, used_);
  return true;
}

CUresult GraphPool::back_locked(GraphAllocation& allocation) {
  if (allocation.backed_) return CUDA_SUCCESS;
  if (!take_locked(allocation.bytes_)) {
    trim_locked();
    if (!take_locked(allocation.bytes_)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  allocation.backed_ =
      mapped(allocation.address_, allocation.bytes_, kAccess) &&
      strict_close(reinterpret_cast<void*>(allocation.address_), allocation.bytes_, kAccess);
  if (allocation.backed_) return CUDA_SUCCESS;
  used_ -= allocation.bytes_;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

void GraphPool::strip_locked(GraphAllocation& allocation) {
  if (!allocation.backed_ || !mapped(allocation.address_, allocation.bytes_, PROT_NONE)) return;
  allocation.backed_ = false;
  used_ -= allocation.bytes_;
}

void GraphPool::trim_locked() {
  for (GraphAllocation* allocation : allocations_)
    if (!allocation->held_ && allocation->scheduled_ == 0) strip_locked(*allocation);
  gpu_.model.memory_give(gpu_.client, reserved_ - used_);
  reserved_ = used_;
}

void GraphPool::trim() {
  const std::lock_guard lock(mutex_);
  if (reserved_ > 0) trim_locked();
}

CUresult GraphPool::attribute_get(CUgraphMem_attribute attribute, std::uint64_t& value) {
  const std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      value = used_;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      value = used_high_;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      value = reserved_;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      value = reserved_high_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult GraphPool::attribute_reset(CUgraphMem_attribute attribute) {
  const std::lock_guard lock(mutex_);
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
    used_high_ = used_;
  else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    reserved_high_ = reserved_;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult GraphMemoryUse::upload() const {
  for (const GraphAllocationRef& allocation : allocated) {
    const std::lock_guard lock(allocation->pool_.mutex_);
    const CUresult result = allocation->pool_.back_locked(*allocation);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult GraphMemoryUse::launch_begin() const {
  const auto held = [](const GraphAllocationRef& allocation) {
    const std::lock_guard lock(allocation->pool_.mutex_);
    return allocation->held_;
  };
  if (!std::all_of(freed.begin(), freed.end(), held)) return CUDA_ERROR_INVALID_VALUE;
  if (!free_on_launch && std::any_of(allocated.begin(), allocated.end(), held))
    return CUDA_ERROR_INVALID_VALUE;
  // Counted before memory is looked for: what this launch has got already is not trimmed for it.
  const auto schedule = [&](bool begin) {
    for (const auto* list : {&allocated, &freed}) {
      for (const GraphAllocationRef& allocation : *list) {
        const std::lock_guard lock(allocation->pool_.mutex_);
        allocation->scheduled_ += begin ? 1U : ~0U;
      }
    }
  };
  schedule(true);
  if (const CUresult result = upload(); result != CUDA_SUCCESS) {
    schedule(false);
    return result;
  }
  for (const GraphAllocationRef& allocation : allocated) {
    const bool stays = !freed_within.contains(allocation.get());
    if (stays) held_keep(allocation);
    allocation->show(stays);
    const std::lock_guard lock(allocation->pool_.mutex_);
    allocation->held_ = stays;
  }
  for (const GraphAllocationRef& allocation : freed) {
    allocation->show(false);
    {
      const std::lock_guard lock(allocation->pool_.mutex_);
      allocation->held_ = false;
    }
    (void)held_drop(allocation->address());
  }
  return CUDA_SUCCESS;
}

void GraphMemoryUse::launch_end() const {
  for (const auto* list : {&allocated, &freed}) {
    for (const GraphAllocationRef& allocation : *list) {
      const std::lock_guard lock(allocation->pool_.mutex_);
      --allocation->scheduled_;
    }
  }
}

void GraphMemoryUse::capture_over() const {
  for (const GraphAllocationRef& allocation : allocated) {
    const std::lock_guard lock(allocation->pool_.mutex_);
    if (!allocation->held_) allocation->show(false);
  }
}

CUresult GraphMemoryUse::free_begin(CUdeviceptr address, GraphAllocationRef& allocation) {
  allocation = held_drop(address);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  allocation->show(false);
  const std::lock_guard lock(allocation->pool_.mutex_);
  allocation->held_ = false;
  ++allocation->scheduled_;
  return CUDA_SUCCESS;
}

void GraphMemoryUse::free_end(const GraphAllocationRef& allocation) {
  const std::lock_guard lock(allocation->pool_.mutex_);
  --allocation->scheduled_;
}

}  // namespace softgpu::driver

// See memory_managed.h.
#include "softgpu/driver/memory_managed.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

bool node_exists(int node) {
  const std::string path = "/sys/devices/system/node/node" + std::to_string(node);
  return node == 0 || (node > 0 && access(path.c_str(), F_OK) == 0);
}

}  // namespace

ManagedRanges& ManagedRanges::get() {
  static auto* ranges = new ManagedRanges;
  return *ranges;
}

void ManagedRanges::split_locked(std::uintptr_t at) {
  const auto next = spans_.upper_bound(at);
  if (next == spans_.begin()) return;
  const auto before = std::prev(next);
  if (before->first == at || before->second.end <= at) return;
  spans_[at] = before->second;
  before->second.end = at;
}

/// The spans of these pages, made where there are none, and cut at both ends.
std::pair<ManagedRanges::Spans::iterator, ManagedRanges::Spans::iterator>
ManagedRanges::cover_locked(std::uintptr_t at, std::size_t bytes) {
  const std::uintptr_t begin = at / kHostPage * kHostPage;
  const std::uintptr_t end = round_up(at + bytes, kHostPage);
  split_locked(begin);
  split_locked(end);
  std::uintptr_t reached = begin;
  for (auto span = spans_.lower_bound(begin); reached < end;) {
    const std::uintptr_t next = span == spans_.end() ? end : std::min(span->first, end);
    if (next > reached) span = spans_.emplace(reached, Span{next, {}}).first;
    reached = span->second.end;
    ++span;
  }
  return {spans_.lower_bound(begin), spans_.lower_bound(end)};
}

void ManagedRanges::change(std::uintptr_t at, std::size_t bytes,
                           const std::function<void(ManagedState&)>& how) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = cover_locked(at, bytes);
  for (auto span = first; span != last; ++span) how(span->second.state);
}

std::vector<ManagedState> ManagedRanges::states(std::uintptr_t at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = cover_locked(at, bytes);
  std::vector<ManagedState> result;
  for (auto span = first; span != last; ++span) result.push_back(span->second.state);
  return result;
}

void ManagedRanges::forget(std::uintptr_t at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = cover_locked(at, bytes);
  spans_.erase(first, last);
}

CUresult managed_check(CUdeviceptr address, std::size_t bytes) {
  const auto allocation = MemoryMap::get().find(address);
  if (!allocation || !allocation->is_managed() || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t inside = allocation->size - (address - allocation->base);
  if (bytes <= inside) return CUDA_SUCCESS;
  // Neighbours may be meant together, if all of them are managed.
  return managed_check(address + inside, bytes - inside);
}

CUresult location_resolve(CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return Process::get().gpu(location.id) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
      location.id = CU_DEVICE_CPU;
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return node_exists(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: {
      unsigned node = 0;
      getcpu(nullptr, &node);
      location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, static_cast<int>(node)};
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

int location_number(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

}  // namespace softgpu::driver

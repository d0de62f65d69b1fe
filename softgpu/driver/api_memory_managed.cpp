// Entry points: what programs tell about managed memory, and ask back. See memory_managed.h.
#include <algorithm>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory_managed.h"

using namespace softgpu::driver;

namespace {

CUmemLocation location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, CU_DEVICE_CPU};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

/// Advice that concerns a location: where it is valid, the location is resolved.
CUresult advice_location(CUmem_advise advice, CUmemLocation& location) {
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return location_resolve(location);
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
          location.type != CU_MEM_LOCATION_TYPE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
      return location_resolve(location);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

void advice_note(ManagedState& state, CUmem_advise advice, const CUmemLocation& location) {
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      state.read_mostly = true;
      break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      state.read_mostly = false;
      break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      state.preferred = location;
      break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      state.preferred = kNowhere;
      break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      state.accessed_by.insert(location_number(location));
      break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      state.accessed_by.erase(location_number(location));
      break;
  }
}

CUresult advise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice, CUmemLocation location,
                const char* name) {
  CUresult result = enter_any(name);
  if (result == CUDA_SUCCESS) result = advice_location(advice, location);
  if (result == CUDA_ERROR_INVALID_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = managed_check(address, bytes);
  if (result != CUDA_SUCCESS) return result;
  ManagedRanges::get().change(address, bytes,
                              [&](ManagedState& state) { advice_note(state, advice, location); });
  return CUDA_SUCCESS;
}

CUresult prefetch(CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                  CUstream stream_handle, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*stream, name);
  if (result == CUDA_SUCCESS) result = location_resolve(location);
  if (result == CUDA_SUCCESS) result = managed_check(address, bytes);
  if (result == CUDA_SUCCESS) result = command_submit(stream, EmptyCommand{});
  if (result != CUDA_SUCCESS) return result;
  ManagedRanges::get().change(address, bytes,
                              [&](ManagedState& state) { state.prefetched = location; });
  return CUDA_SUCCESS;
}

/// The ranges of a batch and the locations they go to; discards have none.
struct RangeBatch {
  const CUdeviceptr* addresses;
  const std::size_t* sizes;
  std::size_t count;
  const CUmemLocation* locations;
  const std::size_t* first;
  std::size_t locations_count;
};

/// Which location range `i` goes to; the list of first ranges is known to be right.
CUmemLocation location_at(const RangeBatch& b, std::size_t i) {
  const std::size_t* next = std::upper_bound(b.first, b.first + b.locations_count, i);
  return b.locations[next - b.first - 1];
}

CUresult batch_check(const RangeBatch& b, unsigned long long flags, CUstream stream,
                     const char* name) {
  ContextRef context;
  StreamRef found;
  CUresult result = enter(context, name);
  if (result == CUDA_SUCCESS) result = stream_find(stream, context, found);
  if (result == CUDA_SUCCESS) result = capture_stream_check(*found, name);
  if (result != CUDA_SUCCESS) return result;
  if (stream_is_legacy(stream) || flags != 0 || b.addresses == nullptr || b.sizes == nullptr ||
      b.count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < b.count; ++i)
    if (managed_check(b.addresses[i], b.sizes[i]) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult batch_prefetch(const RangeBatch& b, unsigned long long flags, CUstream stream,
                        const char* name) {
  CUresult result = batch_check(b, flags, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (b.locations == nullptr || !batch_indices_valid(b.first, b.locations_count, b.count))
    return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < b.locations_count; ++i) {
    CUmemLocation location = b.locations[i];
    result = location_resolve(location);
    if (result != CUDA_SUCCESS) return result;
  }
  for (std::size_t i = 0; i < b.count && result == CUDA_SUCCESS; ++i)
    result = prefetch(b.addresses[i], b.sizes[i], location_at(b, i), stream, name);
  return result;
}

/// `value` of all states, or `otherwise` where they differ.
template <typename Value>
auto common(const std::vector<ManagedState>& states, Value value,
            decltype(value(states[0])) otherwise) {
  const auto first = value(states[0]);
  const bool all = std::all_of(states.begin(), states.end(),
                               [&](const ManagedState& state) { return value(state) == first; });
  return all ? first : otherwise;
}

int location_answer(const std::vector<ManagedState>& states, CUmemLocation ManagedState::*which,
                    CUmem_range_attribute attribute) {
  const auto place = [&](const ManagedState& state) {
    return std::pair<int, int>((state.*which).type, (state.*which).id);
  };
  const auto [type, id] = common(states, place, {kNowhere.type, kNowhere.id});
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return type;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return id;
    default:
      return location_number({static_cast<CUmemLocationType>(type), id});
  }
}

/// The devices that all of the range is advised to be accessed by.
CUresult accessed_by_tell(const std::vector<ManagedState>& states, int* out, std::size_t count) {
  std::vector<int> devices;
  for (const int device : states[0].accessed_by) {
    if (std::all_of(states.begin(), states.end(),
                    [&](const ManagedState& s) { return s.accessed_by.count(device) != 0; }))
      devices.push_back(device);
  }
  for (std::size_t i = 0; i < count; ++i)
    out[i] = i < devices.size() ? devices[i] : CU_DEVICE_INVALID;
  return CUDA_SUCCESS;
}

CUresult attribute_tell(const std::vector<ManagedState>& states, void* out, std::size_t bytes,
                        CUmem_range_attribute attribute) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    if (bytes == 0 || bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
    return accessed_by_tell(states, static_cast<int*>(out), bytes / sizeof(int));
  }
  if (bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  int answer = 0;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      answer = common(
                   states, [](const ManagedState& s) { return s.read_mostly; }, false)
                   ? 1
                   : 0;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      answer = location_answer(states, &ManagedState::preferred, attribute);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      answer = location_answer(states, &ManagedState::prefetched, attribute);
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(out, &answer, sizeof answer);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemAdvise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice, CUdevice device) {
  return advise(address, bytes, advice, location_of(device), __func__);
}
CUresult cuMemAdvise_v2(CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                        CUmemLocation location) {
  return advise(address, bytes, advice, location, __func__);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUdevice device,
                            CUstream stream) {
  return prefetch(address, bytes, location_of(device), stream, __func__);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                               unsigned int flags, CUstream stream) {
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE
                    : prefetch(address, bytes, location, stream, __func__);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, std::size_t* sizes, std::size_t count,
                                 CUmemLocation* locations, std::size_t* first,
                                 std::size_t locations_count, unsigned long long flags,
                                 CUstream stream) {
  return batch_prefetch({addresses, sizes, count, locations, first, locations_count}, flags, stream,
                        __func__);
}

// What is discarded may have any contents afterwards: those it had before are among them.
CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, std::size_t* sizes, std::size_t count,
                                unsigned long long flags, CUstream stream_handle) {
  ContextRef context;
  CUresult result =
      batch_check({addresses, sizes, count, nullptr, nullptr, 0}, flags, stream_handle, __func__);
  if (result == CUDA_SUCCESS) result = context_find(nullptr, context);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  return result == CUDA_SUCCESS ? command_submit(stream, EmptyCommand{}) : result;
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, std::size_t* sizes,
                                           std::size_t count, CUmemLocation* locations,
                                           std::size_t* first, std::size_t locations_count,
                                           unsigned long long flags, CUstream stream) {
  return batch_prefetch({addresses, sizes, count, locations, first, locations_count}, flags, stream,
                        __func__);
}

CUresult cuMemRangeGetAttribute(void* out, std::size_t bytes, CUmem_range_attribute attribute,
                                CUdeviceptr address, std::size_t count) {
  return cuMemRangeGetAttributes(&out, &bytes, &attribute, 1, address, count);
}

CUresult cuMemRangeGetAttributes(void** out, std::size_t* sizes, CUmem_range_attribute* attributes,
                                 std::size_t attributes_count, CUdeviceptr address,
                                 std::size_t count) {
  CUresult result = enter_any();
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || sizes == nullptr || attributes == nullptr || attributes_count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  result = managed_check(address, count);
  if (result != CUDA_SUCCESS) return result;
  const std::vector<ManagedState> states = ManagedRanges::get().states(address, count);
  for (std::size_t i = 0; i < attributes_count && result == CUDA_SUCCESS; ++i)
    result = attribute_tell(states, out[i], sizes[i], attributes[i]);
  return result;
}

// Arrays and mipmapped arrays. Their size is the driver's to choose: reserve what the elements
// take, then settle to what cuArrayGetMemoryRequirements says, where the driver says it.
#include "interpose/account.h"
#include "interpose/account_uses.h"
#include "interpose/array_size.h"
#include "interpose/captures.h"
#include "interpose/gate.h"
#include "interpose/memory/device_pages.h"
#include "interpose/room.h"
#include "interpose/say.h"

using namespace sluice::interpose;

namespace {

// `requirements(&out, device)` asks the driver; `destroy()` undoes the creation.
template <class Handle, class Call, class Requirements, class Destroy>
CUresult create_once(RoomWait& wait, PagesReading& reading, Handle* handle, const ArrayShape& shape,
                     unsigned levels, RecordKind kind, Call call, Requirements requirements,
                     Destroy destroy) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  const int device = account.active() ? account.device() : -1;
  if (device < 0 || !array_takes_memory(shape.flags)) return call();
  PagedAllocation paged(device, array_bytes(shape, levels), PagedAllocation::Of::kArray);
  const uint64_t bytes = paged.asked();
  if (!reading.reserve(device, bytes)) {
    if (reading.comes_first()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult fault = context_fault(); fault != CUDA_SUCCESS) return fault;
    return charge_refuse(device, bytes);
  }
  const Handle before = *handle;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    charge_abort(device, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) wait.refused(device_gpu(device), bytes);
    return result;
  }
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  const bool told = requirements(&needs, device) == CUDA_SUCCESS && needs.size > 0;
  if (!paged.charge(told ? needs.size : array_bytes(shape, levels), reading)) {
    relaxed_call(destroy);
    *handle = before;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const uint64_t actual = paged.charged();
  const auto key = reinterpret_cast<uint64_t>(*handle);
  if (SLUICE_LIKELY(
          process.records.insert(Record{key, actual, this_thread->context, kind, device}))) {
    return result;
  }
  unrecorded_say("an array's record");
  relaxed_call(destroy);
  *handle = before;
  charge_release(device, actual);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call>
CUresult destroy_recorded(const void* array, RecordKind kind, Call call) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;
  if (!account.active()) return call();
  Record record;
  const bool known = process.records.remove(kind, reinterpret_cast<uint64_t>(array), &record);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) uses_object_end(array);
  if (!known) return result;
  if (result == CUDA_SUCCESS) {
    device_pages_release(record.device, record.bytes);
  } else {
    (void)process.records.insert(record);
  }
  return result;
}

template <class Handle, class Call, class Requirements, class Destroy>
CUresult create(Handle* handle, const ArrayShape& shape, unsigned levels, RecordKind kind,
                Call call, Requirements requirements, Destroy destroy) {
  const Handle before = *handle;
  PagesReading reading;
  const CUresult result = with_readings(reading, [&] {
    return with_room([&](RoomWait& wait) {
      return create_once(wait, reading, handle, shape, levels, kind, call, requirements, destroy);
    });
  });
  if (result != CUDA_SUCCESS || SLUICE_LIKELY(reading.within())) return result;
  const auto undo = [&] { return relaxed_call(destroy); };
  if (destroy_recorded(*handle, kind, undo) == CUDA_SUCCESS) *handle = before;
  reading.taken_back();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call>
CUresult create_array(CUarray* handle, const ArrayShape& shape, Call call) {
  return create(
      handle, shape, 1, RecordKind::kArray, call,
      [&](CUDA_ARRAY_MEMORY_REQUIREMENTS* out, int device) {
        return driver.cuArrayGetMemoryRequirements(out, *handle, device);
      },
      [&] { return driver.cuArrayDestroy(*handle); });
}

}  // namespace

SLUICE_HOOK CUresult cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArrayCreate_v2(handle, d);
  }
  return create_array(handle, ArrayShape{d->Width, d->Height, 0, d->Format, d->NumChannels, 0},
                      [&] { return driver.cuArrayCreate_v2(handle, d); });
}

SLUICE_HOOK CUresult cuArrayCreate(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR_v1* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArrayCreate(handle, d);
  }
  return create_array(handle, ArrayShape{d->Width, d->Height, 0, d->Format, d->NumChannels, 0},
                      [&] { return driver.cuArrayCreate(handle, d); });
}

SLUICE_HOOK CUresult cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArray3DCreate_v2(handle, d);
  }
  return create_array(
      handle, ArrayShape{d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags},
      [&] { return driver.cuArray3DCreate_v2(handle, d); });
}

SLUICE_HOOK CUresult cuArray3DCreate(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR_v1* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArray3DCreate(handle, d);
  }
  return create_array(
      handle, ArrayShape{d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags},
      [&] { return driver.cuArray3DCreate(handle, d); });
}

SLUICE_HOOK CUresult cuArrayDestroy(CUarray handle) {
  return destroy_recorded(handle, RecordKind::kArray,
                          [&] { return driver.cuArrayDestroy(handle); });
}

SLUICE_HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray* handle,
                                            const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned int levels) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuMipmappedArrayCreate(handle, d, levels);
  }
  return create(
      handle, {d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags}, levels,
      RecordKind::kMipmap, [&] { return driver.cuMipmappedArrayCreate(handle, d, levels); },
      [&](CUDA_ARRAY_MEMORY_REQUIREMENTS* out, int device) {
        return driver.cuMipmappedArrayGetMemoryRequirements(out, *handle, device);
      },
      [&] { return driver.cuMipmappedArrayDestroy(*handle); });
}

SLUICE_HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return destroy_recorded(handle, RecordKind::kMipmap,
                          [&] { return driver.cuMipmappedArrayDestroy(handle); });
}

// Arrays and mipmapped arrays. Their size is the driver's to choose: reserve what the elements
// take, then settle to what cuArrayGetMemoryRequirements says, where the driver says it.
#include "interpose/account.h"
#include "interpose/gate.h"

using namespace sluice::interpose;

namespace {

uint64_t format_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    default:
      return 4;
  }
}

uint64_t elements_bytes(uint64_t width, uint64_t height, uint64_t depth, CUarray_format format,
                        uint64_t channels) {
  return width * (height > 0 ? height : 1) * (depth > 0 ? depth : 1) * format_bytes(format) *
         (channels > 0 ? channels : 1);
}

// `requirements(&out, device)` asks the driver; `destroy()` undoes the creation.
template <class Handle, class Call, class Requirements, class Destroy>
CUresult create(Handle* handle, uint64_t bytes, RecordKind kind, Call call,
                Requirements requirements, Destroy destroy) {
  const AccountScope account;
  if (SLUICE_UNLIKELY(account.denied())) return CUDA_ERROR_NOT_PERMITTED;
  const int device = account.active() ? account.device() : -1;
  if (device < 0) return call();
  if (this_thread->gpu >= 0) hold_wait(this_thread->gpu);
  if (!charge_reserve(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const Handle before = *handle;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    charge_abort(device, bytes);
    return result;
  }
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  const uint64_t actual =
      requirements(&needs, device) == CUDA_SUCCESS && needs.size > 0 ? needs.size : bytes;
  if (!charge_settle(device, bytes, actual)) {
    destroy();
    *handle = before;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const auto key = reinterpret_cast<uint64_t>(*handle);
  (void)process.records.insert(Record{key, actual, this_thread->context, kind, device});
  return result;
}

template <class Call>
CUresult create_array(CUarray* handle, uint64_t bytes, Call call) {
  return create(
      handle, bytes, RecordKind::kArray, call,
      [&](CUDA_ARRAY_MEMORY_REQUIREMENTS* out, int device) {
        return driver.cuArrayGetMemoryRequirements(out, *handle, device);
      },
      [&] { driver.cuArrayDestroy(*handle); });
}

template <class Call>
CUresult destroy_recorded(uint64_t key, RecordKind kind, Call call) {
  const AccountScope account;
  if (!account.active()) return call();
  Record record;
  const bool known = process.records.remove(kind, key, &record);
  const CUresult result = call();
  if (!known) return result;
  if (result == CUDA_SUCCESS) {
    charge_release(record.device, record.bytes);
  } else {
    (void)process.records.insert(record);
  }
  return result;
}

}  // namespace

SLUICE_HOOK CUresult cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArrayCreate_v2(handle, d);
  }
  return create_array(handle, elements_bytes(d->Width, d->Height, 1, d->Format, d->NumChannels),
                      [&] { return driver.cuArrayCreate_v2(handle, d); });
}

SLUICE_HOOK CUresult cuArrayCreate(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR_v1* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArrayCreate(handle, d);
  }
  return create_array(handle, elements_bytes(d->Width, d->Height, 1, d->Format, d->NumChannels),
                      [&] { return driver.cuArrayCreate(handle, d); });
}

SLUICE_HOOK CUresult cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArray3DCreate_v2(handle, d);
  }
  return create_array(handle,
                      elements_bytes(d->Width, d->Height, d->Depth, d->Format, d->NumChannels),
                      [&] { return driver.cuArray3DCreate_v2(handle, d); });
}

SLUICE_HOOK CUresult cuArray3DCreate(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR_v1* d) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuArray3DCreate(handle, d);
  }
  return create_array(handle,
                      elements_bytes(d->Width, d->Height, d->Depth, d->Format, d->NumChannels),
                      [&] { return driver.cuArray3DCreate(handle, d); });
}

SLUICE_HOOK CUresult cuArrayDestroy(CUarray handle) {
  return destroy_recorded(reinterpret_cast<uint64_t>(handle), RecordKind::kArray,
                          [&] { return driver.cuArrayDestroy(handle); });
}

SLUICE_HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray* handle,
                                            const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned int levels) {
  if (d == nullptr || handle == nullptr) {
    process_enter();
    return driver.cuMipmappedArrayCreate(handle, d, levels);
  }
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels && level < 32; ++level) {
    const uint64_t width = d->Width >> level, height = d->Height >> level,
                   depth = d->Depth >> level;
    bytes += elements_bytes(width > 0 ? width : 1, height, depth, d->Format, d->NumChannels);
  }
  return create(
      handle, bytes, RecordKind::kMipmap,
      [&] { return driver.cuMipmappedArrayCreate(handle, d, levels); },
      [&](CUDA_ARRAY_MEMORY_REQUIREMENTS* out, int device) {
        return driver.cuMipmappedArrayGetMemoryRequirements(out, *handle, device);
      },
      [&] { driver.cuMipmappedArrayDestroy(*handle); });
}

SLUICE_HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return destroy_recorded(reinterpret_cast<uint64_t>(handle), RecordKind::kMipmap,
                          [&] { return driver.cuMipmappedArrayDestroy(handle); });
}

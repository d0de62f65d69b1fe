// See copy.h. When a call waits is what the driver API manual says under "API synchronization
// behavior"; what is left open there ("might be synchronous") waits when the memory is pageable and
// more than a command can carry.
#include "softgpu/driver/copy.h"

#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/memory.h"

namespace softgpu::driver {
namespace {

/// Pageable sources up to this size are copied when the call is made, larger ones are waited for.
constexpr std::size_t kStagedMax = 64 * 1024;
/// CU_DEVICE_ATTRIBUTE_MAX_PITCH.
constexpr std::size_t kPitchMax = 2147483647;

/// The fields of one side of a 2-D or 3-D description.
struct EndFields {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  std::size_t x, y, z, pitch, height;
};

std::size_t extent(const CopyCommand& c, std::size_t pitch, std::size_t plane) {
  return c.width + (c.height - 1) * pitch + (c.depth - 1) * plane;
}

CUresult end_resolve(const EndFields& f, const CopyBox& box, CopyEnd& end) {
  switch (f.type) {
    case CU_MEMORYTYPE_HOST:
      end.p = static_cast<std::byte*>(const_cast<void*>(f.host));
      end.side = Side::kHost;
      break;
    case CU_MEMORYTYPE_DEVICE:
      end.p = reinterpret_cast<std::byte*>(f.device);
      end.side = Side::kDevice;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      end.p = reinterpret_cast<std::byte*>(f.device);
      break;
    case CU_MEMORYTYPE_ARRAY:
      end.side = Side::kDevice;
      return array_place({f.array, f.x, f.y, f.z}, box.width, box.height, box.depth, end.p,
                         end.pitch, end.plane);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (f.pitch > kPitchMax || (f.pitch != 0 && f.pitch < f.x + box.width) ||
      (f.height != 0 && f.height < f.y + box.height))
    return CUDA_ERROR_INVALID_VALUE;
  end.pitch = f.pitch != 0 ? f.pitch : f.x + box.width;
  end.plane = end.pitch * (f.height != 0 ? f.height : f.y + box.height);
  if (end.p != nullptr) end.p += f.z * end.plane + f.y * end.pitch + f.x;
  return CUDA_SUCCESS;
}

/// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name these fields alike.
template <typename D>
CUresult describe(const D& d, CopyRequest& request) {
  if (d.srcLOD != 0 || d.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  const CopyBox box{d.WidthInBytes, d.Height, d.Depth};
  CopyEnd from, to;
  CUresult result = end_resolve({d.srcMemoryType, d.srcHost, d.srcDevice, d.srcArray, d.srcXInBytes,
                                 d.srcY, d.srcZ, d.srcPitch, d.srcHeight},
                                box, from);
  if (result == CUDA_SUCCESS)
    result = end_resolve({d.dstMemoryType, d.dstHost, d.dstDevice, d.dstArray, d.dstXInBytes,
                          d.dstY, d.dstZ, d.dstPitch, d.dstHeight},
                         box, to);
  if (result != CUDA_SUCCESS) return result;
  copy_between(from, to, box, request);
  return CUDA_SUCCESS;
}

/// What one side of a copy turned out to be.
struct SideKind {
  bool device = false, pageable = false, managed = false, sync_memops = false;
  const Gpu* gpu = nullptr;
};

/// False: it must be device memory and is not, or it leaves the allocation it begins in.
bool classify(const std::byte* p, std::size_t bytes, Side side, CUmemAccess_flags need,
              SideKind& kind) {
  const auto allocation = MemoryMap::get().find(address_of(p));
  kind.pageable = !allocation;
  if (!allocation) return side != Side::kDevice;
  kind.device = allocation->on_device();
  kind.managed = allocation->is_managed();
  kind.sync_memops = allocation->sync_memops;
  kind.gpu = allocation->gpu;
  return side == Side::kHost || MemoryMap::get().covers(address_of(p), bytes, need);
}

/// Fills in which engine the copy takes.
CUresult place_ends(CopyRequest& request, SideKind& from, SideKind& to) {
  CopyCommand& c = request.copy;
  if (c.to == nullptr || c.from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!classify(c.from, extent(c, c.from_pitch, c.from_plane), request.from,
                CU_MEM_ACCESS_FLAGS_PROT_READ, from) ||
      !classify(c.to, extent(c, c.to_pitch, c.to_plane), request.to,
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE, to))
    return CUDA_ERROR_INVALID_VALUE;
  c.on_device = from.device || to.device;
  const bool inside = from.device && to.device && from.gpu == to.gpu;
  c.kind = inside                      ? device::WorkKind::kCopyInside
           : to.device && !from.device ? device::WorkKind::kCopyIn
                                       : device::WorkKind::kCopyOut;
  return CUDA_SUCCESS;
}

bool empty(const CopyCommand& c) { return c.width == 0 || c.height == 0 || c.depth == 0; }

/// Whether the host waits for the copy's end.
bool host_waits(const CopyRequest& request, const SideKind& from, const SideKind& to) {
  if (!from.device && !to.device) return true;  // host to host is synchronous in every form
  if (!request.wait) return request.take_source && from.device;
  if (from.managed || to.managed || from.sync_memops || to.sync_memops) return true;
  return !(from.device && to.device);
}

}  // namespace

void copy_between(const CopyEnd& from, const CopyEnd& to, const CopyBox& box,
                  CopyRequest& request) {
  CopyCommand& c = request.copy;
  c.from = from.p;
  c.to = to.p;
  c.from_pitch = from.pitch;
  c.to_pitch = to.pitch;
  c.from_plane = from.plane;
  c.to_plane = to.plane;
  c.width = box.width;
  c.height = box.height;
  c.depth = box.depth;
  request.from = from.side;
  request.to = to.side;
}

CUresult array_place(const ArrayPlace& place, std::size_t width, std::size_t height,
                     std::size_t depth, std::byte*& p, std::size_t& pitch, std::size_t& plane) {
  ArrayRef array;
  const CUresult result = Array::find(place.array, array);
  if (result != CUDA_SUCCESS) return result;
  const std::size_t element = array->element().bytes;  // 0: planar, to be copied plane by plane
  const std::uintptr_t base = array->address;
  if (base == 0 || element == 0) return CUDA_ERROR_INVALID_VALUE;
  pitch = array->row_bytes();
  plane = pitch * array->rows();
  const auto inside = [](std::size_t at, std::size_t length, std::size_t size) {
    return at <= size && length <= size - at;
  };
  if (!inside(place.x, width, pitch) || !inside(place.y, height, array->rows()) ||
      !inside(place.z, depth, array->slices()))
    return CUDA_ERROR_INVALID_VALUE;
  p = reinterpret_cast<std::byte*>(base) + place.z * plane + place.y * pitch + place.x;
  return CUDA_SUCCESS;
}

CUresult copy_describe(const CUDA_MEMCPY3D& description, CopyRequest& request) {
  return describe(description, request);
}

CUresult copy_describe(const CUDA_MEMCPY3D_PEER& description, CopyRequest& request) {
  return describe(description, request);
}

CUresult copy_describe(const CUDA_MEMCPY3D& description, CopyCommand& command) {
  CopyRequest request;
  CUresult result = describe(description, request);
  if (result == CUDA_SUCCESS) result = copy_check(request);
  if (result == CUDA_SUCCESS) command = std::move(request.copy);
  return result;
}

CUresult copy_check(CopyRequest& request) {
  SideKind from, to;
  return empty(request.copy) ? CUDA_SUCCESS : place_ends(request, from, to);
}

CUresult copy_submit(CopyRequest request, CUstream stream_handle, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  CopyCommand& copy = request.copy;
  if (empty(copy)) return CUDA_SUCCESS;
  SideKind from, to;
  result = place_ends(request, from, to);
  if (result != CUDA_SUCCESS) return result;
  bool wait = host_waits(request, from, to);
  const std::size_t bytes = extent(copy, copy.from_pitch, copy.from_plane);
  if (!wait && !capture_has(*stream)) {
    const bool stage = to.device && !from.device &&
                       (request.take_source || (from.pageable && bytes <= kStagedMax));
    if (stage)
      copy.staged = std::make_shared<std::vector<std::byte>>(copy.from, copy.from + bytes);
    else
      wait = from.pageable || to.pageable;
  }
  OpRef op;
  result = command_submit(stream, std::move(copy), &op);
  if (result != CUDA_SUCCESS || !wait) return result;
  result = Stream::wait(op);
  context->print_flush();
  return result;
}

bool stream_is_legacy(CUstream stream) {
  return stream == CU_STREAM_LEGACY || (stream == nullptr && !thread_state().per_thread_default);
}

bool batch_indices_valid(const std::size_t* first, std::size_t n, std::size_t count) {
  if (first == nullptr || n == 0 || n > count || first[0] != 0) return false;
  for (std::size_t i = 1; i < n; ++i)
    if (first[i] <= first[i - 1] || first[i] >= count) return false;
  return true;
}

void context_idle(const ContextRef& context) {
  if (context == nullptr) return;
  std::vector<StreamRef> streams;
  {
    const std::lock_guard lock(context->order);
    streams = context->streams;
    streams.push_back(context->legacy);
  }
  for (const StreamRef& stream : streams)
    if (stream != nullptr) (void)Stream::wait(stream->last());
}

}  // namespace softgpu::driver

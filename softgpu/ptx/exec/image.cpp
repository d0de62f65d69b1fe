// Surfaces: PTX ISA, sections 9.7.11 (suld, sust). See image.h.
#include "softgpu/ptx/exec/image.h"

#include <algorithm>
#include <cstring>

namespace softgpu::ptx {
namespace {

template <class T>
T* row(const Warp& w, s32 offset) {
  return reinterpret_cast<T*>(w.rf + offset);
}

/// Where a lane's access is; nullptr: outside, and left out.
std::byte* place(const Warp& w, const Inst* i, const Image& image, int l) {
  const ImageSite& site = image_site(i);
  const s64 bytes = s64{i->bytes} * site.values;
  // The first coordinate counts bytes, the others rows and slices.
  s64 at[3] = {}, last[3] = {};
  last[0] = s64{image.extent[0]} * image.texel_bytes - bytes;
  for (std::size_t k = 1; k < 3; ++k) last[k] = s64{image.extent[k]} - 1;
  for (int k = 0; k < site.coordinates; ++k) at[k] = row<s32>(w, site.c[k])[l];
  if (site.layered) {
    at[2] = row<u32>(w, site.layer)[l];
    last[2] = s64{image.layers} - 1;
  }
  for (std::size_t k = 0; k < 3; ++k) {
    if (at[k] >= 0 && at[k] <= last[k]) continue;
    if (static_cast<SurfaceOutside>(i->mode) == SurfaceOutside::kTrap)
      fault_raise(Fault::kTrap, static_cast<u64>(at[k]));
    if (static_cast<SurfaceOutside>(i->mode) == SurfaceOutside::kZero || last[k] < 0)
      return nullptr;
    at[k] = std::clamp<s64>(at[k], 0, last[k]);
  }
  if (at[0] % bytes != 0) fault_raise(Fault::kMisaligned, static_cast<u64>(at[0]));
  return const_cast<std::byte*>(image.base) + static_cast<u64>(at[2]) * image.slice_bytes +
         static_cast<u64>(at[1]) * image.row_bytes + at[0];
}

template <class Access>
const Inst* each_place(Warp& w, const Inst* i, Access access) {
  w.at = i;
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const Image& image = image_found(w, row<u64>(w, i->a)[l], true);
    std::byte* at = place(w, i, image, l);
    for (int k = 0; k < image_site(i).values; ++k) {
      std::byte* value = row<std::byte>(w, image_site(i).d[k]) + l * i->flags;
      access(at == nullptr ? nullptr : at + k * i->bytes, value);
    }
  }
  return i + 1;
}

}  // namespace

const Image& image_found(Warp& w, u64 handle, bool surface) {
  const Image* image = w.cta->host->image(handle);
  if (image != nullptr && image->surface == surface) return *image;
  fault_text_keep(std::string("no such ") + (surface ? "surface" : "texture") + " object");
  fault_raise(Fault::kIllegalAddress, handle);
}

const Inst* run_surface_load(Warp& w, const Inst* i) {
  return each_place(w, i, [i](const std::byte* at, std::byte* value) {
    std::memset(value, 0, i->flags);
    if (at != nullptr) std::memcpy(value, at, i->bytes);
  });
}

const Inst* run_surface_store(Warp& w, const Inst* i) {
  return each_place(w, i, [i](std::byte* at, const std::byte* value) {
    if (at != nullptr) std::memcpy(at, value, i->bytes);
  });
}

}  // namespace softgpu::ptx

// Accesses to textures and surfaces. Both find the object behind a handle and an ImageSite with the
// rows they work on; what they then do lane by lane has a file each.
#pragma once

#include "softgpu/ptx/exec/warp.h"

namespace softgpu::ptx {

/// Inst::mode of a surface access: what a coordinate outside the image means.
enum class SurfaceOutside : u8 { kTrap, kClamp, kZero };

/// imm: the ImageSite; a: row of handles. Surfaces: mode: SurfaceOutside, bytes: of an element,
/// flags: bytes per lane of the rows of values.
const Inst* run_texture(Warp& w, const Inst* i);
const Inst* run_surface_load(Warp& w, const Inst* i);
const Inst* run_surface_store(Warp& w, const Inst* i);

inline const ImageSite& image_site(const Inst* i) {
  return *reinterpret_cast<const ImageSite*>(i->imm);
}
/// The object behind a handle. Ends the launch when the context has none like it: on hardware the
/// outcome is open.
const Image& image_found(Warp& w, u64 handle, bool surface);

}  // namespace softgpu::ptx

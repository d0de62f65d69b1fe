// Opcodes of textures and surfaces: tex and tld4, suld and sust. Objects only, in the unified mode:
// the handle is in a register and brings its sampler along.
#include "softgpu/ptx/exec/image.h"

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/opcodes.h"

namespace softgpu::ptx {
namespace {

ImageSite& image_site_made(Decoder& d, Inst& inst) {
  d.program().images.push_back(std::make_unique<ImageSite>());
  ImageSite& site = *d.program().images.back();
  inst.imm = reinterpret_cast<s64>(&site);
  return site;
}

std::vector<Operand> parts_of(const Operand& o) {
  return o.kind == Operand::Kind::kVector ? o.parts : std::vector<Operand>{o};
}

/// [handle, {coordinates}]: the layer comes first, and three are written as four.
void place_rows(Decoder& d, const Statement& s, const Operand& o, Type type, Inst& inst,
                ImageSite& site) {
  if (o.kind != Operand::Kind::kAddress || o.parts.empty()) d.fail("expected coordinates");
  if (o.parts.size() > 1) d.fail("samplers apart from their texture are not supported");
  if (o.reg < 0 || o.offset != 0) d.fail("only texture and surface objects are supported");
  inst.a = d.source(register_of(o), Type::kU64);
  site.layered = Decoder::has(s, "a1d") || Decoder::has(s, "a2d");
  site.integral = type != Type::kF32;
  site.coordinates = Decoder::has(s, "3d")                             ? 3
                     : Decoder::has(s, "2d") || Decoder::has(s, "a2d") ? 2
                                                                       : 1;
  const std::vector<Operand> given = parts_of(o.parts.front());
  const std::size_t first = site.layered ? 1 : 0;
  const std::size_t needed = first + static_cast<std::size_t>(site.coordinates);
  if (given.size() != (needed == 3 ? 4 : needed)) d.fail("wrong number of coordinates");
  if (site.layered) site.layer = d.source(given.front(), Type::kU32);
  for (std::size_t k = first; k < needed; ++k) site.c[k - first] = d.source(given[k], type);
}

void texture(Decoder& d, const Statement& s) {
  static constexpr std::string_view kComponents[] = {"r", "g", "b", "a"};
  const bool gather = s.op == "tld4";
  Inst inst;
  inst.run = run_texture;
  ImageSite& site = image_site_made(d, inst);
  place_rows(d, s, d.operand(s, 1), Decoder::last_type(s), inst, site);
  // No texture here has more than one level, so the level of detail is as good as 0.
  if (s.operands.size() > (Decoder::has(s, "level") ? 3 : 2))
    d.fail("offsets and comparisons of depth are not supported");
  for (int k = 0; gather && k < 4; ++k) {
    if (Decoder::has(s, kComponents[k])) site.component = k;
  }
  const Operand& to = d.operand(s, 0);
  if (to.second >= 0) d.fail("a predicate of residency is not supported");
  const std::vector<Operand> values = parts_of(to);
  if (values.size() != 4) d.fail("expected a vector of four");
  for (std::size_t k = 0; k < 4; ++k) {
    if (d.box_of(values[k], Type::kB32) != 4) d.fail("results have 32 bits");
    site.d[k] = d.destination(values[k]);
  }
  site.values = 4;
  d.emit(inst, s);
}

SurfaceOutside outside_of(const Statement& s) {
  if (Decoder::has(s, "clamp")) return SurfaceOutside::kClamp;
  return Decoder::has(s, "zero") ? SurfaceOutside::kZero : SurfaceOutside::kTrap;
}

void surface(Decoder& d, const Statement& s) {
  const bool load = s.op == "suld";
  const Type type = Decoder::last_type(s);
  Inst inst;
  inst.run = load ? run_surface_load : run_surface_store;
  inst.mode = static_cast<u8>(outside_of(s));
  inst.bytes = static_cast<u8>(type_bytes(type));
  ImageSite& site = image_site_made(d, inst);
  place_rows(d, s, d.operand(s, load ? 1 : 0), Type::kS32, inst, site);
  const Operand& value = d.operand(s, load ? 0 : 1);
  if (value.second >= 0) d.fail("a predicate of residency is not supported");
  const std::vector<Operand> values = parts_of(value);
  const std::size_t count = Decoder::has(s, "v4") ? 4 : Decoder::has(s, "v2") ? 2 : 1;
  if (values.size() != count) d.fail("vector length differs");
  inst.flags = static_cast<u8>(type_box(type));
  for (std::size_t k = 0; k < count; ++k) {
    if (values[k].kind == Operand::Kind::kRegister && d.box_of(values[k], type) != inst.flags)
      d.fail("register " + std::string(values[k].name) + " has the wrong width");
    site.d[k] = load ? d.destination(values[k]) : d.source_boxed(values[k], type, inst.flags);
  }
  site.values = static_cast<int>(count);
  d.emit(inst, s);
}

}  // namespace

const OpcodeTable& image_opcodes() {
  static const auto& kTable = *new const OpcodeTable{
      {"tex", texture}, {"tld4", texture}, {"suld", surface}, {"sust", surface}};
  return kTable;
}

}  // namespace softgpu::ptx

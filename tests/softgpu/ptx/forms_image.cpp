// Textures and surfaces: PTX ISA, sections 9.7.9 (tex, tld4) and 9.7.11 (suld, sust), with the
// formulas of the CUDA C++ Programming Guide, "Texture Fetching". The image of a lane is its cell,
// and the cell's address its handle.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

bool is_layered(const FormCase& form) { return form.has("a1d") || form.has("a2d"); }
u32 dimensions(const FormCase& form) {
  if (form.has("3d")) return 3;
  return form.has("2d") || form.has("a2d") ? 2 : 1;
}

/// `texels` of them, in the shape of the form: two rows, two slices or layers where it has such.
Image shaped(const FormCase& form, u32 texels, u32 texel_bytes) {
  Image image;
  const u32 rows = dimensions(form) > 1 ? 2 : 1;
  const u32 slices = dimensions(form) > 2 || is_layered(form) ? 2 : 1;
  image.extent = {texels / rows / slices, rows, dimensions(form) > 2 ? 2u : 1u};
  image.layers = is_layered(form) ? 2 : 0;
  image.texel_bytes = texel_bytes;
  image.row_bytes = u64{image.extent[0]} * texel_bytes;
  image.slice_bytes = image.row_bytes * rows;
  return image;
}

/// The braces with the coordinates; those that count are named x, y, z and l.
std::string coordinates(const FormCase& form, const char* x, const char* y, const char* z,
                        const char* layer) {
  const std::string first = is_layered(form) ? std::string(layer) + ", " : "";
  if (dimensions(form) == 1) return "{" + first + x + "}";
  const std::string two = first + x + ", " + y;
  if (form.has("2d")) return "{" + two + "}";
  return "{" + two + ", " + (form.has("3d") ? std::string(z) + ", " + z : y) + "}";
}

// Textures: eight texels of four channels of 16 bits. Coordinates are made of the low bits of A, B
// and C: whole numbers from -4, or 64ths from -2.

constexpr u32 kTexelBytes = 8;

s64 floor_division(s64 a, s64 b) { return (a >= 0 ? a : a - b + 1) / b; }

struct Fetch {
  Image image;
  bool whole, gathers, interpolates;
  std::size_t component;
};

/// The channel of the texel nearest to an index along each dimension: they clamp to the edge.
u64 channel(const Fetch& fetch, const Lane& lane, s64 x, s64 y, s64 z, std::size_t c) {
  const auto inside = [](s64 at, s64 count) { return at < 0 ? 0 : at >= count ? count - 1 : at; };
  const s64 texel =
      (inside(z, fetch.image.layers != 0 ? 2 : fetch.image.extent[2]) * s64{fetch.image.extent[1]} +
       inside(y, fetch.image.extent[1])) *
          s64{fetch.image.extent[0]} +
      inside(x, fetch.image.extent[0]);
  u16 value = 0;
  std::memcpy(&value, lane.cell + texel * kTexelBytes + c * 2, 2);
  return value;
}

/// What a fetch makes of one channel by linear filtering, to the nearest of 65535 steps.
u64 filtered(const Fetch& fetch, const Lane& lane, const s64* at64, s64 layer, u32 count,
             std::size_t c) {
  s64 first[3] = {0, 0, layer};
  long double second[3] = {0, 0, 0};
  for (u32 k = 0; k < count; ++k) {
    first[k] = floor_division(at64[k] - 32, 64);
    second[k] = static_cast<long double>(at64[k] - 32 - first[k] * 64) / 64;
  }
  long double sum = 0;
  for (u32 corner = 0; corner < 1u << count; ++corner) {
    s64 at[3] = {first[0], first[1], first[2]};
    for (u32 k = 0; k < count; ++k) at[k] += corner >> k & 1;
    // In a plane weights are whole 256ths that sum up to 1.
    const long double a = second[0], b = second[1];
    const long double both = std::floor(a * b * 256 + 0.5L) / 256;
    const long double plane[4] = {1 - a - b + both, a - both, b - both, both};
    long double weight = plane[corner & 3];
    if (count == 3) weight *= (corner & 4) != 0 ? second[2] : 1 - second[2];
    sum += weight * static_cast<long double>(channel(fetch, lane, at[0], at[1], at[2], c));
  }
  return std::bit_cast<u32>(static_cast<float>(std::floor(sum + 0.5L)) / 65535.0f);
}

void fetch_reference(const Fetch& fetch, u32 count, Lane& lane) {
  s64 at64[3] = {}, at[3] = {};
  for (u32 k = 0; k < count; ++k) {
    at64[k] = static_cast<s64>(lane.in[k] & 1023) - 128;
    at[k] = fetch.whole ? static_cast<s64>(lane.in[k] & 15) - 4 : floor_division(at64[k], 64);
  }
  const s64 layer = fetch.image.layers != 0 ? std::min<s64>(lane.in[3] & 3, 1) : 0;
  if (fetch.image.layers != 0) at[2] = layer;
  if (fetch.gathers) {
    const s64 x = floor_division(at64[0] - 32, 64), y = floor_division(at64[1] - 32, 64);
    const s64 order[4][2] = {{x, y + 1}, {x + 1, y + 1}, {x + 1, y}, {x, y}};
    for (std::size_t k = 0; k < 4; ++k)
      lane.out[k] = channel(fetch, lane, order[k][0], order[k][1], layer, fetch.component);
    return;
  }
  for (std::size_t c = 0; c < 4; ++c) {
    lane.out[c] = fetch.interpolates ? filtered(fetch, lane, at64, layer, count, c)
                                     : channel(fetch, lane, at[0], at[1], at[2], c);
  }
}

Proof prove_fetch(const FormCase& form) {
  const u32 count = dimensions(form);
  Fetch fetch{};
  fetch.image = shaped(form, 8, kTexelBytes);
  fetch.image.channels = 4;
  fetch.image.channel_bytes = 2;
  fetch.whole = form.mods.back() == "s32";
  fetch.gathers = form.op == "tld4";
  fetch.interpolates = !fetch.gathers && form.types().front() == "f32" && !fetch.whole;
  if (fetch.interpolates) {
    fetch.image.channel = Channel::kUnsignedNormalized;
    fetch.image.linear = true;
  }
  if (fetch.gathers) fetch.component = std::string_view("rgba").find(form.mods.front()[0]);
  Proof proof;
  proof.cells = Cells::kGlobal;
  proof.cell_bytes = kCellBytes;
  proof.image = fetch.image;
  proof.operands = "rrrr";
  proof.results = std::string(4, form.types().front() == "f32" ? 'f' : 'r');
  static constexpr const char* kFrom[] = {"A", "B", "C"};
  for (u32 k = 0; k < 3; ++k) {
    const std::string n = std::to_string(8 + k), f = "%f" + std::to_string(k);
    proof.text += "and.b32 %t" + n + ", " + kFrom[k] + (fetch.whole ? ", 15; " : ", 1023; ") +
                  "sub.s32 %t" + n + ", %t" + n + (fetch.whole ? ", 4; " : ", 128; ");
    // 0x3c800000 is 1 / 64.
    if (!fetch.whole)
      proof.text +=
          "cvt.rn.f32.s32 " + f + ", %t" + n + "; mul.f32 " + f + ", " + f + ", 0f3C800000; ";
  }
  proof.text += "and.b32 %t11, H, 3; " + form.name() + " {D, E, F, G}, [%at, " +
                (fetch.whole ? coordinates(form, "%t8", "%t9", "%t10", "%t11")
                             : coordinates(form, "%f0", "%f1", "%f2", "%t11")) +
                "]" + (form.has("level") ? ", 0f40000000;" : ";");
  proof.reference = lanewise([fetch, count](Lane& lane) { fetch_reference(fetch, count, lane); });
  return proof;
}

// Surfaces: x counts bytes. A thread's number says where its access is; one place in front of the
// image and one behind it where the form takes such.

constexpr u32 kSurfaceTexel = 4;

struct Access {
  Image image;
  u32 bytes, values;
  bool trap, clamp;

  u32 element() const { return bytes * values; }
  u32 places() const { return image.extent[0] * kSurfaceTexel / element(); }
  /// The cell's byte for a thread; -1: none.
  s64 place(u32 thread) const {
    const u32 slices = image.layers != 0 ? image.layers : image.extent[2];
    const u32 counts[3] = {places(), image.extent[1], slices};
    s64 at[3];
    for (u32 k = 0; k < 3; ++k) {
      const u32 number = thread >> (2 * k);
      at[k] = trap ? s64{number % counts[k]} : s64{number % (counts[k] + 2)} - 1;
      if (counts[k] == 1 && k > 0) at[k] = 0;
      const bool far = at[k] < 0 && k == 2 && image.layers != 0;  // layers are unsigned
      if (at[k] >= 0 && at[k] < counts[k]) continue;
      if (!clamp) return -1;
      at[k] = at[k] < 0 && !far ? 0 : counts[k] - 1;
    }
    return at[2] * static_cast<s64>(image.slice_bytes) + at[1] * static_cast<s64>(image.row_bytes) +
           at[0] * element();
  }
  /// PTX that leaves coordinate `k` in %t8, %t9 or %t10.
  std::string text(u32 k) const {
    const u32 counts[3] = {places(), image.extent[1],
                           image.layers != 0 ? image.layers : image.extent[2]};
    const std::string t = "%t" + std::to_string(8 + k);
    if (counts[k] == 1 && k > 0) return "mov.b32 " + t + ", 0; ";
    return "shr.u32 " + t + ", %t0, " + std::to_string(2 * k) + "; rem.u32 " + t + ", " + t + ", " +
           std::to_string(trap ? counts[k] : counts[k] + 2) + "; " +
           (trap ? "" : "sub.s32 " + t + ", " + t + ", 1; ") +
           (k == 0 ? "mul.lo.s32 " + t + ", " + t + ", " + std::to_string(element()) + "; " : "");
  }
};

Proof prove_surface(const FormCase& form) {
  const bool load = form.op == "suld";
  Access access{};
  access.image = shaped(form, kCellBytes / kSurfaceTexel, kSurfaceTexel);
  access.image.surface = true;
  access.bytes = bits_of(form.type()) / 8;
  access.values = form.has("v4") ? 4 : form.has("v2") ? 2 : 1;
  access.trap = form.has("trap");
  access.clamp = form.has("clamp");
  Proof proof;
  proof.cells = Cells::kGlobal;
  proof.cell_bytes = kCellBytes;
  proof.image = access.image;
  const char letter = access.bytes == 8 ? 'd' : access.bytes == 4 ? 'r' : 'h';
  (load ? proof.results : proof.operands) = std::string(access.values, letter);
  proof.writes_cell = true;
  for (u32 k = 0; k < 3; ++k) proof.text += access.text(k);
  const std::string place = "[%at, " + coordinates(form, "%t8", "%t9", "%t10", "%t10") + "]";
  const std::string names = load ? "DEFG" : "ABCH";
  std::string values;
  for (u32 k = 0; k < access.values; ++k) values += std::string(k == 0 ? "{" : ", ") + names[k];
  values += "}";
  proof.text += form.name() + " " + (load ? values + ", " + place : place + ", " + values) + ";";
  proof.reference = lanewise([access, load](Lane& lane) {
    const s64 at = access.place(lane.thread);
    for (u32 k = 0; k < access.values; ++k) {
      if (load) lane.out[k] = 0;
      if (at < 0) continue;
      void* cell = lane.cell + at + s64{k} * access.bytes;
      if (load) {
        std::memcpy(&lane.out[k], cell, access.bytes);
      } else {
        std::memcpy(cell, &lane.in[k], access.bytes);
      }
    }
  });
  return proof;
}

}  // namespace

std::optional<Proof> prove_image(const FormCase& form) {
  if (form.op == "tex" || form.op == "tld4") return prove_fetch(form);
  if (form.op == "suld" || form.op == "sust") return prove_surface(form);
  return std::nullopt;
}

}  // namespace softgpu::ptx::test

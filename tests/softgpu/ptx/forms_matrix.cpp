// Matrix operations: PTX ISA, sections 9.7.14.4 (wmma) and 9.7.14.5 (mma, ldmatrix). Fragments are
// laid out as the ISA says, elements are small whole numbers, so that every sum is exact.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/forms_values.h"

namespace softgpu::ptx::test {
namespace {

// ldmatrix: lane l gives the address of row l % 8 of matrix l / 8.

std::optional<Proof> prove_ldmatrix(const FormCase& form) {
  if (form.op != "ldmatrix") return std::nullopt;
  const std::size_t count = form.has("x4") ? 4 : form.has("x2") ? 2 : 1;
  const bool transposed = form.has("trans"),
             generic = !form.has("shared") && !form.has("shared::cta");
  Proof proof;
  proof.aligned = true;
  proof.cells = Cells::kShared;
  proof.cell_bytes = 16;
  proof.results = std::string(count, 'r');
  proof.text = generic ? "cvta.shared.u64 %at, %at; " : "";
  const char* const to[] = {"{D}", "", "{D, E}", "", "{D, E, F, G}"};
  proof.text += form.name() + " " + to[count == 1 ? 0 : count] + ", [%at];";
  proof.reference = [=](WarpLanes& warp) {
    const auto element = [&](std::size_t m, std::size_t row, std::size_t column) {
      u16 value = 0;
      std::memcpy(&value, warp.lanes[8 * m + row].cell + 2 * column, 2);
      return u64{value};
    };
    for (std::size_t l = 0; l < 32; ++l) {
      for (std::size_t m = 0; m < count; ++m) {
        const std::size_t at = l / 4, first = l % 4 * 2;
        warp.lanes[l].out[m] = transposed ? element(m, first, at) | element(m, first + 1, at) << 16
                                          : element(m, at, first) | element(m, at, first + 1) << 16;
      }
    }
  };
  return proof;
}

// mma. The registers of the fragments are made of A, B, C and H: a of all four as they are, b of
// A and B with their halves swapped, c of C and H, or of lower halves as f32.

struct Mma {
  std::string_view type;  // of a and b
  bool deep, half_sums;
  u32 k;
};

double value_in(std::string_view type, u64 bits, u32 half) {
  const u64 part = type == "tf32" ? bits : bits >> (16 * half) & 0xffff;
  return static_cast<double>(number(part, type == "tf32" ? kF32 : format_of(type)));
}

u64 swapped(u64 x) { return (x >> 16 | x << 16) & 0xffffffff; }

/// a[row][k], as the ISA places it.
double a_element(const Mma& mma, const WarpLanes& warp, u32 row, u32 k) {
  const bool wide = mma.type == "tf32";
  const u32 per_block = wide ? 4 : 8;
  const u32 block = k / per_block, inside = k % per_block;
  const Lane& lane = warp.lanes[row % 8 * 4 + (wide ? inside : inside / 2)];
  return value_in(mma.type, lane.in[2 * block + row / 8], wide ? 0 : inside % 2);
}
double b_element(const Mma& mma, const WarpLanes& warp, u32 k, u32 column) {
  const bool wide = mma.type == "tf32";
  const u32 per_block = wide ? 4 : 8;
  const u32 block = k / per_block, inside = k % per_block;
  const Lane& lane = warp.lanes[column * 4 + (wide ? inside : inside / 2)];
  const u64 bits = wide ? lane.in[1 - block] : swapped(lane.in[block]);
  return value_in(mma.type, bits, wide ? 0 : inside % 2);
}
/// Slot 0-3 of a lane's accumulators.
double c_slot(const Mma& mma, const Lane& lane, u32 slot) {
  if (mma.half_sums) return value_in("f16", lane.in[2 + slot / 2], slot % 2);
  const u64 bits = lane.in[(slot + 2) % 4];
  return mma.type == "tf32" ? value_in("tf32", bits, 0) : value_in(mma.type, bits, 0);
}

void mma_reference(const Mma& mma, WarpLanes& warp) {
  const WarpLanes given = warp;
  for (u32 l = 0; l < 32; ++l) {
    double sums[4];
    for (u32 slot = 0; slot < 4; ++slot) {
      const u32 row = l / 4 + slot / 2 * 8, column = l % 4 * 2 + slot % 2;
      sums[slot] = c_slot(mma, given.lanes[l], slot);
      for (u32 k = 0; k < mma.k; ++k)
        sums[slot] += a_element(mma, given, row, k) * b_element(mma, given, k, column);
    }
    Lane& lane = warp.lanes[l];
    for (u32 slot = 0; slot < 4; ++slot) {
      if (!mma.half_sums) {
        lane.out[slot] = rounded(sums[slot], 0, kF32, Rounding::kNearest);
      } else if (slot % 2 == 0) {
        lane.out[slot / 2] = rounded(sums[slot], 0, kF16, Rounding::kNearest) |
                             rounded(sums[slot + 1], 0, kF16, Rounding::kNearest) << 16;
      }
    }
  }
}

/// The rows, columns and depth that a form names.
struct Shape {
  std::string name;
  u32 m = 0, n = 0, k = 0;
};

Shape shape_of(const FormCase& form) {
  Shape shape;
  for (const std::string_view mod : form.mods) {
    shape.name = mod;
    if (std::sscanf(shape.name.c_str(), "m%un%uk%u", &shape.m, &shape.n, &shape.k) == 3) break;
  }
  return shape;
}

/// A sum of s32 as its bits: cut to them, or clamped by .satfinite.
u64 integer_bits(Int128 sum, bool clamped) {
  if (clamped) sum = std::clamp<Int128>(sum, INT32_MIN, INT32_MAX);
  return static_cast<u32>(static_cast<u64>(sum));
}

s64 byte_of(std::string_view type, u64 bits, u32 place) {
  const u8 byte = static_cast<u8>(bits >> (8 * place));
  return type == "s8" ? static_cast<std::int8_t>(byte) : byte;
}

/// mma of bytes: a is {A, B, C, H}, or as many of them as there are; b is H and C; c is C, H, A, B.
void mma_integer_reference(const FormCase& form, WarpLanes& warp) {
  const Shape shape = shape_of(form);
  const auto types = form.types();
  const WarpLanes given = warp;
  for (u32 l = 0; l < 32; ++l) {
    for (u32 slot = 0; slot < shape.m / 4; ++slot) {
      const u32 row = l / 4 + slot / 2 * 8, column = l % 4 * 2 + slot % 2;
      Int128 sum = static_cast<s32>(given.lanes[l].in[(slot + 2) % 4]);
      for (u32 k = 0; k < shape.k; ++k) {
        const u64 a = given.lanes[row % 8 * 4 + k % 16 / 4].in[k / 16 * (shape.m / 8) + row / 8];
        const u64 b = given.lanes[column * 4 + k % 16 / 4].in[3 - k / 16];
        sum += byte_of(types[1], a, k % 4) * byte_of(types[2], b, k % 4);
      }
      warp.lanes[l].out[slot] = integer_bits(sum, form.has("satfinite"));
    }
  }
}

Proof prove_mma_integer(const FormCase& form) {
  const Shape shape = shape_of(form);
  Proof proof;
  proof.aligned = true;
  proof.operands = "rrrr";
  proof.results = shape.m == 8 ? "rr" : "rrrr";
  const u32 a_registers = shape.m * shape.k / 128;
  proof.text = form.name() + (shape.m == 8 ? " {D, E}, " : " {D, E, F, G}, ");
  proof.text += a_registers == 1 ? "{A}, " : a_registers == 2 ? "{A, B}, " : "{A, B, C, H}, ";
  proof.text += shape.k == 16 ? "{H}, " : "{H, C}, ";
  proof.text += shape.m == 8 ? "{C, H};" : "{C, H, A, B};";
  proof.reference = [form](WarpLanes& warp) { mma_integer_reference(form, warp); };
  return proof;
}

/// mma of f64: a is A, b is B, c is {C, H}.
Proof prove_mma_double(const FormCase& form) {
  Proof proof;
  proof.aligned = true;
  proof.operands = "MMMM";
  proof.results = "gg";
  proof.text = form.name() + " {D, E}, {A}, {B}, {C, H};";
  proof.reference = [](WarpLanes& warp) {
    const auto value = [](u64 bits) { return number(bits, kF64); };
    const WarpLanes given = warp;
    for (u32 l = 0; l < 32; ++l) {
      for (u32 slot = 0; slot < 2; ++slot) {
        Quad sum = value(given.lanes[l].in[2 + slot]);
        for (u32 k = 0; k < 4; ++k) {
          sum += value(given.lanes[l / 4 * 4 + k].in[0]) *
                 value(given.lanes[(l % 4 * 2 + slot) * 4 + k].in[1]);
        }
        warp.lanes[l].out[slot] = rounded(sum, 0, kF64, Rounding::kNearest);
      }
    }
  };
  return proof;
}

std::optional<Proof> prove_mma(const FormCase& form) {
  if (form.op != "mma") return std::nullopt;
  if (form.has("s32")) return prove_mma_integer(form);
  if (form.has("f64")) return prove_mma_double(form);
  const auto types = form.types();
  Mma mma{types[1], false, types[0] == "f16", 0};
  mma.k = form.has("m16n8k16") ? 16 : form.has("m16n8k8") ? 8 : 4;
  mma.deep = mma.k == 16 || (mma.type == "tf32" && mma.k == 8);
  Proof proof;
  proof.aligned = true;
  const bool wide = mma.type == "tf32";
  proof.operands = std::string(4, wide ? 'N' : mma.type == "f16" ? 'I' : 'J');
  proof.results = mma.half_sums ? "rr" : "ffff";
  proof.before = ".reg .f32 %s<4>; .reg .b16 %w<8>;\n";
  const char* const inputs[] = {"A", "B", "C", "H"};
  if (wide) {
    proof.text = "mov.b32 %t8, B; mov.b32 %t9, A; ";
  } else {
    proof.text = "prmt.b32 %t8, A, A, 0x1032; prmt.b32 %t9, B, B, 0x1032; ";
  }
  for (int slot = 0; slot < 4 && !mma.half_sums; ++slot) {
    const std::string n = std::to_string(slot), from = inputs[(slot + 2) % 4];
    proof.text += wide ? "mov.b32 %s" + n + ", " + from + "; "
                       : "mov.b32 {%w0, %w1}, " + from + "; cvt.f32." + std::string(mma.type) +
                             " %s" + n + ", %w0; ";
  }
  proof.text += form.name() + (mma.half_sums ? " {D, E}, " : " {D, E, F, G}, ");
  proof.text += mma.deep ? "{A, B, C, H}, {%t8, %t9}, " : "{A, B}, {%t8}, ";
  proof.text += mma.half_sums ? "{C, H};" : "{%s0, %s1, %s2, %s3};";
  proof.reference = [mma](WarpLanes& warp) { mma_reference(mma, warp); };
  return proof;
}

// wmma: where a fragment's elements are is up to the implementation, so whole products are made,
// from memory to memory. The cells of a warp are 2048 bytes: a and b are both in the first half, c
// and then d in the second.

constexpr u32 kSums = 1024;

struct Wmma {
  Shape shape;
  std::string type;  // of a and b
  std::string c_type, d_type;
  std::string a_layout = "row", b_layout = "col", c_layout = "row", d_layout = "row";
  std::string space;
  bool clamped = false;
};

/// Registers for a lane's part of a matrix.
u32 fragment_registers(const std::string& type, u32 rows, u32 columns) {
  return rows * columns / (type == "f64" ? 32 : 1024 / bits_of(type));
}
u32 input_registers(const std::string& type, u32 rows, u32 columns) {
  return type == "f16" ? 8 : fragment_registers(type, rows, columns);
}

std::string registers(const char* name, u32 count) {
  std::string text = "{";
  for (u32 k = 0; k < count; ++k)
    text += (k == 0 ? "%" : ", %") + std::string(name) + std::to_string(k);
  return text + "}";
}

/// The types of a form that names none of a or b.
Wmma wmma_default(const FormCase& form) {
  Wmma w;
  w.shape = shape_of(form);
  const bool integer = form.has("s8") || form.has("u8") || form.has("s32");
  w.type = form.has("f64") ? "f64" : w.shape.k == 8 ? "tf32" : integer ? "s8" : "f16";
  w.c_type = w.d_type = form.has("f64") ? "f64" : integer ? "s32" : "f32";
  w.clamped = form.has("satfinite");
  for (const char* space : {"global", "shared", "shared::cta"}) {
    if (form.has(space)) w.space = std::string(".") + space;
  }
  return w;
}

Wmma wmma_of(const FormCase& form) {
  Wmma w = wmma_default(form);
  const std::string layout = form.has("col") ? "col" : "row";
  const auto types = form.types();
  if (form.has("mma")) {
    std::vector<std::string> layouts;
    for (const std::string_view mod : form.mods) {
      if (mod == "row" || mod == "col") layouts.emplace_back(mod);
    }
    w.a_layout = layouts[0];
    w.b_layout = layouts[1];
    w.d_type = types.front();
    w.c_type = types.back();
    if (types.size() == 4) w.type = types[1];
  } else if (form.has("a") || form.has("b")) {
    w.type = types[0];
    (form.has("a") ? w.a_layout : w.b_layout) = layout;
  } else if (form.has("c")) {
    w.c_type = types[0];
    w.c_layout = layout;
  } else {
    w.d_type = types[0];
    w.d_layout = layout;
  }
  return w;
}

std::string wmma_memory(const Wmma& w, const std::string& what, const std::string& layout,
                        const std::string& type, u32 at, const std::string& fragment, u32 stride) {
  const bool store = what == "store.d";
  const std::string address = "[%q2+" + std::to_string(at) + "]";
  const std::string name =
      "wmma." + what + ".sync.aligned." + layout + "." + w.shape.name + w.space + "." + type;
  return name + " " + (store ? address + ", " + fragment : fragment + ", " + address) + ", " +
         std::to_string(stride) + ";\n";
}

std::string wmma_text(const Wmma& w) {
  const auto stride = [](const std::string& layout, u32 rows, u32 columns) {
    return layout == "row" ? columns : rows;
  };
  const auto [name, m, n, k] = w.shape;
  const std::string a = registers("wa", input_registers(w.type, m, k));
  const std::string b = registers("wb", input_registers(w.type, k, n));
  const std::string c = registers("wc", fragment_registers(w.c_type, m, n));
  const std::string d = registers("wd", fragment_registers(w.d_type, m, n));
  std::string text = "mul.wide.u32 %q1, %t4, 64; sub.s64 %q2, %at, %q1;\n";
  text += wmma_memory(w, "load.a", w.a_layout, w.type, 0, a, stride(w.a_layout, m, k));
  text += wmma_memory(w, "load.b", w.b_layout, w.type, 0, b, stride(w.b_layout, k, n));
  text += wmma_memory(w, "load.c", w.c_layout, w.c_type, kSums, c, stride(w.c_layout, m, n));
  const std::string types = w.type == "f16"
                                ? w.d_type + "." + w.c_type
                                : w.d_type + "." + w.type + "." + w.type + "." + w.c_type;
  text += "wmma.mma.sync.aligned." + w.a_layout + "." + w.b_layout + "." + name + "." + types +
          (w.clamped ? ".satfinite " : " ") + d + ", " + a + ", " + b + ", " + c + ";\n";
  return text + "bar.warp.sync MASK;\n" +
         wmma_memory(w, "store.d", w.d_layout, w.d_type, kSums, d, stride(w.d_layout, m, n));
}

using WarpBytes = std::array<u8, 32 * kCellBytes>;

u32 position(const std::string& layout, u32 row, u32 column, u32 rows, u32 columns) {
  return layout == "row" ? row * columns + column : column * rows + row;
}

double element_at(const u8* at, const std::string& type) {
  u64 bits = 0;
  std::memcpy(&bits, at, bits_of(type) / 8);
  if (type == "s32") return static_cast<s32>(bits);
  if (type == "s8" || type == "u8") return static_cast<double>(byte_of(type, bits, 0));
  return static_cast<double>(number(bits, type == "tf32" ? kF32 : format_of(type)));
}

/// A matrix by rows. Doubles hold every element, and every sum of products of them.
std::vector<double> loaded(const u8* start, const std::string& type, const std::string& layout,
                           u32 rows, u32 columns) {
  std::vector<double> values;
  for (u32 r = 0; r < rows; ++r) {
    for (u32 c = 0; c < columns; ++c) {
      const u32 at = position(layout, r, c, rows, columns);
      values.push_back(element_at(start + at * (bits_of(type) / 8), type));
    }
  }
  return values;
}

void wmma_reference(const Wmma& w, WarpLanes& warp) {
  WarpBytes given, left;
  for (std::size_t l = 0; l < 32; ++l)
    std::memcpy(given.data() + l * kCellBytes, warp.lanes[l].cell, kCellBytes);
  left = given;
  const u32 size = bits_of(w.d_type) / 8;
  const u32 rows = w.shape.m, columns = w.shape.n, depth = w.shape.k;
  const auto x = loaded(given.data(), w.type, w.a_layout, rows, depth);
  const auto y = loaded(given.data(), w.type, w.b_layout, depth, columns);
  const auto z = loaded(given.data() + kSums, w.c_type, w.c_layout, rows, columns);
  for (u32 r = 0; r < rows; ++r) {
    for (u32 c = 0; c < columns; ++c) {
      double sum = z[r * columns + c];
      for (u32 k = 0; k < depth; ++k) sum += x[r * depth + k] * y[k * columns + c];
      const u64 bits = w.d_type == "s32" ? integer_bits(static_cast<Int128>(sum), w.clamped)
                                         : rounded(sum, 0, format_of(w.d_type), Rounding::kNearest);
      std::memcpy(left.data() + kSums + position(w.d_layout, r, c, rows, columns) * size, &bits,
                  size);
    }
  }
  for (std::size_t l = 0; l < 32; ++l)
    std::memcpy(warp.lanes[l].cell, left.data() + l * kCellBytes, kCellBytes);
}

std::optional<Proof> prove_wmma(const FormCase& form) {
  if (form.op != "wmma") return std::nullopt;
  const Wmma w = wmma_of(form);
  Proof proof;
  proof.aligned = true;
  proof.cells = w.space.substr(0, 7) == ".shared" ? Cells::kShared : Cells::kGlobal;
  proof.cell_bytes = kCellBytes;
  const auto letter = [](const std::string& type) {
    return type == "f16"                      ? 'I'
           : type == "bf16"                   ? 'J'
           : type == "f64"                    ? 'M'
           : type[0] == 's' || type[0] == 'u' ? 'r'
                                              : 'N';
  };
  proof.cell_letters = {letter(w.type), letter(w.c_type)};
  proof.writes_cell = true;
  proof.before = std::string(w.type == "f64" ? ".reg .f64" : ".reg .b32") +
                 " %wa<8>, %wb<8>, %wc<8>, %wd<8>;\n";
  proof.text = wmma_text(w);
  proof.reference = [w](WarpLanes& warp) { wmma_reference(w, warp); };
  return proof;
}

}  // namespace

std::optional<Proof> prove_matrix(const FormCase& form) {
  if (auto proof = prove_ldmatrix(form)) return proof;
  if (auto proof = prove_mma(form)) return proof;
  return prove_wmma(form);
}

}  // namespace softgpu::ptx::test

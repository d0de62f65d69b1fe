// mma.sync and wmma. Fragments are widened to f32, multiplied and added in f32 one after the other,
// and rounded once at the end: products of the narrow formats are exact in f32, so every
// instruction set gives the same bits. Hardware adds in another order and with other intermediate
// widths, which PTX leaves open ("at least single precision"); results differ in the last places.
//
// Where the elements of an mma fragment are is laid down in PTX ISA, section 9.7.14.5: a register
// of 16-bit elements is, over the warp, an 8 x 8 block by rows (of B by columns), one of 32-bit
// elements an 8 x 4 block. Where those of a wmma fragment are is up to the implementation: here, in
// order of rows, so many to a lane.
#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/exec/narrow.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

using f32x8 = f32 __attribute__((vector_size(32), aligned(4)));

constexpr int kSideMax = 32, kDepthMax = 16;

struct alignas(64) Tile {
  f32 items[kSideMax * kDepthMax * 2];
};

/// acc (m x n) += a (m x k) * b (k x n), all by rows; n is a multiple of 8.
void multiply(f32* acc, const f32* a, const f32* b, int m, int n, int k) {
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < n; c += 8) {
      f32x8& sum = *reinterpret_cast<f32x8*>(acc + r * n + c);
      f32x8 total = sum;
      for (int j = 0; j < k; ++j) {
        total += a[r * k + j] * *reinterpret_cast<const f32x8*>(b + j * n + c);
      }
      sum = total;
    }
  }
}

u32 narrowed_bits(Type type, f32 x) {
  if (type == Type::kF16) return half_of_float(x);
  return x == x ? __builtin_bit_cast(u32, x) : 0x7fffffffu;
}

/// The 64 halves of a row in the order of the lanes.
template <Type T>
SOFTGPU_INLINE void widen_row(const u32* row, f32* out) {
  const u16* halves = reinterpret_cast<const u16*>(row);
  if constexpr (T == Type::kBf16) {
    for (int k = 0; k < 64; ++k) out[k] = float_of_bfloat(halves[k]);
  } else if constexpr (T == Type::kTf32) {
    for (int k = 0; k < 32; ++k) out[k] = __builtin_bit_cast(f32, row[k] & 0xffffe000u);
  } else {
#if defined(__AVX512F__)
    for (int k = 0; k < 64; k += 16) {
      const __m256i part = _mm256_load_si256(reinterpret_cast<const __m256i*>(halves + k));
      _mm512_store_ps(out + k, _mm512_cvtph_ps(part));
    }
#elif defined(__F16C__)
    for (int k = 0; k < 64; k += 8) {
      const __m128i part = _mm_load_si128(reinterpret_cast<const __m128i*>(halves + k));
      _mm256_store_ps(out + k, _mm256_cvtph_ps(part));
    }
#else
    for (int k = 0; k < 64; ++k) out[k] = float_of_half(halves[k]);
#endif
  }
}

/// The accumulators: four rows of f32, or two of f16 pairs, as a 16 x 8 matrix and back.
void accumulators_read(const Warp& w, const s32* rows, bool halves, f32* acc) {
  for (int l = 0; l < 32; ++l) {
    const int at = l / 4 * 8 + l % 4 * 2;
    for (int part = 0; part < 4; ++part) {
      const int to = at + part / 2 * 64 + part % 2;
      acc[to] =
          halves
              ? float_of_half(static_cast<u16>(row<u32>(w, rows[part / 2])[l] >> (16 * (part % 2))))
              : row<f32>(w, rows[part])[l];
    }
  }
}

void accumulators_write(const Warp& w, const s32* rows, bool halves, const f32* acc) {
  for_each_lane(w.mask, [&](int l) {
    const f32* from = acc + l / 4 * 8 + l % 4 * 2;
    for (int part = 0; part < 2; ++part, from += 64) {
      if (halves) {
        row<u32>(w, rows[part])[l] =
            narrowed_bits(Type::kF16, from[0]) | narrowed_bits(Type::kF16, from[1]) << 16;
      } else {
        row<u32>(w, rows[2 * part])[l] = narrowed_bits(Type::kF32, from[0]);
        row<u32>(w, rows[2 * part + 1])[l] = narrowed_bits(Type::kF32, from[1]);
      }
    }
  });
}

/// imm: MatrixSite. b_count is the number of blocks along k.
template <Type T>
const Inst* mma(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  constexpr int kWidth = T == Type::kTf32 ? 4 : 8;
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  alignas(64) f32 acc[16 * 8], a[16 * kWidth], by_column[8 * kWidth], b[kWidth * 8];
  accumulators_read(w, site.c, site.c_count == 2, acc);
  for (int block = 0; block < site.b_count; ++block) {
    widen_row<T>(row<u32>(w, site.a[2 * block]), a);
    widen_row<T>(row<u32>(w, site.a[2 * block + 1]), a + 8 * kWidth);
    widen_row<T>(row<u32>(w, site.b[block]), by_column);
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < kWidth; ++k) b[k * 8 + n] = by_column[n * kWidth + k];
    }
    multiply(acc, a, b, 16, 8, kWidth);
  }
  accumulators_write(w, site.d, site.d_count == 2, acc);
  return i + 1;
}

// wmma: a fragment of rows x columns elements, slots to a lane, two to a register if they are
// halves. Fragments with room for more than there are hold some twice.

struct Fragment {
  const s32* rows;
  int slots, elements;
  Type type;
  Fragment(const s32* registers, int count, int size, Type t)
      : rows(registers), slots(t == Type::kF32 ? count : 2 * count), elements(size), type(t) {}
  /// The number of elements is a power of two.
  int element(int lane, int slot) const { return (lane * slots + slot) & (elements - 1); }
};

template <Type T>
void fragment_read(const Warp& w, const Fragment& f, f32* out) {
  if constexpr (T == Type::kF32) {
    for (int slot = 0; slot < f.slots; ++slot) {
      const f32* in = row<f32>(w, f.rows[slot]);
      for (int l = 0; l < 32; ++l) out[f.element(l, slot)] = in[l];
    }
  } else {
    alignas(64) f32 pairs[64];
    for (int slot = 0; slot < f.slots; slot += 2) {
      widen_row<T>(row<u32>(w, f.rows[slot / 2]), pairs);
      for (int l = 0; l < 32; ++l)
        __builtin_memcpy(out + f.element(l, slot), pairs + 2 * l, 2 * sizeof(f32));
    }
  }
}

void fragment_write(const Warp& w, const Fragment& f, const f32* in) {
  for_each_lane(w.mask, [&](int l) {
    for (int slot = 0; slot < f.slots; ++slot) {
      const u32 bits = narrowed_bits(f.type, in[f.element(l, slot)]);
      if (f.type == Type::kF32) {
        row<u32>(w, f.rows[slot])[l] = bits;
      } else {
        u32& pair = row<u32>(w, f.rows[slot / 2])[l];
        pair = slot % 2 == 0 ? bits : (pair & 0xffff) | bits << 16;
      }
    }
  });
}

struct Shape {
  int m, n;
};
constexpr Shape kShapes[] = {{16, 16}, {8, 32}, {32, 8}};

/// mode: index of the shape. The types of d and c follow from their register counts.
template <Type T>
const Inst* wmma_multiply(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  const Shape shape = kShapes[i->mode];
  constexpr int kDepth = 16;
  Tile a, b, acc;
  const auto wide = [](int count) { return count == 8 ? Type::kF32 : Type::kF16; };
  const Fragment sums(site.c, site.c_count, shape.m * shape.n, wide(site.c_count));
  fragment_read<T>(w, Fragment(site.a, site.a_count, shape.m * kDepth, T), a.items);
  fragment_read<T>(w, Fragment(site.b, site.b_count, shape.n * kDepth, T), b.items);
  if (sums.type == Type::kF32) {
    fragment_read<Type::kF32>(w, sums, acc.items);
  } else {
    fragment_read<Type::kF16>(w, sums, acc.items);
  }
  multiply(acc.items, a.items, b.items, shape.m, shape.n, kDepth);
  fragment_write(w, Fragment(site.d, site.d_count, shape.m * shape.n, wide(site.d_count)),
                 acc.items);
  return i + 1;
}

}  // namespace

Handler matrix_handler(const Form& form) {
  switch (form.op) {
    case Op::kMma:
      return form.type == Type::kF16    ? mma<Type::kF16>
             : form.type == Type::kBf16 ? mma<Type::kBf16>
                                        : mma<Type::kTf32>;
    case Op::kWmma:
      return form.type == Type::kF16 ? wmma_multiply<Type::kF16> : wmma_multiply<Type::kBf16>;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

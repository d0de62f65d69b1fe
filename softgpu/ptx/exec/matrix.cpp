// mma.sync and wmma. Real fragments of less than 64 bits are widened to f32, multiplied and added
// in f32 one after the other, and rounded once at the end: products of the narrow formats are exact
// in f32, so every instruction set gives the same bits. Hardware adds in another order and with
// other intermediate widths, which PTX leaves open ("at least single precision"); results differ in
// the last places. Products of f64 are fused with their sum, one after the other. Sums of integers
// are exact, then cut to 32 bits or clamped.
//
// Where the elements of an mma fragment are is laid down in PTX ISA, section 9.7.14.5: a register
// is, over the warp, a block of 8 rows (of B: columns) by 4 lanes, and a lane's part of a row is a
// register of elements that lie next to each other. Where those of a wmma fragment are is up to the
// implementation: here, in order of rows, so many to a lane.
#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/exec/narrow.h"
#include "softgpu/ptx/exec/real.h"

namespace softgpu::ptx::SOFTGPU_ISA {
namespace {

using f32x8 = f32 __attribute__((vector_size(32), aligned(4)));
using s32x8 = s32 __attribute__((vector_size(32), aligned(4)));
template <class E>
struct Eight;
template <>
struct Eight<f32> {
  using Type = f32x8;
};
template <>
struct Eight<s32> {
  using Type = s32x8;
};

constexpr int kSideMax = 32, kDepthMax = 16;

template <class E>
struct alignas(64) Tile {
  E items[kSideMax * kDepthMax * 2];
};

/// acc (m x n) += a (m x k) * b (k x n), all by rows; n is a multiple of 8.
template <class E>
void multiply(E* acc, const E* a, const E* b, int m, int n, int k) {
  using Wide = typename Eight<E>::Type;
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < n; c += 8) {
      Wide& sum = *reinterpret_cast<Wide*>(acc + r * n + c);
      Wide total = sum;
      for (int j = 0; j < k; ++j) {
        total += a[r * k + j] * *reinterpret_cast<const Wide*>(b + j * n + c);
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

/// The 128 bytes of a row in the order of the lanes.
void widen_bytes(const u32* row, bool is_signed, s32* out) {
  const u8* bytes = reinterpret_cast<const u8*>(row);
  for (int k = 0; k < 128; ++k) out[k] = is_signed ? static_cast<s8>(bytes[k]) : bytes[k];
}

/// A sum of integers as its 32 bits. `products` is exact: there are at most 32 of 17 bits.
u32 integer_sum(u32 c, s32 products, bool clamped) {
  if (!clamped) return c + static_cast<u32>(products);
  const s64 sum = s64{static_cast<s32>(c)} + products;
  return static_cast<u32>(sum < INT32_MIN ? INT32_MIN : sum > INT32_MAX ? INT32_MAX : sum);
}

/// d = c + products for one lane; at(part): where the product of a register is.
template <class At>
SOFTGPU_INLINE void integer_sums(const Warp& w, const Inst* i, const MatrixSite& site, int lane,
                                 const s32* products, At at) {
  u32 sums[8];
  for (int part = 0; part < site.c_count; ++part)
    sums[part] = integer_sum(row<u32>(w, site.c[part])[lane], products[at(part)],
                             (i->mode & kMatrixClamped) != 0);
  for (int part = 0; part < site.d_count; ++part) row<u32>(w, site.d[part])[lane] = sums[part];
}

/// imm: MatrixSite; mode: kMatrixSignedA and others.
const Inst* mma_integer(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  constexpr int kWidth = 16;
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  const int halves = site.m / 8;
  alignas(64) s32 products[16 * 8] = {}, a[16 * kWidth], by_column[8 * kWidth], b[kWidth * 8];
  for (int block = 0; block < site.b_count; ++block) {
    for (int half = 0; half < halves; ++half) {
      widen_bytes(row<u32>(w, site.a[halves * block + half]), (i->mode & kMatrixSignedA) != 0,
                  a + 8 * kWidth * half);
    }
    widen_bytes(row<u32>(w, site.b[block]), (i->mode & kMatrixSignedB) != 0, by_column);
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < kWidth; ++k) b[k * 8 + n] = by_column[n * kWidth + k];
    }
    multiply(products, a, b, site.m, 8, kWidth);
  }
  for_each_lane(w.mask, [&](int l) {
    integer_sums(w, i, site, l, products,
                 [l](int part) { return (l / 4 + part / 2 * 8) * 8 + l % 4 * 2 + part % 2; });
  });
  return i + 1;
}

/// m8n8k4 of f64. The fragments of wmma are laid out as those of mma, except b, which is by rows.
template <bool Wmma>
const Inst* multiply_double(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  f64 a[32], b[32], sums[64];
  __builtin_memcpy(a, row<f64>(w, site.a[0]), sizeof a);
  __builtin_memcpy(b, row<f64>(w, site.b[0]), sizeof b);
  for (int l = 0; l < 32; ++l) {
    for (int part = 0; part < 2; ++part) {
      f64 sum = row<f64>(w, site.c[part])[l];
      const int column = l % 4 * 2 + part;
      for (int k = 0; k < 4; ++k)
        sum = fused(a[l / 4 * 4 + k], b[Wmma ? k * 8 + column : column * 4 + k], sum);
      sums[2 * l + part] = canonical(sum);
    }
  }
  for_each_lane(w.mask, [&](int l) {
    for (int part = 0; part < 2; ++part) row<f64>(w, site.d[part])[l] = sums[2 * l + part];
  });
  return i + 1;
}

// wmma: a fragment of rows x columns elements, slots to a lane, two to a register if they are
// halves. Fragments with room for more than there are hold some twice.

struct Fragment {
  const s32* rows;
  int slots, elements;
  Type type;
  Fragment(const s32* registers, int count, int size, Type t)
      : rows(registers),
        slots(t == Type::kF32 || t == Type::kTf32 ? count : 2 * count),
        elements(size),
        type(t) {}
  /// The number of elements is a power of two.
  int element(int lane, int slot) const { return (lane * slots + slot) & (elements - 1); }
};

template <Type T>
void fragment_read(const Warp& w, const Fragment& f, f32* out) {
  if constexpr (T == Type::kF32 || T == Type::kTf32) {
    for (int slot = 0; slot < f.slots; ++slot) {
      const u32* in = row<u32>(w, f.rows[slot]);
      constexpr u32 kKept = T == Type::kTf32 ? 0xffffe000u : ~0u;
      for (int l = 0; l < 32; ++l) out[f.element(l, slot)] = __builtin_bit_cast(f32, in[l] & kKept);
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

/// imm: MatrixSite. The types of d and c follow from their register counts.
template <Type T>
const Inst* wmma_multiply(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  Tile<f32> a, b, acc;
  const auto wide = [](int count) { return count == 8 ? Type::kF32 : Type::kF16; };
  const Fragment sums(site.c, site.c_count, site.m * site.n, wide(site.c_count));
  fragment_read<T>(w, Fragment(site.a, site.a_count, site.m * site.k, T), a.items);
  fragment_read<T>(w, Fragment(site.b, site.b_count, site.n * site.k, T), b.items);
  if (sums.type == Type::kF32) {
    fragment_read<Type::kF32>(w, sums, acc.items);
  } else {
    fragment_read<Type::kF16>(w, sums, acc.items);
  }
  multiply(acc.items, a.items, b.items, site.m, site.n, site.k);
  fragment_write(w, Fragment(site.d, site.d_count, site.m * site.n, wide(site.d_count)), acc.items);
  return i + 1;
}

/// Bytes of a fragment, of which every lane has `count` registers.
void fragment_bytes(const Warp& w, const s32* rows, int count, bool is_signed, s32* out) {
  for (int slot = 0; slot < count; ++slot) {
    s32 bytes[128];
    widen_bytes(row<u32>(w, rows[slot]), is_signed, bytes);
    for (int l = 0; l < 32; ++l)
      __builtin_memcpy(out + 4 * (l * count + slot), bytes + 4 * l, 4 * sizeof(s32));
  }
}

/// imm: MatrixSite; mode: kMatrixSignedA and others.
const Inst* wmma_integer(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  Tile<s32> a, b, products = {};
  fragment_bytes(w, site.a, site.a_count, (i->mode & kMatrixSignedA) != 0, a.items);
  fragment_bytes(w, site.b, site.b_count, (i->mode & kMatrixSignedB) != 0, b.items);
  multiply(products.items, a.items, b.items, site.m, site.n, site.k);
  for_each_lane(w.mask, [&](int l) {
    integer_sums(w, i, site, l, products.items, [&](int slot) { return l * site.c_count + slot; });
  });
  return i + 1;
}

Handler mma_handler(Type type) {
  switch (type) {
    case Type::kF16:
      return mma<Type::kF16>;
    case Type::kBf16:
      return mma<Type::kBf16>;
    case Type::kTf32:
      return mma<Type::kTf32>;
    case Type::kF64:
      return multiply_double<false>;
    case Type::kS8:
    case Type::kU8:
      return mma_integer;
    default:
      return nullptr;
  }
}

Handler wmma_handler(Type type) {
  switch (type) {
    case Type::kF16:
      return wmma_multiply<Type::kF16>;
    case Type::kBf16:
      return wmma_multiply<Type::kBf16>;
    case Type::kTf32:
      return wmma_multiply<Type::kTf32>;
    case Type::kF64:
      return multiply_double<true>;
    case Type::kS8:
    case Type::kU8:
      return wmma_integer;
    default:
      return nullptr;
  }
}

}  // namespace

Handler matrix_handler(const Form& form) {
  switch (form.op) {
    case Op::kMma:
      return mma_handler(form.type);
    case Op::kWmma:
      return wmma_handler(form.type);
    default:
      return nullptr;
  }
}

}  // namespace softgpu::ptx::SOFTGPU_ISA

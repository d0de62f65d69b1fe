// Asynchronous copies, their barriers in shared memory, and the matrix load that reads shared
// memory row by row. Copies are done at once: a program that waits for them as it should sees no
// difference. They exist once, not per instruction set.
#pragma once

#include "softgpu/ptx/exec/warp.h"

namespace softgpu::ptx {

/// Two addresses and their offsets. a: destination row (u32, or u64 with kCopyWide), f: its offset;
/// b: source row (u64), imm: its offset. bytes: of the copy. c: row of the source size with
/// kCopySize, or the predicate row of ignore-src with kCopyIgnore.
const Inst* run_copy(Warp& w, const Inst* i);
inline constexpr u8 kCopyWide = 1;
inline constexpr u8 kCopySize = 2;
inline constexpr u8 kCopyIgnore = 4;
inline constexpr u8 kCopyIgnoreNegated = 8;

enum class PhaseOp : u8 { kInit, kInvalidate, kArrive, kDrop, kTest, kTestParity, kPending, kJoin };

/// mbarrier. mode: PhaseOp. a: address row (u32, or u64 with kCopyWide), imm: offset; b: count,
/// state or parity; d: state or predicate. The
/// address is an offset in shared memory unless kPhaseGeneric.
const Inst* run_phase(Warp& w, const Inst* i);
inline constexpr u8 kPhaseGeneric = 16;
inline constexpr u8 kPhaseNoIncrement = 32;

/// ldmatrix. imm: MatrixSite*.
const Inst* run_matrix_load(Warp& w, const Inst* i);

/// wmma.load and wmma.store, of elements of one, two, four or eight bytes. imm: MatrixSite with the
/// fragment's registers in d, its rows, columns and bytes of an element in c; a: address row, f:
/// offset; b: row of strides in elements; mode 1: by columns.
const Inst* run_fragment_load(Warp& w, const Inst* i);
const Inst* run_fragment_store(Warp& w, const Inst* i);
inline constexpr u8 kFragmentShared = 64;

}  // namespace softgpu::ptx

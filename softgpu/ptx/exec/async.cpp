// See async.h. mbarrier: PTX ISA, section 9.7.13.15; the object is opaque to programs, its layout
// is ours: bits 0-19 arrivals expected in a phase, 20-39 arrivals still missing in this one, 40 and
// up the number of phases completed.
#include "softgpu/ptx/exec/async.h"

#include <cstring>

#include "softgpu/ptx/exec/control.h"

namespace softgpu::ptx {
namespace {

constexpr u64 kCountMask = (u64{1} << 20) - 1;

template <class F>
void for_each(u32 mask, F body) {
  for (; mask != 0; mask &= mask - 1) body(__builtin_ctz(mask));
}

template <class T>
T* row_of(const Warp& w, s32 offset) {
  return reinterpret_cast<T*>(w.rf + offset);
}

/// Bytes of the shared window, which `address` is an offset into.
u8* shared_bytes(const Warp& w, u64 address, u64 bytes, u64 align) {
  if ((address & (align - 1)) != 0) fault_raise(Fault::kMisaligned, address);
  if (address > w.shared_bytes || bytes > w.shared_bytes - address) {
    fault_raise(Fault::kIllegalAddress, address);
  }
  return w.shared + address;
}

/// The same for a generic address.
u8* generic_bytes(const Warp& w, u64 address, u64 bytes, u64 align) {
  const u64 offset = address - reinterpret_cast<u64>(w.shared);
  if (offset >= w.shared_bytes) fault_raise(Fault::kInvalidAddressSpace, address);
  return shared_bytes(w, offset, bytes, align);
}

u64 address_in(const Warp& w, s32 row, bool wide, int lane) {
  return wide ? row_of<u64>(w, row)[lane] : row_of<u32>(w, row)[lane];
}

/// Bytes that come from the source; the rest is filled with zeros.
u32 source_size(const Warp& w, const Inst* i, int lane) {
  if ((i->flags & kCopyIgnore) != 0) {
    const bool p = (row_of<u32>(w, i->c)[0] >> lane & 1) != 0;
    return p != ((i->flags & kCopyIgnoreNegated) != 0) ? 0 : i->bytes;
  }
  if ((i->flags & kCopySize) == 0) return i->bytes;
  const u32 size = row_of<u32>(w, i->c)[lane];
  return size < i->bytes ? size : i->bytes;
}

struct Phase {
  u64 expected, missing, number;
  explicit Phase(u64 bits)
      : expected(bits & kCountMask), missing(bits >> 20 & kCountMask), number(bits >> 40) {}
  u64 bits() const { return expected | missing << 20 | number << 40; }
  void arrive(u64 count) {
    missing = (missing - count) & kCountMask;
    if (missing != 0) return;
    missing = expected;
    ++number;
  }
};

/// What a phase object is told by one lane; the value that goes to its result. `completed` is set
/// when the arrival ends a phase.
u64 phase_step(const Warp& w, const Inst* i, u8* object, int lane, bool& completed) {
  u64 bits = 0;
  std::memcpy(&bits, object, sizeof bits);
  Phase phase(bits);
  const u64 before = bits;
  u64 result = before;
  switch (static_cast<PhaseOp>(i->mode)) {
    case PhaseOp::kInit:
      phase = Phase(0);
      phase.expected = phase.missing = row_of<u32>(w, i->b)[lane] & kCountMask;
      break;
    case PhaseOp::kInvalidate:
      phase = Phase(0);
      break;
    case PhaseOp::kArrive:
      phase.arrive(row_of<u32>(w, i->b)[lane]);
      break;
    case PhaseOp::kDrop:
      phase.expected = (phase.expected - row_of<u32>(w, i->b)[lane]) & kCountMask;
      phase.arrive(row_of<u32>(w, i->b)[lane]);
      break;
    case PhaseOp::kTest:
      return phase.number != Phase(row_of<u64>(w, i->b)[lane]).number;
    case PhaseOp::kTestParity:
      return (phase.number & 1) != (row_of<u32>(w, i->b)[lane] & 1);
    default:
      // cp.async.mbarrier.arrive: the copies are complete, so it arrives now. Unless .noinc, that
      // arrival was added to the phase's expectation first, and cancels out.
      if ((i->flags & kPhaseNoIncrement) != 0) phase.arrive(1);
      break;
  }
  const bool begins = static_cast<PhaseOp>(i->mode) == PhaseOp::kInit;
  completed = completed || (!begins && phase.number > Phase(before).number);
  bits = phase.bits();
  std::memcpy(object, &bits, sizeof bits);
  return result;
}

/// Writes what the lanes get. Returns true when lanes have asked for a phase that is not complete.
bool phase_results(Warp& w, const Inst* i, const u64* results) {
  const PhaseOp op = static_cast<PhaseOp>(i->mode);
  if (op == PhaseOp::kArrive || op == PhaseOp::kDrop) {
    for_each(w.mask, [&](int l) { row_of<u64>(w, i->d)[l] = results[l]; });
  } else if (op == PhaseOp::kTest || op == PhaseOp::kTestParity) {
    u32 done = 0;
    for_each(w.mask, [&](int l) { done |= results[l] != 0 ? 1u << l : 0; });
    u32& p = *row_of<u32>(w, i->d);
    p = (p & ~w.mask) | done;
    return done != w.mask;
  }
  return false;
}

}  // namespace

const Inst* run_copy(Warp& w, const Inst* i) {
  w.at = i;
  const u32 bytes = i->bytes;
  for_each(w.mask, [&](int l) {
    const u64 to =
        address_in(w, i->a, (i->flags & kCopyWide) != 0, l) + static_cast<u64>(s64{i->f});
    const u64 from = row_of<u64>(w, i->b)[l] + static_cast<u64>(i->imm);
    u8* target =
        shared_bytes(w, (i->flags & kCopyWide) != 0 ? to : static_cast<u32>(to), bytes, bytes);
    const u32 size = source_size(w, i, l);
    u8 part[16] = {};
    if (size != 0) {
      if ((from & (bytes - 1)) != 0) fault_raise(Fault::kMisaligned, from);
      std::memcpy(part, reinterpret_cast<const u8*>(from), size);
    }
    std::memcpy(target, part, bytes);
  });
  return i + 1;
}

const Inst* run_phase(Warp& w, const Inst* i) {
  w.at = i;
  if (static_cast<PhaseOp>(i->mode) == PhaseOp::kPending) {
    for_each(w.mask, [&](int l) {
      row_of<u32>(w, i->d)[l] = static_cast<u32>(Phase(row_of<u64>(w, i->a)[l]).missing);
    });
    return i + 1;
  }
  u64 results[32] = {};
  bool completed = false;
  const bool generic = (i->flags & kPhaseGeneric) != 0, wide = (i->flags & kCopyWide) != 0;
  for_each(w.mask, [&](int l) {
    u64 address = address_in(w, i->a, wide, l) + static_cast<u64>(i->imm);
    if (!wide) address = static_cast<u32>(address);
    u8* object = generic ? generic_bytes(w, address, 8, 8) : shared_bytes(w, address, 8, 8);
    results[l] = phase_step(w, i, object, l, completed);
  });
  if (phase_results(w, i, results)) {
    // Polling is waiting: the turn ends, and counts as a long one.
    warp_pause(w, i + 1);
    warp_rotate(w);
    return nullptr;
  }
  return completed && turns_restart(*w.cta) ? warp_pause(w, i + 1) : i + 1;
}

/// Lane l holds the address of row l % 8 of matrix l / 8. Every lane gets two elements of each
/// matrix: of row l / 4, or with .trans (mode) of column l / 4.
const Inst* run_matrix_load(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  w.at = i;
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  const bool wide = (i->flags & kCopyWide) != 0, generic = (i->flags & kPhaseGeneric) != 0;
  u16 rows[32][8];
  for (int l = 0; l < 8 * site.d_count; ++l) {
    u64 address = address_in(w, i->a, wide, l) + static_cast<u64>(s64{i->f});
    if (!wide) address = static_cast<u32>(address);
    const u8* p = generic ? generic_bytes(w, address, 16, 16) : shared_bytes(w, address, 16, 16);
    std::memcpy(rows[l], p, 16);
  }
  for (int m = 0; m < site.d_count; ++m) {
    u32* d = row_of<u32>(w, site.d[m]);
    for_each(w.mask, [&](int l) {
      const int at = l / 4, first = l % 4 * 2;
      const u16 low = i->mode != 0 ? rows[8 * m + first][at] : rows[8 * m + at][first];
      const u16 high = i->mode != 0 ? rows[8 * m + first + 1][at] : rows[8 * m + at][first + 1];
      d[l] = u32{low} | static_cast<u32>(high) << 16;
    });
  }
  return i + 1;
}

namespace {

/// Bytes of a lane of a register that holds elements of so many bytes.
u32 register_bytes(u32 element) { return element == 8 ? 8 : 4; }

/// The elements that a lane's fragment holds (see exec/matrix.cpp), and where they are in memory.
/// Rows, columns and slots are powers of two.
class LaneFragment {
 public:
  LaneFragment(const Warp& w, const Inst* i, const MatrixSite& site, int lane)
      : warp_(w),
        shared_((i->flags & kFragmentShared) != 0),
        by_columns_(i->mode != 0),
        bytes_(static_cast<u32>(site.c[2])),
        slots_(static_cast<u32>(site.d_count) * register_bytes(bytes_) / bytes_),
        columns_(static_cast<u32>(site.c[1])),
        elements_(static_cast<u32>(site.c[0]) * columns_),
        first_(static_cast<u32>(lane) * slots_),
        stride_(row_of<u32>(w, i->b)[lane]) {
    const bool wide = (i->flags & kCopyWide) != 0;
    start_ = address_in(w, i->a, wide, lane) + static_cast<u64>(s64{i->f});
    if (shared_ && !wide) start_ = static_cast<u32>(start_);
    if ((start_ & (bytes_ - 1)) != 0) fault_raise(Fault::kMisaligned, start_);
  }
  /// Elements that lie next to each other in memory, from every multiple of that many slots on.
  u32 run() const { return by_columns_ ? 1 : slots_ < columns_ ? slots_ : columns_; }
  u32 slots() const { return slots_; }
  u8* at(u32 slot) const {
    const u32 element = (first_ + slot) & (elements_ - 1);
    const u64 r = element >> __builtin_ctz(columns_), c = element & (columns_ - 1);
    const u64 place = start_ + (by_columns_ ? c * stride_ + r : r * stride_ + c) * bytes_;
    return shared_ ? shared_bytes(warp_, place, u64{run()} * bytes_, bytes_)
                   : reinterpret_cast<u8*>(place);
  }

 private:
  const Warp& warp_;
  const bool shared_, by_columns_;
  const u32 bytes_, slots_, columns_, elements_, first_;
  const u64 stride_;
  u64 start_;
};

/// Moves the run that begins at a slot between memory and registers, a register at a time where it
/// fills some.
template <bool Load>
void move_run(const Warp& w, const MatrixSite& site, int lane, u32 slot, u32 bytes, u8* p) {
  const u32 size = static_cast<u32>(site.c[2]), box = register_bytes(size);
  const u32 step = bytes < box ? bytes : box;
  for (u32 done = 0; done < bytes; done += step) {
    const u32 at = slot * size + done;
    u8* in_register = row_of<u8>(w, site.d[at / box]) + static_cast<u32>(lane) * box + at % box;
    u8 *to = Load ? in_register : p + done, *from = Load ? p + done : in_register;
    switch (step) {
      case 1:
        *to = *from;
        break;
      case 2:
        std::memcpy(to, from, 2);
        break;
      case 4:
        std::memcpy(to, from, 4);
        break;
      default:
        std::memcpy(to, from, 8);
    }
  }
}

template <bool Load>
const Inst* fragment_move(Warp& w, const Inst* i) {
  if (warp_lacks(w, kWholeWarp)) return warp_gather(w, i, kWholeWarp);
  w.at = i;
  const MatrixSite& site = *reinterpret_cast<const MatrixSite*>(i->imm);
  for_each(w.mask, [&](int l) {
    const LaneFragment fragment(w, i, site, l);
    const u32 run = fragment.run(), bytes = run * static_cast<u32>(site.c[2]);
    for (u32 slot = 0; slot < fragment.slots(); slot += run) {
      move_run<Load>(w, site, l, slot, bytes, fragment.at(slot));
    }
  });
  return i + 1;
}

}  // namespace

const Inst* run_fragment_load(Warp& w, const Inst* i) { return fragment_move<true>(w, i); }
const Inst* run_fragment_store(Warp& w, const Inst* i) { return fragment_move<false>(w, i); }

}  // namespace softgpu::ptx

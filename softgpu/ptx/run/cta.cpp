// See cta.h.
#include "softgpu/ptx/run/cta.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace softgpu::ptx {
namespace {

/// Shared windows start here: what hardware promises for dynamic arrays, and more.
constexpr u64 kWindowAlign = 1024;

void fill(u32* row, u32 value) { std::fill(row, row + 32, value); }

template <class B>
void broadcast(u8* row, u64 value) {
  B* lanes = reinterpret_cast<B*>(row);
  std::fill(lanes, lanes + 32, static_cast<B>(value));
}

u64 param_value(const ParamRow& param, const std::byte* params) {
  u64 value = 0;
  std::memcpy(&value, params + param.offset, param.bytes);
  if (param.is_signed) {
    const int drop = 64 - 8 * param.bytes;
    value = static_cast<u64>(static_cast<s64>(value << drop) >> drop);
  }
  return value;
}

u32 lane_mask(Special what, u32 lane) {
  const u32 bit = 1u << lane;
  switch (what) {
    case Special::kLaneMaskEq:
      return bit;
    case Special::kLaneMaskLt:
      return bit - 1;
    case Special::kLaneMaskLe:
      return bit | (bit - 1);
    case Special::kLaneMaskGe:
      return ~(bit - 1);
    default:
      return ~(bit | (bit - 1));
  }
}

u32 uniform_special(const Warp& w, Special what) {
  const Cta& cta = *w.cta;
  const Launch& launch = *cta.launch;
  switch (what) {
    case Special::kNtidX:
      return launch.block.x;
    case Special::kNtidY:
      return launch.block.y;
    case Special::kNtidZ:
      return launch.block.z;
    case Special::kCtaidX:
      return cta.index.x;
    case Special::kCtaidY:
      return cta.index.y;
    case Special::kCtaidZ:
      return cta.index.z;
    case Special::kNctaidX:
      return launch.grid.x;
    case Special::kNctaidY:
      return launch.grid.y;
    case Special::kNctaidZ:
      return launch.grid.z;
    case Special::kWarpId:
      return w.index;
    case Special::kNwarpId:
      return static_cast<u32>(cta.warps.size());
    case Special::kSmId:
      return cta.sm;
    case Special::kNsmId:
      return launch.sm_count;
    case Special::kDynamicShared:
      return launch.dynamic_shared_bytes;
    case Special::kTotalShared:
      return cta.shared_bytes;
    case Special::kEnvReg1:
      return static_cast<u32>(cta.grid_workspace >> 32);
    case Special::kEnvReg2:
      return static_cast<u32>(cta.grid_workspace);
    default:
      return 0;
  }
}

bool differs_per_lane(Special what) {
  switch (what) {
    case Special::kTidX:
    case Special::kTidY:
    case Special::kTidZ:
    case Special::kLaneId:
    case Special::kLaneMaskEq:
    case Special::kLaneMaskLt:
    case Special::kLaneMaskLe:
    case Special::kLaneMaskGt:
    case Special::kLaneMaskGe:
      return true;
    default:
      return false;
  }
}

}  // namespace

void special_fill(const Warp& w, Special what, u32* row) {
  if (!differs_per_lane(what)) return fill(row, uniform_special(w, what));
  const Dim3 block = w.cta->launch->block;
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 thread = w.index * 32 + lane;
    switch (what) {
      case Special::kTidX:
        row[lane] = thread % block.x;
        break;
      case Special::kTidY:
        row[lane] = thread / block.x % block.y;
        break;
      case Special::kTidZ:
        row[lane] = thread / block.x / block.y;
        break;
      case Special::kLaneId:
        row[lane] = lane;
        break;
      default:
        row[lane] = lane_mask(what, lane);
        break;
    }
  }
}

u8* Arena::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    std::free(start_);
    bytes_ = 0;
    start_ = static_cast<u8*>(std::aligned_alloc(kWindowAlign, align_up(bytes, kWindowAlign)));
    if (start_ == nullptr) throw std::bad_alloc();
    bytes_ = bytes;
  }
  return start_;
}

Arena::~Arena() { std::free(start_); }

void CtaRunner::prepare_warp(Warp& warp, u8* rf, const u8* image) {
  const Code& code = *cta_.program->entry;
  warp.rf = warp.entry_rf = rf;
  warp.cta = &cta_;
  warp.shared = cta_.shared;
  warp.shared_bytes = cta_.shared_bytes;
  warp.params = cta_.launch->params;
  if (!image_.empty()) std::memcpy(rf - image_.size(), image, image_.size());
  std::memset(rf, 0, kFirstRow);
  for (const SpecialRow& special : code.specials) {
    special_fill(warp, special.what, reinterpret_cast<u32*>(rf + special.row));
  }
}

void CtaRunner::prepare(const Program& program, const Launch& launch, Host& host) {
  const Code& code = *program.entry;
  const u32 threads = launch.block.x * launch.block.y * launch.block.z;
  const u32 warps = (threads + 31) / 32;
  cta_.program = &program;
  cta_.launch = &launch;
  cta_.host = &host;
  cta_.shared_bytes = program.info.shared_bytes + launch.dynamic_shared_bytes;
  cta_.local_bytes = u64{code.local_bytes} * 32 * warps;

  image_.assign(code.image.begin(), code.image.end());
  for (const ParamRow& param : code.params) {
    u8* row = image_.data() + static_cast<s64>(image_.size()) + param.row;
    const u64 value = param_value(param, launch.params);
    if (param.box == 8) {
      broadcast<u64>(row, value);
    } else {
      broadcast<u32>(row, value);
    }
  }
  const u64 shared = align_up(cta_.shared_bytes, kWindowAlign);
  const u64 local = align_up(cta_.local_bytes, 64);
  const u64 area = align_up(u64{32} * code.param_bytes, 64);
  const u64 rows = image_.size() + code.rows_bytes + area;
  u8* memory = memory_.reserve(shared + local + rows * warps);
  cta_.shared = memory;
  std::memset(cta_.shared, 0, cta_.shared_bytes);
  cta_.local = memory + shared;
  const bool in_step = program.in_step && (warps > 1 || launch.cooperative);
  cta_.first_turn = in_step ? 0 : kTurnsGrown;
  if (cta_.warps.size() != warps) cta_.warps = std::vector<Warp>(warps);
  u8* next = cta_.local + local;
  for (u32 k = 0; k < warps; ++k, next += rows) {
    Warp& warp = cta_.warps[k];
    warp.index = k;
    prepare_warp(warp, next + image_.size(), image_.data());
  }
}

void CtaRunner::start(std::uint64_t block, std::uint64_t grid_workspace) {
  const Code& code = *cta_.program->entry;
  const Launch& launch = *cta_.launch;
  const u32 threads = launch.block.x * launch.block.y * launch.block.z;
  cta_.index = {static_cast<u32>(block % launch.grid.x),
                static_cast<u32>(block / launch.grid.x % launch.grid.y),
                static_cast<u32>(block / launch.grid.x / launch.grid.y)};
  cta_.sm = static_cast<u32>(block % std::max(launch.sm_count, 1u));
  cta_.grid_workspace = grid_workspace;
  cta_.live = threads;
  if (cta_.barriers_used) cta_.barriers.fill(Barrier());
  cta_.barriers_used = false;
  for (Warp& warp : cta_.warps) {
    const u32 lanes = std::min(32u, threads - warp.index * 32);
    warp.live = lanes == 32 ? kAllLanes : (1u << lanes) - 1;
    warp.active = warp.mask = warp.live;
    warp.splits.clear();
    warp.parked.clear();
    warp.waiting.clear();
    warp.frames.clear();
    warp.stack_block = 0;
    warp.stack_top = nullptr;
    warp.stack_bytes = code.local_bytes;
    warp.turn = cta_.first_turn;
    warp.turns = 0;
    warp.gathered = 0;
    warp.code = &code;
    warp.base = warp.ip = code.insts.data();
    warp.local = cta_.local + u64{code.local_bytes} * 32 * warp.index;
    warp.local_bytes = code.local_bytes;
    warp.rf = warp.entry_rf;
    warp.param_area = warp.rf + code.rows_bytes;
    warp.param_stride = code.param_bytes;
  }
  for (const SpecialRow& special : code.block_specials) {
    const u32 value = uniform_special(cta_.warps.front(), special.what);
    for (Warp& warp : cta_.warps) fill(reinterpret_cast<u32*>(warp.rf + special.row), value);
  }
}

}  // namespace softgpu::ptx

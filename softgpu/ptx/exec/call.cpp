// Calls of device functions: an explicit stack of frames per warp, so recursion, indirect calls and
// calls by some lanes only are all the same thing. Built-in functions (printf and the heap) are
// served here, lane by lane.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "softgpu/ptx/exec/control.h"
#include "softgpu/ptx/exec/format.h"

namespace softgpu::ptx {
namespace {

/// What a frame costs on the kernel's stack besides its variables: return address, saved registers.
constexpr u64 kFrameBytes = 32;
constexpr std::size_t kStackBlockBytes = std::size_t{1} << 20;

u8* stack_allocate(Warp& w, std::size_t bytes) {
  while (w.stack_block < w.stack_blocks.size()) {
    auto& [start, size] = w.stack_blocks[w.stack_block];
    if (w.stack_top == nullptr || w.stack_top < start || w.stack_top > start + size)
      w.stack_top = start;
    if (static_cast<std::size_t>(start + size - w.stack_top) >= bytes) {
      u8* made = w.stack_top;
      w.stack_top += bytes;
      return made;
    }
    ++w.stack_block;
    w.stack_top = nullptr;
  }
  const std::size_t size = std::max(kStackBlockBytes, bytes);
  u8* start = static_cast<u8*>(std::aligned_alloc(64, align_up(size, 64)));
  if (start == nullptr) fault_raise(Fault::kStackOverflow, 0);
  w.stack_blocks.emplace_back(start, size);
  w.stack_top = start + bytes;
  return start;
}

/// The function that the lanes call: one for all of them, or that of the first with the others left
/// for later.
Code* resolve_target(Warp& w, const Inst* i, const CallSite& site) {
  if (site.target != nullptr) return site.target;
  const u64* addresses = reinterpret_cast<const u64*>(w.rf + site.target_row);
  const u64 first = addresses[__builtin_ctz(w.mask)];
  u32 same = 0;
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (addresses[lane] == first) same |= 1u << lane;
  }
  if (same != w.mask) {
    const u32 others = w.mask & ~same;
    w.splits.add(w.pc_of(i), others);
    w.active &= ~others;
    w.mask = same;
  }
  const auto found = w.cta->program->by_address.find(first);
  if (found == w.cta->program->by_address.end()) fault_raise(Fault::kInvalidPc, first);
  return found->second;
}

void copy_arguments(const Warp& w, const CallSite& site, const Signature& signature, u8* area,
                    u32 stride) {
  for (std::size_t k = 0; k < site.arguments.size() && k < signature.parameters.size(); ++k) {
    const CallArgument& from = site.arguments[k];
    for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
      const u32 lane = static_cast<u32>(__builtin_ctz(rest));
      std::memcpy(area + u64{lane} * stride + signature.parameters[k],
                  w.param_area + u64{lane} * w.param_stride + from.caller, from.bytes);
    }
  }
}

const Inst* enter(Warp& w, const Inst* i, const CallSite& site, Code& target) {
  if (!target.error.empty()) {
    fault_text_keep(target.error);
    fault_raise(Fault::kIllegalInstruction, 0);
  }
  w.stack_bytes += u64{target.local_bytes} + target.param_bytes + kFrameBytes;
  if (w.stack_bytes > w.cta->launch->stack_bytes_max) fault_raise(Fault::kStackOverflow, 0);
  warp_account(w, i + 1);
  Frame& frame = w.frames.emplace_back();
  frame.code = w.code;
  frame.site = &site;
  frame.rf = w.rf;
  frame.param_area = w.param_area;
  frame.local = w.local;
  frame.back = i + 1;
  frame.active = w.mask;
  frame.splits = w.splits;
  frame.parked = w.parked;
  frame.stack_top = w.stack_top;
  if (w.active != w.mask) frame.splits.add(w.pc_of(i + 1), w.active & ~w.mask);

  const std::size_t image = align_up(target.image.size(), 64),
                    rows = align_up(target.rows_bytes, 64);
  const std::size_t area = align_up(u64{32} * target.param_bytes, 64);
  u8* memory = stack_allocate(w, align_up(image + rows + area + u64{32} * target.local_bytes, 64));
  u8* rf = memory + image;
  if (!target.image.empty())
    std::memcpy(rf - target.image.size(), target.image.data(), target.image.size());
  copy_arguments(w, site, w.cta->program->signatures.at(&target), rf + rows, target.param_bytes);
  w.rf = rf;
  w.param_area = rf + rows;
  w.param_stride = target.param_bytes;
  w.local = rf + rows + area;
  w.local_bytes = target.local_bytes;
  w.code = &target;
  w.base = target.insts.data();
  w.splits.clear();
  w.parked.clear();
  w.active = w.mask;
  for (const SpecialRow& special : target.specials) {
    special_fill(w, special.what, reinterpret_cast<u32*>(rf + special.row));
  }
  w.from = 0;
  if (w.count >= w.count_limit) {
    w.ip = w.base;
    return nullptr;
  }
  return w.base;
}

u64 argument(const CallSite& site, const u8* area, std::size_t index) {
  u64 value = 0;
  if (index < site.arguments.size()) {
    const CallArgument& from = site.arguments[index];
    std::memcpy(&value, area + from.caller, std::min<u32>(from.bytes, 8));
  }
  return value;
}

std::string assertion_text(const Warp& w, const CallSite& site, const u8* area, int lane) {
  const Dim3 block = w.cta->launch->block;
  const u32 thread = w.index * 32 + static_cast<u32>(lane);
  const auto text = [&](std::size_t index) {
    const u64 address = argument(site, area, index);
    return address == 0 ? std::string("?") : std::string(reinterpret_cast<const char*>(address));
  };
  const Dim3& cta = w.cta->index;
  const auto triple = [](u32 x, u32 y, u32 z) {
    return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
  };
  return text(1) + ":" + std::to_string(static_cast<u32>(argument(site, area, 2))) + ": " +
         text(3) + ": block: " + triple(cta.x, cta.y, cta.z) + ", thread: " +
         triple(thread % block.x, thread / block.x % block.y, thread / block.x / block.y) +
         " Assertion `" + text(0) + "` failed.";
}

u64 run_builtin(Warp& w, const CallSite& site, const u8* area, int lane) {
  Host& host = *w.cta->host;
  switch (site.builtin) {
    case Builtin::kVprintf: {
      int arguments = 0;
      const std::string text =
          device_format(reinterpret_cast<const char*>(argument(site, area, 0)),
                        reinterpret_cast<const u8*>(argument(site, area, 1)), &arguments);
      host.print(text);
      return static_cast<u64>(arguments);
    }
    case Builtin::kMalloc:
      return reinterpret_cast<u64>(host.heap_allocate(argument(site, area, 0)));
    case Builtin::kFree:
      if (argument(site, area, 0) != 0)
        host.heap_free(reinterpret_cast<void*>(argument(site, area, 0)));
      return 0;
    default:
      fault_text_keep(assertion_text(w, site, area, lane));
      fault_raise(Fault::kAssert, 0);
  }
}

}  // namespace

Warp::~Warp() {
  for (const auto& [start, size] : stack_blocks) std::free(start);
}

const Inst* run_call(Warp& w, const Inst* i) {
  const CallSite& site = *reinterpret_cast<const CallSite*>(i->imm);
  w.at = i;
  if (site.builtin == Builtin::kNone) return enter(w, i, site, *resolve_target(w, i, site));
  for (u32 rest = w.mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    u8* area = w.param_area + static_cast<u64>(lane) * w.param_stride;
    const u64 result = run_builtin(w, site, area, lane);
    if (!site.returns.empty()) {
      std::memcpy(area + site.returns[0].caller, &result, std::min<u32>(site.returns[0].bytes, 8));
    }
  }
  return i + 1;
}

}  // namespace softgpu::ptx

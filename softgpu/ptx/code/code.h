// Decoded code: a Program is one kernel with every device function it can reach, decoded for it
// (shared variables have kernel-specific offsets), and how the register files of its frames are
// filled.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "softgpu/ptx/code/inst.h"
#include "softgpu/ptx/machine.h"
#include "softgpu/ptx/text/syntax.h"

namespace softgpu::ptx {

enum class Special : u8 {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneId,
  kWarpId,
  kNwarpId,
  kLaneMaskEq,
  kLaneMaskLt,
  kLaneMaskLe,
  kLaneMaskGt,
  kLaneMaskGe,
  kSmId,
  kNsmId,
  kDynamicShared,
  kTotalShared,
  kEnvReg1,
  kEnvReg2,
  kGridId,
};

struct SpecialRow {
  Special what;
  s32 row;
};

/// A kernel parameter broadcast into a row before the kernel starts.
struct ParamRow {
  u32 offset = 0;
  s32 row = 0;
  u8 bytes = 4;
  u8 box = 4;
  bool is_signed = false;
};

/// Rows at fixed offsets in every frame, below the decoder's own.
inline constexpr s32 kCarryRow = 0;  // condition code: one bit a lane
inline constexpr s32 kSinkRow = 64;  // where unwanted results go
inline constexpr s32 kFirstRow = 320;

struct Code {
  std::string name;
  std::vector<Inst> insts;
  // Constant, special and parameter rows lie below Warp::rf, the registers above: `image` is what
  // the part below holds.
  std::vector<u8> image;
  std::vector<SpecialRow> specials;
  std::vector<SpecialRow>
      block_specials;  // those of them that change from block to block of a launch
  std::vector<ParamRow> params;
  u32 rows_bytes = kFirstRow;  // above rf
  u32 local_bytes = 0;         // per lane
  u32 param_bytes = 0;         // call-parameter area, per lane
  u32 register_count = 0;
  std::string error;  // not empty: an instruction nobody knows; the code is not there
};

enum class Builtin : u8 { kNone, kVprintf, kMalloc, kFree, kAssertFail };

struct CallArgument {
  u32 caller = 0, bytes = 0;  // in the caller's parameter area
};

struct CallSite {
  Builtin builtin = Builtin::kNone;
  Code* target = nullptr;  // direct call
  s32 target_row = 0;      // indirect call: row of function addresses
  std::vector<CallArgument> arguments, returns;
  std::string callee;
};

/// Jump table of a brx.idx.
struct JumpTable {
  std::vector<u32> targets;
};

/// Rows of the fragments of a matrix operation, and its shape: d and c are m x n, a m x k, b k x n.
struct MatrixSite {
  s32 d[8] = {}, a[8] = {}, b[8] = {}, c[8] = {};
  int d_count = 0, a_count = 0, b_count = 0, c_count = 0;
  int m = 0, n = 0, k = 0;
};

/// Rows of a fetch from a texture, or of an access to a surface.
struct ImageSite {
  s32 d[4] = {}, c[3] = {};  // values; coordinates: x, y, z
  s32 layer = 0;             // row of the layer; its meaning is in `layered`
  int values = 0, coordinates = 0;
  bool layered = false;
  bool integral = false;  // coordinates are texels
  int component = -1;     // of a gather (tld4); -1: it is none
};

/// Offsets of the parameters and the return value in a callee's parameter area.
struct Signature {
  std::vector<u32> parameters, returns;
};

struct Program {
  KernelInfo info;
  std::unordered_map<const FunctionText*, std::unique_ptr<Code>> codes;
  std::unordered_map<const Code*, Signature> signatures;
  std::unordered_map<u64, Code*> by_address;  // what an indirect call may name
  std::vector<std::unique_ptr<CallSite>> calls;
  std::vector<std::unique_ptr<JumpTable>> tables;
  std::vector<std::unique_ptr<MatrixSite>> matrices;
  std::vector<std::unique_ptr<ImageSite>> images;
  std::vector<std::pair<u64, u64>> constants;  // address and size of the module's .const variables
  Code* entry = nullptr;
  void (*leave_handlers)() = nullptr;
  bool has_indirect_calls = false;
  bool in_step = false;  // has a loop or a barrier: its warps keep in step (exec/control.h)
  std::string error;     // why it cannot run
};

class Kernel {
 public:
  Program program;
};

class Module {
 public:
  std::string text;
  Unit unit;
  Memory* memory = nullptr;
  std::vector<Variable> variables;
  std::unordered_map<std::string_view, const FunctionText*> functions;
  std::unordered_map<std::string_view, std::size_t> globals;  // -> unit.globals
  std::unordered_map<std::string_view, u64> addresses;        // of .global and .const variables
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<void*> blocks;  // to give back to `memory`

  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module() {
    for (void* block : blocks) memory->release(block);
  }
};

}  // namespace softgpu::ptx

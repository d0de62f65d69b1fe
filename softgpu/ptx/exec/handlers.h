// The handler families. Each family's file is compiled several times, for several instruction sets;
// a HandlerSet is one such build, and the fastest that this processor runs is chosen when a module
// is loaded.
#pragma once

#include <array>

#include "softgpu/ptx/code/form.h"
#include "softgpu/ptx/code/inst.h"

namespace softgpu::ptx {

enum class Family : u8 {
  kInteger,
  kBits,
  kFloat,
  kDouble,
  kHalf,
  kCompare,
  kConvert,
  kLoad,
  kStore,
  kWarp,
  kMatrix,
  kAtomic,
  kCount
};

/// nullptr when the family has no handler for the form.
using HandlerFinder = Handler (*)(const Form&);

struct HandlerSet {
  const char* name;
  void (*leave)();  // after handlers ran: puts the vector registers in order for code built without
                    // them
  std::array<HandlerFinder, static_cast<std::size_t>(Family::kCount)> finders;

  Handler find(Family family, const Form& form) const {
    return finders[static_cast<std::size_t>(family)](form);
  }
};

namespace base {
extern const HandlerSet kHandlers;
}
namespace avx2 {
extern const HandlerSet kHandlers;
}
namespace avx512 {
extern const HandlerSet kHandlers;
}

/// The environment variable SOFTGPU_ISA (base, avx2, avx512) asks for one; what the processor
/// cannot run is not given.
const HandlerSet& handlers_choose();

}  // namespace softgpu::ptx

// Chooses the handler build for this processor.
#include "softgpu/ptx/exec/handlers.h"

#include <cstdlib>
#include <string_view>

namespace softgpu::ptx {
namespace {

bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
[[maybe_unused]] bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

}  // namespace

const HandlerSet& handlers_choose() {
  const char* asked = std::getenv("SOFTGPU_ISA");
  const std::string_view wish = asked != nullptr ? asked : "avx512";
  if (wish == "base") return base::kHandlers;
#ifdef SOFTGPU_HAS_avx512
  if (wish != "avx2" && runs_avx512()) return avx512::kHandlers;
#endif
  return runs_avx2() ? avx2::kHandlers : base::kHandlers;
}

}  // namespace softgpu::ptx

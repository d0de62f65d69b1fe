#include "softgpu/ctl/calibrate.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/ptx/machine.h"

namespace softgpu::ctl {
namespace {

constexpr int kRounds = 5;
constexpr double kRoundNs = 6e7;
constexpr std::uint32_t kThreads = 256, kCtas = 16, kTiles = 16;

// A tile of a matrix product, as the trainer's kernels are: each thread loads two values, meets the
// others at a barrier, and multiplies its way through shared memory. params: float* a, float* b,
// float* c, u32 tiles.
constexpr const char* kKernel = R"(
.version 7.5
.target sm_75
.address_size 64
.visible .entry tile(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)
{
  .reg .pred %p<3>;
  .reg .b32 %r<16>;
  .reg .f32 %f<8>;
  .reg .b64 %d<16>;
  .shared .align 4 .b8 sa[1024];
  .shared .align 4 .b8 sb[1024];
  ld.param.u64 %d1, [pa];
  ld.param.u64 %d2, [pb];
  ld.param.u64 %d3, [pc];
  ld.param.u32 %r1, [pn];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  cvta.to.global.u64 %d3, %d3;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mad.lo.s32 %r5, %r3, %r4, %r2;
  mul.wide.u32 %d4, %r5, 4;
  add.s64 %d5, %d1, %d4;
  add.s64 %d6, %d2, %d4;
  add.s64 %d7, %d3, %d4;
  shl.b32 %r6, %r2, 2;
  mov.u32 %r7, sa;
  mov.u32 %r8, sb;
  add.s32 %r9, %r7, %r6;
  add.s32 %r10, %r8, %r6;
  mov.f32 %f1, 0f00000000;
TILE:
  ld.global.f32 %f2, [%d5];
  ld.global.f32 %f3, [%d6];
  st.shared.f32 [%r9], %f2;
  st.shared.f32 [%r10], %f3;
  bar.sync 0;
  and.b32 %r11, %r2, 15;
  shl.b32 %r11, %r11, 2;
  add.s32 %r11, %r8, %r11;
  and.b32 %r12, %r2, 240;
  shl.b32 %r12, %r12, 2;
  add.s32 %r12, %r7, %r12;
  mov.u32 %r13, 0;
INNER:
  ld.shared.f32 %f4, [%r12];
  ld.shared.f32 %f5, [%r11];
  fma.rn.f32 %f1, %f4, %f5, %f1;
  add.s32 %r12, %r12, 4;
  add.s32 %r11, %r11, 64;
  add.s32 %r13, %r13, 1;
  setp.lt.u32 %p1, %r13, 16;
  @%p1 bra INNER;
  bar.sync 0;
  sub.s32 %r1, %r1, 1;
  setp.ne.u32 %p2, %r1, 0;
  @%p2 bra TILE;
  st.global.f32 [%d7], %f1;
  ret;
}
)";

class HostMemory final : public ptx::Memory {
 public:
  void* allocate(std::size_t bytes, std::size_t align) override {
    const std::size_t whole = (bytes + align - 1) / align * align;
    void* p = std::aligned_alloc(align, std::max(whole, align));
    if (p != nullptr) std::memset(p, 0, whole);
    return p;
  }
  void release(void* p) override { std::free(p); }
};

class FreeRun final : public ptx::Host {
 public:
  bool charge(std::uint64_t) override { return true; }
  std::uint64_t globaltimer_ns() override { return 0; }
  std::uint64_t clock_hz() override { return 1'000'000'000; }
  void print(std::string_view) override {}
  void* heap_allocate(std::size_t) override { return nullptr; }
  void heap_free(void*) override {}
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Warp instructions per second of one round.
double round_execute(const ptx::Kernel& kernel, const ptx::Launch& launch) {
  FreeRun host;
  double instructions = 0;
  const double start = device::clock_ns();
  while (device::clock_ns() - start < kRoundNs) {
    instructions += static_cast<double>(ptx::launch_run(kernel, launch, host).warp_instructions);
  }
  return instructions / (device::clock_ns() - start) * 1e9;
}

bool execution_measure(double* rate, std::string* error) {
  setenv("SOFTGPU_THREADS", "1", 1);
  HostMemory memory;
  const ptx::LoadResult loaded = ptx::module_load(kKernel, memory);
  const ptx::Kernel* kernel =
      loaded.status == ptx::LoadStatus::kOk ? ptx::module_kernel(*loaded.module, "tile") : nullptr;
  if (kernel == nullptr) {
    *error = "the interpreter refuses the measuring kernel: " + loaded.log;
    return false;
  }
  std::vector<float> a(kThreads * kCtas, 1.0F), b(a.size(), 0.5F), c(a.size());
  struct {
    float *a, *b, *c;
    std::uint32_t tiles;
  } params{a.data(), b.data(), c.data(), kTiles};
  ptx::Launch launch;
  launch.grid = {kCtas, 1, 1};
  launch.block = {kThreads, 1, 1};
  launch.params = reinterpret_cast<const std::byte*>(&params);
  round_execute(*kernel, launch);  // warm up
  std::vector<double> rates;
  for (int i = 0; i < kRounds; ++i) rates.push_back(round_execute(*kernel, launch));
  if (c[0] != 0.5F * 16 * kTiles) {
    *error = "the measuring kernel computed a wrong result";
    return false;
  }
  *rate = median(rates);
  return true;
}

double copy_measure() {
  const std::vector<char> from(64 << 20, 1);
  std::vector<char> to(from.size());
  std::vector<double> rates;
  for (int i = 0; i < kRounds + 1; ++i) {
    const double start = device::clock_ns();
    std::memcpy(to.data(), from.data(), from.size());
    asm volatile("" : : "r"(to.data()) : "memory");
    // The first round also maps the pages.
    if (i > 0)
      rates.push_back(static_cast<double>(from.size()) / (device::clock_ns() - start) * 1e9);
  }
  return median(rates);
}

}  // namespace

bool host_measure(HostRates* out, std::string* error) {
  out->copy_bytes_per_s = copy_measure();
  return execution_measure(&out->warp_instructions_per_s_per_core, error);
}

}  // namespace softgpu::ctl

// The heap of device malloc: bounded, charged, returned, and out of reach of the host's own heap.
#include "softgpu/driver/device_heap.h"

#include <algorithm>
#include <random>

#include "tests/softgpu/driver/fixture.h"

namespace softgpu_test {
namespace {

using softgpu::driver::DeviceHeap;

/// hoard: asks for blocks of `bytes` until there is none, at most `most`, writes their first words,
/// counts them in *answer and leaves their addresses behind it. drop: frees one address twice.
constexpr char kHeapKernels[] = R"(
.version 9.0
.target sm_75
.address_size 64
.extern .func (.param .b64 out) malloc(.param .b64 bytes);
.extern .func free(.param .b64 block);
.visible .entry hoard(.param .u64 answer, .param .u64 bytes, .param .u32 most)
{
  .reg .pred %q<3>;
  .reg .b32 %r<4>;
  .reg .b64 %d<6>;
  ld.param.u64 %d1, [answer];
  ld.param.u64 %d2, [bytes];
  ld.param.u32 %r1, [most];
  mov.u32 %r2, 0;
  mov.u64 %d3, %d1;
LOOP:
  setp.ge.u32 %q1, %r2, %r1;
  @%q1 bra DONE;
  {
  .param .b64 given;
  st.param.b64 [given], %d2;
  .param .b64 got;
  call (got), malloc, (given);
  ld.param.b64 %d4, [got];
  }
  setp.eq.u64 %q2, %d4, 0;
  @%q2 bra DONE;
  st.u32 [%d4], %r2;
  add.u32 %r2, %r2, 1;
  add.u64 %d3, %d3, 8;
  st.global.u64 [%d3], %d4;
  bra LOOP;
DONE:
  st.global.u32 [%d1], %r2;
  ret;
}
.visible .entry drop(.param .u64 block)
{
  .reg .b64 %d<2>;
  ld.param.u64 %d1, [block];
  {
  .param .b64 given;
  st.param.b64 [given], %d1;
  call free, (given);
  }
  {
  .param .b64 given;
  st.param.b64 [given], %d1;
  call free, (given);
  }
  ret;
}
)";

class HeapTest : public Driver {
 protected:
  static constexpr std::size_t kHeap = 1 << 20, kBlocks = 4096;

  void WithHeap(const std::function<void()>& body) {
    WithContext([&](CUcontext) {
      ASSERT_CU(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kHeap));
      CUmodule module = nullptr;
      ASSERT_CU(cuModuleLoadData(&module, kHeapKernels));
      ASSERT_CU(cuModuleGetFunction(&hoard_, module, "hoard"));
      ASSERT_CU(cuModuleGetFunction(&drop_, module, "drop"));
      ASSERT_CU(cuMemAllocManaged(&answer_, 8 * (kBlocks + 1), CU_MEM_ATTACH_GLOBAL));
      body();
    });
  }
  void run(CUfunction kernel, std::initializer_list<const void*> arguments) {
    std::vector<void*> list;
    for (const void* argument : arguments) list.push_back(const_cast<void*>(argument));
    EXPECT_CU(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, list.data(), nullptr));
    EXPECT_CU(cuCtxSynchronize());
  }
  std::vector<std::uint64_t> hoard(std::uint64_t bytes, unsigned most = kBlocks) {
    run(hoard_, {&answer_, &bytes, &most});
    const auto* words = reinterpret_cast<const std::uint64_t*>(answer_);
    const auto count = static_cast<std::uint32_t>(words[0]);
    return {words + 1, words + 1 + count};
  }
  void drop(std::uint64_t block) { run(drop_, {&block}); }

  CUfunction hoard_ = nullptr, drop_ = nullptr;
  CUdeviceptr answer_ = 0;
};

TEST_F(HeapTest, AllBlocksTogetherFitInIt) {
  WithHeap([&] {
    const auto blocks = hoard(1000);
    EXPECT_GT(blocks.size(), kHeap / 1000 / 2);
    EXPECT_LE(blocks.size() * 1000, kHeap);
    const auto [least, most] = std::minmax_element(blocks.begin(), blocks.end());
    EXPECT_LT(*most - *least, kHeap);
    EXPECT_TRUE(hoard(1000).empty()) << "the heap is full from one kernel to the next";
    for (const std::uint64_t block : blocks) drop(block);
    EXPECT_EQ(hoard(1000).size(), blocks.size());
  });
}

TEST_F(HeapTest, FreeingWhatIsNoBlockDoesNothing) {
  WithHeap([&] {
    int on_the_stack = 0;
    void* const of_the_host = std::malloc(64);
    const auto blocks = hoard(64, 2);
    ASSERT_EQ(blocks.size(), 2U);
    for (const std::uint64_t stranger : {reinterpret_cast<std::uint64_t>(&on_the_stack),
                                         reinterpret_cast<std::uint64_t>(of_the_host),
                                         std::uint64_t{answer_}, blocks[0] + 8, std::uint64_t{16}})
      drop(stranger);
    drop(blocks[0]);
    EXPECT_EQ(hoard(64, 1), std::vector<std::uint64_t>{blocks[0]}) << "it was freed once";
    EXPECT_NE(hoard(64, 1), std::vector<std::uint64_t>{blocks[0]});
    std::free(of_the_host);
  });
}

TEST_F(HeapTest, ItReturnsWithItsContext) {
  WithHeap([&] {
    CUcontext with_heap = nullptr, other = nullptr;
    ASSERT_CU(cuCtxGetCurrent(&with_heap));
    std::size_t before = 0, after = 0, total = 0;
    EXPECT_FALSE(hoard(1000).empty());
    ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
    ASSERT_CU(cuMemGetInfo(&before, &total));
    ASSERT_CU(cuCtxDestroy(with_heap));
    ASSERT_CU(cuMemGetInfo(&after, &total));
    EXPECT_GE(after - before, 32 * kMiB + kHeap);
    EXPECT_EQ(total - after, 32 * kMiB) << "what the context that is left takes";
  });
}

TEST(DeviceHeap, GapsJoinAgain) {
  constexpr std::size_t kBytes = 1 << 16;
  alignas(16) static std::byte memory[kBytes];
  DeviceHeap heap;
  EXPECT_EQ(heap.allocate(16), nullptr) << "it is not open";
  ASSERT_TRUE(heap.open(memory, kBytes));
  std::mt19937 random(7);
  std::vector<std::pair<std::byte*, std::size_t>> blocks;
  for (int round = 0; round < 20000; ++round) {
    if (!blocks.empty() && random() % 2 == 0) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      heap.release(blocks.back().first);
      blocks.pop_back();
      continue;
    }
    const std::size_t bytes = random() % 3000 + 1;
    auto* const block = static_cast<std::byte*>(heap.allocate(bytes));
    if (block == nullptr) continue;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 16, 0U);
    EXPECT_TRUE(block >= memory && block + bytes <= memory + kBytes);
    for (const auto& [other, size] : blocks)
      EXPECT_TRUE(block + bytes <= other || other + size <= block);
    blocks.emplace_back(block, bytes);
  }
  for (const auto& [block, bytes] : blocks) heap.release(block);
  EXPECT_NE(heap.allocate(kBytes - 64), nullptr) << "one gap is left";
  EXPECT_EQ(heap.close(), memory);
}

}  // namespace
}  // namespace softgpu_test

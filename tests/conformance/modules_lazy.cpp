// Rows of family `modules`: when code is loaded, and how many blocks of it an SM holds.
#include <algorithm>

#include "tests/conformance/modules.h"

namespace conformance {
namespace {

CUfunctionLoadingState state_of(CUfunction function) {
  auto state = no_such<CUfunctionLoadingState>(-1);
  EXPECT_EQ(cuFuncIsLoaded(&state, function), CUDA_SUCCESS);
  return state;
}

CUfunction first_function(CUmodule module) {
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleEnumerateFunctions(&function, 1, module), CUDA_SUCCESS);
  return function;
}

ROW(modules, loading_mode_is_lazy_on_request) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  ASSERT_GT(devices_count(), 0);
  auto mode = no_such<CUmoduleLoadingMode>(0);
  ANSWERS(CUDA_SUCCESS, cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_LAZY_LOADING);
}

ROW(modules, loading_mode_is_eager_on_request) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  ASSERT_GT(devices_count(), 0);
  auto mode = no_such<CUmoduleLoadingMode>(0);
  ANSWERS(CUDA_SUCCESS, cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_EAGER_LOADING);
}

ROW(modules, loading_mode_is_lazy_by_default) {
  unsetenv("CUDA_MODULE_LOADING");
  ASSERT_GT(devices_count(), 0);
  auto mode = no_such<CUmoduleLoadingMode>(0);
  ANSWERS(CUDA_SUCCESS, cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_LAZY_LOADING);
}

ROW(modules, lazy_functions_load_on_request) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  const Context context;
  const Loaded module(ptx(ptx_store("k", 1)));
  const CUfunction function = first_function(module);
  EXPECT_EQ(state_of(function), CU_FUNCTION_LOADING_STATE_UNLOADED);
  ANSWERS(CUDA_SUCCESS, cuFuncLoad(function));
  EXPECT_EQ(state_of(function), CU_FUNCTION_LOADING_STATE_LOADED);
  ANSWERS(CUDA_SUCCESS, cuFuncLoad(function));  // once more changes nothing
}

ROW(modules, lazy_functions_load_when_launched) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  const Context context;
  const Loaded module(ptx(ptx_store("k", 7)));
  const CUfunction function = first_function(module);
  EXPECT_EQ(word_of(function), 7U);
  EXPECT_EQ(state_of(function), CU_FUNCTION_LOADING_STATE_LOADED);
}

ROW(modules, functions_by_name_are_loaded) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  const Context context;
  const Loaded module(ptx(ptx_store("k", 1)));
  EXPECT_EQ(state_of(module.function("k")), CU_FUNCTION_LOADING_STATE_LOADED);
}

ROW(modules, eager_functions_are_loaded) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const Context context;
  const Loaded module(ptx(ptx_store("k", 1)));
  EXPECT_EQ(state_of(first_function(module)), CU_FUNCTION_LOADING_STATE_LOADED);
}

ROW(modules, some_attributes_need_loading) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  const Context context;
  const Loaded module(ptx(ptx_store("k", 1)));
  const CUfunction function = first_function(module);
  int value = 0;
  ANSWERS(CUDA_SUCCESS, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  ANSWERS(CUDA_ERROR_FUNCTION_NOT_LOADED,
          cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  MUST(cuFuncLoad(function));
  ANSWERS(CUDA_SUCCESS,
          cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
}

ROW(modules, the_device_heap_comes_with_the_first_user) {
  const Context context;
  constexpr std::size_t kHeap = 128 << 20;
  MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kHeap));
  const std::string text =
      ptx(".extern .func (.param .b64 func_retval0) malloc(.param .b64 malloc_param_0);\n"
          ".visible .entry k(.param .u64 p0)\n{\n.reg .b64 %rd<4>;\n"
          "ld.param.u64 %rd1, [p0];\ncvta.to.global.u64 %rd2, %rd1;\n"
          "{\n.param .b64 param0;\nst.param.b64 [param0], 16;\n.param .b64 retval0;\n"
          "call (retval0), malloc, (param0);\nld.param.b64 %rd3, [retval0];\n}\n"
          "st.global.u64 [%rd2], %rd3;\nret;\n}\n");
  const std::size_t before = memory_free();
  const Loaded module(text);
  module.function("k");
  EXPECT_GE(before - memory_free(), kHeap);
}

int blocks_of(CUfunction function, int threads, std::size_t shared = 0) {
  int blocks = -1;
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, shared),
            CUDA_SUCCESS);
  return blocks;
}

ROW(modules, occupancy_is_limited_by_threads) {
  const Context context;
  const int most = device_attribute(context, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  EXPECT_EQ(blocks_of(kernel("empty"), 1024), most / 1024);
  EXPECT_EQ(blocks_of(kernel("empty"), 512), most / 512);
}

ROW(modules, occupancy_is_limited_by_blocks) {
  const Context context;
  const int most = device_attribute(context, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  EXPECT_EQ(blocks_of(kernel("empty"), 32), most);
  EXPECT_EQ(blocks_of(kernel("empty"), 1), most);
}

ROW(modules, occupancy_is_limited_by_shared_memory) {
  const Context context;
  const int each =
      40 * 1024 + device_attribute(context, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  const int all =
      device_attribute(context, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  EXPECT_EQ(blocks_of(kernel("static_shared"), 32), all / each);
  EXPECT_EQ(blocks_of(kernel("empty"), 32, 40 * 1024), all / each) << "dynamic memory counts alike";
  EXPECT_LT(blocks_of(kernel("static_shared"), 32, 8 * 1024), all / each);
}

ROW(modules, occupancy_is_limited_by_registers) {
  const Context context;
  const CUfunction function = kernel("many_registers");
  const int registers = attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS);
  ASSERT_GT(registers, 64);
  const int all = device_attribute(context, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  EXPECT_LE(blocks_of(function, 128), all / (128 * registers));
  EXPECT_GE(blocks_of(function, 128), 1);
  EXPECT_LT(blocks_of(function, 128), blocks_of(kernel("empty"), 128));
}

ROW(modules, occupancy_of_impossible_blocks_is_none) {
  const Context context;
  EXPECT_EQ(blocks_of(kernel("empty"), 1025), 0);
  EXPECT_EQ(blocks_of(kernel("bounded_64"), 65), blocks_of(kernel("empty"), 65))
      << "the bound of a kernel is not looked at";
  EXPECT_EQ(blocks_of(kernel("empty"), 32, 48 * 1024 + 1), 0)
      << "more dynamic memory than the kernel may have";
  int blocks = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel("empty"), 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, kernel("empty"), 32, 0));
}

ROW(modules, occupancy_suggests_a_full_processor) {
  const Context context;
  int grid = 0, block = 0;
  MUST(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel("empty"), nullptr, 0, 0));
  const int most = device_attribute(context, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  const int processors = device_attribute(context, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(blocks_of(kernel("empty"), block) * block, most);
  EXPECT_EQ(grid, blocks_of(kernel("empty"), block) * processors);
}

ROW(modules, occupancy_suggestion_keeps_limits) {
  const Context context;
  int grid = 0, block = 0;
  MUST(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel("empty"), nullptr, 0, 96));
  EXPECT_LE(block, 96);
  EXPECT_GE(block, 1);
  MUST(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel("bounded_64"), nullptr, 0, 0));
  EXPECT_LE(block, 64);
}

ROW(modules, occupancy_suggests_nothing_for_the_impossible) {
  const Context context;
  int grid = 7, block = 7;
  ANSWERS(CUDA_SUCCESS,
          cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel("empty"), nullptr, 1U << 20, 0));
  EXPECT_EQ(grid, 0);
  EXPECT_EQ(block, 0);
}

ROW(modules, occupancy_suggestion_flags) {
  const Context context;
  const CUfunction function = kernel("empty");
  int grid = 0, block = 0, other_grid = 0, other_block = 0;
  MUST(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 0, 0));
  ANSWERS(CUDA_SUCCESS,
          cuOccupancyMaxPotentialBlockSizeWithFlags(&other_grid, &other_block, function, nullptr, 0,
                                                    0, CU_OCCUPANCY_DEFAULT));
  EXPECT_EQ(other_grid, grid);
  EXPECT_EQ(other_block, block);
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, function, nullptr, 0, 0, 0x80));
}

std::size_t kibibyte_per_warp(int threads) { return static_cast<std::size_t>(threads) * 32; }

ROW(modules, occupancy_suggestion_asks_for_shared_memory) {
  const Context context;
  int grid = 0, block = 0;
  MUST(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel("empty"), kibibyte_per_warp, 0, 0));
  EXPECT_GT(blocks_of(kernel("empty"), block, kibibyte_per_warp(block)), 0);
  const int processors = device_attribute(context, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(grid, blocks_of(kernel("empty"), block, kibibyte_per_warp(block)) * processors);
}

ROW(modules, occupancy_tells_the_shared_memory_that_is_left) {
  const Context context;
  const CUfunction function = kernel("empty");
  const auto left = [function](int blocks) {
    std::size_t bytes = 0;
    ANSWERS(CUDA_SUCCESS, cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, blocks, 128));
    return bytes;
  };
  EXPECT_EQ(left(2), 48U * 1024) << "what a kernel may have that has not asked for more";
  MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 128 * 1024));
  const auto all = static_cast<std::size_t>(
      device_attribute(context, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  EXPECT_EQ(left(1), 128U * 1024);
  for (const int blocks : {2, 4, 5, 16})
    EXPECT_EQ(left(blocks), all / static_cast<unsigned>(blocks) / 128 * 128) << blocks;
  std::size_t bytes = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 17, 128));
}

ROW(modules, occupancy_of_a_kernel_is_of_the_current_context) {
  const Context context;
  CUlibrary library = nullptr;
  CUkernel found = nullptr;
  MUST(cuLibraryLoadData(&library, kernels_image().data(), nullptr, nullptr, 0, nullptr, nullptr,
                         0));
  MUST(cuLibraryGetKernel(&found, library, "empty"));
  EXPECT_EQ(blocks_of(reinterpret_cast<CUfunction>(found), 256), blocks_of(kernel("empty"), 256));
}

ROW(modules, occupancy_flags_are_checked) {
  const Context context;
  int blocks = 0;
  ANSWERS(CUDA_SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                            &blocks, kernel("empty"), 256, 0, CU_OCCUPANCY_DEFAULT));
  EXPECT_EQ(blocks, blocks_of(kernel("empty"), 256));
  ANSWERS(CUDA_SUCCESS,
          cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
              &blocks, kernel("empty"), 256, 0, CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                                        &blocks, kernel("empty"), 256, 0, 0x80));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
ROW(modules, shared_memory_banks_of_functions) {
  const Context context;
  ANSWERS(CUDA_SUCCESS,
          cuFuncSetSharedMemConfig(kernel("empty"), CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
  MUST(launch(kernel("empty"), 1, 32, {}));
  MUST(cuCtxSynchronize());
}
#pragma GCC diagnostic pop

}  // namespace
}  // namespace conformance

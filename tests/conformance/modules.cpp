// Rows of family `modules`: loading images, their functions and their variables. Linking,
// libraries, lazy loading and occupancy have files of their own.
#include "tests/conformance/modules.h"

#include <bit>

namespace conformance {
namespace {

const std::string kWrong =
    ptx(".visible .entry broken()\n{\n.reg .b32 %r<2>;\nmov.u32 %r1 5;\nret;\n}\n");

ROW(modules, load_needs_a_context) {
  ASSERT_GT(devices_count(), 0);
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuModuleLoadData(&module, kernels_image().data()));
}

ROW(modules, load_needs_places) {
  const Context context;
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(nullptr, kernels_image().data()));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, nullptr));
}

ROW(modules, image_may_be_text) {
  const Context context;
  const Loaded module(ptx(ptx_store("answer", 42)));
  EXPECT_EQ(word_of(module.function("answer")), 42U);
}

ROW(modules, image_may_be_a_fat_binary) {
  const Context context;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ANSWERS(CUDA_SUCCESS, cuModuleLoadFatBinary(&module, kernels_image().data()));
  ANSWERS(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "empty"));
  ANSWERS(CUDA_SUCCESS, launch(function, 1, 32, {}));
  MUST(cuCtxSynchronize());
  ANSWERS(CUDA_SUCCESS, cuModuleUnload(module));
}

ROW(modules, image_may_be_a_file) {
  const Context context;
  const File file(ptx(ptx_store("answer", 43)));
  CUmodule module = nullptr;
  MUST(cuModuleLoad(&module, file.path()));
  CUfunction function = nullptr;
  MUST(cuModuleGetFunction(&function, module, "answer"));
  EXPECT_EQ(word_of(function), 43U);
}

ROW(modules, missing_file_is_named_so) {
  const Context context;
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nonexistent/module.cubin"));
}

ROW(modules, not_an_image_refused) {
  const Context context;
  CUmodule module = nullptr;
  const char bytes[64] = {1, 2, 3, 4};
  ANSWERS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, bytes));
}

ROW(modules, wrong_text_refused) {
  const Context context;
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, kWrong.c_str()));
}

ROW(modules, later_language_refused) {
  const Context context;
  CUmodule module = nullptr;
  const std::string text = ".version 99.0\n.target sm_70\n.address_size 64\n" + ptx_store("k", 1);
  ANSWERS(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, cuModuleLoadData(&module, text.c_str()));
}

ROW(modules, code_of_other_devices_refused) {
  const Context context;
  const std::string image = image_read("conformance_other_device");
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, image.data()));
}

ROW(modules, undefined_functions_refused) {
  const Context context;
  const std::string text =
      ptx(".extern .func elsewhere();\n"
          ".visible .entry k()\n{\ncall elsewhere, ();\nret;\n}\n");
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, text.c_str()));
}

ROW(modules, error_log_names_the_line) {
  const Context context;
  char log[1024] = "untouched";
  JitOptions jit;
  jit.add_error_log(log, sizeof log);
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_PTX,
          cuModuleLoadDataEx(&module, kWrong.c_str(), jit.count(), jit.options(), jit.values()));
  EXPECT_NE(std::string(log).find("line 7"), std::string::npos) << log;
  const unsigned filled = jit.word(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
  EXPECT_GE(filled, std::strlen(log));
  EXPECT_LE(filled, sizeof log);
}

ROW(modules, error_log_is_capped) {
  const Context context;
  char log[64];
  std::memset(log, '#', sizeof log);
  JitOptions jit;
  jit.add_error_log(log, 16);
  CUmodule module = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_PTX,
          cuModuleLoadDataEx(&module, kWrong.c_str(), jit.count(), jit.options(), jit.values()));
  EXPECT_LT(strnlen(log, sizeof log), 16U);
  EXPECT_GT(strnlen(log, sizeof log), 0U);
  for (std::size_t i = 16; i < sizeof log; ++i) ASSERT_EQ(log[i], '#') << i;
  EXPECT_LE(jit.word(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES), 16U);
}

ROW(modules, no_error_leaves_the_log_empty) {
  const Context context;
  char log[64] = "untouched";
  JitOptions jit;
  jit.add_error_log(log, sizeof log);
  CUmodule module = nullptr;
  const std::string text = ptx(ptx_store("k", 1));
  ANSWERS(CUDA_SUCCESS,
          cuModuleLoadDataEx(&module, text.c_str(), jit.count(), jit.options(), jit.values()));
  EXPECT_EQ(jit.word(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES), 0U);
}

ROW(modules, wall_time_is_told) {
  const Context context;
  JitOptions jit;
  const auto mark = std::bit_cast<std::uint32_t>(-1.0F);
  jit.add(CU_JIT_WALL_TIME, std::uintptr_t{mark});
  CUmodule module = nullptr;
  const std::string text = ptx(ptx_store("k", 1));
  MUST(cuModuleLoadDataEx(&module, text.c_str(), jit.count(), jit.options(), jit.values()));
  const float milliseconds = std::bit_cast<float>(jit.word(CU_JIT_WALL_TIME));
  EXPECT_GE(milliseconds, 0.0F);
  EXPECT_LT(milliseconds, 60e3F);
}

ROW(modules, registers_can_be_limited) {
  const Context context;
  JitOptions jit;
  jit.add(CU_JIT_MAX_REGISTERS, std::uintptr_t{32});
  CUmodule module = nullptr;
  MUST(cuModuleLoadDataEx(&module, kernels_image().data(), jit.count(), jit.options(),
                          jit.values()));
  CUfunction function = nullptr;
  MUST(cuModuleGetFunction(&function, module, "many_registers"));
  EXPECT_LE(attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS), 32);
  EXPECT_GT(attribute_of(kernel("many_registers"), CU_FUNC_ATTRIBUTE_NUM_REGS), 32);
}

ROW(modules, modules_are_apart) {
  const Context context;
  const Loaded first, second;
  EXPECT_NE(first.global("counter"), second.global("counter"));
  MUST(launch(first.function("count_threads"), 1, 7, {}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word_at(first.global("counter")), 7U);
  EXPECT_EQ(word_at(second.global("counter")), 0U);
}

ROW(modules, unloaded_without_a_context) {
  const Context context;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  MUST(cuModuleLoadData(&module, ptx(ptx_store("k", 1)).c_str()));
  MUST(cuCtxSetCurrent(nullptr));
  ANSWERS(CUDA_SUCCESS, cuModuleUnload(module));
  MUST(cuCtxSetCurrent(context));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&function, module, "k"));
}

ROW(modules, variables_take_memory_until_unloaded) {
  const Context context;
  constexpr std::size_t kBytes = 64 << 20;
  const std::string text = ptx(".visible .global .align 4 .b8 large[" + std::to_string(kBytes) +
                               "];\n" + ptx_store("k", 1));
  const std::size_t before = memory_free();
  CUmodule module = nullptr;
  MUST(cuModuleLoadData(&module, text.c_str()));
  CUdeviceptr large = 0;
  MUST(cuModuleGetGlobal(&large, nullptr, module, "large"));
  const std::size_t with = memory_free();
  EXPECT_GE(before - with, kBytes);
  MUST(cuModuleUnload(module));
  EXPECT_GE(memory_free(), with + kBytes);
}

ROW(modules, too_large_variables_refused) {
  const Context context;
  const std::size_t bytes = memory_free() + (64 << 20);
  const std::string text = ptx(".visible .global .align 4 .b8 large[" + std::to_string(bytes) +
                               "];\n" + ptx_store("k", 1));
  CUmodule module = nullptr;
  CUdeviceptr large = 0;
  CUresult result = cuModuleLoadData(&module, text.c_str());
  if (result == CUDA_SUCCESS) result = cuModuleGetGlobal(&large, nullptr, module, "large");
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
}

}  // namespace
}  // namespace conformance

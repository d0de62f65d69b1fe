// Rows of family `modules`: functions, their attributes, and variables.
#include "tests/conformance/modules.h"

namespace conformance {
namespace {

ROW(modules, function_by_name) {
  const Context context;
  const Loaded module;
  CUfunction function = nullptr;
  ANSWERS(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "add_one"));
  EXPECT_NE(function, nullptr);
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "add_two"));
  ANSWERS(CUDA_ERROR_NOT_FOUND,
          cuModuleGetFunction(&function, module, "counter"));  // a variable is no function
}

ROW(modules, functions_are_counted) {
  const Context context;
  const Loaded module(ptx(ptx_store("one", 1) + ptx_store("two", 2) + ptx_store("three", 3)));
  unsigned count = 0;
  ANSWERS(CUDA_SUCCESS, cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(count, 3U);
}

ROW(modules, functions_are_enumerated) {
  const Context context;
  const Loaded module(ptx(ptx_store("one", 1) + ptx_store("two", 2)));
  CUfunction functions[2] = {};
  MUST(cuModuleEnumerateFunctions(functions, 2, module));
  unsigned seen = 0;
  for (const CUfunction function : functions) {
    const char* name = nullptr;
    MUST(cuFuncGetName(&name, function));
    if (std::string_view(name) == "one") seen |= 1U;
    if (std::string_view(name) == "two") seen |= 2U;
  }
  EXPECT_EQ(seen, 3U);
}

ROW(modules, enumeration_gives_what_was_asked) {
  const Context context;
  const Loaded module(ptx(ptx_store("one", 1) + ptx_store("two", 2)));
  const auto mark = reinterpret_cast<CUfunction>(std::uintptr_t{1});
  CUfunction functions[2] = {mark, mark};
  MUST(cuModuleEnumerateFunctions(functions, 1, module));
  EXPECT_NE(functions[0], mark);
  EXPECT_EQ(functions[1], mark);
}

ROW(modules, function_tells_its_name) {
  const Context context;
  const Loaded module;
  const char* name = nullptr;
  ANSWERS(CUDA_SUCCESS, cuFuncGetName(&name, module.function("write_index")));
  EXPECT_STREQ(name, "write_index");
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuFuncGetName(nullptr, module.function("write_index")));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuFuncGetName(&name, nullptr));
}

ROW(modules, function_tells_its_module) {
  const Context context;
  const Loaded module, other;
  CUmodule told = nullptr;
  ANSWERS(CUDA_SUCCESS, cuFuncGetModule(&told, module.function("empty")));
  EXPECT_EQ(told, static_cast<CUmodule>(module));
}

ROW(modules, parameters_are_laid_out) {
  const Context context;
  const CUfunction function = kernel("store");  // (unsigned*, unsigned)
  std::size_t offset = 99, size = 99;
  ANSWERS(CUDA_SUCCESS, cuFuncGetParamInfo(function, 0, &offset, &size));
  EXPECT_EQ(offset, 0U);
  EXPECT_EQ(size, 8U);
  ANSWERS(CUDA_SUCCESS, cuFuncGetParamInfo(function, 1, &offset, &size));
  EXPECT_EQ(offset, 8U);
  EXPECT_EQ(size, 4U);
  ANSWERS(CUDA_SUCCESS, cuFuncGetParamInfo(function, 1, &offset, nullptr));  // size is optional
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(function, 2, &offset, &size));
}

ROW(modules, attributes_of_static_shared_memory) {
  const Context context;
  EXPECT_EQ(attribute_of(kernel("static_shared"), CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 40 * 1024);
  EXPECT_EQ(attribute_of(kernel("empty"), CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 0);
}

ROW(modules, attributes_of_launch_bounds) {
  const Context context;
  EXPECT_EQ(attribute_of(kernel("bounded_64"), CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 64);
  EXPECT_EQ(attribute_of(kernel("empty"), CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
}

ROW(modules, attributes_of_versions) {
  const Context context;
  const CUfunction function = kernel("empty");
  const int major = device_attribute(context, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const int minor = device_attribute(context, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(attribute_of(function, CU_FUNC_ATTRIBUTE_PTX_VERSION), 75) << "compiled for compute_75";
  EXPECT_EQ(attribute_of(function, CU_FUNC_ATTRIBUTE_BINARY_VERSION), major * 10 + minor)
      << "compiled here";
}

ROW(modules, read_only_attributes_stay) {
  const Context context;
  const CUfunction function = kernel("empty");
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 8));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 8));
}

ROW(modules, unknown_attributes_refused) {
  const Context context;
  const auto unknown = no_such<CUfunction_attribute>(9999);
  int value = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&value, unknown, kernel("empty")));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(kernel("empty"), unknown, 1));
}

ROW(modules, dynamic_shared_memory_can_be_raised) {
  const Context context;
  const CUfunction function = kernel("static_shared");
  const int most = device_attribute(context, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  const auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  ANSWERS(CUDA_SUCCESS, cuFuncSetAttribute(function, attribute, most - 40 * 1024));
  EXPECT_EQ(attribute_of(function, attribute), most - 40 * 1024);
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuFuncSetAttribute(function, attribute, most - 40 * 1024 + 1));  // static memory counts
  EXPECT_EQ(attribute_of(function, attribute), most - 40 * 1024) << "unchanged";
}

ROW(modules, carveout_is_kept) {
  const Context context;
  const CUfunction function = kernel("empty");
  const auto attribute = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
  ANSWERS(CUDA_SUCCESS, cuFuncSetAttribute(function, attribute, 50));
  EXPECT_EQ(attribute_of(function, attribute), 50);
  ANSWERS(CUDA_SUCCESS, cuFuncSetAttribute(function, attribute, CU_SHAREDMEM_CARVEOUT_DEFAULT));
  EXPECT_EQ(attribute_of(function, attribute), CU_SHAREDMEM_CARVEOUT_DEFAULT);
}

ROW(modules, cache_preference_is_a_hint) {
  const Context context;
  const CUfunction function = kernel("empty");
  for (const auto config : {CU_FUNC_CACHE_PREFER_SHARED, CU_FUNC_CACHE_PREFER_L1,
                            CU_FUNC_CACHE_PREFER_EQUAL, CU_FUNC_CACHE_PREFER_NONE})
    ANSWERS(CUDA_SUCCESS, cuFuncSetCacheConfig(function, config));
  ANSWERS(CUDA_SUCCESS, launch(function, 1, 32, {}));
  MUST(cuCtxSynchronize());
}

ROW(modules, variable_address_and_size) {
  const Context context;
  const Loaded module(ptx(".visible .global .align 4 .b8 table[40];\n" + ptx_store("k", 1)));
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  ANSWERS(CUDA_SUCCESS, cuModuleGetGlobal(&address, &bytes, module, "table"));
  EXPECT_NE(address, 0U);
  EXPECT_EQ(bytes, 40U);
  std::size_t alone = 0;
  ANSWERS(CUDA_SUCCESS, cuModuleGetGlobal(nullptr, &alone, module, "table"));
  EXPECT_EQ(alone, 40U);
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&address, &bytes, module, "no_table"));
  EXPECT_EQ(address, 0U) << "a refusal clears what it was to tell";
  EXPECT_EQ(bytes, 0U);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuModuleGetGlobal(&address, &bytes, module, "k"));
}

ROW(modules, variables_begin_as_written) {
  const Context context;
  const Loaded module(
      ptx(".visible .global .align 4 .u32 given[4] = {3, 5};\n"
          ".visible .global .align 8 .u64 place = generic(given);\n"
          ".visible .global .align 4 .u32 silent;\n" +
          ptx_store("k", 1)));
  unsigned words[4] = {9, 9, 9, 9};
  MUST(cuMemcpyDtoH(words, module.global("given"), sizeof words));
  EXPECT_EQ(words[0], 3U);
  EXPECT_EQ(words[1], 5U);
  EXPECT_EQ(words[2], 0U) << "what is not given is zero";
  EXPECT_EQ(words[3], 0U);
  CUdeviceptr place = 0;
  MUST(cuMemcpyDtoH(&place, module.global("place"), sizeof place));
  EXPECT_EQ(place, module.global("given"));
  EXPECT_EQ(word_at(module.global("silent")), 0U);
}

ROW(modules, variables_are_shared_with_kernels) {
  const Context context;
  const Loaded module;
  MUST(cuMemsetD32(module.global("counter"), 100, 1));
  MUST(launch(module.function("count_threads"), 2, 5, {}));
  EXPECT_EQ(word_at(module.global("counter")), 110U);
}

ROW(modules, constants_can_be_set) {
  const Context context;
  const Loaded module(
      ptx(".visible .const .align 4 .u32 factor = 7;\n"
          ".visible .entry k(.param .u64 p0)\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n"
          "ld.param.u64 %rd1, [p0];\ncvta.to.global.u64 %rd2, %rd1;\n"
          "ld.const.u32 %r1, [factor];\nst.global.u32 [%rd2], %r1;\nret;\n}\n"));
  EXPECT_EQ(word_of(module.function("k")), 7U);
  MUST(cuMemsetD32(module.global("factor"), 8, 1));
  EXPECT_EQ(word_of(module.function("k")), 8U);
}

ROW(modules, managed_variables_are_read_by_the_host) {
  const Context context;
  if (device_attribute(context, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 0)
    GTEST_SKIP() << "needs managed memory";
  const Loaded module;
  const CUdeviceptr address = module.global("managed_word");
  MUST(cuCtxSynchronize());
  EXPECT_EQ(*reinterpret_cast<volatile unsigned*>(address), 11U);
}

ROW(modules, functions_of_a_destroyed_context_are_gone) {
  CUfunction function = nullptr;
  {
    const Context context;
    function = kernel("empty");
    EXPECT_EQ(launch(function, 1, 1, {}), CUDA_SUCCESS);
  }
  EXPECT_NE(launch(function, 1, 1, {}), CUDA_SUCCESS);
}

}  // namespace
}  // namespace conformance

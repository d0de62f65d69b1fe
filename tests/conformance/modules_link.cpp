// Rows of family `modules`: the linker.
#include "tests/conformance/modules.h"

namespace conformance {
namespace {

/// An entry that stores what `name()` returns to *data.
std::string ptx_caller(const std::string& entry, const std::string& name) {
  return ".visible .entry " + entry +
         "(.param .u64 p0)\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n"
         "ld.param.u64 %rd1, [p0];\ncvta.to.global.u64 %rd2, %rd1;\n"
         "{\n.param .b32 retval0;\ncall (retval0), " +
         name + ", ();\nld.param.b32 %r1, [retval0];\n}\nst.global.u32 [%rd2], %r1;\nret;\n}\n";
}

std::string ptx_declare(const std::string& name) {
  return ".extern .func (.param .b32 func_retval0) " + name + "();\n";
}

/// A function that returns `value`; `linkage` is ".visible", ".weak" or nothing.
std::string ptx_function(const std::string& linkage, const std::string& name, unsigned value) {
  return linkage + " .func (.param .b32 func_retval0) " + name +
         "()\n{\n.reg .b32 %r<2>;\nmov.u32 %r1, " + std::to_string(value) +
         ";\nst.param.b32 [func_retval0], %r1;\nret;\n}\n";
}

class Link {
 public:
  Link() { jit_.add_error_log(log_, sizeof log_); }
  ~Link() {
    if (state_ != nullptr) cuLinkDestroy(state_);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void registers_limit(unsigned most) {
    jit_.add(CU_JIT_MAX_REGISTERS, static_cast<std::uintptr_t>(most));
  }
  void create() {
    ASSERT_EQ(cuLinkCreate(jit_.count(), jit_.options(), jit_.values(), &state_), CUDA_SUCCESS);
  }
  CUresult add(std::string text, const char* name) {
    return cuLinkAddData(state_, CU_JIT_INPUT_PTX, text.data(), text.size() + 1, name, 0, nullptr,
                         nullptr);
  }
  CUresult complete() { return cuLinkComplete(state_, &image_, &bytes_); }
  const void* image() const { return image_; }
  std::size_t bytes() const { return bytes_; }
  std::string log() const { return log_; }
  CUlinkState state() const { return state_; }

 private:
  char log_[4096] = "";
  JitOptions jit_;
  CUlinkState state_ = nullptr;
  void* image_ = nullptr;
  std::size_t bytes_ = 0;
};

ROW(modules, link_resolves_functions) {
  const Context context;
  Link link;
  link.create();
  ANSWERS(CUDA_SUCCESS, link.add(ptx(ptx_declare("value") + ptx_caller("k", "value")), "caller"));
  ANSWERS(CUDA_SUCCESS, link.add(ptx(ptx_function(".visible", "value", 21)), "callee"));
  ANSWERS(CUDA_SUCCESS, link.complete());
  EXPECT_GT(link.bytes(), 0U);
  const Loaded module(link.image());
  EXPECT_EQ(word_of(module.function("k")), 21U);
}

ROW(modules, link_resolves_variables) {
  const Context context;
  Link link;
  link.create();
  const std::string user =
      ".extern .global .align 4 .u32 shared_word;\n"
      ".visible .entry k(.param .u64 p0)\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n"
      "ld.param.u64 %rd1, [p0];\ncvta.to.global.u64 %rd2, %rd1;\n"
      "ld.global.u32 %r1, [shared_word];\nst.global.u32 [%rd2], %r1;\nret;\n}\n";
  MUST(link.add(ptx(user), "user"));
  MUST(link.add(ptx(".visible .global .align 4 .u32 shared_word = 5;\n"), "owner"));
  MUST(link.complete());
  const Loaded module(link.image());
  EXPECT_EQ(word_of(module.function("k")), 5U);
  MUST(cuMemsetD32(module.global("shared_word"), 6, 1));
  EXPECT_EQ(word_of(module.function("k")), 6U) << "one variable, not two";
}

ROW(modules, link_resolves_initialisers) {
  const Context context;
  Link link;
  link.create();
  const std::string user =
      ".extern .global .align 4 .b8 words[8];\n"
      ".global .align 8 .u64 place[1] = {generic(words)+4};\n"
      ".visible .entry k(.param .u64 p0)\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<4>;\n"
      "ld.param.u64 %rd1, [p0];\ncvta.to.global.u64 %rd2, %rd1;\n"
      "ld.global.u64 %rd3, [place];\nld.u32 %r1, [%rd3];\nst.global.u32 [%rd2], %r1;\nret;\n}\n";
  ANSWERS(CUDA_SUCCESS, link.add(ptx(user), "user"));
  MUST(link.add(ptx(".visible .global .align 4 .b8 words[8] = {1,0,0,0,42,0,0,0};\n"), "owner"));
  ANSWERS(CUDA_SUCCESS, link.complete());
  const Loaded module(link.image());
  EXPECT_EQ(word_of(module.function("k")), 42U);
}

/// 96 values that are all needed at the end.
std::string ptx_wide(const std::string& directive) {
  std::string text = ".visible .entry wide(.param .u64 p0)\n" + directive +
                     "{\n.reg .b32 %r<97>;\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [p0];\n"
                     "cvta.to.global.u64 %rd2, %rd1;\n";
  for (int i = 0; i < 96; ++i)
    text += "ld.volatile.global.u32 %r" + std::to_string(i) + ", [%rd2+" + std::to_string(4 * i) +
            "];\n";
  for (int i = 0; i < 96; ++i)
    text += "st.volatile.global.u32 [%rd2+" + std::to_string(4 * i) + "], %r" +
            std::to_string(95 - i) + ";\n";
  return text + "ret;\n}\n";
}

ROW(modules, link_limits_registers) {
  const Context context;
  for (const unsigned most : {0U, 40U}) {
    Link link;
    if (most != 0) link.registers_limit(most);
    link.create();
    MUST(link.add(ptx(ptx_wide("")), "wide.ptx"));
    MUST(link.complete());
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    MUST(cuModuleLoadData(&module, link.image()));
    MUST(cuModuleGetFunction(&function, module, "wide"));
    if (most == 0)
      EXPECT_GT(attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS), 64);
    else
      EXPECT_LE(attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS), 40);
    MUST(cuModuleUnload(module));
  }
}

ROW(modules, directives_limit_registers) {
  const Context context;
  for (const char* directive : {".maxntid 1024, 1, 1\n", ".maxnreg 64\n"}) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    MUST(cuModuleLoadData(&module, ptx(ptx_wide(directive)).c_str()));
    MUST(cuModuleGetFunction(&function, module, "wide"));
    EXPECT_LE(attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS), 64) << directive;
    EXPECT_EQ(attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024) << directive;
    MUST(cuModuleUnload(module));
  }
}

ROW(modules, registers_are_used_again) {
  // A loop over a thousand values, of which two are needed at a time, and twelve parameters.
  std::string text = ".visible .entry narrow(.param .u64 p0";
  for (int i = 1; i < 12; ++i) text += ", .param .u64 p" + std::to_string(i);
  text += ")\n{\n.reg .pred %p<2>;\n.reg .b32 %r<1001>;\n.reg .b64 %rd<14>;\n";
  for (int i = 0; i < 12; ++i)
    text += "ld.param.u64 %rd" + std::to_string(i) + ", [p" + std::to_string(i) + "];\n";
  text += "ld.volatile.global.u32 %r0, [%rd0];\nmov.u64 %rd12, 4;\nLoop:\n";
  for (int i = 1; i < 1000; ++i)
    text += "mad.lo.u32 %r" + std::to_string(i) + ", %r" + std::to_string(i - 1) + ", %r" +
            std::to_string(i - 1) + ", 1;\n";
  text +=
      "st.volatile.global.u32 [%rd0], %r999;\nsub.u64 %rd12, %rd12, 1;\n"
      "setp.ne.u64 %p1, %rd12, 0;\n@%p1 bra Loop;\n";
  for (int i = 1; i < 12; ++i)
    text += "st.volatile.global.u32 [%rd" + std::to_string(i) + "], %r0;\n";
  const Context context;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  MUST(cuModuleLoadData(&module, ptx(text + "ret;\n}\n").c_str()));
  MUST(cuModuleGetFunction(&function, module, "narrow"));
  observe("registers", attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS));
  EXPECT_LE(attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS), 64);
  EXPECT_EQ(attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
}

ROW(modules, link_names_what_is_undefined) {
  const Context context;
  Link link;
  link.create();
  MUST(link.add(ptx(ptx_declare("nowhere") + ptx_caller("k", "nowhere")), "caller"));
  EXPECT_NE(link.complete(), CUDA_SUCCESS);
  EXPECT_NE(link.log().find("nowhere"), std::string::npos) << link.log();
}

ROW(modules, link_names_what_is_defined_twice) {
  const Context context;
  Link link;
  link.create();
  CUresult result = link.add(ptx(ptx_function(".visible", "twice", 1)), "first");
  if (result == CUDA_SUCCESS)
    result = link.add(ptx(ptx_function(".visible", "twice", 2)), "second");
  if (result == CUDA_SUCCESS) result = link.complete();
  EXPECT_NE(result, CUDA_SUCCESS);
  EXPECT_NE(link.log().find("twice"), std::string::npos) << link.log();
}

ROW(modules, link_keeps_static_functions_apart) {
  const Context context;
  Link link;
  link.create();
  MUST(link.add(ptx(ptx_function("", "helper", 1) + ptx_caller("one", "helper")), "first"));
  MUST(link.add(ptx(ptx_function("", "helper", 2) + ptx_caller("two", "helper")), "second"));
  MUST(link.complete());
  const Loaded module(link.image());
  EXPECT_EQ(word_of(module.function("one")), 1U);
  EXPECT_EQ(word_of(module.function("two")), 2U);
}

ROW(modules, link_prefers_strong_to_weak) {
  const Context context;
  Link link;
  link.create();
  MUST(link.add(ptx(ptx_function(".weak", "value", 1) + ptx_caller("k", "value")), "weak"));
  MUST(link.add(ptx(ptx_function(".visible", "value", 2)), "strong"));
  MUST(link.complete());
  const Loaded module(link.image());
  EXPECT_EQ(word_of(module.function("k")), 2U);
}

ROW(modules, link_joins_weak_definitions) {
  const Context context;
  Link link;
  link.create();
  MUST(link.add(ptx(ptx_function(".weak", "value", 3) + ptx_caller("one", "value")), "first"));
  MUST(link.add(ptx(ptx_function(".weak", "value", 3) + ptx_caller("two", "value")), "second"));
  MUST(link.complete());
  const Loaded module(link.image());
  EXPECT_EQ(word_of(module.function("one")), 3U);
  EXPECT_EQ(word_of(module.function("two")), 3U);
}

ROW(modules, link_refuses_wrong_text) {
  const Context context;
  Link link;
  link.create();
  ANSWERS(
      CUDA_ERROR_INVALID_PTX,
      link.add(ptx(".visible .entry k()\n{\n.reg .b32 %r<2>;\nmov.u32 %r1 5;\nret;\n}\n"), "x"));
  EXPECT_NE(link.log().find("line 7"), std::string::npos) << link.log();
}

ROW(modules, link_takes_files) {
  const Context context;
  const File caller(ptx(ptx_declare("value") + ptx_caller("k", "value")));
  const File callee(ptx(ptx_function(".visible", "value", 22)));
  Link link;
  link.create();
  for (const File* file : {&caller, &callee})
    MUST(cuLinkAddFile(link.state(), CU_JIT_INPUT_PTX, file->path(), 0, nullptr, nullptr));
  ANSWERS(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile(link.state(), CU_JIT_INPUT_PTX,
                                                   "/nonexistent/input.ptx", 0, nullptr, nullptr));
  MUST(link.complete());
  const Loaded module(link.image());
  EXPECT_EQ(word_of(module.function("k")), 22U);
}

ROW(modules, link_output_options_belong_to_the_link) {
  const Context context;
  Link link;
  link.create();
  std::string text = ptx(ptx_store("k", 1));
  JitOptions jit;
  jit.add(CU_JIT_WALL_TIME, std::uintptr_t{0});
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuLinkAddData(link.state(), CU_JIT_INPUT_PTX, text.data(), text.size() + 1, "k",
                        jit.count(), jit.options(), jit.values()));
}

ROW(modules, link_image_outlives_the_link_when_loaded) {
  const Context context;
  CUmodule module = nullptr;
  {
    Link link;
    link.create();
    MUST(link.add(ptx(ptx_store("k", 23)), "k"));
    MUST(link.complete());
    MUST(cuModuleLoadData(&module, link.image()));
  }
  CUfunction function = nullptr;
  MUST(cuModuleGetFunction(&function, module, "k"));
  EXPECT_EQ(word_of(function), 23U);
}

ROW(modules, link_needs_places) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuLinkCreate(0, nullptr, nullptr, nullptr));
  Link link;
  link.create();
  MUST(link.add(ptx(ptx_store("k", 1)), "k"));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(link.state(), nullptr, nullptr));
}

ROW(modules, link_needs_a_context) {
  ASSERT_GT(devices_count(), 0);
  CUlinkState state = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuLinkCreate(0, nullptr, nullptr, &state));
}

}  // namespace
}  // namespace conformance

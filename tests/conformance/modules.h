// What the rows about modules share: small PTX texts, and a module of the current context.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "tests/conformance/harness.h"

namespace conformance {

inline constexpr char kHeading[] = ".version 7.0\n.target sm_70\n.address_size 64\n";

inline std::string ptx(const std::string& body) { return kHeading + body; }

/// An entry that stores `value` to *data.
inline std::string ptx_store(const std::string& name, unsigned value) {
  return ".visible .entry " + name +
         "(.param .u64 p0)\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n"
         "ld.param.u64 %rd1, [p0];\ncvta.to.global.u64 %rd2, %rd1;\n"
         "mov.u32 %r1, " +
         std::to_string(value) + ";\nst.global.u32 [%rd2], %r1;\nret;\n}\n";
}

/// A module of the current context; unloaded with it.
class Loaded {
 public:
  explicit Loaded(const void* image = kernels_image().data()) {
    EXPECT_EQ(cuModuleLoadData(&module_, image), CUDA_SUCCESS);
  }
  explicit Loaded(const std::string& text) : Loaded(text.c_str()) {}
  ~Loaded() {
    if (module_ != nullptr) cuModuleUnload(module_);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  operator CUmodule() const { return module_; }  // NOLINT: it stands for the handle

  CUfunction function(const char* name) const {
    CUfunction found = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&found, module_, name), CUDA_SUCCESS) << name;
    return found;
  }
  CUdeviceptr global(const char* name) const {
    CUdeviceptr found = 0;
    EXPECT_EQ(cuModuleGetGlobal(&found, nullptr, module_, name), CUDA_SUCCESS) << name;
    return found;
  }

 private:
  CUmodule module_ = nullptr;
};

/// Runs a kernel with one pointer to a word of zero; what it wrote there.
inline unsigned word_of(CUfunction function) {
  CUdeviceptr data = 0;
  EXPECT_EQ(cuMemAlloc(&data, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD32(data, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(launch(function, 1, 1, {&data}), CUDA_SUCCESS);
  const unsigned value = word_at(data);
  cuMemFree(data);
  return value;
}

inline int attribute_of(CUfunction function, CUfunction_attribute attribute) {
  int value = -1;
  EXPECT_EQ(cuFuncGetAttribute(&value, attribute, function), CUDA_SUCCESS) << attribute;
  return value;
}

inline int device_attribute(const Context& context, CUdevice_attribute attribute) {
  int value = -1;
  EXPECT_EQ(cuDeviceGetAttribute(&value, attribute, context.device()), CUDA_SUCCESS) << attribute;
  return value;
}

/// A file of this row's own; removed with it.
class File {
 public:
  explicit File(const std::string& contents) : path_(::testing::TempDir() + "conformance.XXXXXX") {
    const int file = mkstemp(path_.data());
    EXPECT_GE(file, 0);
    if (file >= 0) close(file);
    std::ofstream(path_, std::ios::binary) << contents;
  }
  ~File() { unlink(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

/// Options of a just-in-time compilation with one or two log buffers.
class JitOptions {
 public:
  void add(CUjit_option option, void* value) {
    options_.push_back(option);
    values_.push_back(value);
  }
  void add(CUjit_option option, std::uintptr_t value) {
    add(option, reinterpret_cast<void*>(value));
  }
  void add_error_log(char* buffer, std::uintptr_t bytes) {
    add(CU_JIT_ERROR_LOG_BUFFER, buffer);
    add(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, bytes);
  }
  unsigned count() const { return static_cast<unsigned>(options_.size()); }
  CUjit_option* options() { return options_.data(); }
  void** values() { return values_.data(); }
  /// What the call left as an option's value.
  unsigned word(CUjit_option option) const {
    for (std::size_t i = 0; i < options_.size(); ++i)
      if (options_[i] == option)
        return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(values_[i]));
    ADD_FAILURE() << "no option " << option;
    return 0;
  }

 private:
  std::vector<CUjit_option> options_;
  std::vector<void*> values_;
};

}  // namespace conformance

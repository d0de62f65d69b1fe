// The harness of the conformance rows, and its main: runs the rows that are asked for, and fails
// when none is.
#include "tests/conformance/harness.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

namespace conformance {
namespace {

std::string devices_directory;

// A row's device directory goes when the row's process goes, however it ends.
void devices_remove() {
  std::error_code ignored;
  if (!devices_directory.empty()) std::filesystem::remove_all(devices_directory, ignored);
}

// A directory that was given is the giver's to remove.
void devices_make() {
  const char* given = std::getenv("CONFORMANCE_DIRECTORY");
  std::string pattern = (std::filesystem::temp_directory_path() / "conformance-XXXXXX").string();
  if (given == nullptr && mkdtemp(pattern.data()) == nullptr) std::abort();
  if (given == nullptr) devices_directory = pattern;
  setenv("SOFTGPU_DIR", given != nullptr ? given : pattern.c_str(), 1);
  settings_soft({{"SOFTGPU_COUNT", "1"},
                 {"SOFTGPU_PACING", "0"},
                 {"SOFTGPU_MEMORY", "1GiB"},
                 {"SOFTGPU_CONTEXT", "32MiB"},
                 {"SOFTGPU_RATE", "40e6"}});
}

class RowTest : public ::testing::Test {
 public:
  explicit RowTest(void (*body)()) : body_(body) {}
  void TestBody() override { body_(); }

 private:
  void (*body_)();
};

}  // namespace

Row::Row(const char* family, const char* name, const char* file, int line, void (*body)()) {
  ::testing::RegisterTest(family, name, nullptr, nullptr, file, line,
                          [body]() -> ::testing::Test* { return new RowTest(body); });
}

void settings_soft(std::initializer_list<std::pair<const char*, const char*>> settings) {
  for (const auto& [name, value] : settings) setenv(name, value, 1);
}

bool answered(int result, int wanted, const char* call, const char* file, int line,
              bool fatal) noexcept {
  if (result == wanted) return true;
  const auto kind = fatal ? ::testing::TestPartResult::kFatalFailure
                          : ::testing::TestPartResult::kNonFatalFailure;
  ::testing::internal::AssertHelper(kind, file, line, call) =
      ::testing::Message() << "  answers " << result << "\n  must answer " << wanted;
  return false;
}

bool on_hardware() { return std::getenv("CONFORMANCE_HARDWARE") != nullptr; }

int devices_count() {
  int count = 0;
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  return count;
}

void observe(std::string_view name, long long value) {
  ::testing::Test::RecordProperty(std::string(name), std::to_string(value));
}

Context::Context(int ordinal, unsigned flags) {
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGet(&device_, ordinal), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxCreate(&context_, nullptr, flags, device_), CUDA_SUCCESS);
}

Context::~Context() {
  if (context_ != nullptr) cuCtxDestroy(context_);
}

std::string image_read(const char* name) {
  const auto lib = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lib";
  std::ifstream file(lib / (std::string(name) + ".fatbin"), std::ios::binary);
  std::string image(std::istreambuf_iterator<char>(file), {});
  EXPECT_FALSE(image.empty()) << "lib/" << name << ".fatbin is not beside the tests";
  return image;
}

const std::string& kernels_image() {
  static const std::string image = image_read("conformance_kernels");
  return image;
}

CUcontext context_current() {
  CUcontext context = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  return context;
}

std::size_t memory_free() {
  std::size_t free = 0, total = 0;
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

namespace {

std::size_t memory_free_once(const std::function<bool(std::size_t)>& wanted) {
  const char* patience = std::getenv("CONFORMANCE_PATIENCE_MS");
  std::size_t free = memory_free();
  for (int left = patience == nullptr ? 0 : std::atoi(patience); left > 0 && !wanted(free);
       --left) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    free = memory_free();
  }
  return free;
}

}  // namespace

std::size_t memory_free_from(std::size_t wanted) {
  return memory_free_once([=](std::size_t free) { return free >= wanted; });
}

std::size_t memory_free_below(std::size_t wanted) {
  return memory_free_once([=](std::size_t free) { return free < wanted; });
}

unsigned word_at(CUdeviceptr address) {
  unsigned value = ~0U;
  EXPECT_EQ(cuMemcpyDtoH(&value, address, sizeof value), CUDA_SUCCESS);
  return value;
}

CUfunction kernel(const char* name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, kernels_image().data()), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS) << name;
  return function;
}

CUresult launch(CUfunction function, unsigned grid, unsigned block, std::vector<void*> arguments,
                CUstream stream) {
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, arguments.data(), nullptr);
}

}  // namespace conformance

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!conformance::on_hardware()) {
    conformance::devices_make();
    std::atexit(conformance::devices_remove);
  }
  const int result = RUN_ALL_TESTS();
  if (::testing::UnitTest::GetInstance()->test_to_run_count() > 0 || GTEST_FLAG_GET(list_tests)) {
    return result;
  }
  std::fprintf(stderr, "conformance: no row has this name\n");
  return 2;
}

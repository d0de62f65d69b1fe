// softgpu-bench [--baseline DIR] [--rounds N]: CPU time of typical kernels on our libcuda.so.1 and,
// when given, on the one in DIR. Each measurement is a child process with one of the two libraries;
// the libraries alternate, the smallest time of each counts, and the ratio is printed. CPU time,
// not wall time: other programs on the machine disturb it less.
#include <cuda.h>
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kSize = 256;  // of the matrices
constexpr int kElements = 1 << 20;
constexpr int kRows = 1024, kColumns = 512;
constexpr int kRepeats = 5;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "softgpu-bench: %s\n", what.c_str());
  std::exit(1);
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Driver {
 public:
  explicit Driver(const std::string& directory) {
    const std::string path = directory + "/libcuda.so.1";
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) die(std::string("cannot load the driver: ") + dlerror());
    call<decltype(&cuInit)>("cuInit", 0u);
    CUdevice device = 0;
    CUcontext context = nullptr;
    call<decltype(&cuDeviceGet)>("cuDeviceGet", &device, 0);
    call<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain", &context, device);
    call<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent", context);
    std::ifstream in(FATBIN, std::ios::binary);
    image_.assign(std::istreambuf_iterator<char>(in), {});
    if (image_.empty()) die(std::string("cannot read ") + FATBIN);
    call<decltype(&cuModuleLoadData)>("cuModuleLoadData", &module_, image_.data());
  }

  CUdeviceptr buffer(std::size_t floats) {
    CUdeviceptr p = 0;
    call<decltype(&cuMemAlloc)>("cuMemAlloc_v2", &p, floats * 4);
    std::vector<float> values(floats);
    for (std::size_t k = 0; k < floats; ++k) values[k] = static_cast<float>(k % 113) * 0.01f;
    call<decltype(&cuMemcpyHtoD)>("cuMemcpyHtoD_v2", p, values.data(), floats * 4);
    return p;
  }

  void measure(const char* name, unsigned gx, unsigned gy, unsigned bx, unsigned by,
               std::vector<void*> arguments) {
    CUfunction function = nullptr;
    call<decltype(&cuModuleGetFunction)>("cuModuleGetFunction", &function, module_, name);
    double best = 1e9;
    for (int k = 0; k < kRepeats; ++k) {
      const double start = cpu_seconds();
      call<decltype(&cuLaunchKernel)>("cuLaunchKernel", function, gx, gy, 1u, bx, by, 1u, 0u,
                                      nullptr, arguments.data(), nullptr);
      call<decltype(&cuCtxSynchronize)>("cuCtxSynchronize");
      best = std::min(best, cpu_seconds() - start);
    }
    std::printf("%s_%ux%u %.9f\n", name, bx, by, best);
  }

 private:
  template <class F, class... A>
  void call(const char* name, A... arguments) {
    const auto function = reinterpret_cast<F>(dlsym(library_, name));
    if (function == nullptr) die(std::string("the driver has no ") + name);
    const CUresult result = function(arguments...);
    if (result != CUDA_SUCCESS) die(std::string(name) + " failed with " + std::to_string(result));
  }

  void* library_ = nullptr;
  CUmodule module_ = nullptr;
  std::vector<char> image_;
};

/// One processor: a driver that starts as many threads as it sees processors starts one.
void stay_on_one_processor() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);
}

void run_child(const std::string& directory) {
  stay_on_one_processor();
  Driver driver(directory);
  const std::size_t elements = kElements, matrix = kSize * kSize;
  CUdeviceptr x = driver.buffer(elements), y = driver.buffer(elements), m = driver.buffer(elements),
              v = driver.buffer(elements);
  CUdeviceptr a = driver.buffer(matrix), b = driver.buffer(matrix), c = driver.buffer(matrix);
  int n = kElements, size = kSize, columns = kColumns;
  float scale = 2;
  const unsigned blocks = kElements / 256, side = kSize;
  driver.measure("saxpy", blocks, 1, 256, 1, {&n, &scale, &x, &y});
  driver.measure("gemm_naive", side / 32, side / 8, 32, 8, {&a, &b, &c, &size});
  driver.measure("gemm_naive", side / 16, side / 16, 16, 16, {&a, &b, &c, &size});
  driver.measure("gemm_tiled", side / 16, side / 16, 16, 16, {&a, &b, &c, &size});
  driver.measure("gemm_registers", side / 64, side / 64, 256, 1, {&a, &b, &c, &size});
  driver.measure("softmax", kRows, 1, 128, 1, {&x, &y, &columns});
  driver.measure("layernorm", kRows, 1, 128, 1, {&x, &y, &columns});
  driver.measure("adam", blocks, 1, 256, 1, {&x, &y, &m, &v, &n});
  driver.measure("gelu", blocks, 1, 256, 1, {&x, &y, &n});
}

using Times = std::map<std::string, double>;

void collect(const char* self, const std::string& directory, Times& times,
             std::vector<std::string>& order) {
  const std::string command = "'" + std::string(self) + "' --child '" + directory + "'";
  FILE* out = popen(command.c_str(), "r");
  if (out == nullptr) die("cannot start a child process");
  char name[64];
  double seconds = 0;
  while (std::fscanf(out, "%63s %lf", name, &seconds) == 2) {
    const auto [found, is_new] = times.emplace(name, seconds);
    found->second = std::min(found->second, seconds);
    if (is_new) order.emplace_back(name);
  }
  if (pclose(out) != 0) die("the child process with the driver of " + directory + " failed");
}

}  // namespace

int main(int argc, char** argv) {
  std::string baseline;
  int rounds = 5;
  for (int k = 1; k < argc; k += 2) {
    const std::string option = argv[k];
    if (k + 1 == argc) die("usage: softgpu-bench [--baseline DIR] [--rounds N]");
    if (option == "--child") return run_child(argv[k + 1]), 0;
    if (option == "--baseline") {
      baseline = argv[k + 1];
    } else if (option == "--rounds") {
      rounds = std::atoi(argv[k + 1]);
    } else {
      die("unknown option " + option);
    }
  }
  // Pure interpretation: no modelled pace, a segment of its own, one thread.
  char directory[] = "/tmp/softgpu-bench-XXXXXX";
  if (mkdtemp(directory) == nullptr) die("cannot make a directory for the device");
  setenv("SOFTGPU_DIR", directory, 1);
  setenv("SOFTGPU_PACING", "0", 1);
  setenv("SOFTGPU_THREADS", "1", 1);
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) die("cannot find myself");
  Times ours, theirs;
  std::vector<std::string> order, ignored;
  for (int k = 0; k < std::max(rounds, 1); ++k) {
    collect(self, DRIVER_DIR, ours, order);
    if (!baseline.empty()) collect(self, baseline, theirs, ignored);
  }
  std::printf("%-22s %10s %10s %8s\n", "kernel", "ours ms", "base ms", "speed");
  for (const std::string& name : order) {
    if (baseline.empty()) {
      std::printf("%-22s %10.3f\n", name.c_str(), ours[name] * 1e3);
    } else {
      std::printf("%-22s %10.3f %10.3f %7.2fx\n", name.c_str(), ours[name] * 1e3,
                  theirs[name] * 1e3, theirs[name] / ours[name]);
    }
  }
  const std::string clean = std::string("rm -rf '") + directory + "'";
  return std::system(clean.c_str()) == 0 ? 0 : 1;
}

// softgpu-bench: CPU time of typical kernels on this build's libcuda.so.1 and, when given, on
// another one. Each measurement is a child process with one of the two libraries; the libraries
// alternate, so that what disturbs the machine disturbs both. CPU time, not wall time: other
// programs disturb it less. It knows the drivers by their public functions only.
#include <cuda.h>
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
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
constexpr int kRepeats = 6;
constexpr int kLaunches = 2000;
constexpr double kSameWithin = 1e-3;
// The time that a child tells of a kernel that its driver cannot run.
constexpr double kNotRun = 0;

constexpr const char* kHelp =
    "usage: softgpu-bench [--baseline DIR | --threads N] [--rounds N]\n"
    "\n"
    "CPU time of typical kernels on the software GPU of this build, one interpreter thread, no\n"
    "modelled pace. Every round starts a fresh process; a kernel runs six times in it and the\n"
    "fastest counts. Printed are medians over the rounds.\n"
    "\n"
    "  --baseline DIR  also measure DIR/libcuda.so.1, in alternation. `speed` is the median of "
    "the\n"
    "                  rounds' ratios (above 1: this build is faster), with the least and the "
    "most\n"
    "                  of them. `differs` after it: the two drivers computed different results.\n"
    "  --threads N     wall time instead: N interpreter threads of this build against one\n"
    "  --rounds N      default 5; more when the least and the most are far apart\n"
    "\n"
    "The last lines are microseconds of wall time per launch of an empty kernel, with a\n"
    "synchronisation after each launch (`+sync`) or after all of them.\n";

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "softgpu-bench: %s\n", what.c_str());
  std::exit(1);
}

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Driver {
 public:
  /// `clock` measures the kernels.
  Driver(const std::string& directory, clockid_t clock) : clock_(clock) {
    const std::string path = directory + "/libcuda.so.1";
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) die(std::string("cannot load the driver: ") + dlerror());
    call<decltype(&cuInit)>("cuInit", 0u);
    CUdevice device = 0;
    CUcontext context = nullptr;
    call<decltype(&cuDeviceGet)>("cuDeviceGet", &device, 0);
    call<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain", &context, device);
    call<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent", context);
    for (const char* path_of_image : {FATBIN, FEATURES_FATBIN}) {
      std::ifstream in(path_of_image, std::ios::binary);
      images_.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      if (images_.back().empty()) die(std::string("cannot read ") + path_of_image);
      modules_.emplace_back();
      call<decltype(&cuModuleLoadData)>("cuModuleLoadData", &modules_.back(),
                                        images_.back().data());
    }
  }

  CUdeviceptr buffer(std::size_t floats) {
    CUdeviceptr p = 0;
    call<decltype(&cuMemAlloc)>("cuMemAlloc_v2", &p, floats * 4);
    std::vector<float> values(floats);
    for (std::size_t k = 0; k < floats; ++k) values[k] = static_cast<float>(k % 113) * 0.01f;
    call<decltype(&cuMemcpyHtoD)>("cuMemcpyHtoD_v2", p, values.data(), floats * 4);
    return p;
  }

  struct Shape {
    unsigned gx, gy, bx, by;
    bool cooperative = false;
  };

  void fill(CUdeviceptr p, std::size_t bytes, unsigned char value) {
    call<decltype(&cuMemsetD8)>("cuMemsetD8_v2", p, value, bytes);
  }

  /// Runs a kernel that prepares what others read.
  void run(const char* name, Shape shape, std::vector<void*> arguments) {
    check(name, launch(find(name), shape, arguments.data()));
    synchronize();
  }

  /// Prints the kernel's name, its time and a sum over what it left in `result`; or that this
  /// driver does not run it.
  void measure(const char* name, Shape shape, CUdeviceptr result, std::size_t floats,
               std::vector<void*> arguments) {
    const CUfunction function = find(name);
    double best = 1e9;
    for (int k = 0; k < kRepeats; ++k) {
      const double start = seconds_of(clock_);
      if (launch(function, shape, arguments.data()) != CUDA_SUCCESS) {
        std::printf("%s_%ux%u %.9f 0\n", name, shape.bx, shape.by, kNotRun);
        return;
      }
      synchronize();
      best = std::min(best, seconds_of(clock_) - start);
    }
    std::printf("%s_%ux%u %.9f %.9g\n", name, shape.bx, shape.by, best, sum_of(result, floats));
  }

  /// Wall time of an empty launch, synchronised one by one or all together.
  void measure_launch(const char* name, bool one_by_one) {
    const CUfunction function = find("empty");
    double best = 1e9;
    for (int round = 0; round < kRepeats; ++round) {
      const double start = seconds_of(CLOCK_MONOTONIC);
      for (int k = 0; k < kLaunches; ++k) {
        check("cuLaunchKernel", launch(function, {1, 1, 32, 1}, nullptr));
        if (one_by_one) synchronize();
      }
      synchronize();
      best = std::min(best, (seconds_of(CLOCK_MONOTONIC) - start) / kLaunches);
    }
    std::printf("%s %.12f 0\n", name, best);
  }

 private:
  template <class F, class... A>
  void call(const char* name, A... arguments) {
    const auto function = reinterpret_cast<F>(dlsym(library_, name));
    if (function == nullptr) die(std::string("the driver has no ") + name);
    check(name, function(arguments...));
  }
  static void check(const char* name, CUresult result) {
    // Appended: with -O2 g++ 12 takes operator+ for a copy beyond the end of a short string.
    if (result != CUDA_SUCCESS)
      die(std::string(name).append(" failed with ").append(std::to_string(result)));
  }

  CUfunction find(const char* name) {
    static const auto get =
        reinterpret_cast<decltype(&cuModuleGetFunction)>(dlsym(library_, "cuModuleGetFunction"));
    for (const CUmodule module : modules_) {
      CUfunction function = nullptr;
      if (get(&function, module, name) == CUDA_SUCCESS) return function;
    }
    die(std::string("the driver finds no kernel ") + name);
  }
  CUresult launch(CUfunction function, Shape shape, void** arguments) {
    static const auto run =
        reinterpret_cast<decltype(&cuLaunchKernel)>(dlsym(library_, "cuLaunchKernel"));
    static const auto run_together = reinterpret_cast<decltype(&cuLaunchCooperativeKernel)>(
        dlsym(library_, "cuLaunchCooperativeKernel"));
    if (shape.cooperative)
      return run_together(function, shape.gx, shape.gy, 1, shape.bx, shape.by, 1, 0, nullptr,
                          arguments);
    return run(function, shape.gx, shape.gy, 1, shape.bx, shape.by, 1, 0, nullptr, arguments,
               nullptr);
  }
  void synchronize() {
    static const auto run =
        reinterpret_cast<decltype(&cuCtxSynchronize)>(dlsym(library_, "cuCtxSynchronize"));
    check("cuCtxSynchronize", run());
  }
  double sum_of(CUdeviceptr p, std::size_t floats) {
    std::vector<float> values(floats);
    call<decltype(&cuMemcpyDtoH)>("cuMemcpyDtoH_v2", values.data(), p, floats * 4);
    // Weighted, so that values in the wrong places show.
    double sum = 0;
    for (std::size_t k = 0; k < floats; ++k) sum += values[k] * (1.0 + static_cast<double>(k % 7));
    return sum;
  }

  const clockid_t clock_;
  void* library_ = nullptr;
  std::vector<CUmodule> modules_;
  std::vector<std::vector<char>> images_;
};

/// One processor: a driver that starts as many threads as it sees processors starts one.
cpu_set_t stay_on_one_processor() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);
  return all;
}

void run_kernels(Driver& driver) {
  constexpr std::size_t kMatrix = kSize * kSize, kTable = std::size_t{kRows} * kColumns;
  CUdeviceptr x = driver.buffer(kElements), y = driver.buffer(kElements),
              m = driver.buffer(kElements), v = driver.buffer(kElements);
  CUdeviceptr a = driver.buffer(kMatrix), b = driver.buffer(kMatrix), c = driver.buffer(kMatrix);
  CUdeviceptr line = driver.buffer(kRows), z = driver.buffer(kElements);
  int n = kElements, size = kSize, rows = kRows, columns = kColumns;
  float scale = 2;
  const unsigned blocks = kElements / 256, side = kSize;
  const Driver::Shape flat{blocks, 1, 256, 1}, by_row{kRows, 1, 128, 1};
  driver.measure("saxpy", flat, y, kElements, {&n, &scale, &x, &y});
  driver.measure("gemm_naive", {side / 32, side / 8, 32, 8}, c, kMatrix, {&a, &b, &c, &size});
  driver.measure("gemm_naive", {side / 16, side / 16, 16, 16}, c, kMatrix, {&a, &b, &c, &size});
  driver.measure("gemm_tiled", {side / 16, side / 16, 16, 16}, c, kMatrix, {&a, &b, &c, &size});
  driver.measure("gemm_registers", {side / 64, side / 64, 256, 1}, c, kMatrix, {&a, &b, &c, &size});
  driver.measure("softmax", by_row, z, kTable, {&x, &z, &columns});
  driver.measure("layernorm", by_row, z, kTable, {&x, &z, &columns});
  driver.measure("cross_entropy", by_row, z, kTable, {&x, &z, &line, &columns});
  driver.measure("shuffles", {blocks / 8, 1, 256, 1}, z, kElements / 8, {&x, &z});
  driver.measure("column_sums", by_row, line, kColumns, {&x, &line, &columns});
  driver.measure("bias_gradient", {4, 1, 128, 1}, line, kColumns, {&x, &line, &rows, &columns});
  driver.measure("adam", flat, y, kElements, {&y, &x, &m, &v, &n});
  driver.measure("gelu", flat, z, kElements, {&x, &z, &n});
  driver.measure("gelu_tanh", flat, z, kElements, {&x, &z, &n});
  driver.measure("relu_gradient", flat, z, kElements, {&x, &m, &z, &n});
  int images = 4, channels = 3, image = 64, planes = 64, plane = 128;
  driver.measure("patches", {432, 1, 256, 1}, z, kElements / 4,
                 {&x, &z, &images, &channels, &image});
  driver.measure("max_pool", {blocks / 4, 1, 256, 1}, z, kElements / 4, {&x, &z, &planes, &plane});
}

/// What the language has besides (features.cu).
void run_features(Driver& driver) {
  constexpr int kFew = 1 << 16;
  constexpr std::size_t kTable = std::size_t{kRows} * kColumns;
  CUdeviceptr x = driver.buffer(kElements), y = driver.buffer(kElements),
              z = driver.buffer(kElements), cells = driver.buffer(64), wide = driver.buffer(64);
  CUdeviceptr a = driver.buffer(kElements / 2), scales = driver.buffer(kColumns),
              shifts = driver.buffer(kColumns);
  int n = kElements, few = kFew, size = 128, words = 500, columns = 256, row_columns = kColumns;
  const Driver::Shape flat{kElements / 256, 1, 256, 1}, short_flat{kFew / 256, 1, 256, 1};
  driver.run("to_half", flat, {&x, &a, &n});
  driver.measure("half_round", flat, z, kElements, {&x, &z, &n});
  driver.measure("bfloat_round", flat, z, kElements, {&x, &z, &n});
  driver.measure("half_pairs", short_flat, z, kFew * 2, {&x, &z, &few});
  driver.measure("half_gemm", {8, 16, 16, 8}, z, 128 * 128, {&a, &a, &z, &size});
  driver.measure("tensor_gemm", {8, 8, 32, 1}, z, 128 * 128, {&a, &a, &z, &size});
  driver.measure("functions", short_flat, z, kFew, {&x, &z, &few});
  driver.measure("functions_double", short_flat, z, kFew, {&x, &z, &few});
  driver.measure("functions_fast", flat, z, kElements, {&x, &z, &n});
  driver.measure("integers", flat, z, kElements, {&x, &z, &n});
  long long copied_rows = 1024, copied_columns = 512, stride = 1024;
  driver.measure("copy_rows", {2048, 1, 256, 1}, z, kTable,
                 {&x, &z, &copied_rows, &copied_columns, &stride});
  driver.measure("embedding", {4096, 1, 128, 1}, z, kElements, {&x, &z, &words, &columns});
  driver.fill(z, kElements * 4, 0);
  driver.measure("embedding_gradient", {4096, 1, 128, 1}, z, 500 * 256, {&x, &z, &words, &columns});
  driver.measure("layernorm_gradient", {kRows, 1, 128, 1}, z, kTable,
                 {&x, &y, &z, &scales, &shifts, &row_columns});
  driver.measure("dropout", flat, z, kElements, {&x, &z, &n});
  driver.measure("block_scan", {1024, 1, 128, 1}, z, 131072, {&x, &z});
  driver.measure("block_sort", {128, 1, 256, 1}, z, kFew, {&x, &z});
  driver.measure("votes", {64, 1, 256, 1}, z, 64 * 256, {&x, &z, &n});
  driver.fill(cells, 256, 0);
  driver.fill(wide, 256, 0);
  driver.fill(y, 256, 0);
  driver.measure("atomics", {64, 1, 256, 1}, y, 64, {&y, &cells, &wide, &few});
  driver.measure("grid_sync", {8, 1, 256, 1, true}, z, kFew, {&x, &y, &z, &few});
  driver.measure("tiles", short_flat, z, kFew / 16, {&x, &z});
  driver.measure("calls", short_flat, z, kFew, {&x, &z});
  driver.measure("local_array", {32, 1, 256, 1}, z, 32 * 256, {&x, &z});
}

constexpr const char* kLaunchSync = "launch+sync";
constexpr const char* kLaunchOnly = "launch";

/// `threaded`: on every processor, by the clock on the wall.
void run_child(const std::string& directory, bool threaded) {
  if (threaded) {
    Driver driver(directory, CLOCK_MONOTONIC);
    run_kernels(driver);
    return run_features(driver);
  }
  const cpu_set_t all = stay_on_one_processor();
  Driver driver(directory, CLOCK_PROCESS_CPUTIME_ID);
  run_kernels(driver);
  run_features(driver);
  sched_setaffinity(0, sizeof all, &all);
  driver.measure_launch(kLaunchSync, true);
  driver.measure_launch(kLaunchOnly, false);
}

/// What the children with one of the drivers said, round by round.
struct Series {
  std::map<std::string, std::vector<double>> seconds;
  std::map<std::string, double> sums;
  std::vector<std::string> order;
};

/// `devices` holds the device of this driver: another one may lay it out in another way. With
/// `threads` of 0 the child is measured alone on one processor.
void collect(const char* self, const std::string& directory, const std::string& devices,
             int threads, Series& series) {
  setenv("SOFTGPU_DIR", devices.c_str(), 1);
  setenv("SOFTGPU_THREADS", std::to_string(std::max(threads, 1)).c_str(), 1);
  const std::string command = "'" + std::string(self) + "' " +
                              (threads > 0 ? "--threaded-child" : "--child") + " '" + directory +
                              "'";
  FILE* out = popen(command.c_str(), "r");
  if (out == nullptr) die("cannot start a child process");
  char name[64];
  double seconds = 0, sum = 0;
  while (std::fscanf(out, "%63s %lf %lf", name, &seconds, &sum) == 3) {
    if (series.seconds.find(name) == series.seconds.end()) series.order.emplace_back(name);
    series.seconds[name].push_back(seconds);
    series.sums[name] = sum;
  }
  if (pclose(out) != 0) die("the child process with the driver of " + directory + " failed");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct Titles {
  const char *time, *ours, *theirs;
};

void print_table(const Series& ours, const Series* theirs, const Titles& titles) {
  std::printf("%-22s %10s %10s %8s %16s %9s\n", titles.time, titles.ours, titles.theirs, "speed",
              "least .. most", "fastest");
  for (const std::string& name : ours.order) {
    const bool is_launch = name == kLaunchSync || name == kLaunchOnly;
    const std::string title = is_launch ? name + ", wall us" : name;
    const double unit = is_launch ? 1e6 : 1e3;
    const std::vector<double>& mine = ours.seconds.at(name);
    std::printf("%-22s %10.3f", title.c_str(), median(mine) * unit);
    if (theirs == nullptr) {
      std::printf("\n");
      continue;
    }
    const std::vector<double>& other = theirs->seconds.at(name);
    if (other.front() == kNotRun) {
      std::printf("    not run\n");
      continue;
    }
    std::vector<double> ratios;
    for (std::size_t k = 0; k < mine.size(); ++k) ratios.push_back(other[k] / mine[k]);
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    const double sum = ours.sums.at(name), its = theirs->sums.at(name);
    const bool same = std::fabs(sum - its) <= kSameWithin * std::max(std::fabs(sum), 1e-30);
    // The fastest of all rounds of the one against that of the other: what neighbours of this
    // machine take only makes rounds slower.
    const double fastest =
        *std::min_element(other.begin(), other.end()) / *std::min_element(mine.begin(), mine.end());
    std::printf(" %10.3f %7.2fx %7.2f .. %5.2f %8.2fx%s\n", median(other) * unit, median(ratios),
                *least, *most, fastest, same ? "" : "  differs");
  }
}

struct Options {
  std::string baseline;
  int rounds = 5;
  int threads = 0;
};

int read_count(const std::string& option, const std::string& value) {
  char* end = nullptr;
  const long count = std::strtol(value.c_str(), &end, 10);
  if (end == value.c_str() || *end != '\0' || count < 1 || count > 1000)
    die(option + " takes a number from 1 to 1000, not '" + value + "'");
  return static_cast<int>(count);
}

Options read_options(int argc, char** argv) {
  Options options;
  for (int k = 1; k < argc; ++k) {
    const std::string option = argv[k];
    if (option == "--help" || option == "-h") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    const bool known = option == "--baseline" || option == "--rounds" || option == "--threads";
    if (!known) die("unknown option " + option + "; --help lists the options");
    if (k + 1 == argc) die(option + " needs a value; --help explains it");
    const std::string value = argv[++k];
    if (option == "--baseline") {
      options.baseline = value;
      if (access((value + "/libcuda.so.1").c_str(), R_OK) != 0)
        die("no libcuda.so.1 in '" + value + "': --baseline takes the directory of a driver");
    } else {
      (option == "--rounds" ? options.rounds : options.threads) = read_count(option, value);
    }
  }
  if (options.threads > 0 && !options.baseline.empty())
    die("--threads compares this build with itself; leave out --baseline");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--child") == 0) return run_child(argv[2], false), 0;
  if (argc == 3 && std::strcmp(argv[1], "--threaded-child") == 0)
    return run_child(argv[2], true), 0;
  const Options options = read_options(argc, argv);
  // Pure interpretation: no modelled pace, segments of its own.
  char directory[] = "/tmp/softgpu-bench-XXXXXX";
  if (mkdtemp(directory) == nullptr) die("cannot make a directory for the device");
  setenv("SOFTGPU_PACING", "0", 1);
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) die("cannot find myself");
  Series ours, theirs;
  const std::string here = directory + std::string("/ours");
  const bool threaded = options.threads > 0;
  for (int k = 0; k < options.rounds; ++k) {
    collect(self, DRIVER_DIR, here, options.threads, ours);
    if (threaded) collect(self, DRIVER_DIR, here, 1, theirs);
    if (!options.baseline.empty())
      collect(self, options.baseline, directory + std::string("/baseline"), 0, theirs);
  }
  if (threaded) {
    const std::string title = std::to_string(options.threads) + " threads";
    print_table(ours, &theirs, {"kernel, wall ms", title.c_str(), "one"});
  } else {
    print_table(ours, options.baseline.empty() ? nullptr : &theirs,
                {"kernel, CPU ms", "ours", options.baseline.empty() ? "" : "baseline"});
  }
  const std::string clean = std::string("rm -rf '") + directory + "'";
  return std::system(clean.c_str()) == 0 ? 0 : 1;
}

// See cublaslt.h. The library counts columns first. A row-major c = op(a) op(b) is, read so, the
// transposed c^T = op(b)^T op(a)^T: b is its first operand and a its second, and what is stored
// transposed here is stored transposed there.
#include "trainer/device/cublaslt.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>

namespace sluice::train {

namespace {

constexpr std::array<const char*, 3> kChoiceNames = {"auto", "own", "cublaslt"};
// What NVIDIA's documentation recommends for Hopper (cublasSetWorkspace); others need less.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::uint32_t kAlignmentMax = 256;  // what the library takes for granted unless told

std::uint32_t alignment_of(CUdeviceptr at) {
  const CUdeviceptr lowest = at & (~at + 1);
  return lowest == 0 || lowest > kAlignmentMax ? kAlignmentMax : static_cast<std::uint32_t>(lowest);
}

void status_check(int status, const char* what) {
  if (status != cublaslt::kSuccess)
    throw Failure(text_format("cuBLASLt: %s failed with status %d", what, status));
}

}  // namespace

const char* gemm_choice_name(GemmChoice choice) {
  return kChoiceNames[static_cast<std::size_t>(choice)];
}

std::optional<GemmChoice> gemm_choice_parse(const std::string& name) {
  for (std::size_t i = 0; i < kChoiceNames.size(); ++i) {
    if (name == kChoiceNames[i]) return static_cast<GemmChoice>(i);
  }
  return std::nullopt;
}

CublasLtFound cublaslt_open(std::initializer_list<const char*> names) {
  void* library = nullptr;
  for (const char* name : names) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) return {nullptr, dlerror()};
  auto table = std::make_unique<cublaslt::Table>();
#define SLUICE_CUBLASLT_FIND(member, function, ...)                                     \
  table->member = reinterpret_cast<decltype(table->member)>(dlsym(library, #function)); \
  if (table->member == nullptr) return {nullptr, "the library lacks " #function};
  SLUICE_CUBLASLT_CALLS(SLUICE_CUBLASLT_FIND)
#undef SLUICE_CUBLASLT_FIND
  return {table.release(), ""};  // as long as the library, which stays
}

const CublasLtFound& cublaslt_library() {
  static const CublasLtFound found = cublaslt_open({"libcublasLt.so.13", "libcublasLt.so.12"});
  return found;
}

GemmEngine gemm_engine(GemmChoice choice, bool is_software,
                       const std::function<const CublasLtFound&()>& library, std::string* note) {
  if (choice == GemmChoice::kOwn) return GemmEngine::kOwn;
  if (choice == GemmChoice::kAuto && is_software) return GemmEngine::kOwn;
  const CublasLtFound& found = library();
  if (found.table != nullptr) return GemmEngine::kCublaslt;
  if (choice == GemmChoice::kCublaslt)
    throw Failure("--gemm cublaslt: cuBLASLt cannot be used: " + found.missing);
  *note =
      "matrix products by Sluice's own kernels, which are much slower: cuBLASLt cannot be used: " +
      found.missing + "; install it, or give --gemm own";
  return GemmEngine::kOwn;
}

struct CublasLt::Plan {
  explicit Plan(const cublaslt::Table& of) : table(of) {}
  ~Plan() {
    if (desc != nullptr) table.desc_destroy(desc);
    for (const cublaslt::MatrixLayout layout : {first, second, result})
      if (layout != nullptr) table.layout_destroy(layout);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const cublaslt::Table& table;
  cublaslt::MatmulDesc desc = nullptr;
  cublaslt::MatrixLayout first = nullptr, second = nullptr, result = nullptr;
  bool usable = false;
  cublaslt::Algorithm algorithm{};
};

namespace {

/// Descriptors of a product, by the library's way to count.
template <class Plan>
void plan_describe(Plan& plan, kernels::GemmForm form, kernels::HalfFormat format,
                   const kernels::GemmShape& shape) {
  const cublaslt::Table& table = plan.table;
  const int half = format == kernels::HalfFormat::kBf16 ? cublaslt::kReal16Bf : cublaslt::kReal16F;
  const std::int32_t first =
      form == kernels::GemmForm::kNt ? cublaslt::kTransposed : cublaslt::kAsItIs;
  const std::int32_t second =
      form == kernels::GemmForm::kTn ? cublaslt::kTransposed : cublaslt::kAsItIs;
  const auto m = static_cast<std::uint64_t>(shape.m);
  const auto n = static_cast<std::uint64_t>(shape.n);
  const auto k = static_cast<std::uint64_t>(shape.k);
  const auto layout = [&](cublaslt::MatrixLayout& out, int type, std::uint64_t rows,
                          std::uint64_t columns) {
    status_check(table.layout_create(&out, type, rows, columns, static_cast<std::int64_t>(rows)),
                 "describing a matrix");
  };
  status_check(table.desc_create(&plan.desc, cublaslt::kCompute32F, cublaslt::kReal32F),
               "describing a product");
  status_check(table.desc_set(plan.desc, cublaslt::kDescTransA, &first, sizeof first),
               "transposing");
  status_check(table.desc_set(plan.desc, cublaslt::kDescTransB, &second, sizeof second),
               "transposing");
  layout(plan.first, half, first == cublaslt::kTransposed ? k : n,
         first == cublaslt::kTransposed ? n : k);
  layout(plan.second, half, second == cublaslt::kTransposed ? m : k,
         second == cublaslt::kTransposed ? k : m);
  layout(plan.result, cublaslt::kReal32F, n, m);
}

class PreferenceHolder {
 public:
  explicit PreferenceHolder(const cublaslt::Table& table) : table_(table) {
    status_check(table.preference_create(&preference_), "making a preference");
  }
  ~PreferenceHolder() { table_.preference_destroy(preference_); }
  PreferenceHolder(const PreferenceHolder&) = delete;
  PreferenceHolder& operator=(const PreferenceHolder&) = delete;

  template <class T>
  void set(int which, T value) {
    status_check(table_.preference_set(preference_, which, &value, sizeof value), "preferring");
  }
  cublaslt::Preference get() const { return preference_; }

 private:
  const cublaslt::Table& table_;
  cublaslt::Preference preference_ = nullptr;
};

}  // namespace

CublasLt::CublasLt(const CublasLtFound& found, Stream& stream)
    : table_(found.table != nullptr ? *found.table
                                    : throw Failure("cuBLASLt cannot be used: " + found.missing)),
      stream_(stream) {
  status_check(table_.create(&handle_), "starting");
  try {
    workspace_.emplace(kWorkspaceBytes);
  } catch (...) {
    table_.destroy(handle_);
    throw;
  }
}

CublasLt::~CublasLt() {
  plans_.clear();
  table_.destroy(handle_);
}

std::size_t CublasLt::version() const { return table_.version(); }

CublasLt::Plan& CublasLt::plan_of(const Key& key) {
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan) return *plan;
  auto made = std::make_unique<Plan>(table_);
  const auto& [form, format, m, n, k, left, right, result] = key;
  plan_describe(*made, static_cast<kernels::GemmForm>(form),
                static_cast<kernels::HalfFormat>(format), {m, n, k});
  PreferenceHolder preference(table_);
  preference.set(cublaslt::kPreferenceWorkspace, std::uint64_t{kWorkspaceBytes});
  const std::uint32_t alignments[] = {right, left, result, result};  // of A, B, C, D
  for (int i = 0; i < 4; ++i) preference.set(cublaslt::kPreferenceAlignmentA + i, alignments[i]);
  cublaslt::HeuristicResult best{};
  int got = 0;
  const int status = table_.heuristic(handle_, made->desc, made->first, made->second, made->result,
                                      made->result, preference.get(), 1, &best, &got);
  if (status != cublaslt::kSuccess && status != cublaslt::kNotSupported)
    status_check(status, "choosing an algorithm");
  made->usable = status == cublaslt::kSuccess && got > 0 && best.state == cublaslt::kSuccess &&
                 best.workspace_bytes <= kWorkspaceBytes;
  made->algorithm = best.algorithm;
  plan = std::move(made);
  return *plan;
}

void CublasLt::refuse(Plan& plan, const Key& key) {
  plan.usable = false;
  if (refused_++ > 0) return;
  const auto& [form, format, m, n, k, left, right, result] = key;
  std::fprintf(stderr,
               "sluice: cuBLASLt has no algorithm for a product of %d x %d x %d; such products by "
               "Sluice's own kernels\n",
               m, n, k);
}

bool CublasLt::product(kernels::GemmForm form, kernels::HalfFormat format,
                       const kernels::GemmShape& shape, CUdeviceptr a, CUdeviceptr b,
                       CUdeviceptr c) {
  const Key key{static_cast<int>(form), static_cast<int>(format), shape.m,        shape.n, shape.k,
                alignment_of(a),        alignment_of(b),          alignment_of(c)};
  Plan& plan = plan_of(key);
  const auto memory = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
  const float one = 1;
  const float zero = 0;
  const int status =
      plan.usable
          ? table_.matmul(handle_, plan.desc, &one, memory(b), plan.first, memory(a), plan.second,
                          &zero, memory(c), plan.result, memory(c), plan.result, &plan.algorithm,
                          memory(workspace_->at()), workspace_->size(), stream_.handle())
          : cublaslt::kNotSupported;
  if (status == cublaslt::kNotSupported) {
    refuse(plan, key);
    return false;
  }
  status_check(status, "a product");
  ++products_;
  return true;
}

}  // namespace sluice::train

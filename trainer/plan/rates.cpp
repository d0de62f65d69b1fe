// See rates.h.
#include "trainer/plan/rates.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "trainer/base/failure.h"

namespace sluice::train::planner {
namespace {

using Matrix = std::array<std::array<double, kAmountCount + 1>, kAmountCount>;

constexpr double kPivotMin = 1e-9;  // of a column of length 1: what is left of it by the others

/// Row reduction; a column without a pivot of its own is left out.
Amounts solve(Matrix m) {
  std::array<int, kAmountCount> pivot_row;
  pivot_row.fill(-1);
  std::size_t next = 0;
  for (std::size_t column = 0; column < kAmountCount; ++column) {
    std::size_t best = next;
    for (std::size_t row = next; row < kAmountCount; ++row)
      if (std::fabs(m[row][column]) > std::fabs(m[best][column])) best = row;
    if (next == kAmountCount || std::fabs(m[best][column]) < kPivotMin) continue;
    std::swap(m[next], m[best]);
    for (std::size_t row = 0; row < kAmountCount; ++row) {
      if (row == next) continue;
      const double factor = m[row][column] / m[next][column];
      for (std::size_t i = column; i <= kAmountCount; ++i) m[row][i] -= factor * m[next][i];
    }
    pivot_row[column] = static_cast<int>(next++);
  }
  Amounts out{};
  for (std::size_t column = 0; column < kAmountCount; ++column) {
    if (pivot_row[column] < 0) continue;
    const auto& row = m[static_cast<std::size_t>(pivot_row[column])];
    out[column] = row[kAmountCount] / row[column];
  }
  return out;
}

double dot(const Amounts& a, const Amounts& b) {
  double sum = 0;
  for (std::size_t i = 0; i < kAmountCount; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

const char* work_name(WorkKind kind) {
  if (kind == kUpload) return "upload";
  if (kind == kZero) return "zero";
  return kernels::kernel_name(static_cast<kernels::Kernel>(kind));
}

std::optional<WorkKind> work_parse(const std::string& name) {
  for (WorkKind kind = 0; kind < kWorkKinds; ++kind)
    if (name == work_name(kind)) return kind;
  return std::nullopt;
}

Amounts least_squares(std::span<const Amounts> rows) {
  // Columns of length 1, so that "nothing new" means the same for all of them.
  Amounts length{};
  for (const Amounts& row : rows)
    for (std::size_t i = 0; i < kAmountCount; ++i) length[i] += row[i] * row[i];
  for (double& one : length) one = one > 0 ? std::sqrt(one) : 1;
  Matrix normal{};
  for (const Amounts& row : rows) {
    for (std::size_t i = 0; i < kAmountCount; ++i) {
      for (std::size_t j = 0; j < kAmountCount; ++j)
        normal[i][j] += row[i] / length[i] * row[j] / length[j];
      normal[i][kAmountCount] += row[i] / length[i];
    }
  }
  Amounts out = solve(normal);
  for (std::size_t i = 0; i < kAmountCount; ++i) out[i] /= length[i];
  return out;
}

Rate rate_fit(std::span<const RateSample> samples) {
  std::vector<Amounts> rows;
  for (const RateSample& sample : samples) {
    Amounts row = sample.amounts;
    for (double& one : row) one /= std::max(sample.ns, 1.0);
    rows.push_back(row);
  }
  Rate rate;
  rate.ns = least_squares(rows);
  rate.samples = static_cast<int>(samples.size());
  for (const Amounts& row : rows)
    rate.residual = std::max(rate.residual, std::fabs(dot(rate.ns, row) - 1));
  return rate;
}

double KernelRates::width(const Work& work) const {
  return std::clamp(work.blocks, 1.0, static_cast<double>(multiprocessors));
}

double KernelRates::ns(const Work& work) const {
  const Rate& rate = rates[work.kind];
  if (rate.samples == 0) {
    throw Failure(
        text_format("the calibration does not have %s; make it anew with sluice-train "
                    "calibrate",
                    work_name(work.kind)));
  }
  const double own = std::max(0.0, dot(rate.ns, work.amounts) / width(work));
  return work.kind < kernels::kKernelCount ? launch_ns + own : own;
}

}  // namespace sluice::train::planner

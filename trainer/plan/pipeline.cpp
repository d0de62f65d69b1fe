// See pipeline.h.
#include "trainer/plan/pipeline.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace sluice::train::planner {
namespace {

constexpr double kNotYet = -1;

/// One stage's work in its order: forward of micro-batch m is m, backward is M + m.
std::vector<int> stage_order(int stage, int stages, int m) {
  const int ahead = std::min(stages - 1 - stage, m);
  std::vector<int> order;
  for (int i = 0; i < ahead; ++i) order.push_back(i);
  for (int i = 0; i + ahead < m; ++i) {
    order.push_back(ahead + i);
    order.push_back(m + i);
  }
  for (int i = m - ahead; i < m; ++i) order.push_back(m + i);
  return order;
}

}  // namespace

int pipeline_kept(int stage, int stages, int micro_batches) {
  return std::min(stages - stage, micro_batches);
}

PipelineTimes pipeline_play(const std::vector<StageTime>& stages, int micro_batches) {
  assert(!stages.empty() && micro_batches > 0);
  const auto count = stages.size();
  const auto m = static_cast<std::size_t>(micro_batches);
  std::vector<std::vector<int>> orders;
  for (std::size_t s = 0; s < count; ++s)
    orders.push_back(stage_order(static_cast<int>(s), static_cast<int>(count), micro_batches));
  // When what a stage needs for a piece of work is there.
  std::vector<std::vector<double>> ready(count, std::vector<double>(2 * m, kNotYet));
  std::fill_n(ready[0].begin(), m, 0.0);
  std::vector<std::size_t> next(count, 0);
  std::vector<double> free(count, 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < count; ++s) {
      while (next[s] < 2 * m) {
        const auto piece = static_cast<std::size_t>(orders[s][next[s]]);
        if (ready[s][piece] == kNotYet) break;
        const bool forward = piece < m;
        const StageTime& stage = stages[s];
        const bool takes = forward ? s > 0 : s + 1 < count;
        const bool gives = forward ? s + 1 < count : s > 0;
        const double begin =
            takes ? std::max(free[s] + stage.staging_ns, ready[s][piece]) + stage.copy_ns
                  : std::max(free[s], ready[s][piece]);
        const double end = begin + (forward ? stage.forward_ns : stage.backward_ns);
        const double sent = end + stage.copy_ns;
        if (forward) {
          (gives ? ready[s + 1][piece] : ready[s][m + piece]) = gives ? sent + stage.send_ns : end;
        } else if (gives) {
          ready[s - 1][piece] = sent + stages[s - 1].send_ns;
        }
        free[s] = gives ? sent + stage.staging_ns : end;
        ++next[s];
        moved = true;
      }
    }
  }
  PipelineTimes times;
  times.backward_end_ns = free;
  times.step_ns = *std::max_element(free.begin(), free.end());
  return times;
}

std::vector<std::size_t> runs_balance(const std::vector<double>& costs, int parts) {
  const std::size_t n = costs.size();
  const auto p = static_cast<std::size_t>(parts);
  assert(p >= 1 && p <= n);
  std::vector<double> sums(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  const double none = std::numeric_limits<double>::infinity();
  // best[k][i]: the dearest of k runs over the first i.
  std::vector<std::vector<double>> best(p + 1, std::vector<double>(n + 1, none));
  std::vector<std::vector<std::size_t>> cut(p + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::size_t k = 1; k <= p; ++k) {
    for (std::size_t i = k; i <= n; ++i) {
      for (std::size_t j = k - 1; j < i; ++j) {
        const double dearest = std::max(best[k - 1][j], sums[i] - sums[j]);
        if (dearest >= best[k][i]) continue;
        best[k][i] = dearest;
        cut[k][i] = j;
      }
    }
  }
  std::vector<std::size_t> bounds(p + 1, n);
  for (std::size_t k = p; k > 0; --k) bounds[k - 1] = cut[k][bounds[k]];
  return bounds;
}

}  // namespace sluice::train::planner

// See status.h.
#include "trainer/train/status.h"

#include <algorithm>
#include <cmath>

#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

/// -1 = not known.
double seconds_left(const TrainStatus& status) {
  if (status.seconds > 0) return std::max(0.0, status.seconds - status.spent_s);
  const std::uint64_t made = status.steps - std::min(status.steps, status.steps_before);
  if (made == 0 || status.steps_planned == 0) return -1;
  const std::uint64_t left = status.steps_planned - std::min(status.steps, status.steps_planned);
  return status.spent_s / static_cast<double>(made) * static_cast<double>(left);
}

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(std::max(0.0, seconds)));
  if (whole < 3600) return text_format("%lld:%02lld", whole / 60, whole % 60);
  return text_format("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::vector<std::string> status_parts(const TrainStatus& status) {
  std::vector<std::string> parts;
  std::string step = text_format("step %llu", static_cast<unsigned long long>(status.steps));
  if (status.steps_planned > 0) {
    step += text_format("/%llu", static_cast<unsigned long long>(status.steps_planned));
  }
  parts.push_back(std::move(step));
  parts.push_back(text_format("loss %.4f", status.loss));
  parts.push_back(
      status.tokens_per_sample > 0
          ? text_format("%.0f tokens/s", status.samples_per_s * status.tokens_per_sample)
          : text_format("%.0f samples/s", status.samples_per_s));
  const double left = seconds_left(status);
  if (left >= 0) parts.push_back("ETA " + duration_text(left));
  if (status.mfu >= 0) parts.push_back(text_format("MFU %.1f %%", 100 * status.mfu));
  if (status.has_ranks) parts.push_back(text_format("exposed %.0f %%", 100 * status.exposed));
  parts.push_back(text_format("stall %.0f %%", 100 * status.stall));
  return parts;
}

}  // namespace sluice::train

// How long each user has used GPUs without Sluice lately, in whatever number of processes: time in
// which several did counts once. Pure.
#pragma once

#include <cstdint>
#include <map>

namespace sluice::exporter {

class LeaverTime {
 public:
  /// Adds the time from `begin_ns` to `end_ns` for the user.
  void add(std::uint32_t uid, std::uint64_t begin_ns, std::uint64_t end_ns);
  /// Forgets what was before.
  void forget(std::uint64_t before_ns);
  /// What is remembered of the user, in sum.
  std::uint64_t of(std::uint32_t uid) const;
  /// Whether a user has `least_ns` or more, some of it after `since_ns`.
  bool is_any(std::uint64_t least_ns, std::uint64_t since_ns) const;

 private:
  /// A user's oldest are dropped beyond it.
  static constexpr std::size_t kSpansMax = 4096;
  using Spans = std::map<std::uint64_t, std::uint64_t>;  // ends by beginnings, disjoint
  std::map<std::uint32_t, Spans> users_;
};

}  // namespace sluice::exporter

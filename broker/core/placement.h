// Where a request fits: pure questions about GPUs, no change of anything. See placement.cpp.
#pragma once

#include "broker/core/state.h"

namespace sluice::core {

/// GPUs that the request may use at all, whatever is on them now (pinned, large enough, quota above
/// the context).
std::vector<std::uint32_t> placement_candidates(const State& state, const TenantAsked& ask);

/// Is there a promise of this size left on the GPU (the memory rules alone)? `returns`: a tenant
/// that has vacated the GPU and asks for it; what it has left there is its own.
bool promise_fits(const State& state, const Gpu& gpu, bool swap, Bytes memory_max, Bytes memory_min,
                  TenantId returns = 0);
/// The same for what is asked for.
inline bool promise_fits(const State& state, const Gpu& gpu, const TenantAsked& ask) {
  return promise_fits(state, gpu, ask.swap, ask.memory_max, ask.memory_min, ask.returns);
}
/// True if the GPU has all that the request needs of it, but for the share to be guaranteed.
bool lacks_only_share(const State& state, const Gpu& gpu, const TenantAsked& ask);

/// What the swappable tenant of the GPU that has least of its quota guaranteed may hold beyond
/// that; without `except`.
Bytes spread_max(const Gpu& gpu, const Tenant* except = nullptr);

struct Placement {
  std::vector<std::uint32_t> gpus;  // gpu_count of them, empty = does not fit now
  QueueReason reason = QueueReason::kNone;
};

/// True if the rule of the class prefers GPU `a` to GPU `b` for a tenant with one GPU.
bool placement_prefers(const State& state, TenantClass tenant_class, std::uint32_t a,
                       std::uint32_t b);

/// GPUs that have room for a request now.
struct Fitting {
  std::vector<std::uint32_t> gpus;  // in the order of the class's placement
  std::size_t but_for_share = 0;    // how many more there would be if shares were not guaranteed
  int least_guaranteed = -1;        // of those, the one that guarantees least; -1 = none
};

/// The first by the class's placement among the candidates that are not `kept`.
Placement placement_find(const State& state, const TenantAsked& ask, const GpuFlags& kept);

/// Answers for one request of the queue after the other: a line is long, but the kinds of requests
/// in it are few, and those of one kind get the same answers.
class Prospects {
 public:
  explicit Prospects(const State& state) : state_(state) {}

  class Kind {
   public:
    /// The first by the class's placement among the candidates that no request ahead plans to get.
    const Placement& find();
    /// Among the candidates that are not `kept`.
    Placement find_without(const GpuFlags& kept);
    /// The GPUs that a request which must wait is expected to get: those with most room (exclusive:
    /// fewest tenants).
    const std::vector<std::uint32_t>& plan();
    /// The plan among the candidates that are not `kept`. May have too few GPUs.
    std::vector<std::uint32_t> plan_without(const GpuFlags& kept);
    /// The candidate with most room, for people; -1 = none.
    int roomiest();
    /// Of the candidates that lack nothing but the share, the one that guarantees least, for
    /// people; -1 = none.
    int least_guaranteed();

   private:
    friend class Prospects;
    explicit Kind(Prospects& of, const TenantAsked& ask);
    bool fits(const TenantAsked& ask) const;
    void look();
    void fitting_look();

    Prospects* of_;
    TenantAsked ask_;  // what of it bears on where it fits
    Placement found_;
    std::uint32_t found_with_ = 0;   // planned_ of that time
    std::uint32_t looked_with_ = 0;  // admitted_ of that time
    std::vector<std::uint32_t> plan_;
    int roomiest_ = -1;
    std::uint32_t fitting_with_ = 0;  // admitted_ of that time
    std::vector<std::uint32_t> candidates_;
    Fitting fitting_;  // of them, whatever is kept
  };
  /// Valid until the next call.
  Kind& kind_of(const TenantAsked& ask);
  /// Requests ahead plan to get more than before.
  void planned_grew() { ++planned_; }
  /// Somebody was admitted: no answer holds any more.
  void changed() {
    ++planned_;
    ++admitted_;
  }

 private:
  /// What is left to promise on each GPU.
  const std::vector<Bytes>& rooms();

  const State& state_;
  std::vector<Bytes> rooms_;
  std::uint32_t rooms_with_ = 0;  // admitted_ of that time
  std::vector<Kind> kinds_;
  std::size_t oldest_ = 0;
  std::uint32_t planned_ = 1;
  std::uint32_t admitted_ = 1;
};

}  // namespace sluice::core

// The serving loop: which requests wait, which are answered together, and what becomes of each.
// Knows no GPU and no clock of its own (ServingEngine), so that it runs in tests as it runs in the
// program. One server, one batch at a time, over one or several models.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "trainer/base/clock.h"
#include "trainer/infer/arrivals.h"

namespace sluice::train {

/// One request; all times on the same clock. Without an answer the last two stay 0.
struct Request {
  std::uint32_t id = 0;  // its place in the schedule
  std::uint32_t model = 0;
  Nanos arrival_ns = 0;  // as scheduled, whatever the server was doing then
  Nanos start_ns = 0;    // its batch began
  Nanos done_ns = 0;

  Nanos latency_ns() const { return done_ns - arrival_ns; }
};

/// Dynamic batching: a model's requests are answered together as soon as there are batch_max of
/// them, or the oldest has waited for wait_ns.
struct BatchPolicy {
  std::size_t batch_max = 8;
  Nanos wait_ns = 0;          // 0 = whatever waits when the server is free
  std::size_t queue_max = 0;  // requests of all models that may wait; more are dropped; 0 = any
};

/// The requests that wait.
class BatchQueue {
 public:
  BatchQueue(std::size_t model_count, const BatchPolicy& policy)
      : policy_(policy), queues_(model_count) {}

  /// False: the queue is full, and the request is dropped.
  bool admit(const Request& request);
  /// Takes the batch that is due at `now`; of several models the one whose oldest request arrived
  /// first. Empty where none is due.
  std::vector<Request> take(Nanos now);
  /// When a batch is due if nothing else arrives; INT64_MAX when nothing waits.
  Nanos due_ns() const;
  std::size_t waiting() const { return waiting_; }
  std::vector<Request> take_all();

 private:
  Nanos due_of(const std::deque<Request>& queue) const;

  const BatchPolicy policy_;
  std::vector<std::deque<Request>> queues_;
  std::size_t waiting_ = 0;
};

/// What the loop runs on.
class ServingEngine {
 public:
  virtual ~ServingEngine() = default;
  virtual Nanos now() = 0;
  /// Returns when the clock shows `at`, or at once, with true, when asked to stop.
  virtual bool sleep_until(Nanos at) = 0;
  /// Answers a batch of one model and waits for it.
  virtual void answer(std::span<const Request> batch) = 0;
  /// These have been answered, all times filled in.
  virtual void served(std::span<const Request> batch) = 0;
  virtual void dropped(const Request& request) = 0;
};

/// What became of a schedule.
struct ServingRecord {
  std::vector<Request> served;         // in the order in which they were answered
  std::vector<Request> dropped;        // found the queue full
  std::vector<Request> unserved;       // had arrived at end_ns and have no answer
  std::vector<std::uint64_t> batches;  // [size]: how many batches of this size
  double depth_mean = 0;               // requests waiting, as an arriving one found them
  std::size_t depth_max = 0;
  Nanos end_ns = 0;
  bool stopped = false;
};

/// Serves the schedule: request i arrives at begin_ns + arrivals[i].at_ns. Ends early when asked to
/// stop, or when draining the queue takes longer than drain_ns after the last arrival.
ServingRecord schedule_serve(const std::vector<Arrival>& arrivals, Nanos begin_ns,
                             std::size_t model_count, const BatchPolicy& policy, Nanos drain_ns,
                             ServingEngine& engine);

/// Percentiles are over all requests that were not dropped; one without an answer counts with the
/// time it had waited at the end, a lower bound.
struct LatencySummary {
  std::uint64_t served = 0;
  std::uint64_t dropped = 0;  // these two miss every objective
  std::uint64_t unserved = 0;
  Nanos p50_ns = 0;
  Nanos p95_ns = 0;
  Nanos p99_ns = 0;
  Nanos p999_ns = 0;
  double attainment = 0;     // share of all requests answered within the objective
  double goodput_per_s = 0;  // requests within the objective per second

  std::uint64_t all() const { return served + dropped + unserved; }
};

inline constexpr std::int64_t kAllModels = -1;
/// Of one model, or of all; `seconds` is how long requests arrived.
LatencySummary latency_summary(const ServingRecord& record, std::int64_t model, Nanos objective_ns,
                               double seconds);

}  // namespace sluice::train

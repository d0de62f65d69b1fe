// See serving.h.
#include "trainer/infer/serving.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "trainer/job/statistics.h"

namespace sluice::train {
namespace {

constexpr Nanos kNever = std::numeric_limits<Nanos>::max();

class ServingLoop {
 public:
  ServingLoop(const std::vector<Arrival>& arrivals, Nanos begin_ns, std::size_t model_count,
              const BatchPolicy& policy, ServingEngine& engine)
      : arrivals_(arrivals), begin_ns_(begin_ns), engine_(engine), queue_(model_count, policy) {
    record_.batches.assign(policy.batch_max + 1, 0);
    record_.served.reserve(arrivals.size());
  }

  ServingRecord run(Nanos drain_ns) {
    const Nanos last_ns = begin_ns_ + (arrivals_.empty() ? 0 : arrivals_.back().at_ns);
    while (next_ < arrivals_.size() || queue_.waiting() > 0) {
      const Nanos wake_ns = std::min(next_arrival_ns(), queue_.due_ns());
      record_.stopped = engine_.sleep_until(wake_ns);
      const Nanos now = engine_.now();
      if (record_.stopped || now > last_ns + drain_ns) break;
      admit_until(now);
      batch_serve(queue_.take(now), now);
    }
    end();
    return std::move(record_);
  }

 private:
  Nanos next_arrival_ns() const {
    return next_ < arrivals_.size() ? begin_ns_ + arrivals_[next_].at_ns : kNever;
  }

  /// Requests leave the queue only when a batch begins, so that it does not matter to the bound
  /// that those which arrived during a batch are looked at after it.
  void admit_until(Nanos now) {
    for (; next_arrival_ns() <= now; ++next_) {
      Request request;
      request.id = static_cast<std::uint32_t>(next_);
      request.model = arrivals_[next_].model;
      request.arrival_ns = next_arrival_ns();
      record_.depth_max = std::max(record_.depth_max, queue_.waiting());
      depth_sum_ += static_cast<double>(queue_.waiting());
      if (queue_.admit(request)) continue;
      record_.dropped.push_back(request);
      engine_.dropped(request);
    }
  }

  void batch_serve(std::vector<Request> batch, Nanos start_ns) {
    if (batch.empty()) return;
    for (Request& request : batch) request.start_ns = start_ns;
    engine_.answer(batch);
    const Nanos done_ns = engine_.now();
    for (Request& request : batch) request.done_ns = done_ns;
    ++record_.batches[batch.size()];
    record_.served.insert(record_.served.end(), batch.begin(), batch.end());
    engine_.served(batch);
  }

  /// Asked to stop, what had not arrived yet is nobody's loss; what had is.
  void end() {
    record_.end_ns = engine_.now();
    admit_until(record_.end_ns);
    record_.unserved = queue_.take_all();
    record_.depth_mean = next_ > 0 ? depth_sum_ / static_cast<double>(next_) : 0;
  }

  const std::vector<Arrival>& arrivals_;
  const Nanos begin_ns_;
  ServingEngine& engine_;
  BatchQueue queue_;
  std::size_t next_ = 0;  // the first that has not been looked at
  double depth_sum_ = 0;
  ServingRecord record_;
};

}  // namespace

bool BatchQueue::admit(const Request& request) {
  if (policy_.queue_max > 0 && waiting_ >= policy_.queue_max) return false;
  queues_[request.model].push_back(request);
  ++waiting_;
  return true;
}

Nanos BatchQueue::due_of(const std::deque<Request>& queue) const {
  if (queue.empty()) return kNever;
  const Nanos waited = queue.front().arrival_ns + policy_.wait_ns;
  if (queue.size() < policy_.batch_max) return waited;
  return std::min(waited, queue[policy_.batch_max - 1].arrival_ns);
}

Nanos BatchQueue::due_ns() const {
  Nanos due = kNever;
  for (const auto& queue : queues_) due = std::min(due, due_of(queue));
  return due;
}

std::vector<Request> BatchQueue::take(Nanos now) {
  std::deque<Request>* oldest = nullptr;
  for (auto& queue : queues_) {
    if (due_of(queue) > now) continue;
    if (oldest == nullptr || queue.front().arrival_ns < oldest->front().arrival_ns) {
      oldest = &queue;
    }
  }
  if (oldest == nullptr) return {};
  const auto count = static_cast<std::ptrdiff_t>(std::min(oldest->size(), policy_.batch_max));
  std::vector<Request> batch(oldest->begin(), oldest->begin() + count);
  oldest->erase(oldest->begin(), oldest->begin() + count);
  waiting_ -= batch.size();
  return batch;
}

std::vector<Request> BatchQueue::take_all() {
  std::vector<Request> all;
  for (auto& queue : queues_) {
    all.insert(all.end(), queue.begin(), queue.end());
    queue.clear();
  }
  waiting_ = 0;
  return all;
}

ServingRecord schedule_serve(const std::vector<Arrival>& arrivals, Nanos begin_ns,
                             std::size_t model_count, const BatchPolicy& policy, Nanos drain_ns,
                             ServingEngine& engine) {
  assert(policy.batch_max > 0 && model_count > 0);
  return ServingLoop(arrivals, begin_ns, model_count, policy, engine).run(drain_ns);
}

LatencySummary latency_summary(const ServingRecord& record, std::int64_t model, Nanos objective_ns,
                               double seconds) {
  LatencySummary out;
  const auto counts = [&](const Request& request) {
    return model == kAllModels || request.model == static_cast<std::uint32_t>(model);
  };
  std::vector<Nanos> latencies;
  std::uint64_t in_time = 0;
  for (const Request& request : record.served) {
    if (!counts(request)) continue;
    ++out.served;
    latencies.push_back(request.latency_ns());
    in_time += request.latency_ns() <= objective_ns ? 1 : 0;
  }
  for (const Request& request : record.unserved) {
    if (!counts(request)) continue;
    ++out.unserved;
    latencies.push_back(record.end_ns - request.arrival_ns);
  }
  out.dropped = static_cast<std::uint64_t>(
      std::count_if(record.dropped.begin(), record.dropped.end(), counts));
  out.p50_ns = percentile(latencies, 50);
  out.p95_ns = percentile(latencies, 95);
  out.p99_ns = percentile(latencies, 99);
  out.p999_ns = percentile(latencies, 99.9);
  const std::uint64_t all = out.all();
  out.attainment = all > 0 ? static_cast<double>(in_time) / static_cast<double>(all) : 0;
  out.goodput_per_s = seconds > 0 ? static_cast<double>(in_time) / seconds : 0;
  return out;
}

}  // namespace sluice::train

// See reduction.h.
#include "trainer/train/reduction.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice::train {

void PlainReduction::reduce(Stream& stream, const Bucket& bucket) {
  comm_.all_reduce(stream, gradients_ + bucket.begin * sizeof(float), bucket.count);
}

Nanos PlainReduction::link_ns(const Bucket& bucket) const {
  return comm_.link_ns(Operation::kAllReduce, bucket.count * sizeof(float));
}

double PlainReduction::bus_bytes(const Bucket& bucket) const {
  return static_cast<double>(bucket.count * sizeof(float)) * 2 * (rank_count_ - 1) / rank_count_;
}

GradientReducer::GradientReducer(Communicator& comm, BucketReduction& reduction, Stream& compute,
                                 std::span<const Bucket> buckets, bool overlaps)
    : comm_(comm),
      reduction_(reduction),
      compute_(compute),
      buckets_(buckets),
      overlaps_(overlaps),
      modelled_(compute.device().is_software()),
      collectives_(compute.device()),
      link_(compute.device()),
      slots_(buckets.size()),
      worker_([this] { worker_run(); }) {}

GradientReducer::~GradientReducer() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

void GradientReducer::ready(std::size_t begin) {
  if (!overlaps_) return;
  for (; posted_ < buckets_.size() && buckets_[posted_].begin >= begin; ++posted_) {
    slots_[posted_].ready.record(compute_);
    post(posted_, slots_[posted_].ready);
  }
}

void GradientReducer::post(std::size_t number, const Event& after) {
  if (modelled_) {
    Slot& slot = slots_[number];
    link_.wait(after);
    link_.link_delay(reduction_.link_ns(buckets_[number]));
    slot.end.record(link_);
  }
  const std::lock_guard lock(mutex_);
  work_.emplace_back(number, &after);
  changed_.notify_all();
}

ReductionTimes GradientReducer::finish() {
  backward_end_.record(compute_);
  for (; posted_ < buckets_.size(); ++posted_) post(posted_, backward_end_);
  posted_ = 0;
  backward_end_.synchronize();
  const Nanos begin = now_ns();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || (work_.empty() && !busy_); });
    if (failure_) std::rethrow_exception(failure_);
  }
  (modelled_ ? link_ : collectives_).synchronize();
  if (!slots_.empty()) compute_.wait(slots_.back().end);
  return times(now_ns() - begin);
}

ReductionTimes GradientReducer::times(Nanos wall_ns) const {
  ReductionTimes out;
  out.wall_ns = wall_ns;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    out.collective_ns +=
        modelled_ ? reduction_.link_ns(buckets_[i]) : slots_[i].end.since(slots_[i].begin);
  }
  if (!slots_.empty()) out.exposed_ns = std::max<Nanos>(0, slots_.back().end.since(backward_end_));
  return out;
}

std::vector<GradientReducer::Span> GradientReducer::spans(const Event& origin) const {
  std::vector<Span> out;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Nanos end = slots_[i].end.since(origin);
    out.push_back(
        {modelled_ ? end - reduction_.link_ns(buckets_[i]) : slots_[i].begin.since(origin), end});
  }
  return out;
}

void GradientReducer::worker_run() {
  try {
    compute_.device().enter();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !work_.empty(); });
      if (ends_) return;
      const auto [number, after] = work_.front();
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      collectives_.wait(*after);
      reduce(number);
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

void GradientReducer::reduce(std::size_t number) {
  Slot& slot = slots_[number];
  if (!modelled_) slot.begin.record(collectives_);
  comm_.link_charge(false);
  reduction_.reduce(collectives_, buckets_[number]);
  comm_.link_charge(true);
  if (!modelled_) slot.end.record(collectives_);
}

}  // namespace sluice::train

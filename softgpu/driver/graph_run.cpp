// See graph_run.h.
#include "softgpu/driver/graph_run.h"

#include <algorithm>

namespace softgpu::driver {
namespace {

/// Branches of one launch that overlap on a device; more take turns.
constexpr std::size_t kLanesMax = 8;
/// A context may end at any time: whoever waits looks this often.
constexpr std::chrono::milliseconds kLook{10};

/// A moment that has passed.
class MomentOp : public Op {
 public:
  MomentOp(const StreamRef& of, double when_ns) : Op(By::kAnyone) {
    stream = of;
    finish_ns = when_ns;
    state = kDone;
  }
  void run(Stream&) override {}
  void drop() override {}
};

/// Its context is being destroyed.
bool over(const GraphSegment& segment) {
  const ContextRef context = segment.context.lock();
  return segment.context_id != 0 && (context == nullptr || context->stop);
}

template <typename Visit>
void events_each(const GraphPlan& plan, Visit visit) {
  if (!plan.events) return;
  for (const GraphSegment& segment : plan.segments)
    for (const Command& task : segment.tasks) visit(task);
}

}  // namespace

class GraphRun::LaunchOp : public Op {
 public:
  LaunchOp(std::shared_ptr<GraphRun> run, By who) : Op(who), run_(std::move(run)) {}
  void run(Stream& on) override { run_->execute(on, *this); }
  void drop() override { run_.reset(); }

 private:
  std::shared_ptr<GraphRun> run_;
};

GraphRun::GraphRun(GraphPlanRef plan, const UserReferences& objects)
    : plan_(std::move(plan)), objects_(objects) {
  events_each(*plan_, [this](const Command& command) {
    if (const auto* wait = std::get_if<WaitCommand>(&command))
      awaited_[wait->event.get()] = wait->event->op();
  });
}

GraphRun::~GraphRun() { plan_->memory.launch_end(); }

/// Nothing in it needs more than the stream itself.
bool GraphRun::direct(const Stream& stream) const {
  return plan_->plain &&
         (plan_->segments[0].context_id == 0 || plan_->segments[0].context_id == stream.owner().id);
}

OpRef GraphRun::submit(const StreamRef& stream, const OpRef& after) {
  const std::lock_guard lock(mutex_);  // the body begins when all is said
  op_ = std::make_shared<LaunchOp>(shared_from_this(),
                                   direct(*stream) ? Op::By::kAnyone : Op::By::kWorker);
  stream->submit(op_, {after});
  events_each(*plan_, [this](const Command& command) {
    const auto* record = std::get_if<RecordCommand>(&command);
    if (record == nullptr) return;
    record->event->record(op_);
    recorded_[record->event.get()] = op_;
  });
  return op_;
}

void GraphRun::execute(Stream& stream, Op& op) {
  const std::vector<GraphSegment>& segments = plan_->segments;
  if (direct(stream)) {
    for (const Command& task : segments[0].tasks) task_run(task, stream, op);
    return;
  }
  const double start = std::max(op.floor_ns, stream.work_drain());
  {
    const std::lock_guard lock(mutex_);
    origin_ = &stream;
    start_ns_ = end_ns_ = start;
    left_ = segments.size();
    progress_.resize(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) {
      progress_[i].waits = segments[i].waits;
      if (segments[i].waits == 0) ready_.push_back(i);
    }
    lanes_[stream.owner().id].count = 1;
    lanes_grow_locked(stream.owner().id);
  }
  work(stream, op);
  const std::lock_guard lock(mutex_);
  op.floor_ns = std::max(op.floor_ns, end_ns_);
  left_ = 0;  // also when the context has ended: the lanes leave
  changed_.notify_all();
  for (const StreamRef& lane : borrowed_) lane_give(lane);
  borrowed_.clear();
  op_.reset();
  recorded_.clear();
}

GraphRun::ContextId GraphRun::context_of(const GraphSegment& segment) const {
  return segment.context_id != 0 ? segment.context_id : origin_->owner().id;
}

void GraphRun::work(Stream& lane, Op& op) {
  const ContextId own = lane.owner().id;
  std::unique_lock lock(mutex_);
  while (left_ > 0 && !lane.owner().stop) {
    const auto number = pick_locked(lane);
    if (number) {
      lock.unlock();
      segment_run(*number, lane, op);
      const double drained = lane.work_drain();
      lock.lock();
      segment_done_locked(*number, std::max(op.floor_ns, drained), own);
      continue;
    }
    ++lanes_[own].idle;
    changed_.wait_for(lock, kLook);
    --lanes_[own].idle;
  }
}

std::optional<std::size_t> GraphRun::pick_locked(const Stream& lane) {
  const auto mine = [&](std::size_t number) {
    const GraphSegment& segment = plan_->segments[number];
    const ContextId wanted = context_of(segment);
    if (wanted == lane.owner().id) return true;
    // What nobody else will do.
    const Lanes& lanes = lanes_[wanted];
    return &lane == origin_ && (over(segment) || (lanes.refused && lanes.count == 0));
  };
  const auto found = std::find_if(ready_.begin(), ready_.end(), mine);
  if (found == ready_.end()) return std::nullopt;
  const std::size_t number = *found;
  ready_.erase(found);
  return number;
}

/// As many lanes as there are ready segments that nobody is free to take; the caller, a lane of the
/// context `own`, takes one itself.
void GraphRun::lanes_grow_locked(ContextId own) {
  std::map<ContextId, std::size_t> wanted;
  std::map<ContextId, ContextRef> contexts;
  for (const std::size_t number : ready_) {
    const GraphSegment& segment = plan_->segments[number];
    const ContextId id = context_of(segment);
    ++wanted[id];
    contexts[id] = segment.context_id == 0 ? origin_->context() : segment.context.lock();
  }
  for (const auto& [id, count] : wanted) {
    Lanes& lanes = lanes_[id];
    std::size_t free = lanes.idle + (id == own ? 1 : 0);
    for (; free < count && lanes.count < kLanesMax && !lanes.refused; ++free) {
      const StreamRef lane =
          contexts[id] == nullptr ? nullptr : lane_take(contexts[id], origin_->priority);
      lanes.refused = lane == nullptr;
      if (lane == nullptr) break;
      ++lanes.count;
      ++lanes.idle;  // until it has begun
      borrowed_.push_back(lane);
      lane->submit([self = shared_from_this()](Stream& on, Op& op) {
        {
          const std::lock_guard lock(self->mutex_);
          --self->lanes_[on.owner().id].idle;
        }
        self->work(on, op);
      });
    }
  }
}

void GraphRun::segment_run(std::size_t number, Stream& lane, Op& op) {
  const GraphSegment& segment = plan_->segments[number];
  op.floor_ns = std::max(start_ns_, progress_[number].floor_ns);
  if (over(segment)) return;
  for (const Command& task : segment.tasks) task_run(task, lane, op);
}

void GraphRun::segment_done_locked(std::size_t number, double finish_ns, ContextId own) {
  end_ns_ = std::max(end_ns_, finish_ns);
  --left_;
  for (const std::size_t next : plan_->segments[number].next) {
    Progress& progress = progress_[next];
    progress.floor_ns = std::max(progress.floor_ns, finish_ns);
    if (--progress.waits == 0) ready_.push_back(next);
  }
  if (!ready_.empty()) lanes_grow_locked(own);
  changed_.notify_all();
}

void GraphRun::task_run(const Command& task, Stream& lane, Op& op) {
  if (const auto* record = std::get_if<RecordCommand>(&task)) {
    event_mark(record->event, op.floor_ns);
    return;
  }
  const auto* wait = std::get_if<WaitCommand>(&task);
  if (wait == nullptr) {
    command_run(task, lane, op);
    return;
  }
  const OpRef& awaited = awaited_[wait->event.get()];
  (void)Stream::wait(awaited);
  if (awaited != nullptr) op.floor_ns = std::max(op.floor_ns, awaited->finish_ns);
}

/// The event stands for a moment that has passed, unless somebody has recorded it meanwhile.
void GraphRun::event_mark(const EventRef& event, double finish_ns) {
  const std::lock_guard lock(mutex_);
  if (op_ == nullptr) return;
  const auto moment = std::make_shared<MomentOp>(op_->stream, finish_ns);
  if (event->record_after(recorded_[event.get()], moment)) recorded_[event.get()] = moment;
}

}  // namespace softgpu::driver

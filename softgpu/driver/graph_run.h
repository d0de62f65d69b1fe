// One launch of an instance. The worker of the stream that launches and, where the graph branches,
// workers of other streams (lanes) take segments as they become ready, so that branches overlap on
// the device. Within the stream the launch is one operation.
#pragma once

#include "softgpu/driver/event.h"
#include "softgpu/driver/graph_plan.h"

namespace softgpu::driver {

class GraphRun : public std::enable_shared_from_this<GraphRun> {
 public:
  /// At the call, with memory prepared: what the event nodes wait for is what the events stand for
  /// now. `objects` stay until the launch has executed.
  GraphRun(GraphPlanRef plan, const UserReferences& objects);
  ~GraphRun();
  /// Events that the graph records stand for the whole launch from now on, until the moment in it
  /// is known.
  OpRef submit(const StreamRef& stream, const OpRef& after);

 private:
  struct Progress {
    std::size_t waits = 0;
    double floor_ns = 0;  // modelled end of what it waited for
  };
  struct Lanes {
    std::size_t count = 0, idle = 0;
    bool refused = false;  // there is no queue left: the launching stream takes its work
  };
  class LaunchOp;
  /// Lanes are of contexts, by their ids.
  using ContextId = std::uint64_t;
  bool direct(const Stream& stream) const;
  void execute(Stream& stream, Op& op);
  void work(Stream& lane, Op& op);
  std::optional<std::size_t> pick_locked(const Stream& lane);
  void lanes_grow_locked(ContextId own);
  void segment_run(std::size_t number, Stream& lane, Op& op);
  void segment_done_locked(std::size_t number, double finish_ns, ContextId own);
  void task_run(const Command& task, Stream& lane, Op& op);
  void event_mark(const EventRef& event, double finish_ns);
  ContextId context_of(const GraphSegment& segment) const;

  const GraphPlanRef plan_;
  const UserReferences objects_;
  const ImageHold images_;
  std::map<const Event*, OpRef> awaited_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  OpRef op_;
  Stream* origin_ = nullptr;
  std::map<const Event*, OpRef> recorded_;  // what this run made each event stand for
  std::map<ContextId, Lanes> lanes_;
  std::vector<StreamRef> borrowed_;
  std::vector<Progress> progress_;
  std::deque<std::size_t> ready_;
  std::size_t left_ = 0;
  double start_ns_ = 0, end_ns_ = 0;
};

/// Streams that no program knows, lent to runs one at a time. nullptr: the device has no queue
/// left.
StreamRef lane_take(const ContextRef& context, int priority);
void lane_give(const StreamRef& lane);

}  // namespace softgpu::driver

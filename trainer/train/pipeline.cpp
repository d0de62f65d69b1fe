// See pipeline.h.
#include "trainer/train/pipeline.h"

namespace sluice::train {
namespace {

/// A Nanos at the end of a message.
constexpr std::size_t kStampFloats = sizeof(Nanos) / sizeof(float);

}  // namespace

Pipeline::Pipeline(Communicator& comm, Stream& stream, Network& network, int stage, int stage_count)
    : comm_(comm),
      stream_(stream),
      network_(network),
      stage_(stage),
      stage_count_(stage_count),
      modelled_(stream.device().is_software()),
      out_(floats(network.batch_max()) + kStampFloats),
      in_(out_.size()) {
  // The modelled link's time begins when a message is sent, not when it is asked for: it is counted
  // in message_take().
  comm_.link_charge(!modelled_);
}

int Pipeline::giver_of(Way way) const {
  if (way == Way::kForward) return is_first() ? -1 : stage_ - 1;
  return is_last() ? -1 : stage_ + 1;
}

int Pipeline::taker_of(Way way) const {
  return giver_of(way == Way::kForward ? Way::kBackward : Way::kForward);
}

/// This stream's time since the step began; waits.
Nanos Pipeline::now() {
  now_.record(stream_);
  now_.synchronize();
  stream_.peers_awaited();
  return now_.since(begin_);
}

void Pipeline::message_put(Way way, int count) {
  const Network::Boundary at = network_.boundary();
  stream_.copy(out_.at(), way == Way::kForward ? at.out : at.in_gradient,
               floats(count) * sizeof(float));
  if (!modelled_) return;
  const Nanos sent = now();
  stream_.upload(out_.at(floats(count)), &sent, sizeof sent);
  stream_.synchronize();
  stream_.peers_awaited();
}

void Pipeline::message_take(Way way, int count) {
  if (modelled_) {
    Nanos sent = 0;
    stream_.download(&sent, in_.at(floats(count)), sizeof sent);
    const Nanos here = now();
    const Nanos there =
        sent + comm_.link_ns(Operation::kPointToPoint, floats(count) * sizeof(float));
    stream_.link_delay(there - here);
  }
  const Network::Boundary at = network_.boundary();
  stream_.copy(way == Way::kForward ? at.in : at.out_gradient, in_.at(),
               floats(count) * sizeof(float));
}

void Pipeline::exchange(const PipelineOp* done, const PipelineOp* next,
                        const std::function<int(int micro)>& count) {
  const int to = done ? taker_of(done->way) : -1;
  const int from = next ? giver_of(next->way) : -1;
  if (to < 0 && from < 0) return;
  const std::size_t stamp = modelled_ ? kStampFloats : 0;
  if (to >= 0) message_put(done->way, count(done->micro));
  if (modelled_) {  // this stage's own work is no wait
    stream_.synchronize();
    stream_.peers_awaited();
  }
  const Nanos begin = now_ns();
  comm_.group_begin();
  if (to >= 0)
    comm_.send(stream_, out_.at(), floats(count(done->micro)) + stamp, DataType::kFloat32, to);
  if (from >= 0)
    comm_.receive(stream_, in_.at(), floats(count(next->micro)) + stamp, DataType::kFloat32, from);
  comm_.group_end();
  wall_ns_ += now_ns() - begin;
}

void Pipeline::step(const Work& work) {
  begin_.record(stream_);
  waits_used_ = 0;
  wall_ns_ = 0;
  const auto wait_note = [&] {
    if (waits_.size() == waits_used_) waits_.push_back(std::make_unique<Event>());
    waits_[waits_used_++]->record(stream_);
  };
  const std::size_t slots =
      static_cast<std::size_t>(pipeline_slots(stage_, stage_count_, work.micro_count));
  const auto slot_use = [&](const PipelineOp& op) {
    network_.slot_use(static_cast<std::size_t>(op.micro) % slots);
  };
  const std::vector<PipelineOp> ops = pipeline_schedule(stage_, stage_count_, work.micro_count);
  const PipelineOp* done = nullptr;
  for (const PipelineOp& op : ops) {
    wait_note();
    exchange(done, &op, work.count);
    slot_use(op);
    if (giver_of(op.way) >= 0) message_take(op.way, work.count(op.micro));
    wait_note();
    (op.way == Way::kForward ? work.forward : work.backward)(op.micro);
    done = &op;
  }
  end_.record(stream_);
  exchange(done, nullptr, work.count);
  network_.slot_use(0);
}

PipelineTimes Pipeline::times() {
  end_.synchronize();
  PipelineTimes out;
  out.busy_ns = out.end_ns = end_.since(begin_);
  for (std::size_t i = 0; i < waits_used_; i += 2) out.busy_ns -= waits_[i + 1]->since(*waits_[i]);
  out.wall_ns = modelled_ ? wall_ns_ : out.wait_ns();
  return out;
}

void Pipeline::forward(int count, const std::function<void()>& forward) {
  const PipelineOp op{Way::kForward, 0};
  const auto samples = [count](int) { return count; };
  begin_.record(stream_);
  exchange(nullptr, &op, samples);
  if (giver_of(op.way) >= 0) message_take(op.way, count);
  forward();
  exchange(&op, nullptr, samples);
}

}  // namespace sluice::train

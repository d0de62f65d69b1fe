// See nodes.h.
#include "trainer/train/nodes.h"

#include <unistd.h>

#include <bit>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/base/failure.h"
#include "trainer/comm/rendezvous_wire.h"
#include "trainer/comm/store.h"
#include "trainer/job/stop.h"

namespace sluice::train {
namespace {

constexpr Nanos kNodeLookGap = 20 * kNanosPerMilli;
// A launcher that was itself stopped for longer than this begins to listen anew.
constexpr Nanos kNodePauseMax = kNanosPerSecond;
constexpr std::size_t kNodeUnsentMax = 1 << 20;

std::uint8_t note_type(Note note) { return static_cast<std::uint8_t>(note); }

double patience_of(const TrainOptions& options) {
  const double asked = options.faults.heartbeat_timeout_s;
  return asked > 0 ? asked : kHeartbeatUsual_s;
}

/// What others need of a rank's line, in the order in which it is read: first what says that all
/// after it is there (so many fields), then the figures. Written the other way round.
constexpr int kFlagFields = 4;

template <class Visit>
void line_visit(RankLine& line, Visit visit) {
  visit(line.finished);
  visit(line.stopped);
  visit(line.trains_in);
  visit(line.train_samples);
  visit(line.test_samples);
  visit(line.steps);
  visit(line.own_steps);
  visit(line.samples);
  visit(line.compute_median_ns);
  visit(line.pipeline_busy_ns);
  visit(line.pipeline_span_ns);
  visit(line.peak_flops);
}

/// The ranks of this machine will wait there for the others.
void address_check(const std::string& address) {
  try {
    close(tcp_listen({address, "0"}));
  } catch (const Failure&) {
    throw Failure("--address " + address + " is no address of this machine");
  }
}

std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }
template <class Whole>
std::uint64_t bits_of(Whole value) {
  return static_cast<std::uint64_t>(value);
}
template <class Value>
Value value_of(std::uint64_t bits) {
  if constexpr (std::is_same_v<Value, double>) return std::bit_cast<double>(bits);
  return static_cast<Value>(bits);
}

}  // namespace

Nodes::Nodes(const TrainOptions& options, int own_count, const GpusSeen& gpus)
    : options_(options), own_count_(own_count), at_(*host_port_parse(options.nodes.rendezvous)) {
  meet(gpus);
}

Nodes::~Nodes() = default;

void Nodes::meet(const GpusSeen& gpus) {
  const NodeOptions& nodes = options_.nodes;
  if (!nodes.address.empty()) address_check(nodes.address);
  // Before there are threads, which must not be those that a signal ends.
  StopSignal stop;
  const std::string job = nodes.job + text_format("ranks of a node %d\nranks speak by %s\n",
                                                  own_count_, gpus.nccl ? "nccl" : "gloo");
  if (nodes.node == 0) {
    serves_ = std::make_unique<Rendezvous>(
        Rendezvous::Setup{at_, nodes.count, job, nodes.wait_s, patience_of(options_)});
  }
  const Nanos deadline = now_ns() + nanos_of_seconds(nodes.wait_s);
  const auto stopped = [&] {
    if (stop.asked()) throw Failure("asked to stop before all nodes had come");
    return false;
  };
  try {
    socket_ =
        std::make_unique<FrameSocket>(tcp_connect(at_, deadline, stopped), kRendezvousBodyMax);
  } catch (const Failure& failure) {
    throw Failure(text_format("%s; does node 0 run, and is it there? (--rendezvous-timeout %g)",
                              failure.what(), nodes.wait_s));
  }
  socket_->push(note_type(Note::kNodeHello),
                BodyWriter()
                    .text(kRendezvousMagic)
                    .number(kRendezvousVersion)
                    .number(static_cast<std::uint64_t>(nodes.node))
                    .number(static_cast<std::uint64_t>(nodes.count))
                    .text(job)
                    .number(gpus.nccl && own_count_ > gpus.count ? 1 : 0)
                    .body());
  // The rendezvous says itself when somebody has not come; it may have begun to wait later.
  heard_ns_ = now_ns();
  for (;;) {
    socket_->pump();
    const auto frame = socket_->next();
    if (!frame) {
      stopped();
      if (!socket_->broken().empty())
        throw Failure("lost the rendezvous at " + at_.text() + ": " + socket_->broken());
      if (now_ns() - heard_ns_ > nanos_of_seconds(patience_of(options_)))
        throw Failure("no word from " + at_.text() + "; is it a rendezvous of sluice-train?");
      sleep_until(now_ns() + kNodeLookGap);
      continue;
    }
    heard_ns_ = now_ns();
    BodyReader body(frame->body);
    if (frame->type == note_type(Note::kRefused)) {
      const std::string why = body.text();
      const bool late = why.rfind("the job did not begin", 0) == 0;
      throw Failure(late ? why : "the rendezvous at " + at_.text() + " refused this node: " + why);
    }
    if (frame->type != note_type(Note::kWelcome)) continue;
    const std::string token = body.text();
    const bool shares = body.number() != 0;
    const std::string address = nodes.address.empty() ? address_here(socket_->fd()) : nodes.address;
    place_ = NetworkPlace{at_, token, address, shares, ""}.text();
    break;
  }
  looked_ns_ = now_ns();
}

void Nodes::lines_send(BoardMap& board) {
  if (socket_->unsent() > kNodeUnsentMax) return;
  BodyWriter body;
  body.number(static_cast<std::uint64_t>(first_rank()))
      .number(static_cast<std::uint64_t>(own_count_));
  for (int rank = first_rank(); rank < first_rank() + own_count_; ++rank) {
    line_visit(board.line(rank), [&](auto& field) { body.number(bits_of(field.load())); });
  }
  socket_->push(note_type(Note::kLines), body.body());
}

void Nodes::lines_take(const std::string& text, BoardMap& board) {
  BodyReader body(text);
  const std::uint64_t first = body.number();
  const std::uint64_t count = body.number();
  if (first >= kRanksMax || count > kRanksMax - first) return;
  for (auto rank = static_cast<int>(first); rank < static_cast<int>(first + count); ++rank) {
    const bool own = rank >= first_rank() && rank < first_rank() + own_count_;
    std::vector<std::uint64_t> bits;
    line_visit(board.line(rank), [&](auto&) { bits.push_back(body.number()); });
    if (own || !body.good()) continue;
    for (const bool flags : {false, true}) {
      int at = 0;
      line_visit(board.line(rank), [&](auto& field) {
        using Value = decltype(field.load());
        const bool is_flag = at < kFlagFields;
        if (is_flag == flags) field = value_of<Value>(bits[static_cast<std::size_t>(at)]);
        ++at;
      });
    }
  }
}

void Nodes::lost_say(const std::string& how) {
  if (trouble_.empty()) trouble_ = "the rendezvous at " + at_.text() + " (node 0) " + how;
}

void Nodes::hear(const Frame& frame, BoardMap& board) {
  BodyReader body(frame.body);
  switch (static_cast<Note>(frame.type)) {
    case Note::kLines:
      return lines_take(frame.body, board);
    case Note::kTrouble:
      if (trouble_.empty()) trouble_ = body.text();
      return;
    case Note::kVerdict:
      verdict_ = body.number() == 1 ? 1 : 0;
      return;
    default:
      return;
  }
}

void Nodes::exchange(BoardMap& board) {
  if (verdict_ >= 0) return;
  lines_send(board);
  socket_->pump();
  const Nanos now = now_ns();
  if (now - looked_ns_ > kNodePauseMax) heard_ns_ = now;
  looked_ns_ = now;
  while (const auto frame = socket_->next()) {
    heard_ns_ = now;
    hear(*frame, board);
    socket_->pump();
  }
  if (verdict_ >= 0) return;
  if (!socket_->broken().empty()) lost_say("was lost: " + socket_->broken());
  const double patience = patience_of(options_);
  if (now - heard_ns_ > nanos_of_seconds(patience)) {
    lost_say(text_format("has given no sign of life for %g s (--heartbeat-timeout)", patience));
  }
}

void Nodes::report(const std::string& text) {
  if (!std::exchange(reported_, true))
    socket_->push(note_type(Note::kTrouble), BodyWriter().text(text).body());
}

bool Nodes::finish(BoardMap& board, bool ok, Nanos limit) {
  exchange(board);  // the last that these ranks have written
  socket_->push(note_type(Note::kDone), BodyWriter().number(ok ? 1 : 0).body());
  const Nanos deadline = now_ns() + limit;
  while (verdict_ < 0 && trouble_.empty() && (ok || now_ns() < deadline)) {
    sleep_until(now_ns() + kNodeLookGap);
    exchange(board);
  }
  return verdict_ == 1;
}

}  // namespace sluice::train

// See connection.h.
#include "interpose/connection.h"

#include "interpose/alone.h"
#include "interpose/gate.h"
#include "interpose/link.h"
#include "interpose/say.h"
#include "interpose/swap.h"

namespace sluice::interpose {
namespace {

using protocol::kTenantGpusMax;

constexpr uint64_t kAliveLookNs = 50'000'000;
constexpr uint64_t kGraceNs =
    2'000'000'000;  // without a broker, before the process goes on by itself
// A broker says that it lives four times a second; one that has not for so long hangs.
constexpr uint64_t kHeartbeatMaxNs = 5'000'000'000;
constexpr uint64_t kPendingLookNs = 20'000'000;  // whether a registration was answered
constexpr uint64_t kReconnectMinNs = 100'000'000;
constexpr uint64_t kReconnectMaxNs = 5'000'000'000;
constexpr uint64_t kRoomAskNs = 1'000'000'000;
// How long the helper waits for calls that change the account, before it looks at the rest again
// and waits for longer: a free may wait for a kernel.
constexpr uint64_t kPatienceMinNs = 20'000'000;
constexpr uint64_t kPatienceMaxNs = 320'000'000;

bool connected;
uint64_t lost_ns;
uint64_t reconnect_ns = kReconnectMinNs;
uint64_t reconnect_at_ns;
uint64_t alive_looked_ns;
uint64_t beat_seen_ns;     // by the broker's clock, and
uint64_t beat_changed_ns;  // when that was first seen, by this process's
bool refusal_said;
bool asks_for_broker;
bool pending;     // a registration is under way
bool adopting;    // it was answered, and the pages wait for memory that is out or for calls
int room_wanted;  // the GPU that had no room for that memory
uint64_t room_asked_ns;
uint64_t patience_ns = kPatienceMinNs;
bool lost_acted;  // the grace is over
bool pages_changed;
const uint32_t* stops;  // not 0 once the process is exiting

// A broker that was started anew knows no tenant of the one before it. The program has done nothing
// wrong and must not stop for that; but its user should know that no broker counts it any more.
void refusal_say_once() {
  const bool lost = lost_acted && load_acquire(process.lost) != 0;
  if (refusal_said || process_mode() != Mode::kActive || policy().missing == MissingBroker::kHold ||
      !(lost || load_acquire(process.alone) != 0)) {
    return;
  }
  refusal_said = true;
  Line line;
  line.text("the broker went away and the one now at ").text(link_path());
  line.text(" does not take this program: ").text(link_refusal());
  line.text(policy().missing == MissingBroker::kOpen
                ? ". It goes on with the memory limit it had, and its launches wait for nobody."
                : ". It goes on under the limits it had, which it keeps by itself.");
  line.say();
}

// Brings back what is in host memory, without an order: there is no broker to give one, or one that
// knows nothing of it. The holds still stop the program. False: not all of it is back yet.
bool memory_bring_back() {
  if (swap_bytes_out() == 0) return true;
  for (uint32_t i = 0; i < process.gpu_count; ++i) {
    const int gpu = static_cast<int>(i);
    if (swap_in(gpu, stops).result != CUDA_SUCCESS) room_wanted = gpu;
  }
  return swap_bytes_out() == 0;
}

void patience_grow() {
  if (patience_ns < kPatienceMaxNs) patience_ns *= 2;
}

void reconnect_later(uint64_t now_ns) {
  reconnect_at_ns = now_ns + reconnect_ns;
  if (reconnect_ns < kReconnectMaxNs) reconnect_ns *= 2;
}

void adopt() {
  if (!process_adopt_pages(link_slot(), patience_ns)) {
    patience_grow();
    return;
  }
  patience_ns = kPatienceMinNs;
  gate_adopted();
  pages_changed = true;
  adopting = false;
  connected = true;
  beat_seen_ns = 0;
  lost_ns = 0;
  lost_acted = false;
  reconnect_ns = kReconnectMinNs;
  refusal_said = false;
}

// Whether the pages hold the program from the start, as a broker's do that knows of its memory:
// then it is for that broker to order it back.
bool pages_hold(const protocol::LeasePage& page) {
  const uint32_t count = page.gpu_count < kTenantGpusMax ? page.gpu_count : kTenantGpusMax;
  for (uint32_t i = 0; i < count; ++i) {
    if ((page.gpus[i].hold.load() & protocol::kHoldSet) == 0 ||
        (page.gpus[i].lease.load() & protocol::kLeaseOpen) != 0) {
      return false;
    }
  }
  return true;
}

// Asks for room on a GPU, which the new pages may number otherwise.
void room_ask(const protocol::LeasePage& page, int gpu) {
  const uint64_t bytes = swap_bytes_out(gpu);
  for (uint32_t i = 0; i < kTenantGpusMax; ++i) {
    if (page.gpus[i].gpu == process.entry(gpu).gpu) {
      (void)link_memory_want(i, page.gpus[i].room.load(), bytes);
      return;
    }
  }
}

// A broker has taken the process back, whose memory may be out. If nothing in the new pages would
// keep the program from it, they wait until it is back; others may have to make room.
void adopt_look(uint64_t now_ns) {
  protocol::LeasePage page;
  if (!link_alive() || !link_pages_read(&page)) {
    adopting = false;
    link_pages_drop();
    reconnect_later(now_ns);
  } else if (swap_bytes_out() == 0 || pages_hold(page) || memory_bring_back()) {
    adopt();
  } else if (now_ns - room_asked_ns >= kRoomAskNs) {
    room_asked_ns = now_ns;
    room_ask(page, room_wanted);
  }
}

void reconnect(uint64_t now_ns) {
  if (adopting) {
    adopt_look(now_ns);
    return;
  }
  if (!pending && now_ns < reconnect_at_ns) return;
  const LinkResult result = link_register_step();
  pending = result == LinkResult::kPending;
  if (pending) return;
  if (result == LinkResult::kRefused) refusal_say_once();
  if (result == LinkResult::kRegistered) {
    adopting = true;
    adopt_look(now_ns);
    return;
  }
  reconnect_later(now_ns);
}

void hold_say() {
  const uint64_t hold_ns = policy().hold_ns;
  Line line;
  line.text("the broker at ").text(link_path()).text(" went away; launches wait for one");
  if (hold_ns != 0) line.text(", at most ").number(hold_ns / 1'000'000'000).text(" s");
  line.text(" (missing_broker = hold in ").text(policy_path()).text(")");
  line.say();
}

void hold_end_say() {
  Line line;
  line.text("no broker has come back within ").number(policy().hold_ns / 1'000'000'000);
  line.text(" s; launches fail until one does (start sluiced)");
  line.say();
}

// What becomes of a program whose broker has been gone for longer than its grace.
void lost_act(uint64_t lost_for_ns) {
  if (!lost_acted) {
    store_release(process.lost, 1u);
    const bool waits = policy().missing == MissingBroker::kHold;
    // The gates do not open before the memory is back.
    if (!waits && !memory_bring_back()) return;
    lost_acted = waits ? process_hold() : process_detach();
    if (lost_acted && waits) hold_say();
    pages_changed = lost_acted;
    return;
  }
  if (policy().missing == MissingBroker::kHold && policy().hold_ns != 0 &&
      lost_for_ns >= kGraceNs + policy().hold_ns && load_acquire(process.lost_refuse) == 0) {
    process_refuse(true);
    hold_end_say();
  }
}

// A broker that hangs keeps its socket open. Its clock need not be this process's, for there are
// time namespaces, and this process may have been stopped: what counts is for how long nothing new
// was heard of it.
bool heartbeat_is_fresh(uint64_t now_ns) {
  const uint64_t beat_ns = process.lease->heartbeat_ns.load();
  if (beat_ns == 0 || beat_ns != beat_seen_ns) {
    beat_seen_ns = beat_ns;
    beat_changed_ns = now_ns;
  }
  return now_ns - beat_changed_ns < kHeartbeatMaxNs;
}

void look(uint64_t now_ns) {
  if (!asks_for_broker) return;
  if (connected && now_ns - alive_looked_ns >= kAliveLookNs) {
    alive_looked_ns = now_ns;
    connected = link_alive() && heartbeat_is_fresh(now_ns);
    if (!connected) {
      link_close();
      lost_ns = now_ns;
      reconnect_at_ns = now_ns;
    }
  }
  if (connected) return;
  reconnect(now_ns);
  if (connected || process_mode() != Mode::kActive || load_acquire(process.alone) != 0) return;
  if (now_ns - lost_ns >= kGraceNs) lost_act(now_ns - lost_ns);
}

}  // namespace

void connection_begin(bool is_up, bool asks, const uint32_t* stopping) {
  connected = is_up;
  asks_for_broker = asks;
  stops = stopping;
  lost_ns = clock_now_ns();
}

bool connection_look(uint64_t now_ns) {
  pages_changed = false;
  look(now_ns);
  return pages_changed;
}

bool connection_is_up() { return connected; }

uint64_t connection_wait_max_ns(uint64_t otherwise_ns) {
  if (pending) return kPendingLookNs;
  return connected || !asks_for_broker ? otherwise_ns : kAliveLookNs;
}

void connection_reset_after_fork() {
  connected = false;
  reconnect_ns = kReconnectMinNs;
  reconnect_at_ns = alive_looked_ns = beat_seen_ns = 0;
  refusal_said = pending = lost_acted = adopting = false;
}

}  // namespace sluice::interpose

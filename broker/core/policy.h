// The interface between the lease scheduler and the rules that order contended GPU time, one small
// file per rule:
//
//   band.cpp    the latency band: inference first, as far as its guaranteed share and a bounded
//   burst reach budget.cpp  fixed shares: a token budget that caps them even on an idle GPU
//   and, as Policy::order says, one of
//   fair.cpp         weighted fairness by measured GPU time
//   round_robin.cpp  one turn each, whatever the percentages
//   fifo.cpp         first come, first served, bursts whole
//
// The scheduler knows nothing of weights or credits: it asks the rules in this order who goes
// first, who may run at all, who cuts a running lease short and when somebody's right ends. A new
// rule (spatial partitions, deadlines) is one more file and one more entry in policy.cpp. Rules
// keep their numbers in Share and Gpu and hold no state of their own, so that another order can be
// chosen while leases are open.
#pragma once

#include <array>

#include "broker/core/state.h"

namespace sluice::core {

/// GPU time that a share has overrun and not paid back, and how long the clock takes to pay it.
struct Debt {
  Nanos ns = 0;
  Nanos paid_in = 0;
};

/// The most GPU time that a share is remembered to owe. Fifteen times what a runaway can overrun by
/// the default (Policy::runaway_after_ns), so that none of it is forgiven. It is bounded because
/// under `report` a kernel of a night would else lock its tenant out for days.
inline constexpr double kDebtMostNs = 60e9;

class SharePolicy {
 public:
  virtual ~SharePolicy() = default;
  virtual const char* name() const = 0;

  /// It is in force from now on, and another one was before: nobody owes anybody anything.
  virtual void chosen(const Policy&, Gpu&, Nanos /*now*/) const {}

  /// Time has come to `now`, before anything else happens at that time.
  virtual void time_passed(const Policy&, Gpu&, Nanos /*now*/) const {}
  /// The share begins to want the GPU (or may run again after a cap).
  virtual void share_woke(const Policy&, const Gpu&, Share&, Nanos /*now*/) const {}
  /// The holder was idle while others waited and gives the GPU back before its time.
  virtual void share_gave_back(Share&) const {}
  /// GPU time was charged; negative = an earlier charge was too high.
  virtual void share_charged(const Policy&, Gpu&, Share&, double /*ns*/) const {}
  /// It used `ns` of GPU time after its lease was closed, beyond what an ordinary drain takes.
  virtual void share_overran(const Policy&, const Gpu&, Share&, double /*ns*/,
                             Nanos /*now*/) const {}
  /// GPU time that it has overrun and not paid back. `owe` adds to it what another tenant left.
  virtual double owed(const Policy&, const Gpu&, Share&, Nanos /*now*/) const { return 0; }
  virtual void owe(const Policy&, const Gpu&, Share&, double /*ns*/, Nanos /*now*/) const {}
  /// The part of the clock's time that pays it back.
  virtual double repays(const Policy&, const Gpu&, const Share&, Nanos /*now*/) const { return 1; }
  /// May it be opened now? (Not: is it its turn.)
  virtual bool may_run(const Policy&, const Gpu&, Share&, Nanos /*now*/) const { return true; }
  /// When may_run can become true for a share for which it is false.
  virtual Nanos may_run_at(const Policy&, const Gpu&, const Share&, Nanos /*now*/) const {
    return kNever;
  }
  /// Until when an open share may run if it keeps the GPU busy all the time.
  virtual Nanos run_until(const Policy&, Share&, Nanos /*now*/) const { return kNever; }
  /// Does it cap anybody (may_run, may_run_at, run_until)? Does it order (rank)? Rules that do not
  /// are not asked: these questions are put for every waiting share.
  virtual bool caps() const { return false; }
  virtual bool orders() const { return false; }
  /// Lower goes first; the next rule decides among equals. Of a waiting share the order rule's may
  /// change only when it is charged or wakes, or another order is chosen; the others
  /// know no more of a share than its lane, and of inference: if the first of its lane is not
  /// served by the latency band, none is (line.h).
  virtual double rank(const Policy&, const Gpu&, const Share&) const { return 0; }
  /// Is the waiting share to cut the holder's lease short at once?
  virtual bool preempts(const Gpu&, const Share& /*waiting*/, const Share& /*holder*/) const {
    return false;
  }
};

void policies_chosen(const Policy&, Gpu&, Nanos now);
void policies_time_passed(const Policy&, Gpu&, Nanos now);
void policies_woke(const Policy&, const Gpu&, Share&, Nanos now);
void policies_gave_back(const Policy&, Share&);
void policies_charge(const Policy&, Gpu&, Share&, double ns);
void policies_overran(const Policy&, const Gpu&, Share&, double ns, Nanos now);
double policies_owed(const Policy&, const Gpu&, Share&, Nanos now);
void policies_owe(const Policy&, const Gpu&, Share&, double ns, Nanos now);
/// As of `now`; changes nothing.
Debt policies_debt(const Policy&, const Gpu&, const Share&, Nanos now);
bool policies_may_run(const Policy&, const Gpu&, Share&, Nanos now);
Nanos policies_may_run_at(const Policy&, const Gpu&, const Share&, Nanos now);
Nanos policies_run_until(const Policy&, Share&, Nanos now);
/// Where a share stands by the rules that order; compare with <.
using Rank = std::array<double, 2>;
Rank policies_rank(const Policy&, const Gpu&, const Share&);
/// Where it stands among the waiting shares of its lane: the order rule's word.
double policies_key(const Policy&, const Gpu&, const Share&);
bool policies_before(const Policy&, const Gpu&, const Share& a, const Share& b);
bool policies_preempt(const Policy&, const Gpu&, const Share& waiting, const Share& holder);

const SharePolicy& latency_band();
const SharePolicy& fixed_budget();
const SharePolicy& weighted_fair();
const SharePolicy& round_robin();
const SharePolicy& first_come();

/// Is this share served by the latency band now?
bool band_serves(const Gpu&, const Share&);
/// Share of the GPU's time that the inference shares are guaranteed against those active now.
double band_guarantee(const Gpu&);
/// The least virtual time with which the share can begin now.
double fair_begins(const Policy&, const Gpu&, const Share&);
/// How far before the GPU's virtual time a share of this weight is at most when it wakes.
double fair_lead(const Policy&, double weight);
/// Moves the GPU's virtual time up to the slowest of those that compete now.
void fair_clock_advance(Gpu&, double slowest_vtime);

}  // namespace sluice::core

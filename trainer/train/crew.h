// The rank processes of a job, for its launcher: starts them, notices at once when one ends (pidfd)
// and soon when one gives no sign of life (heartbeat.h), and, with --elastic, leads the others to
// the next epoch of membership (membership.h), with replacements where they are asked for.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "trainer/job/log.h"
#include "trainer/train/meeting.h"
#include "trainer/train/membership.h"
#include "trainer/train/plan.h"

namespace sluice::train {

class Crew {
 public:
  struct Setup {
    const TrainOptions& options;
    const TrainPlan& plan;
    std::vector<std::string> arguments;  // of this process
    int own_begin;                       // the first that this launcher starts
    int own_count;                       // and how many; the others are started by somebody else
    std::vector<int> inherited_fds;      // that the ranks keep open
    Meeting& meeting;
    JobLog& log;
    std::function<void(const std::string&)> say;
  };
  explicit Crew(Setup setup);
  /// Ends all of them.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void start();
  /// Waits until a rank ends, at most until `until`, then looks after all of them. True while ranks
  /// run. What is wrong is said on stderr.
  bool look(Nanos until);
  void signal_all(int signal);
  /// From here on nobody is replaced, and nothing more is said of ranks that end.
  void give_up() { gave_up_ = true; }

  /// A rank was lost and the job cannot go on; it is only left to end the others.
  bool failed() const { return failed_; }
  /// And the cause has been said.
  bool cause_said() const { return !cause_.empty(); }
  /// What was said of it: "rank 1 of 2 (pid 7) ended with status 1". Empty = nothing.
  const std::string& cause() const { return cause_; }
  /// Slots of the present ranks, by rank.
  const std::vector<int>& members() const { return membership_.members(); }
  /// They have found each other.
  bool have_met() const { return membership_.trains(); }

 private:
  struct Process {
    pid_t pid = -1;  // -1 = reaped, or not ours
    int fd = -1;     // pidfd
    int status = 0;
    bool was_silent = false;  // and killed for it
    bool hung = false;        // it ran, but did not come forward

    bool running() const { return pid > 0; }
  };
  /// A change of membership that is under way.
  struct Change {
    Nanos detected_ns = 0;  // 0 = none is
    Nanos silence_ns = 0;   // the lost rank's last sign of life, before that
    std::string lost;       // "1" or "1,2": slots
    std::string how;
    std::uint64_t steps = 0;  // were done when it happened
    std::uint64_t from = 0;   // the newest state has so many of them
    int replacements = 0;     // started
    bool formed = false;
  };

  void process_start(int slot, bool joins);
  void reap();
  void ended(int slot, pid_t pid);
  /// Whether this slot has a rank that must give signs of life, and until when.
  bool is_heard(std::size_t slot) const;
  Nanos due_ns(std::size_t slot) const;
  Nanos earliest_due_ns() const;
  void hearts_listen(Nanos now);
  double patience_s() const;
  bool is_elastic() const { return setup_.options.faults.is_elastic(); }
  void change_begin(const std::string& how);
  void loss_note(int slot, const std::string& how);
  void replacements_start();
  void change_lead(Nanos now);
  void next_epoch(const std::vector<int>& present);
  void change_log(Nanos now);
  void fail(const std::string& text);

  const Setup setup_;
  BoardMap& board_;
  Membership membership_;
  std::vector<Process> processes_;  // by slot
  Change change_;
  Nanos looked_ns_ = 0;
  Nanos listen_from_ns_ = 0;    // signs of life older than this are nobody's fault
  std::uint64_t furthest_ = 0;  // steps at the latest change
  int fruitless_ = 0;           // changes since a step was new
  bool failed_ = false;
  std::string cause_;
  bool gave_up_ = false;
};

}  // namespace sluice::train

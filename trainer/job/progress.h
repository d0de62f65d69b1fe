// One line about a running job: rewritten in place on a terminal, a plain line every few seconds
// elsewhere, nothing when quiet. Results and plans are whole lines; they too are left out when
// quiet.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/base/clock.h"

namespace sluice::train {

/// As many of the parts, the first ones first, as fit into `columns` with commas between them; of a
/// first part that is too long, its beginning.
std::string line_fit(const std::vector<std::string>& parts, std::size_t columns);

class Progress {
 public:
  /// Off a terminal a state is a line every `plain_gap`, and the first one only after that.
  explicit Progress(bool quiet, Nanos plain_gap = 5 * kNanosPerSecond);
  ~Progress() { line_end(); }

  /// A lasting line.
  void say(const std::string& text);
  /// The current state; shown when it is time to. A terminal gets what fits into its width.
  void show(const std::vector<std::string>& parts);
  void show(const std::string& text) { show(std::vector{text}); }

 private:
  void line_end();

  bool quiet_;
  bool terminal_;
  Nanos plain_gap_;
  bool open_ = false;  // the terminal's last line is unfinished
  Nanos next_ns_ = 0;
};

}  // namespace sluice::train

// One line about a running job: rewritten in place on a terminal, a plain line every few seconds
// elsewhere, nothing when quiet. Results and plans are whole lines; they too are left out when
// quiet.
#pragma once

#include <string>

#include "trainer/base/clock.h"

namespace sluice::train {

class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress() { line_end(); }

  /// A lasting line.
  void say(const std::string& text);
  /// The current state; shown when it is time to.
  void show(const std::string& text);

 private:
  void line_end();

  bool quiet_;
  bool terminal_;
  bool open_ = false;  // the terminal's last line is unfinished
  Nanos next_ns_ = 0;
};

}  // namespace sluice::train

// The progress line: what it says, what fits, and how it looks on a terminal and off it. And the
// two sides of MFU.
#include "trainer/train/status.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "trainer/job/progress.h"
#include "trainer/train/flops.h"

namespace sluice::train {
namespace {

TEST(Status, SaysWhatIsKnown) {
  TrainStatus status;
  status.steps = 50;
  status.steps_planned = 200;
  status.loss = 1.25;
  status.samples_per_s = 640;
  status.spent_s = 10;
  status.exposed = 0.124;
  status.stall = 0.031;
  using Parts = std::vector<std::string>;
  EXPECT_EQ(status_parts(status),
            (Parts{"step 50/200", "loss 1.2500", "640 samples/s", "ETA 0:30", "stall 3 %"}));
  status.has_ranks = true;
  status.tokens_per_sample = 64;
  status.mfu = 0.413;
  EXPECT_EQ(status_parts(status), (Parts{"step 50/200", "loss 1.2500", "40960 tokens/s", "ETA 0:30",
                                         "MFU 41.3 %", "exposed 12 %", "stall 3 %"}));
  status.steps_planned = 0;
  EXPECT_EQ(status_parts(status)[0], "step 50");
  EXPECT_EQ(status_parts(status)[3], "MFU 41.3 %");  // nobody knows the end
  status.seconds = 3700;
  EXPECT_EQ(status_parts(status)[3], "ETA 1:01:30");
  status.spent_s = 4000;
  EXPECT_EQ(status_parts(status)[3], "ETA 0:00");
}

TEST(Status, ALineHasTheFirstPartsThatFit) {
  const std::vector<std::string> parts = {"step 12", "loss 0.5", "a long one that fills it"};
  EXPECT_EQ(line_fit(parts, 1000), "step 12, loss 0.5, a long one that fills it");
  EXPECT_EQ(line_fit(parts, 43), line_fit(parts, 1000));
  EXPECT_EQ(line_fit(parts, 42), "step 12, loss 0.5");
  EXPECT_EQ(line_fit(parts, 16), "step 12");
  EXPECT_EQ(line_fit(parts, 4), "step");
  EXPECT_EQ(line_fit({}, 4), "");
}

/// What a process writes to a terminal of so many columns, or (0) to a pipe.
std::string written(int columns, const std::function<void()>& work) {
  int from = -1, to = -1;
  if (columns > 0) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    EXPECT_EQ(openpty(&from, &to, nullptr, nullptr, &size), 0);
  } else {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    from = ends[0];
    to = ends[1];
  }
  const pid_t child = fork();
  if (child == 0) {
    dup2(to, STDOUT_FILENO);
    work();
    _exit(0);
  }
  close(to);
  std::string text;
  char buffer[4096];
  // A terminal whose other end is gone says EIO.
  for (ssize_t got; (got = read(from, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  close(from);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return text;
}

void two_states() {
  Progress progress(false, 1);
  progress.say("plan");
  sleep_until(now_ns() + kNanosPerMilli);
  progress.show({"step 1", "loss 2", "ETA 0:10"});
  sleep_until(now_ns() + 250 * kNanosPerMilli);
  progress.show({"step 2", "loss 1", "ETA 0:05"});
  progress.say("done");
}

TEST(Progress, OnATerminalOneLineIsRewrittenAndFitsIt) {
  EXPECT_EQ(
      written(80, two_states),
      "plan\r\n\r\033[Kstep 1, loss 2, ETA 0:10\r\033[Kstep 2, loss 1, ETA 0:05\r\033[Kdone\r\n");
  // 16 columns, of which the last stays free, are just too few for all.
  EXPECT_EQ(written(16, two_states),
            "plan\r\n\r\033[Kstep 1, loss 2\r\033[Kstep 2, loss 1\r\033[Kdone\r\n");
}

TEST(Progress, OffATerminalStatesArePlainLines) {
  EXPECT_EQ(written(0, two_states),
            "plan\nstep 1, loss 2, ETA 0:10\nstep 2, loss 1, ETA 0:05\ndone\n");
  EXPECT_EQ(written(0,
                    [] {
                      Progress progress(false);
                      progress.show("too early");
                      Progress(true, 1).say("quiet");
                    }),
            "");
}

TEST(Flops, AreThoseOfTheUsualCounts) {
  EXPECT_EQ(sample_flops(mlp_shape({128})), 6.0 * (784 * 128 + 128 * 10));
  EXPECT_EQ(sample_flops(cnn_shape({8, 16}, {128})),
            6.0 * (784 * 9 * 8 + 196 * 72 * 16 + 784 * 128 + 128 * 10));
  // GPT-2 small, whose 124,439,808 parameters make 6 N + 12 L C T = 0.86 GFLOP a token.
  const GptShape small{50257, 1024, 768, 12, 12};
  ASSERT_EQ(small.parameter_count(), 124'439'808u);
  EXPECT_EQ(sample_flops(small), 1024 * 859'885'056.0);
}

}  // namespace
}  // namespace sluice::train

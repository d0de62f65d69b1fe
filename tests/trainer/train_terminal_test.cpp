// sluice-train on a terminal: its progress line is rewritten in place and never wider than that.
#include <pty.h>

#include "tests/trainer/train_fixture.h"

namespace sluice::tests {
namespace {

/// What the program writes to a terminal of so many columns.
std::string terminal_text(const std::vector<std::string>& command, int columns) {
  std::vector<std::string> words = command;
  words[0] = program_path(words[0]);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  int master = -1;
  const pid_t child = forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) {
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(master, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  close(master);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << text;
  return text;
}

/// The states that were shown in place.
std::vector<std::string> states(const std::string& text) {
  const std::string begin = "\r\033[K";
  std::vector<std::string> out;
  for (std::size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const std::size_t from = at + begin.size();
    const std::string state = text.substr(from, text.find_first_of("\r\n", from) - from);
    if (state.starts_with("step ")) out.push_back(state);
  }
  return out;
}

TEST_F(TrainProgramTest, OnATerminalTheProgressLineFitsItsWidth) {
  const std::vector<std::string> command = {
      "sluice-train", "--data", "synthetic",      "--nproc", "2", "--hidden", "8", "--batch", "8",
      "--steps",      "8",      "--eval-samples", "0"};
  const auto wide = states(terminal_text(command, 200));
  ASSERT_FALSE(wide.empty());
  for (const char* what : {"/8, loss ", " samples/s, ETA ", ", exposed ", ", stall "}) {
    EXPECT_NE(wide[0].find(what), std::string::npos) << wide[0];
  }
  // A software GPU does not say what it models.
  EXPECT_EQ(wide[0].find("MFU"), std::string::npos) << wide[0];
  const auto narrow = states(terminal_text(command, 30));
  ASSERT_FALSE(narrow.empty());
  for (const std::string& state : narrow) {
    EXPECT_LE(state.size(), 29u) << state;
    EXPECT_NE(state.find(", loss "), std::string::npos) << state;
  }
}

}  // namespace
}  // namespace sluice::tests

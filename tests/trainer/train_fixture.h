// Runs sluice-train as a process, each run with a log and a file of weights of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/trainer/device_fixture.h"
#include "tests/trainer/process.h"
#include "trainer/model/weights.h"

namespace sluice::tests {

class TrainProgramTest : public testing::Test {
 protected:
  void SetUp() override { SLUICE_NEEDS_DRIVER(); }

  /// Runs sluice-train to its end and expects success; on synthetic data, unless told otherwise.
  void train(std::vector<std::string> more, const std::string& name) {
    std::vector<std::string> command = {"sluice-train", "--log", log(name), "--save",
                                        weights(name)};
    for (const auto& [option, value] : {std::pair{"--data", "synthetic"}, {"--hidden", "24"}}) {
      const bool text = std::find(more.begin(), more.end(), "gpt") != more.end();
      if (text && std::string(option) == "--hidden") continue;
      if (std::find(more.begin(), more.end(), option) == more.end())
        more.insert(more.end(), {option, value});
    }
    command.insert(command.end(), more.begin(), more.end());
    Child child(command, scratch_);
    ASSERT_EQ(child.wait(kPatience), 0) << child.err();
    EXPECT_EQ(child.err(), "");
    out_ = child.out();
  }
  std::string log(const std::string& name) const { return scratch_.file(name + ".jsonl"); }
  std::string weights(const std::string& name) const { return scratch_.file(name + ".weights"); }

  /// max |a - b| / max |a|
  double distance(const std::string& one, const std::string& other) const {
    const Floats a = sluice::train::weights_load(weights(one)).values;
    const Floats b = sluice::train::weights_load(weights(other)).values;
    EXPECT_EQ(a.size(), b.size());
    double apart = 0;
    double size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      apart = std::max(apart, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
      size = std::max(size, std::fabs(static_cast<double>(a[i])));
    }
    return apart / size;
  }

  ScratchDirectory scratch_;
  std::string out_;
};

}  // namespace sluice::tests

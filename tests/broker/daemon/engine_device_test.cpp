// What the engine asks the devices, by way of a helper of the test's own making.
#include <poll.h>
#include <sys/stat.h>

#include <filesystem>

#include "engine_fixture.h"

namespace sluice::daemon {
namespace {

class EngineDevice : public EngineTest {
 protected:
  EngineDevice() {
    char name[] = "/tmp/sluice-engine-XXXXXX";
    root = mkdtemp(name);
    setup.gpus[0].uuid.bytes[15] = 1;
    setup.probe = root + "/probe";
    // Writes questions down as they come, and says what a file "answer" has once there is one.
    std::ofstream(setup.probe) << "#!/bin/sh\ncd " << root
                               << "\n(while kill -0 $$; do\n"
                                  "  if [ -e answer ]; then cat answer; rm answer; fi\n"
                                  "  sleep 0.01\ndone) 2> /dev/null < /dev/null &\n"
                                  "while read -r question; do echo x >> questions; done\n";
    chmod(setup.probe.c_str(), 0700);
  }
  ~EngineDevice() override { std::filesystem::remove_all(root); }

  int questions() const {
    std::ifstream file(root + "/questions");
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  void answer(const std::string& text) {
    std::ofstream(root + "/answer.new") << text << "\n";
    std::filesystem::rename(root + "/answer.new", root + "/answer");
  }
  /// Beats until so many questions have come.
  bool asked(Engine& engine, int number) {
    for (int i = 0; i < 1000 && questions() < number; ++i) {
      engine.heartbeat();
      loop.turn(10);
    }
    return questions() == number;
  }

  static constexpr char kGpu[] = "GPU-00000000-0000-0000-0000-000000000001";
  std::string root;
};

// A driver that takes long is not asked again: the next answer would be taken for that to the
// later question.
TEST_F(EngineDevice, IsAskedAgainAfterItsAnswerAndNotBefore) {
  log_keep();
  Engine engine(loop, log, outbox, slow, setup);
  ASSERT_TRUE(asked(engine, 1));
  for (const std::int64_t over_ns = clock_ns() + 1'200'000'000; clock_ns() < over_ns;) {
    engine.heartbeat();
    loop.turn(20);
  }
  EXPECT_EQ(questions(), 1);
  answer("used " + std::string(kGpu) + " 5 -");
  ASSERT_TRUE(asked(engine, 2)) << questions();
  EXPECT_EQ(logged("device_used"), 1);
  answer("unknown " + std::string(kGpu));
  ASSERT_TRUE(asked(engine, 3)) << "where it does not say, it is asked again";
  EXPECT_EQ(logged("device_used"), 1);
}

}  // namespace
}  // namespace sluice::daemon
